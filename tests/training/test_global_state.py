"""An Estimator leaves the settings of the process as they were, and does not depend on them."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from tensorflow.python.eager import context
from tensorflow.python.framework import config as tf_config

from albert.config.run import OptimizerConfig, PretrainingConfig, RunConfig, TrainConfig
from albert.estimator import Estimator
from albert.tasks.pretraining import PretrainingTask
from albert.training.global_state import deterministic_ops, dtype_policy, initializer_seed
from tests.synthetic import TINY_MODEL, write_shards


@pytest.fixture(autouse=True)
def _default_process() -> Iterator[None]:
  """The process has no op determinism and no dtype policy of its own, whatever other tests have set."""
  was_deterministic, policy = tf_config.is_op_determinism_enabled(), keras.mixed_precision.global_policy()
  tf_config.disable_op_determinism()
  keras.mixed_precision.set_global_policy("float32")
  yield
  keras.mixed_precision.set_global_policy(policy)
  if was_deterministic:
    tf.config.experimental.enable_op_determinism()


def make_estimator(tmp_path: Path, name: str, **train: object) -> Estimator:
  if not (tmp_path / "shards").exists():
    (tmp_path / "shards").mkdir()
    write_shards(tmp_path / "shards", [30, 20])
  model = dataclasses.replace(TINY_MODEL, num_hidden_layers=1)
  task = PretrainingTask(model, PretrainingConfig(input_file=str(tmp_path / "shards" / "*.tfrecord")))
  settings = TrainConfig(**{"train_batch_size": 8, "num_train_steps": 2, "precision": "bfloat16", **train})
  optimizer = OptimizerConfig(num_warmup_steps=0)
  return Estimator(task, RunConfig(output_dir=str(tmp_path / name), optimizer=optimizer, train=settings))


def initial_weights(estimator: Estimator) -> dict[str, np.ndarray]:
  return {name: variable.numpy() for name, variable in estimator.model.named_weights().items()}


def assert_same_weights(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
  assert actual.keys() == expected.keys()
  for name, value in actual.items():
    np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.parametrize("steps", ["eager", pytest.param("traced", marks=pytest.mark.thorough)])
def test_construction_and_training_leave_seeds_policy_and_determinism_as_they_were(tmp_path, request, steps):
  if steps == "eager":
    request.getfixturevalue("eager_steps")
  keras.utils.set_random_seed(7)
  drawn = (random.random(), np.random.random(), float(tf.random.uniform([])), keras.layers.Dense(3)(tf.ones([1, 2])))
  keras.utils.set_random_seed(7)
  python_state, numpy_state = random.getstate(), np.random.get_state()
  make_estimator(tmp_path, "run").train()
  assert random.getstate() == python_state
  np.testing.assert_equal(np.random.get_state(), numpy_state)
  assert context.global_seed() == 7
  assert keras.mixed_precision.global_policy().name == "float32"
  assert not tf_config.is_op_determinism_enabled()
  again = (random.random(), np.random.random(), float(tf.random.uniform([])), keras.layers.Dense(3)(tf.ones([1, 2])))
  assert again[:3] == drawn[:3]
  np.testing.assert_array_equal(again[3], drawn[3])


@pytest.mark.thorough
@pytest.mark.usefixtures("eager_steps")
def test_a_keras_model_made_afterwards_is_float32(tmp_path):
  estimator = make_estimator(tmp_path, "run")
  assert estimator.model.encoder.compute_dtype == "bfloat16"
  assert keras.Sequential([keras.layers.Dense(3)])(tf.ones([1, 2])).dtype == tf.float32
  estimator.train()
  assert estimator.evaluator.model.encoder.compute_dtype == "bfloat16"
  assert keras.Sequential([keras.layers.Dense(3)])(tf.ones([1, 2])).dtype == tf.float32


def test_the_second_estimator_starts_from_the_same_weights_as_the_first(tmp_path):
  first = initial_weights(make_estimator(tmp_path, "first"))
  keras.utils.set_random_seed(99)
  keras.mixed_precision.set_global_policy("mixed_bfloat16")
  second = initial_weights(make_estimator(tmp_path, "second", precision="float32"))
  assert_same_weights(second, first)
  other_seed = initial_weights(make_estimator(tmp_path, "third", seed=54321))
  assert any((other_seed[name] != value).any() for name, value in first.items())


@pytest.mark.thorough
def test_initial_weights_are_those_of_a_fresh_process_after_keras_set_random_seed(tmp_path):
  """Runs that began before the seed was scoped resume and repeat with the same weights."""
  make_estimator(tmp_path, "first", seed=1)
  second = initial_weights(make_estimator(tmp_path, "second", seed=12345))
  code = (
    "import dataclasses, numpy, tf_keras, tests.synthetic as synthetic\n"
    "from albert.config.run import PretrainingConfig\n"
    "from albert.tasks.pretraining import PretrainingTask\n"
    "tf_keras.utils.set_random_seed(12345)\n"
    "config = dataclasses.replace(synthetic.TINY_MODEL, num_hidden_layers=1)\n"
    "model = PretrainingTask(config, PretrainingConfig()).build_model()\n"
    f"numpy.savez({str(tmp_path / 'weights.npz')!r}, **{{k: v.numpy() for k, v in model.named_weights().items()}})\n"
  )
  root = Path(__file__).resolve().parents[2]
  subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
  with np.load(tmp_path / "weights.npz") as fresh:
    assert_same_weights(second, dict(fresh))


def test_settings_are_restored_after_an_error():
  with pytest.raises(ValueError, match="inside"), deterministic_ops(), dtype_policy("bfloat16"), initializer_seed(3):  # noqa: PT012
    assert tf_config.is_op_determinism_enabled()
    assert keras.mixed_precision.global_policy().name == "mixed_bfloat16"
    raise ValueError("inside")
  assert not tf_config.is_op_determinism_enabled()
  assert keras.mixed_precision.global_policy().name == "float32"


def test_determinism_that_the_process_had_enabled_stays_enabled():
  tf.config.experimental.enable_op_determinism()
  with deterministic_ops():
    pass
  assert tf_config.is_op_determinism_enabled()
