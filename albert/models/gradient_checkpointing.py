"""Gradient checkpointing: recomputing parts of the network in the backward pass (Chen et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class GradientCheckpointing:
  """Runs the blocks of one forward pass. Only each block's input is stored for the backward pass.

  A block is computed twice: in the forward pass, and again in the backward pass. A compiler must not merge the two
  computations, or it stores the results of the first one. TensorFlow's own tf.recompute_grad cannot prevent this on
  TPUs. Here the second computation depends on the gradient that flows back into the block, so it cannot begin earlier.

  The gradients of weights that several blocks share are summed during the backward pass, one block after the other.
  TensorFlow would store the gradients of all L layers and sum them at the end, which takes L times the memory of the
  weights: 9 GiB for albert_xxlarge.
  """

  def __init__(self) -> None:
    self._first_blocks: dict[Any, object] = {}  # variable's reference -> the first block that uses it
    self._sums: dict[Any, tf.Tensor] = {}  # variable's reference -> sum of the gradients of the later blocks

  def run(self, function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Computes function(x) for one block.

    Args:
      function: the block. It may use variables, and must return the same values when it is called twice.
      x: floating-point tensor of any shape: the output of the previous block.

    Returns:
      function(x).
    """
    block = object()

    @tf.custom_gradient
    def checkpointed(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., object]]:
      with tf.GradientTape() as forward_tape:
        output = function(x)
      for variable in forward_tape.watched_variables():
        self._first_blocks.setdefault(variable.ref(), block)

      # tf.custom_gradient passes the variables that `function` has used, if there are any.
      def gradient(
        upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
      ) -> tuple[tf.Tensor, list[tf.Tensor | None]] | tf.Tensor:
        with tf.GradientTape() as tape:
          delayed_x = x + tf.cast(_zero_from(upstream), x.dtype)
          tape.watch(delayed_x)
          output = function(delayed_x)
        wrt_x, *wrt_variables = tape.gradient(output, [delayed_x, *variables], output_gradients=upstream)
        if not variables:
          return wrt_x
        sums = [
          self._accumulate(variable, wrt_variable, block, wrt_x)
          for variable, wrt_variable in zip(variables, wrt_variables, strict=True)
        ]
        return wrt_x, sums

      return output, gradient

    return checkpointed(x)

  def _accumulate(
    self, variable: tf.Variable, gradient: tf.Tensor, block: object, wrt_x: tf.Tensor
  ) -> tf.Tensor | None:
    """Adds a block's gradient of a variable to the sum over the blocks.

    Args:
      variable: the variable.
      gradient: its gradient in this block.
      block: identifies the block.
      wrt_x: the gradient of the block's input. The addition waits for it.

    Returns:
      The sum if `block` is the first one that uses the variable: the backward pass reaches it last. Otherwise None.
    """
    key = variable.ref()
    if key in self._sums:
      # Without the dependency, TensorFlow's graph optimizer merges these additions into one sum over all blocks.
      with tf.control_dependencies([wrt_x]):
        gradient = self._sums.pop(key) + gradient
    if self._first_blocks[key] is block:
      return gradient
    self._sums[key] = gradient
    return None


def _zero_from(x: tf.Tensor) -> tf.Tensor:
  """Returns a scalar 0 that can only be computed after x. It is NaN if the first element of x is NaN."""
  first = tf.reduce_max(tf.reshape(x, [-1])[:1])  # -inf if x has no elements
  return tf.minimum(tf.abs(tf.cast(first, tf.float32)), 0.0)
