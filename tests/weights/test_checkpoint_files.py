"""Restoring variables from a checkpoint. Tensors that do not fit are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.weights.arrays import open_bundle
from albert.weights.checkpoint_files import restore
from albert.weights.checkpoints import CheckpointManager
from tests.synthetic import TINY_MODEL
from tests.weights.small_checkpoints import make_tensors


def test_saved_tensors_are_restored(manager):
  manager.save(4, make_tensors(4))
  newest, skipped = manager.latest()
  assert newest is not None
  assert (newest.step, skipped) == (4, [])
  variables = {"a/kernel": tf.Variable(tf.zeros([3, 5])), "b": tf.Variable(tf.zeros([7]))}
  restore(newest, variables)
  np.testing.assert_array_equal(variables["a/kernel"], np.full([3, 5], 4.0))
  np.testing.assert_array_equal(variables["b"], np.arange(7) + 4.0)


@pytest.mark.parametrize("name", ["run[v2]", "a\\b"])
def test_a_checkpoint_is_read_from_a_path_that_tensorflow_takes_for_a_glob(tmp_path: Path, name: str):
  manager = CheckpointManager(str(tmp_path / name), keep=2, model_config=TINY_MODEL)
  manager.save(4, make_tensors(4))
  variable = tf.Variable(tf.zeros([7]))
  newest, _ = manager.latest()
  assert newest is not None
  restore(newest, {"b": variable})
  np.testing.assert_array_equal(variable, np.arange(7) + 4.0)
  np.testing.assert_array_equal(open_bundle(newest.prefix, "--x")["b"].read("b", "--x"), np.arange(7) + 4.0)


@pytest.mark.parametrize(
  ("variables", "message"),
  [
    ({"c": tf.zeros([2])}, "has no c"),
    ({"b": tf.zeros([8])}, r"b has shape \[7\], the model needs \[8\]"),
  ],
)
def test_a_missing_tensor_or_another_shape_is_refused(manager, variables, message):
  manager.save(1, make_tensors(1))
  newest, _ = manager.latest()
  with pytest.raises(UserError, match=message):
    restore(newest, {name: tf.Variable(tensor) for name, tensor in variables.items()})


@pytest.mark.parametrize(
  ("saved", "message"),
  [
    (np.ones([2], np.int32), "b holds int32 values, the model needs float32"),
    (np.ones([2], np.complex64), "b holds complex64 values"),
    (np.array(["1", "2"]), "b holds string values"),
    (np.array([1, np.nan], np.float32), "b holds values that are not finite"),
    (np.array([np.inf, 1], np.float32), "b holds values that are not finite"),
  ],
)
def test_other_dtypes_and_numbers_that_are_not_finite_are_refused(manager, saved, message):
  manager.save(1, {"b": saved})
  newest, _ = manager.latest()
  with pytest.raises(UserError, match=message):
    restore(newest, {"b": tf.Variable(tf.zeros([2]))})
