"""Writes one part of the converted text: a file made from some pieces of the input. Processes write parts in parallel.

A part is written together with a record (a JSON file): a hash of the input and the settings that it was made from, its
size, and a report of what was left out. A later command keeps the part if input and settings are still the same.
`read_sentences` yields the sentences of a whole file instead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import msgspec

from albert.errors import UserError
from albert.io import files, json_values
from data_prep.block_files import Block
from data_prep.conversion.duplicates import HASH_BYTES, save_hashes
from data_prep.conversion.report import BAD_RECORD, NO_TEXT, ReadingReport
from data_prep.readers import formats, records
from data_prep.sentences import SentenceSplitter
from data_prep.text_files import cut_line, read_record

# A part up to this size is held in memory until it is written.
_MEMORY_BYTES = 32 << 20
_LINES_PER_WRITE = 256
_PIECE_BYTES = 16 << 20  # of a file whose sentences are read without writing parts


class SourcePiece(NamedTuple):
  """A piece of an input file: the file's ordinal and form, the piece, and the SHA-256 of the whole file, in hex."""

  ordinal: int
  text_format: str
  piece: records.Piece
  sha256: str


@dataclasses.dataclass(frozen=True)
class PartTask:
  """A part of the text to write: the pieces that it is made from, the text file, and its number, from 0."""

  pieces: tuple[SourcePiece, ...]
  settings: records.ReadingSettings
  path: str
  number: int

  @property
  def num_bytes(self) -> int:
    return sum(source.piece.num_bytes for source in self.pieces)

  @property
  def record_path(self) -> str:
    """The file for the part's `PartRecord`. It is hidden, so that it is not read as text."""
    return self._hidden_path(".json")

  @property
  def hashes_path(self) -> str:
    """The file for the hashes of the part's documents, with --drop_duplicates."""
    return self._hidden_path(".hashes")

  def _hidden_path(self, ending: str) -> str:
    directory, slash, name = self.path.rpartition("/")
    return f"{directory}{slash}.{name.removeprefix('.')}{ending}"

  @property
  def sources_digest(self) -> str:
    """A hash of everything that the text depends on, in hex."""
    # The number of allowed bad records changes no text.
    settings = dataclasses.replace(self.settings, skip_bad_records=0)
    # All fields of a piece but its path: only the content of the file counts.
    sources = [(source.sha256, source.text_format, *source.piece[1:]) for source in self.pieces]
    # With --drop_duplicates, the hashes of documents are stored with the number of their part.
    number = self.number if settings.drop_duplicates else None
    return hashlib.sha256(repr((settings, sources, number)).encode()).hexdigest()


class PartRecord(msgspec.Struct):
  """The record of a part: its `sources_digest`, the size of the text file, and what was read and left out."""

  sources: str
  num_bytes: json_values.Count
  report: ReadingReport


def load_record(task: PartTask) -> PartRecord | None:
  """Returns the record of a part that an earlier command has written. None if it is missing, damaged or outdated."""
  record = read_record(task.record_path, PartRecord)
  if record is None or record.sources != task.sources_digest:
    return None
  num_bytes = files.size(task.path) if files.exists(task.path) else 0  # a part without documents has no file
  if record.num_bytes != num_bytes or record.report.num_bad > task.settings.skip_bad_records:
    return None
  if task.settings.drop_duplicates and Block.load(task.hashes_path) is None:
    return None
  return record


# ---- sentences -----------------------------------------------------------------------------------------


def _sentence_lines(
  document: records.SourceDocument, text_format: str, settings: records.ReadingSettings
) -> Iterator[str]:
  """Yields the sentences of a document. Long ones are cut. Raises records.BadRecordError if it is damaged."""
  splitter = SentenceSplitter(settings.language) if settings.splits_sentences(text_format) else None
  for paragraph in records.paragraphs_of(document.lines, joins_lines=settings.joins_lines(text_format)):
    if splitter is None:
      yield from cut_line(paragraph)
      continue
    try:
      for sentence in splitter.split(paragraph):
        yield from cut_line(" ".join(sentence.split()))
    except UserError as error:
      raise records.BadRecordError(document.get_place(), str(error)) from error


def too_many_bad_records(example: str, num_allowed: int) -> UserError:
  """Returns the error for more bad records than --skip_bad_records allows. `example` is the place and fault of one."""
  if num_allowed:
    return UserError(f"{example} (one bad record more than --skip_bad_records={num_allowed})")
  return UserError(f"{example} (or leave such records out with --skip_bad_records)")


