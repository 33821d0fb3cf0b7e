"""Finds documents that are exact copies of earlier ones, by sorting hashes on disk, and removes them from the text.

Of equal documents, the first one in the order of the input is kept. Each part of the text has a block file with an
entry for each of its documents. The key of an entry, by which data_prep.block_files sorts, is the first half of a
128-bit hash of the document. Its words are the other half of the hash, the number of the part, and the number of the
document in the part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from albert.io import files, json_values
from data_prep.block_files import BlockWriter, PackedInstances, add_sizes, group_ranges, load_blocks, read_sorted
from data_prep.conversion.report import ReadingReport

DUPLICATE = "duplicate"
_WORD_TYPE = "<u4"
# Number of words of an entry: two for the second half of the hash, the number of the part, the number of the document.
_ENTRY_WORDS = 4
_HASH_BYTES = 16
# Approximate bytes of the entries that are sorted in memory at a time.
_STEP_BYTES = 32 << 20


class DocumentHashes:
  """Collects the hashes of a part's documents. Each document is added in one or more blocks of lines."""

  def __init__(self) -> None:
    self._digests: list[bytes] = []
    self._current = hashlib.blake2b(digest_size=_HASH_BYTES)

  def add_text(self, text: bytes) -> None:
    self._current.update(text)

  def end_document(self, *, is_kept: bool) -> None:
    """Ends the current document. It becomes an entry if it is kept."""
    if is_kept:
      self._digests.append(self._current.digest())
    self._current = hashlib.blake2b(digest_size=_HASH_BYTES)

  def save(self, path: str, part: int) -> None:
    """Writes the block file of part number `part`."""
    hashes = np.frombuffer(b"".join(self._digests), "<u8").reshape(-1, 2)
    words = np.zeros((len(hashes), _ENTRY_WORDS), _WORD_TYPE)
    words[:, :2] = np.ascontiguousarray(hashes[:, 1]).view("<u4").reshape(-1, 2)
    words[:, 2] = part
    words[:, 3] = np.arange(len(hashes))
    with files.write_whole(path) as file:
      writer = BlockWriter(file)
      writer.add(hashes[:, 0].copy(), words.reshape(-1), np.full(len(hashes), _ENTRY_WORDS))
      writer.close({"part": part})


def find_duplicates(paths: Sequence[str]) -> dict[int, np.ndarray]:
  """Finds the documents that are copies of earlier ones, by the block files of all parts, in order.

  Returns:
    Number of a part -> the numbers of its documents that are copies, ascending. It needs 8 bytes of memory for each.

  Raises:
    RunError: a block file is damaged.
  """
  blocks = load_blocks(paths)
  runs = [run for block in blocks for run in block.runs]
  if not runs:
    return {}
  copies = []
  for ranges in group_ranges(add_sizes(blocks).num_bytes, _STEP_BYTES):
    copies.append(_find_copies(read_sorted(runs, ranges, _WORD_TYPE)))
  part_numbers, document_numbers = np.concatenate(copies, axis=1)
  order = np.lexsort((document_numbers, part_numbers))
  part_numbers, document_numbers = part_numbers[order], document_numbers[order]
  distinct_parts, starts = np.unique(part_numbers, return_index=True)
  return dict(zip(distinct_parts.tolist(), np.split(document_numbers, starts[1:]), strict=False))


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
  """A part of the text to copy without the documents with some numbers. A part without documents has no file."""

  source: str
  path: str
  dropped: tuple[int, ...]


class CopyResult(msgspec.Struct):
  """The number of sentences in the documents that `copy_part` left out, and a report of these documents alone."""

  sentences: json_values.Count
  report: ReadingReport


def copy_part(task: CopyTask) -> CopyResult:
  """Copies a part of the text without some of its documents."""
  result = CopyResult(0, ReadingReport())
  if not files.exists(task.source):
    return result
  dropped_numbers = frozenset(task.dropped)
  with files.open_file(task.source) as source, files.write_whole(task.path) as target:
    for number, numbered_lines in itertools.groupby(_number_documents(source), key=operator.itemgetter(0)):
      lines = (line for _, line in numbered_lines)
      if number not in dropped_numbers:
        target.writelines(lines)
        continue
      texts = [line.decode("utf-8").removesuffix("\n") for line in lines]
      sentences = [text for text in texts if text]  # without the blank line at the end
      place = f"{os.path.basename(task.path)}, document {number + 1}"
      result.report.drop(DUPLICATE, place, next(iter(sentences), ""), sum(map(len, sentences)))
      result.sentences += len(sentences)
  return result


def _number_documents(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
  """Yields the number of its document, from 0, with each line. A document ends with a blank line."""
  number = 0
  for line in lines:
    yield number, line
    if line == b"\n":
      number += 1
