"""Batches are prefetched, without TensorFlow's tuning of threads; and how much of a remote shard is in memory."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import albert
from albert.data.dataset import prefetch
from tests.gcs_server import has_openssl
from tests.open_shards import MIB, bytes_requested


def test_batches_keep_their_order_and_are_parsed_before_they_are_needed():
  made = []

  def parse(number: tf.Tensor) -> tf.Tensor:
    def double(value: np.ndarray) -> np.ndarray:
      made.append(int(value))
      return value * 2

    return tf.ensure_shape(tf.numpy_function(double, [number], tf.int64), [])

  batches = iter(prefetch(tf.data.Dataset.range(40), parse))
  assert int(next(batches)) == 0
  deadline = time.monotonic() + 20
  while len(made) < 5 and time.monotonic() < deadline:
    time.sleep(0.01)
  assert len(made) >= 5  # one that was read, and four that wait
  assert [int(batch) for batch in batches] == [2 * number for number in range(1, 40)]


def test_tensorflow_does_not_tune_the_threads():
  for batches in (tf.data.Dataset.range(3), tf.data.Dataset.from_tensors(0).repeat(3)):
    assert prefetch(batches).options().autotune.enabled is False
    # The options that an evaluation adds leave this one alone.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    assert prefetch(batches).with_options(options).options().autotune.enabled is False


def test_all_datasets_are_prefetched_by_this_function():
  for path in Path(albert.__file__).parent.rglob("*.py"):
    if path.name != "dataset.py":
      assert not re.search(r"AUTOTUNE|num_parallel_calls=(?!1\b)", path.read_text(encoding="utf-8")), path


@pytest.mark.thorough
@pytest.mark.skipif(not has_openssl(), reason="needs openssl")
@pytest.mark.parametrize(
  ("environment", "mebibytes"),
  [pytest.param({}, 16, marks=pytest.mark.slow), ({"GCS_READ_CACHE_BLOCK_SIZE_MB": "2"}, 2)],
)
def test_an_open_shard_holds_one_block_of_a_bounded_size(tmp_path: Path, environment: dict[str, str], mebibytes: int):
  """Of three shards of 24 MiB, a block of each is requested at first, and the next ones when the stream gets there."""
  block = mebibytes * MIB
  first_requests, all_requests = bytes_requested(tmp_path, **environment)
  assert sorted(first_requests) == [(f"{index}.tfrecord", 0, block) for index in range(3)]
  assert max(size for _, _, size in all_requests) == block
  for name in {name for name, _, _ in all_requests}:
    firsts = [first for other, first, _ in all_requests if other == name]
    assert firsts == sorted(set(firsts))  # no byte is requested twice
    assert sum(size for other, _, size in all_requests if other == name) >= 24 * MIB
