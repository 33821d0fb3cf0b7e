"""Writes and reads the tensors of a checkpoint. Their names are those of the original code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from albert.errors import UserError
from albert.io import files
from albert.weights.checkpoint_damage import WEIGHTS_PREFIX

if TYPE_CHECKING:
  import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A checkpoint whose files agree with their manifest.

  Attributes:
    step: the number of updates after which it was saved.
    path: its directory.
  """

  step: int
  path: str

  @property
  def prefix(self) -> str:
    """The path that tf.train.load_checkpoint takes."""
    return files.join(self.path, WEIGHTS_PREFIX)


def write_bundle(prefix: str, tensors: Mapping[str, tf.Tensor | np.ndarray]) -> None:
  """Writes a TensorFlow checkpoint with exactly these names, so that the original code can read it.

  Args:
    prefix: the path of the files without .index and .data-*.
    tensors: name -> values.
  """
  import tensorflow as tf

  names = list(tensors)
  with tf.device("CPU:0"):
    tf.raw_ops.SaveV2(
      prefix=prefix,
      tensor_names=names,
      shape_and_slices=[""] * len(names),
      tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
    )


def restore(checkpoint: Checkpoint, variables: Mapping[str, tf.Variable]) -> None:
  """Assigns all variables from a checkpoint.

  Args:
    checkpoint: the checkpoint.
    variables: name in the checkpoint -> variable. Other tensors of the checkpoint are ignored.
  Raises:
    UserError: a variable is missing, has another shape or type, or holds a value that is not finite. Runs do not save
      such values.
  """
  import tensorflow as tf

  with files.tensorflow_path(checkpoint.prefix) as path:
    reader = tf.train.load_checkpoint(path)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    for name, variable in variables.items():
      if name not in shapes:
        raise UserError(f"{checkpoint.path}: has no {name}: it was saved by a run with another configuration")
      if list(variable.shape) != list(shapes[name]):
        raise UserError(
          f"{checkpoint.path}: {name} has shape {list(shapes[name])}, the model needs {list(variable.shape)}"
        )
      saved_dtype, dtype = tf.as_dtype(dtypes[name]), variable.dtype
      if saved_dtype.is_floating != dtype.is_floating or saved_dtype.is_integer != dtype.is_integer:
        raise UserError(f"{checkpoint.path}: {name} holds {saved_dtype.name} values, the model needs {dtype.name}")
      value = tf.cast(reader.get_tensor(name), dtype)
      if dtype.is_floating and not tf.reduce_all(tf.math.is_finite(value)):
        raise UserError(f"{checkpoint.path}: {name} holds values that are not finite: give another checkpoint")
      variable.assign(value)
