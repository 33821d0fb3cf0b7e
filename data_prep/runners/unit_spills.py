"""The work of a local process: it writes the instances of one unit of text to one spill file."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np

from data_prep import input_hashes
from data_prep.documents import Counts
from data_prep.examples.instances import InstanceMaker
from data_prep.examples.settings import PreparationSettings
from data_prep.sorting.spills import Spill, SpillWriter
from data_prep.units import TextUnit


@dataclasses.dataclass(frozen=True)
class UnitTask:
  """A unit of text to process.

  Attributes:
    unit: the unit of text.
    spill_path: the spill file for its instances, or a merged file that an earlier command wrote and that holds them.
    merged_record: the unit's record in this merged file; None if `spill_path` is not a merged file.
  """

  unit: TextUnit
  spill_path: str
  merged_record: dict[str, Any] | None = None


class UnitOutcome(enum.Enum):
  """What `make_spill` did with a unit.

  MADE: it wrote the spill file. KEPT: the file of an earlier command is still valid. OUTDATED: a merged file holds
  instances of the unit, but the unit's text has changed since.
  """

  MADE = "made"
  KEPT = "kept"
  OUTDATED = "outdated"


def write_spill(maker: InstanceMaker, task: UnitTask) -> UnitOutcome:
  """Writes a unit's instances to its spill file, unless an earlier command did so and the text is still the same.

  The summary of the file holds the unit's `Counts` and its number of examples for each label. The file's only record
  says which text the unit was made from (`input_hashes.read_unit`).

  Args:
    maker: turns text into instances.
    task: the unit and its file.
  """
  unit, record = input_hashes.read_unit(task.unit)
  if task.merged_record is not None:
    return UnitOutcome.KEPT if task.merged_record == record else UnitOutcome.OUTDATED
  earlier = Spill.load(task.spill_path)
  if earlier is not None and earlier.records() == [record]:
    return UnitOutcome.KEPT
  label_counts = np.zeros(2, np.int64)
  counts = Counts()
  with SpillWriter(task.spill_path) as writer:
    for batch in maker.packed_batches(unit):
      if isinstance(batch, Counts):
        counts = batch
      else:
        writer.add(batch.keys, batch.words, batch.sizes)
        label_counts += np.bincount(batch.labels, minlength=2)
    writer.close({"counts": dataclasses.asdict(counts), "labels": label_counts.tolist()}, [record])
  return UnitOutcome.MADE


# The maker of this process.
_maker: InstanceMaker | None = None


def start_worker(settings: PreparationSettings, spm_model_file: str) -> None:
  """Makes the `InstanceMaker` of this process. A pool calls it when it starts a process."""
  global _maker  # noqa: PLW0603
  _maker = InstanceMaker(settings, spm_model_file)


def make_spill(task: UnitTask) -> UnitOutcome:
  """Calls `write_spill` with the `InstanceMaker` of this process."""
  assert _maker is not None, "start_worker must be called first"
  return write_spill(_maker, task)
