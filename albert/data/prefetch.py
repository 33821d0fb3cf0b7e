"""Batches that are made while the model computes, without TensorFlow's tuning of the number of threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Number of batches that are parsed at the same time, and that wait for the model. More would only take memory.
_MAX_PARALLEL_BATCHES = 16
_WAITING_BATCHES = 4


def prefetch(batches: tf.data.Dataset, parse: Callable[..., Any] | None = None) -> tf.data.Dataset:
  """Makes batches in threads of their own, in the order of the dataset.

  The numbers of threads and of waiting batches are fixed. tf.data.AUTOTUNE finds them during the run, in a thread that
  sleeps for up to a minute at a time. In TensorFlow 2.15 and 2.20 this thread often misses the signal to end, and then
  the end of a stage, an evaluation or a run waits for it: up to a minute, without using the processor.

  Args:
    batches: the batches, or what `parse` makes them of.
    parse: maps an element of `batches` to a batch; None if there is nothing to do.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  if parse is not None:
    num_parallel = min(os.cpu_count() or 1, _MAX_PARALLEL_BATCHES)
    batches = batches.map(parse, num_parallel_calls=num_parallel, deterministic=True)
  return batches.prefetch(_WAITING_BATCHES).with_options(options)
