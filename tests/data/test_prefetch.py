"""No dataset lets TensorFlow tune its threads, because the end of a run then waits for the thread that tunes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import albert
from albert.data.prefetch import prefetch


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
    if path.name != "prefetch.py":
      assert not re.search(r"AUTOTUNE|num_parallel_calls=(?!1\b)", path.read_text(encoding="utf-8")), path
