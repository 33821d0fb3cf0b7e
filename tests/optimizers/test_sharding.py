"""Moments and gradients that are divided among replicas give the same weights; checkpoints fit any number of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from albert.config.run import OptimizerConfig
from albert.errors import UserError
from albert.optimizers.gradients import Partition, ShardedMoment, Sharding
from albert.training.run_plan import check_sharding
from tests.optimizers import sharded
from tests.optimizers.test_lamb_adamw import initial_weights, make_gradients

ROOT = Path(__file__).parents[2]


def test_the_parts_of_a_tensor_are_summed_to_the_tensor():
  """Seven elements are divided into parts of three, three and one."""
  partition = Partition((7, 1), 3)
  tensor = tf.reshape(tf.range(1.0, 8.0), [7, 1])
  parts = [partition.part_of(tensor, tf.constant(replica)) for replica in range(3)]
  np.testing.assert_array_equal([part[:, 0] for part in parts], [[1, 2, 3], [4, 5, 6], [7, 0, 0]])
  with_zeros = [partition.with_zeros(part, tf.constant(replica)) for replica, part in enumerate(parts)]
  np.testing.assert_array_equal(with_zeros[1][:, 0], [0, 0, 0, 4, 5, 6, 0])
  np.testing.assert_array_equal(tf.add_n(with_zeros), tensor)


@pytest.mark.parametrize("shape", [(3,), (2, 5), (6, 2, 3), (9, 4)])
def test_parts_are_rows_of_a_variable_of_any_shape(shape):
  tensor = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
  partition = Sharding(4, reduce_scatter=False).partition(tf.Variable(tensor))
  parts = [partition.part_of(tf.constant(tensor), tf.constant(replica)).numpy() for replica in range(4)]
  assert {part.shape for part in parts} == {tuple(ShardedMoment(partition, "adam_m").part.shape)}
  np.testing.assert_array_equal(np.concatenate(parts)[: len(tensor)], tensor)
  assert not np.concatenate(parts)[len(tensor) :].any()
  restored = tf.add_n([partition.with_zeros(tf.constant(part), tf.constant(i)) for i, part in enumerate(parts)])
  np.testing.assert_array_equal(restored, tensor)


def test_the_gradients_of_a_tpu_are_summed_by_reduce_scatter():
  for strategy_class, reduce_scatter in ((tf.distribute.TPUStrategy, True), (tf.distribute.MirroredStrategy, False)):
    strategy = mock.Mock(spec=strategy_class, num_replicas_in_sync=8)
    assert Sharding.of_strategy(strategy) == Sharding(8, reduce_scatter)


def test_sharding_is_refused_where_it_does_not_apply():
  message = "--shard_optimizer_state divides the moments among several devices of one process: leave it out"
  one_device = tf.distribute.OneDeviceStrategy("CPU:0")
  with pytest.raises(UserError, match=message):
    check_sharding(one_device, OptimizerConfig())
  two_replicas = mock.Mock(spec=tf.distribute.MirroredStrategy, num_replicas_in_sync=2)
  check_sharding(two_replicas, OptimizerConfig())
  with pytest.raises(UserError, match=r"not work with --optimizer=tfa_lamb: give --optimizer=lamb --bias_correction"):
    check_sharding(two_replicas, OptimizerConfig(optimizer="tfa_lamb"))
  workers = mock.Mock(spec=tf.distribute.MultiWorkerMirroredStrategy, num_replicas_in_sync=2)
  with pytest.raises(UserError, match=message):
    check_sharding(workers, OptimizerConfig())


def train_without_sharding(
  name: str, steps: range, state: dict[str, Any] | None = None, bad_steps: Sequence[int] = ()
) -> dict[str, Any]:
  """As sharded.train, on one device with whole moments. In bad_steps the gradient of dense/kernel is infinite."""
  variables = {key: tf.Variable(value, name=key) for key, value in initial_weights().items()}
  optimizer = sharded.OPTIMIZERS[name](**sharded.OPTIONS)
  optimizer.skips_not_finite = bool(bad_steps)
  optimizer.build(list(variables.values()))
  holders = {"iterations": optimizer.iterations, **variables}
  for key, variable in variables.items():
    holders |= {f"{key}/{slot}": moment for slot, moment in optimizer.slots(variable).items()}
  for key, value in (state or {}).items():
    holders[key].assign(value)
  for step in steps:
    gradients = make_gradients(step)
    if step in bad_steps:
      gradients["dense/kernel"][1, 2] = np.inf
    pairs = [(tf.constant(gradient), variables[key]) for key, gradient in gradients.items()]
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
  return {key: holder.numpy() for key, holder in holders.items()}


def assert_same(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], message: str) -> None:
  assert set(actual) == set(expected)
  for key, value in expected.items():
    np.testing.assert_allclose(actual[key], value, rtol=1e-6, atol=1e-9, err_msg=f"{message}: {key}")


@pytest.mark.slow
def test_sharded_moments_give_the_weights_of_whole_ones(tmp_path):
  """Runs with one replica, two and four; each half of a run may have another number of them."""
  half, end = sharded.NUM_STEPS // 2, sharded.NUM_STEPS
  for name in sharded.OPTIMIZERS:
    (tmp_path / name).mkdir()
    np.savez(tmp_path / name / "half-1.npz", **train_without_sharding(name, range(half)))
  for num_replicas in (2, 4):
    command = [sys.executable, "-m", "tests.optimizers.sharded", str(tmp_path), str(num_replicas)]
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stderr
  for name in sharded.OPTIMIZERS:
    expected = train_without_sharding(name, range(end))
    results = {path.stem: dict(np.load(path)) for path in (tmp_path / name).glob("*.npz")}
    for run in ("full-2", "full-4", "1-then-2", "1-then-4", "2-then-2", "2-then-4", "4-then-4"):
      assert_same(results[run], expected, f"{name} {run}")
    expected_with_bad_step = train_without_sharding(name, range(end), bad_steps=[1])
    assert np.isfinite(expected_with_bad_step["dense/kernel"]).all()
    for run in ("bad-2", "bad-4"):
      assert_same(results[run], expected_with_bad_step, f"{name} {run}")
    from_four = train_without_sharding(name, range(half, end), results["half-4"])
    assert_same(from_four, expected, f"{name} from four replicas to one")
    for num_replicas in (2, 4):  # an interrupted run with the same number of replicas ends with the same bits
      for key, value in results[f"full-{num_replicas}"].items():
        np.testing.assert_array_equal(results[f"{num_replicas}-then-{num_replicas}"][key], value, err_msg=key)
