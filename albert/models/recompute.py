"""Computing a part of the network again in the backward pass, in place of keeping it (Chen et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf


def recomputed(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
  """function(x); of what it computes x alone is kept for the gradient.

  tf.recompute_grad is meant to do this. But the compiler of TPUs sees through what makes its second computation wait
  for the gradient (a boolean compared with itself), finds that it is the first one again, and keeps all of that.

  Args:
    function: of x and of variables; given the same x it must compute the same.
    x: floating point.
  """

  @tf.custom_gradient
  def run(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., object]]:
    def gradient(
      upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
    ) -> tuple[tf.Tensor, list[tf.Tensor | None]] | tf.Tensor:
      with tf.GradientTape() as tape:
        again = x + tf.cast(_zero_of(upstream), x.dtype)
        tape.watch(again)
        y = function(again)
      wrt_x, *wrt_variables = tape.gradient(y, [again, *variables], output_gradients=upstream)
      return (wrt_x, wrt_variables) if variables else wrt_x

    return function(x), gradient

  return run(x)


def _zero_of(x: tf.Tensor) -> tf.Tensor:
  """0, or NaN if x[0, ..., 0] is NaN: known when x is, and not before."""
  first = tf.reduce_max(tf.reshape(x, [-1])[:1])  # of no elements: the smallest number there is
  return tf.minimum(tf.abs(tf.cast(first, tf.float32)), 0.0)