def read_sentences(path: str, settings: records.ReadingSettings, on_read: Callable[[int], None]) -> Iterator[str]:
  """Reads a file from beginning to end, and yields its sentences.

  A damaged document is left out if skip_bad_records allows it; sentences before the damage are kept. `on_read` is
  called from time to time with the number of bytes read since the last call.
  """
  text_format = formats.format_of(path, settings)
  reader = formats.READERS[text_format]
  num_bad = 0
  for piece in reader.plan(path, settings, _PIECE_BYTES):
    for record in reader.read(piece, settings):
      bad_record = ""  # its place, and what is wrong with it
      if isinstance(record, records.SourceDocument):
        try:
          yield from _sentence_lines(record, text_format, settings)
        except records.BadRecordError as error:
          bad_record = f"{error.place}: {error.reason}"
      elif isinstance(record, records.BadRecord):
        bad_record = f"{record.get_place()}: {record.reason}"
      if bad_record:
        num_bad += 1
        if num_bad > settings.skip_bad_records:
          raise too_many_bad_records(f"{path}, {bad_record}", settings.skip_bad_records)
    on_read(min(piece.num_bytes, files.size(path)))


# ---- parts ---------------------------------------------------------------------------------------------


class _PartWriter:
  """Writes documents as text, and counts them."""

  def __init__(self, file: BinaryIO, settings: records.ReadingSettings):
    self.report = ReadingReport()
    self.digests: list[bytes] = []  # of the documents, with --drop_duplicates
    self._file, self._settings = file, settings

  def add_record(self, source: SourcePiece, record: records.Record) -> None:
    """Writes a document, or counts a record that is left out."""
    path = source.piece.path
    if isinstance(record, records.SourceDocument):
      self._add_document(path, source.text_format, record)
    elif isinstance(record, records.BadRecord):
      self._drop_bad(f"{path}, {record.get_place()}", record.reason)
    else:
      self.report.drop(record.reason, f"{path}, {record.get_place()}", "", 0)

  def _add_document(self, path: str, text_format: str, document: records.SourceDocument) -> None:
    """Writes a document. If it is damaged or empty, nothing of it remains in the file."""
    begin = self._file.tell()
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    num_sentences = num_chars = 0
    try:
      lines = _sentence_lines(document, text_format, self._settings)
      while batch := list(itertools.islice(lines, _LINES_PER_WRITE)):
        encoded_lines = "".join(f"{line}\n" for line in batch).encode("utf-8")
        self._file.write(encoded_lines)
        if self._settings.drop_duplicates:
          digest.update(encoded_lines)
        num_sentences += len(batch)
        num_chars += sum(map(len, batch))
    except records.BadRecordError as error:
      self._file.seek(begin)
      self._file.truncate()
      self._drop_bad(f"{path}, {error.place}", error.reason)
      return
    if not num_sentences:
      self.report.drop(NO_TEXT, f"{path}, {document.get_place()}", "", 0)
      return
    self._file.write(b"\n")
    self.digests.append(digest.digest())
    self.report.add_left_out(document.left_out)
    self.report.documents += 1
    self.report.sentences += num_sentences
    self.report.characters += num_chars

  def _drop_bad(self, place: str, reason: str) -> None:
    """Counts a bad record. Raises a UserError if there are more than --skip_bad_records."""
    self.report.drop(BAD_RECORD, place, reason, 0)
    if self.report.num_bad > self._settings.skip_bad_records:
      raise too_many_bad_records(f"{place}: {reason}", self._settings.skip_bad_records)


def write_part(task: PartTask) -> PartRecord:
  """Reads the pieces of a part and writes its text and its record."""
  with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as file:
    writer = _PartWriter(file, task.settings)  # type: ignore[arg-type]
    for source in task.pieces:
      with files.convert_errors(source.piece.path, "read"):
        for record in formats.READERS[source.text_format].read(source.piece, task.settings):
          writer.add_record(source, record)
    num_bytes = file.tell()
    file.seek(0)
    with files.write_whole(task.path) as target:
      shutil.copyfileobj(file, target)
  if task.settings.drop_duplicates:
    save_hashes(task.hashes_path, task.number, writer.digests)
  part_record = PartRecord(task.sources_digest, num_bytes, writer.report)
  files.write_json(task.record_path, dict(msgspec.to_builtins(part_record)))
  return part_record
