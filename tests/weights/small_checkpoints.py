"""Contents of small checkpoints, and their damage, for the tests of checkpoints."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from albert.weights.checkpoints import CheckpointManager
from tests.synthetic import TINY_MODEL


def make_tensors(step: int) -> dict[str, tf.Tensor]:
  return {"a/kernel": tf.fill([3, 5], float(step)), "b": tf.range(7, dtype=tf.float32) + step}


def reopen(manager: CheckpointManager, keep: int = 2) -> CheckpointManager:
  """Returns a new manager of the same directory, as in another process. It has verified no checkpoint yet."""
  return CheckpointManager(manager.directory, keep=keep, model_config=TINY_MODEL)


def newest_step(manager: CheckpointManager) -> int:
  """Returns the step of the newest undamaged checkpoint."""
  newest = manager.latest()
  assert newest is not None
  return newest.step


def flip_one_bit(manager: CheckpointManager, step: int) -> bytes:
  data_file = Path(manager.directory) / f"step-{step}" / "weights.data-00000-of-00001"
  content = bytearray(data_file.read_bytes())
  content[20] ^= 1
  data_file.write_bytes(bytes(content))
  return bytes(content)
