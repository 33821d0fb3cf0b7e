"""Small checkpoints for tests."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from albert.weights.checkpoints import CheckpointManager
from tests.synthetic import TINY_MODEL


def tensors(step: int) -> dict[str, tf.Tensor]:
  return {"a/kernel": tf.fill([3, 5], float(step)), "b": tf.range(7, dtype=tf.float32) + step}


def reopened(manager: CheckpointManager, keep: int = 2) -> CheckpointManager:
  """The manager of the next process, which has verified nothing yet."""
  return CheckpointManager(manager.directory, keep=keep, model_config=TINY_MODEL)


def flip_one_bit(manager: CheckpointManager, step: int) -> bytes:
  """Damages a checkpoint; returns the damaged bytes."""
  data = Path(manager.directory) / f"step-{step}" / "weights.data-00000-of-00001"
  content = bytearray(data.read_bytes())
  content[20] ^= 1
  data.write_bytes(bytes(content))
  return bytes(content)
