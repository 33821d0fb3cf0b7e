"""An Estimator does not change the settings of the process (seeds, dtype policy, determinism) or depend on them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from tensorflow.python.eager import context
from tensorflow.python.framework import config as tf_config

from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.estimator import Estimator
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training import run_plan
from albert.training.model_weights import deterministic_ops, dtype_policy, initializer_seed
from tests.run_outputs import assert_equal_bits
from tests.synthetic import TINY_MODEL, write_shards


@pytest.fixture(autouse=True)
def _default_process() -> Iterator[None]:
  """Switches deterministic operations off and sets the policy float32. Restores both after the test."""
  was_deterministic, policy = tf_config.is_op_determinism_enabled(), keras.mixed_precision.global_policy()
  tf_config.disable_op_determinism()
  keras.mixed_precision.set_global_policy("float32")
  yield
  keras.mixed_precision.set_global_policy(policy)
  if was_deterministic:
    tf.config.experimental.enable_op_determinism()


def make_estimator(tmp_path: Path, name: str, **train_options: Any) -> Estimator:
  """Makes an estimator of a pretraining run of two steps in bfloat16."""
  if not (tmp_path / "shards").exists():
    (tmp_path / "shards").mkdir()
    write_shards(tmp_path / "shards", [30, 20])
  model = dataclasses.replace(TINY_MODEL, num_hidden_layers=1)
  shards = str(tmp_path / "shards" / "*.tfrecord")
  task = PretrainingTask(model, PretrainingConfig(input_file=shards, eval_input_file=shards))
  train_values = {"train_batch_size": 8, "num_train_steps": 2, "precision": "bfloat16", **train_options}
  train = TrainConfig(**train_values)
  optimizer = OptimizerConfig(num_warmup_steps=0)
  return Estimator(task, RunConfig(output_dir=str(tmp_path / name), optimizer=optimizer, train=train))


def initial_weights(estimator: Estimator) -> dict[str, np.ndarray]:
  return {name: variable.numpy() for name, variable in estimator.model.named_weights().items()}


def draw_random_numbers() -> list[float]:
  """Draws numbers from the global generators of Python, NumPy, TensorFlow and Keras' initializers."""
  layer_output = keras.layers.Dense(3)(tf.ones([1, 2])).numpy()
  return [random.random(), np.random.random(), float(tf.random.uniform([])), *layer_output[0].tolist()]


@pytest.mark.parametrize("steps", ["eager", pytest.param("traced", marks=pytest.mark.thorough)])
def test_construction_and_training_leave_seeds_policy_and_determinism_as_they_were(tmp_path, request, steps):
  if steps == "eager":
    request.getfixturevalue("eager_steps")
  keras.utils.set_random_seed(7)
  numbers_without_estimator = draw_random_numbers()
  keras.utils.set_random_seed(7)
  python_state, numpy_state = random.getstate(), np.random.get_state()
  make_estimator(tmp_path, "run").train()
  assert random.getstate() == python_state
  np.testing.assert_equal(np.random.get_state(), numpy_state)
  assert context.global_seed() == 7
  assert keras.mixed_precision.global_policy().name == "float32"
  assert not tf_config.is_op_determinism_enabled()
  assert draw_random_numbers() == numbers_without_estimator


@pytest.mark.usefixtures("eager_steps")
def test_every_processor_evaluates_in_float32_unless_another_dtype_is_chosen(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(run_plan, "_cpu_flags", lambda: {"amx_bf16"})
  estimator = make_estimator(tmp_path, "run", precision="auto")
  estimator.train()
  metrics = estimator.evaluate()
  assert "checkpoints/step-2 (step 2, the newest, float32)" in capsys.readouterr().err
  assert estimator.model.encoder.compute_dtype == "bfloat16"  # training continues in it
  assert make_estimator(tmp_path, "run", precision="float32").evaluate() == metrics
  assert make_estimator(tmp_path, "run", precision="bfloat16").evaluate() != metrics
  assert "checkpoints/step-2 (step 2, the newest, bfloat16)" in capsys.readouterr().err
  assert make_estimator(tmp_path, "run", precision="float16").evaluate() != metrics


def test_initial_weights_depend_only_on_the_seed_of_the_run(tmp_path):
  weights = initial_weights(make_estimator(tmp_path, "first"))
  keras.utils.set_random_seed(99)
  keras.mixed_precision.set_global_policy("mixed_bfloat16")
  assert_equal_bits(initial_weights(make_estimator(tmp_path, "second", precision="float32")), weights)
  weights_of_other_seed = initial_weights(make_estimator(tmp_path, "third", seed=54321))
  assert any((weights_of_other_seed[name] != weight).any() for name, weight in weights.items())


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
