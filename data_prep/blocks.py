"""Makes the block files of data preparation: the sorted instances of some neighbouring units of text.

A block depends on the input and the settings alone, and not on the processes that work on it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from albert.io import files
from data_prep import input_hashes
from data_prep.block_files import MAX_RUN_BYTES, Block, BlockWriter
from data_prep.documents import Counts
from data_prep.examples import segments
from data_prep.examples.instances import InstanceMaker
from data_prep.examples.settings import PreparationSettings
from data_prep.runners.workspace import BLOCK_ENDING
from data_prep.units import UNIT_BYTES, TextUnit, plan_units

# A block is about this fraction of the instances, as long as these fit into memory.
_NUM_BLOCKS = 256
# Approximate bytes of packed instances (uint16 words) for a byte of text and each duplicate, at 4.4 characters a token.
_PACKED_BYTES_PER_TEXT_BYTE = 0.75


@dataclasses.dataclass(frozen=True)
class BlockTask:
  """A block to make: its units of text, and its file."""

  units: tuple[TextUnit, ...]
  path: str

  @property
  def progress_bytes(self) -> int:
    """Number of bytes of text that a progress bar counts for the block."""
    return sum(unit.progress_bytes for unit in self.units)


def units_per_block(text_bytes: int, dupe_factor: int) -> int:
  """Returns the number of units in a block: a 256th of the text, but at most about MAX_RUN_BYTES of instances."""
  unit_bytes = UNIT_BYTES * _PACKED_BYTES_PER_TEXT_BYTE * dupe_factor
  return max(1, min(text_bytes // UNIT_BYTES // _NUM_BLOCKS, int(MAX_RUN_BYTES // unit_bytes)))


def plan_blocks(paths: Sequence[str], settings: PreparationSettings, directory: str) -> Iterator[BlockTask]:
  """Groups the units of some text files into blocks.

  Args:
    paths: the text files.
    settings: the job's settings.
    directory: the directory for the block files. They are named after the first unit of each block.
  """
  with_donors = settings.sentence_prediction == segments.NSP
  units = plan_units(list(paths), with_donors=with_donors)
  size = units_per_block(sum(map(files.size, paths)), settings.dupe_factor)
  while block := tuple(itertools.islice(units, size)):
    name = f"block-{input_hashes.unit_name(block[0])}{BLOCK_ENDING}"
    yield BlockTask(block, files.join(directory, name))


def write_block(maker: InstanceMaker, task: BlockTask) -> bool:
  """Writes a block's instances to its file, unless an earlier command did so and the text is still the same.

  The summary of the file holds the block's `Counts` and its number of examples for each label. Its records say which
  text the units were made from (`input_hashes.read_unit`).

  Returns:
    Whether the file was written.
  """
  earlier = Block.load(task.path)
  if earlier is not None and len(earlier.records) == len(task.units):
    texts = zip(earlier.records, task.units, strict=True)
    if all(record == input_hashes.read_unit(unit)[1] for record, unit in texts):
      return False
  records = []
  label_counts = np.zeros(2, np.int64)
  counts = Counts()
  with BlockWriter(task.path) as writer:
    for unit_without_text in task.units:
      unit, record = input_hashes.read_unit(unit_without_text)
      records.append(record)
      for batch in maker.packed_batches(unit):
        if isinstance(batch, Counts):
          counts += batch
        else:
          writer.add(batch.keys, batch.words, batch.sizes)
          label_counts += np.bincount(batch.labels, minlength=2)
    writer.close({"counts": dataclasses.asdict(counts), "labels": label_counts.tolist()}, records)
  return True


# The maker of this process.
_maker: InstanceMaker | None = None


def start_worker(settings: PreparationSettings, spm_model_file: str) -> None:
  """Makes the `InstanceMaker` of this process. A pool calls it when it starts a process."""
  global _maker  # noqa: PLW0603
  _maker = InstanceMaker(settings, spm_model_file)


def make_block(task: BlockTask) -> bool:
  """Calls `write_block` with the `InstanceMaker` of this process."""
  assert _maker is not None, "start_worker must be called first"
  return write_block(_maker, task)
