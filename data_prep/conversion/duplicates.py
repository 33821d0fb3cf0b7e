"""Finds documents that are exact copies of earlier ones, by sorting hashes on disk, and removes them from the text.

Of equal documents, the first one in the order of the input is kept. Each part of the text has a block file with an
entry for each of its documents. The key of an entry, by which data_prep.block_files sorts, is the first half of a
128-bit hash of the document. Its words are the other half of the hash, the number of the part, and the number of the
document in the part.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import numpy as np

from albert.io import files
from data_prep.block_files import BlockWriter, PackedInstances, add_sizes, group_ranges, load_blocks, read_sorted
from data_prep.conversion.report import ReadingReport, add_reports

DUPLICATE = "duplicate"
_WORD_TYPE = "<u4"
# Number of words of an entry: two for the second half of the hash, the number of the part, the number of the document.
_ENTRY_WORDS = 4
HASH_BYTES = 16
# Approximate bytes of the entries that are sorted in memory at a time.
_STEP_BYTES = 32 << 20


def save_hashes(path: str, part: int, digests: Sequence[bytes]) -> None:
  """Writes the block file of part number `part`. `digests` are the hashes of its documents, of HASH_BYTES bytes."""
  hashes = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
  words = np.zeros((len(hashes), _ENTRY_WORDS), _WORD_TYPE)
  words[:, :2] = np.ascontiguousarray(hashes[:, 1]).view("<u4").reshape(-1, 2)
  words[:, 2] = part
  words[:, 3] = np.arange(len(hashes))
  with files.write_whole(path) as file:
    writer = BlockWriter(file)
    writer.add(hashes[:, 0].copy(), words.reshape(-1), np.full(len(hashes), _ENTRY_WORDS))
    writer.close({"part": part})


def find_duplicates(paths: Sequence[str]) -> dict[int, list[int]]:
  """Finds the documents that are copies of earlier ones, by the block files of all parts, in order.

  Returns:
    Number of a part -> the numbers of its documents that are copies, ascending.

  Raises:
    RunError: a block file is damaged.
  """
  blocks = load_blocks(paths)
  runs = [run for block in blocks for run in block.runs]
  if not runs:
    return {}
  all_ranges = group_ranges(add_sizes(blocks).num_bytes, _STEP_BYTES)
  copies = [_find_copies(read_sorted(runs, ranges, _WORD_TYPE)) for ranges in all_ranges]
  part_numbers, document_numbers = np.concatenate(copies, axis=1)
  order = np.lexsort((document_numbers, part_numbers))
  part_numbers, document_numbers = part_numbers[order], document_numbers[order]
  distinct_parts, starts = np.unique(part_numbers, return_index=True)
  numbers_of_parts = np.split(document_numbers, starts[1:])
  return {part: numbers.tolist() for part, numbers in zip(distinct_parts.tolist(), numbers_of_parts, strict=False)}


def _find_copies(entries: PackedInstances) -> np.ndarray:
  """Returns the part and the number, [2, N], of the documents whose hash an earlier entry has, too."""
  words = entries.words[entries.starts[:, None] + np.arange(_ENTRY_WORDS)]
  second_halves = words[:, 0].astype(np.uint64) | words[:, 1].astype(np.uint64) << np.uint64(32)
  # Equal hashes are neighbours in this order, and the entry of the first document comes first.
  order = np.lexsort((words[:, 3], words[:, 2], second_halves, entries.keys))
  keys, second_halves = entries.keys[order], second_halves[order]
  is_copy = (keys[1:] == keys[:-1]) & (second_halves[1:] == second_halves[:-1])
  copied: np.ndarray = words[order[1:][is_copy], 2:].T
  return copied


@dataclasses.dataclass(frozen=True)
class CopyTask:
  """A part of the text to copy without the documents with some numbers, and the part's report with them.

  A part without documents has no file.
  """

  source: str
  path: str
  dropped: frozenset[int]
  report: ReadingReport


def copy_part(task: CopyTask) -> ReadingReport:
  """Copies a part of the text without some of its documents, and returns its report without them."""
  report = add_reports([task.report])
  if not files.exists(task.source):
    return report
  number = 0  # of the document
  sentences: list[str] = []  # of a document that is left out
  with files.open_file(task.source) as source, files.write_whole(task.path) as target:
    for line in source:
      if number not in task.dropped:
        target.write(line)
      elif line != b"\n":
        sentences.append(line.decode("utf-8").removesuffix("\n"))
      if line == b"\n" and number in task.dropped:
        num_chars = sum(map(len, sentences))
        report.drop(DUPLICATE, f"{os.path.basename(task.path)}, document {number + 1}", sentences[0], num_chars)
        report.documents -= 1
        report.sentences -= len(sentences)
        report.characters -= num_chars
        sentences = []
      number += line == b"\n"
  return report
