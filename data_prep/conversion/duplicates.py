"""Finds documents that are exact copies of earlier ones, by sorting hashes on disk, and removes them from the text.

The first copy, in the order of the input, is kept. Each part of the text has a spill file with an entry for each of its
documents: the first 64 bits of a 128-bit hash are the key, by which data_prep.sorting sorts. The other 64 bits, the
part and the number of the document are its words.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from albert.errors import RunError
from albert.io import files, json_values
from data_prep.conversion.report import ReadingReport
from data_prep.sorting.merge import KEY_RANGE_BYTES, LAST_KEY, RunSection, merge_runs
from data_prep.sorting.merge_passes import MergeTask, max_open_runs, merge_spills
from data_prep.sorting.spills import Spill, SpillWriter

DUPLICATE = "duplicate"
_WORD_TYPE = "<u4"
# Words of an entry: the rest of the hash (2), the part, the number of the document.
_ENTRY_WORDS = 4
_HASH_BYTES = 16


class DocumentHashes:
  """Collects the hashes of a part's documents. The text of a document is added in parts."""

  def __init__(self) -> None:
    self._digests: list[bytes] = []
    self._current = hashlib.blake2b(digest_size=_HASH_BYTES)

  def add_text(self, text: bytes) -> None:
    """Adds lines of the current document."""
    self._current.update(text)

  def end_document(self, *, is_kept: bool) -> None:
    """Ends the current document, which becomes an entry if it is kept."""
    if is_kept:
      self._digests.append(self._current.digest())
    self._current = hashlib.blake2b(digest_size=_HASH_BYTES)

  def save(self, path: str, part: int) -> None:
    """Writes the spill file of part number `part`."""
    hashes = np.frombuffer(b"".join(self._digests), "<u8").reshape(-1, 2)
    words = np.zeros((len(hashes), _ENTRY_WORDS), _WORD_TYPE)
    words[:, :2] = np.ascontiguousarray(hashes[:, 1]).view("<u4").reshape(-1, 2)
    words[:, 2] = part
    words[:, 3] = np.arange(len(hashes))
    with SpillWriter(path) as writer:
      writer.add(hashes[:, 0].copy(), words.reshape(-1), np.full(len(hashes), _ENTRY_WORDS))
      writer.close({"counts": {}, "labels": [0, 0]}, [{"part": part}])


def find_duplicates(paths: Sequence[str], directory: str) -> dict[int, np.ndarray]:
  """Finds the documents that are copies of earlier ones.

  Args:
    paths: the spill files of all parts, in order.
    directory: where merged files are written, if there are too many spill files to read them at the same time.

  Returns:
    Number of a part -> the numbers of its documents that are copies, ascending. It needs 8 bytes of memory for each.

  Raises:
    RunError: a spill file is damaged, or the disk failed.
  """
  folder = files.join(directory, ".duplicates")
  files.remove_tree(folder)
  spills = [_load(path) for path in paths]
  level = 0
  while sum(len(spill.runs) for spill in spills) > max_open_runs() and len(spills) > 1:
    files.makedirs(folder)
    level += 1
    step = max(2, max_open_runs() // max(len(spill.runs) for spill in spills))
    groups = [tuple(spills[start : start + step]) for start in range(0, len(spills), step)]
    spills = [
      merge_spills(MergeTask(group, files.join(folder, f"{level}-{index}"), level, _WORD_TYPE, KEY_RANGE_BYTES))
      for index, group in enumerate(groups)
    ]
  found = list(_duplicates_of(spills))
  files.remove_tree(folder)
  if not found:
    return {}
  part_numbers, document_numbers = (np.concatenate(column) for column in zip(*found, strict=True))
  order = np.lexsort((document_numbers, part_numbers))
  part_numbers, document_numbers = part_numbers[order], document_numbers[order]
  bounds = np.flatnonzero(np.diff(part_numbers)) + 1
  firsts = part_numbers[np.concatenate([[0], bounds])]
  return {int(part): numbers for part, numbers in zip(firsts, np.split(document_numbers, bounds), strict=True)}


def _load(path: str) -> Spill:
  spill = Spill.load(path)
  if spill is None:
    raise RunError(f"{path} is missing or damaged: run the same command again")
  return spill


def _duplicates_of(spills: Sequence[Spill]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the parts and numbers of copies, one key range at a time."""
  runs = [(spill.path, run) for spill in spills for run in spill.runs]
  sections = [RunSection(path, run.begin, 0, run.end) for path, run in runs]
  num_key_ranges = 1 + sum(run.num_bytes for _, run in runs) // KEY_RANGE_BYTES
  for entries in merge_runs(sections, _WORD_TYPE, first_key=0, last_key=LAST_KEY, num_key_ranges=num_key_ranges):
    words = entries.words[entries.starts[:, None] + np.arange(_ENTRY_WORDS)]
    rest = words[:, 0].astype(np.uint64) | words[:, 1].astype(np.uint64) << np.uint64(32)
    order = np.lexsort((words[:, 3], words[:, 2], rest, entries.keys))
    keys, rest, words = entries.keys[order], rest[order], words[order]
    is_copy = np.flatnonzero((keys[1:] == keys[:-1]) & (rest[1:] == rest[:-1])) + 1
    if is_copy.size:
      yield words[is_copy, 2], words[is_copy, 3]


@dataclasses.dataclass(frozen=True)
class CopyTask:
  """A part of the text to copy without some of its documents.

  Attributes:
    source: the part's text.
    path: the file to write.
    dropped: numbers of the documents that are left out, ascending.
  """

  source: str
  path: str
  dropped: tuple[int, ...]


class CopyResult(msgspec.Struct):
  """What `copy_part` left out.

  Attributes:
    sentences: number of sentences.
    report: the documents; it counts nothing else.
  """

  sentences: json_values.Count
  report: ReadingReport


def copy_part(task: CopyTask) -> CopyResult:
  """Copies a part of the text without some of its documents."""
  dropped = iter(task.dropped)
  next_dropped = next(dropped, -1)
  result = CopyResult(0, ReadingReport())
  document, num_sentences, num_chars, begin = 0, 0, 0, ""
  if not files.exists(task.source):  # a part without documents
    return result
  staging = files.staging_path(task.path)
  try:
    with files.open_file(task.source) as source, files.open_file(staging, "wb") as target:
      for line in source:
        is_dropped = document == next_dropped
        if not is_dropped:
          target.write(line)
        elif line != b"\n":
          text = line.decode("utf-8").removesuffix("\n")
          begin = begin or text
          num_sentences += 1
          num_chars += len(text)
        if line == b"\n":
          if is_dropped:
            place = f"{os.path.basename(task.path)}, document {document + 1}"
            result.report.drop(DUPLICATE, place, begin, num_chars)
            result.sentences += num_sentences
            next_dropped = next(dropped, -1)
          document, num_sentences, num_chars, begin = document + 1, 0, 0, ""
    files.replace(staging, task.path)
  finally:
    files.discard(staging)
  return result
