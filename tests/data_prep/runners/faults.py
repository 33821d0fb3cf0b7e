"""Steps of data preparation during which the process dies once. Ray's workers import them from here."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from albert.data.shard_files.manifest import ShardInfo
from data_prep.runners import unit_spills
from data_prep.runners.unit_spills import UnitOutcome, UnitTask
from data_prep.sorting import merge_passes, shards, spills
from data_prep.sorting.merge_passes import MergeTask
from data_prep.sorting.shards import ShardTask
from data_prep.sorting.spills import Spill

_make_spill, _merge_spills, _write_shard = unit_spills.make_spill, merge_passes.merge_spills, shards.write_shard


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


def make_spill(task: UnitTask) -> UnitOutcome:
  """Dies before the end of the file is written."""
  if _must_die(task.spill_path, "making"):
    spills.SpillWriter.close = _die  # type: ignore[method-assign, assignment]
  return _make_spill(task)


def merge_spills(task: MergeTask) -> Spill:
  """Dies before the end of the file is written."""
  if _must_die(task.path, "merging"):
    spills.SpillWriter.close = _die  # type: ignore[method-assign, assignment]
  return _merge_spills(task)


def write_shard(task: ShardTask) -> ShardInfo:
  """Dies after the first examples."""
  if _must_die(task.path, "writing"):
    shards.write_examples = _die  # type: ignore[assignment]
  return _write_shard(task)


def make_spill_slowly(task: UnitTask) -> UnitOutcome:
  time.sleep(0.3)
  return _make_spill(task)


def die_always(task: UnitTask) -> UnitOutcome:
  _die()
  raise AssertionError


def fail(task: UnitTask) -> UnitOutcome:
  """Fails as a fault of the program does."""
  raise KeyError("a fault of the program")
