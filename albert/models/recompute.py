"""Computing a part of the network again in the backward pass, in place of keeping it (Chen et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Recomputation:
  """Runs the blocks of one forward pass. Of what a block computes, what goes into it alone is kept for the gradient.

  tf.recompute_grad is meant to do this. But the compiler of TPUs sees through what makes its second computation wait
  for the gradient (a boolean compared with itself), finds that it is the first one again, and keeps all of that.

  Blocks that share weights add their gradients to those of the blocks before, one after the other. Left to itself,
  TensorFlow keeps them all and adds them at the end: L times the memory of the weights for L layers, 9 GiB for
  albert_xxlarge.
  """

  def __init__(self) -> None:
    self._first_blocks: dict[Any, object] = {}
    self._sums: dict[Any, tf.Tensor] = {}

  def run(self, function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """function(x), one block.

    Args:
      function: of x and of variables; given the same x it must compute the same.
      x: floating point, what the block before this one returned.
    """
    block = object()

    @tf.custom_gradient
    def run(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., object]]:
      with tf.GradientTape() as first:
        y = function(x)
      for variable in first.watched_variables():
        self._first_blocks.setdefault(variable.ref(), block)

      def gradient(
        upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
      ) -> tuple[tf.Tensor, list[tf.Tensor | None]] | tf.Tensor:
        with tf.GradientTape() as tape:
          again = x + tf.cast(_zero_of(upstream), x.dtype)
          tape.watch(again)
          y = function(again)
        wrt_x, *wrt_variables = tape.gradient(y, [again, *variables], output_gradients=upstream)
        if not variables:
          return wrt_x
        return wrt_x, [self._add(*pair, block, wrt_x) for pair in zip(variables, wrt_variables, strict=True)]

      return y, gradient

    return run(x)

  def _add(self, variable: tf.Variable, gradient: tf.Tensor, block: object, wrt_x: tf.Tensor) -> tf.Tensor | None:
    """The sum over all blocks, in the first block, which the backward pass comes to last; None in the others."""
    key = variable.ref()
    if key in self._sums:
      # Sums with nothing to wait for are put together again when the graph is optimized, into one of all blocks.
      with tf.control_dependencies([wrt_x]):
        gradient = self._sums.pop(key) + gradient
    if self._first_blocks[key] is block:
      return gradient
    self._sums[key] = gradient
    return None


def _zero_of(x: tf.Tensor) -> tf.Tensor:
  """0, or NaN if x[0, ..., 0] is NaN: known when x is, and not before."""
  first = tf.reduce_max(tf.reshape(x, [-1])[:1])  # of no elements: the smallest number there is
  return tf.minimum(tf.abs(tf.cast(first, tf.float32)), 0.0)
