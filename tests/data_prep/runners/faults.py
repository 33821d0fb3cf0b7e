"""Steps of data preparation during which the process dies once. Ray's workers import them from here."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from albert.data.manifest import ShardInfo
from data_prep import block_files, blocks, shards
from data_prep.blocks import BlockTask
from data_prep.shards import ShardsTask

_make_block, _write_shards = blocks.make_block, shards.write_shards


def _die(*arguments: Any) -> None:
  os.kill(os.getpid(), signal.SIGKILL)


def _must_die(path: str, step: str) -> bool:
  """Returns True once for each step of a job, and writes a file that says so.

  Args:
    path: a file in the hidden directory of the job's output directory. The file that this function writes is beside the
      output directory.
    step: the step of the job.
  """
  marker = Path(path).parents[2] / f"died-while-{step}"
  try:
    with marker.open("x") as file:
      file.write(str(os.getpid()))
  except FileExistsError:
    return False
  return True


def make_block(task: BlockTask) -> bool:
  """Dies before the end of the file is written."""
  if _must_die(task.path, "making"):
    block_files.BlockWriter.close = _die  # type: ignore[method-assign, assignment]
  return _make_block(task)


def write_shards(task: ShardsTask) -> list[ShardInfo]:
  """Dies after the first examples."""
  if _must_die(f"{task.directory}/shard", "writing"):
    shards.write_examples = _die  # type: ignore[assignment]
  return _write_shards(task)


def make_block_slowly(task: BlockTask) -> bool:
  time.sleep(0.3)
  return _make_block(task)


def die_always(task: BlockTask) -> bool:
  _die()
  raise AssertionError


def fail(task: BlockTask) -> bool:
  """Fails as a fault of the program does."""
  raise KeyError("a fault of the program")
