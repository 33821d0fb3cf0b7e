"""Reads the sentences of documents and of whole files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from albert.errors import UserError
from albert.io import files
from data_prep.readers import formats
from data_prep.readers.records import BadRecord, BadRecordError, SourceDocument
from data_prep.readers.settings import ReadingSettings
from data_prep.text.sentences import SentenceSplitter
from data_prep.text.text_files import cut_line

_READ_BYTES = 64 << 20


def sentence_lines(document: SourceDocument, splitter: SentenceSplitter | None) -> Iterator[str]:
  """Yields the sentences of a document, one on each line. Long ones are cut (`text_files.cut_line`).

  Args:
    document: the document.
    splitter: splits paragraphs into sentences; None if each paragraph of the document is a sentence.

  Raises:
    BadRecordError: the document is damaged, or cannot be split.
  """
  for paragraph in document.paragraphs:
    if splitter is None:
      yield from cut_line(paragraph.strip())
      continue
    try:
      for sentence in splitter.split(paragraph):
        yield from cut_line(" ".join(sentence.split()))
    except UserError as error:
      raise BadRecordError(document.get_place(), str(error)) from error


def too_many_bad_records(example: str, num_allowed: int) -> UserError:
  """Returns the error for more bad records than --skip_bad_records allows.

  Args:
    example: a bad record: its file, its place, and what is wrong with it.
    num_allowed: the value of --skip_bad_records.
  """
  if num_allowed:
    return UserError(f"{example} (one bad record more than --skip_bad_records={num_allowed})")
  return UserError(f"{example} (or leave such records out with --skip_bad_records)")


def read_sentences(path: str, settings: ReadingSettings, on_read: Callable[[int], None]) -> Iterator[str]:
  """Reads a file from beginning to end, and yields its sentences.

  Args:
    path: the file.
    settings: how it is read. A damaged document is left out if skip_bad_records allows it; sentences before the damage
      are kept.
    on_read: called from time to time with the number of bytes read since the last call.

  Raises:
    UserError: bad input.
  """
  text_format = formats.format_of(path, settings)
  reader = formats.reader_of(text_format)
  splitter = SentenceSplitter(settings.language) if settings.splits_sentences(text_format) else None
  num_bad = 0
  for piece in reader.plan(path, settings, _READ_BYTES):
    for record in reader.read(piece, settings):
      bad_record = ""  # its place, and what is wrong with it
      if isinstance(record, SourceDocument):
        try:
          yield from sentence_lines(record, splitter)
        except BadRecordError as error:
          bad_record = f"{error.place}: {error.reason}"
      elif isinstance(record, BadRecord):
        bad_record = f"{record.get_place()}: {record.reason}"
      if bad_record:
        num_bad += 1
        if num_bad > settings.skip_bad_records:
          raise too_many_bad_records(f"{path}, {bad_record}", settings.skip_bad_records)
    on_read(min(piece.num_bytes, files.size(path)))
