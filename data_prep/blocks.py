"""Makes the block files of data preparation: the sorted instances of some neighbouring units of text.

A block depends only on the input and the settings, not on the processes that work on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from albert.data import random_streams
from albert.io import files
from data_prep import units
from data_prep.block_files import MAX_RUN_BYTES, Block, BlockWriter
from data_prep.documents import Counts
from data_prep.examples import packing, segments
from data_prep.examples.instances import InstanceMaker
from data_prep.examples.settings import NSP, PreparationSettings
from data_prep.job import BLOCK_ENDING
from data_prep.units import UNIT_BYTES, TextUnit

# A large text becomes about this many blocks, or more if the instances of a block would not fit into memory.
_NUM_BLOCKS = 256
# Approximate bytes of packed instances (uint16 words) for a byte of text and each duplicate, at 4.4 characters a token.
_PACKED_BYTES_PER_TEXT_BYTE = 0.75


@dataclasses.dataclass(frozen=True)
class BlockTask:
  """A block to make: its units, its file, the path, size and time of each text file, and the settings."""

  units: tuple[TextUnit, ...]
  path: str
  text_files: tuple[tuple[str, files.Stat], ...]
  settings: PreparationSettings

  @property
  def sources(self) -> str:
    """A hash of the units and the text files, in hex."""
    return hashlib.sha256(repr((self.units, self.text_files)).encode()).hexdigest()


def units_per_block(text_bytes: int, dupe_factor: int) -> int:
  """Returns the number of units in a block: a 256th of the text, but at most about MAX_RUN_BYTES of instances."""
  unit_bytes = UNIT_BYTES * _PACKED_BYTES_PER_TEXT_BYTE * dupe_factor
  return max(1, min(text_bytes // UNIT_BYTES // _NUM_BLOCKS, int(MAX_RUN_BYTES // unit_bytes)))


def plan_blocks(
  text_files: Mapping[str, files.Stat], settings: PreparationSettings, directory: str
) -> Iterator[BlockTask]:
  """Groups the units of some text files, whose sizes and times are given, into blocks.

  The block files are in `directory`, and are named after the first unit of each block.
  """
  planned = units.plan_units(list(text_files), with_donors=settings.sentence_prediction == NSP)
  size = units_per_block(sum(metadata.num_bytes for metadata in text_files.values()), settings.dupe_factor)
  while block := tuple(itertools.islice(planned, size)):
    paths = sorted({text_range.path for unit in block for text_range in (*unit.ranges, *unit.donors)})
    first = block[0].ranges[0]
    share = f"-{settings.eval_share!r}" if settings.eval_share else ""  # prepare may have changed it
    name = f"block-{first.ordinal:08d}-{first.start:015d}{share}{BLOCK_ENDING}"
    yield BlockTask(block, files.join(directory, name), tuple((path, text_files[path]) for path in paths), settings)


def _is_kept(task: BlockTask) -> bool:
  """Whether an earlier command has made the block, and the text is still the same.

  The text is hashed only if the name, size or time of a file has changed since then.
  """
  earlier = Block.load(task.path)
  if earlier is None or len(earlier.records) != len(task.units):
    return False
  if earlier.summary["sources"] == task.sources:
    return True
  return all(record == units.hash_unit(unit) for record, unit in zip(earlier.records, task.units, strict=True))


# Set once in each process, by start_worker.
_maker: InstanceMaker | None = None


def start_worker(settings: PreparationSettings, spm_model_file: str) -> None:
  """Makes the `InstanceMaker` of this process. A pool calls it when it starts a process."""
  global _maker  # noqa: PLW0603
  _maker = InstanceMaker(settings, spm_model_file)


def make_block(task: BlockTask) -> bool:
  """Writes a block's instances to its file, unless an earlier command did so and the text is still the same.

  The summary of the file holds the block's `Counts`, its number of examples for each label, and `BlockTask.sources`.

  Returns:
    Whether the file was written.

  Raises:
    UserError: a text file has changed since the block was planned.
  """
  assert _maker is not None, "start_worker must be called first"
  if _is_kept(task):
    return False
  maker = _maker.with_settings(task.settings)
  word_dtype = packing.word_dtype(maker.tokenizer.vocab_size)
  records = []
  label_counts = np.zeros(2, np.int64)
  counts = Counts()
  with files.write_whole(task.path) as file:
    writer = BlockWriter(file)
    for unit_without_text in task.units:
      unit, record = units.read_unit(unit_without_text)
      records.append(record)
      documents, num_used, unit_counts = maker.load(unit)
      counts += unit_counts
      for batch in maker.make_batches(documents, num_used):
        words, sizes = packing.pack(batch.tokens, batch.masked, batch.instances.labels, word_dtype)
        writer.add(random_streams.draw(batch.instances.keys, segments.FOR_SHUFFLING), words, sizes)
        label_counts += np.bincount(batch.instances.labels, minlength=2)
    summary = {"counts": dataclasses.asdict(counts), "labels": label_counts.tolist(), "sources": task.sources}
    # If a file has changed since `sources` was computed, a later command must not find this block finished.
    units.check_unchanged(dict(task.text_files))
    writer.close(summary, records)
  return True
