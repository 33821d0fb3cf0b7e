"""Recognizes errors of TensorFlow that mean that another process or a TPU stopped or was restarted."""

from __future__ import annotations

import tensorflow as tf

# The errors that TensorFlow raises if another process or the host of a TPU does not answer.
LOST_PROCESS_ERRORS = (
  tf.errors.UnavailableError,
  tf.errors.AbortedError,
  tf.errors.DeadlineExceededError,
  tf.errors.CancelledError,
)
# A worker or TPU that was restarted answers but has lost its state. TensorFlow then raises other errors, which contain
# one of these texts (see tensorflow/python/distribute/coordinator/cluster_coordinator.py).
_RESTART_MESSAGES = (
  "context_id",
  "device incarnation",
  "halted unexpectedly",
  "not been initialized",
  "neither a type of a primitive operation nor a name of a function registered",
  "preempted",
  "primary device is not remote",
  "relevant tensor remote_handle",
  "socket closed",
  "tpu is unhealthy",
  "unknown device",
  "worker was restarted",
)
_MAX_REASON_CHARS = 200


def is_lost_process(error: tf.errors.OpError) -> bool:
  """Whether TensorFlow raised this error because another process or a TPU stopped or was restarted."""
  return isinstance(error, LOST_PROCESS_ERRORS) or any(text in str(error).lower() for text in _RESTART_MESSAGES)


def describe_error(error: Exception) -> str:
  """The error's type and the first line of its message, at most 200 characters of it."""
  line = next(iter(str(error).splitlines()), "")[:_MAX_REASON_CHARS]
  return f"{type(error).__name__}: {line}" if line else type(error).__name__
