"""How text is read, the pieces of files that readers get, and the documents that they yield."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from albert.config.base import Config, option
from albert.errors import UserError
from albert.io import files
from data_prep import sentences
from data_prep.text_files import compression, strip_line

AUTO = "auto"
# The forms of text, for --text_format.
TEXT = "text"
JSON_LINES = "jsonl"
PARQUET = "parquet"
DATASETS = "datasets"
WIKIPEDIA = "wikipedia"
WIKIEXTRACTOR = "wikiextractor"
# Where a document of plain text ends.
BLANK_LINE, FILE = "blank_line", "file"
# How a paragraph becomes sentences.
LINES, SPLIT = "lines", "split"
# Where a paragraph ends: LINE or BLANK_LINE.
LINE = "line"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingSettings(Config):
  """How documents and sentences are found in the input files. The attributes are described by their `option` texts."""

  text_format: str = option(
    AUTO,
    "form of the input files; auto: by their names (.jsonl, .ndjson and .json: jsonl; .parquet; .arrow: datasets; "
    ".xml: wikipedia; wiki_00 and so on: wikiextractor; all others: text). Files may be compressed (.gz, .bz2, .zst)",
    choices=(AUTO, TEXT, JSON_LINES, PARQUET, DATASETS, WIKIPEDIA, WIKIEXTRACTOR),
  )
  text_field: str = option("text", "field of JSON lines, or column of Parquet files and datasets, that holds the text")
  document: str = option(
    BLANK_LINE,
    "where a document of plain text ends: at each blank line, or at the end of the file",
    choices=(BLANK_LINE, FILE),
  )
  sentences: str = option(
    AUTO,
    "lines: each line is a sentence; split: paragraphs are split into sentences; auto: lines for plain text with "
    "--document=blank_line, otherwise split",
    choices=(AUTO, LINES, SPLIT),
  )
  paragraph: str = option(
    AUTO,
    "where a paragraph ends, for --sentences=split: at each line end, or at a blank line (the lines before it are "
    "joined); auto: blank_line for plain text with --document=file, otherwise line",
    choices=(AUTO, LINE, BLANK_LINE),
  )
  language: str = option("en", "language of the text, for --sentences=split: an ISO 639 code, such as en, de or fr")
  drop_duplicates: bool = option(
    False, "leave out documents whose sentences are exactly those of an earlier document, in this or another file"
  )
  skip_bad_records: int = option(
    0,
    "greatest number of damaged documents (such as a line that is not JSON) that are left out, counted and listed; "
    "with one more, the command ends with an error",
    minimum=0,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.text_field:
      raise UserError("--text_field is empty: give the name of the field or column that holds the text")
    sentences.check_language(self.language)

  def splits_sentences(self, text_format: str) -> bool:
    """Whether paragraphs of this form are split into sentences. If not, each line is a sentence."""
    if self.sentences != AUTO:
      return self.sentences == SPLIT
    return text_format != TEXT or self.document == FILE

  def joins_lines(self, text_format: str) -> bool:
    """Whether the lines of a paragraph are joined, since a paragraph ends at a blank line."""
    if not self.splits_sentences(text_format) or text_format == WIKIPEDIA:
      return False
    if self.paragraph != AUTO:
      return self.paragraph == BLANK_LINE
    return text_format == TEXT and self.document == FILE


# The end of a piece that reaches to the end of its file.
TO_THE_END = (1 << 63) - 1
# A paragraph with more characters is cut at the end of a line, so that a file without blank lines fits into memory.
_MAX_PARAGRAPH_CHARS = 1 << 20
# A function that returns where a record is in its file, such as "line 3". It is called only if a message needs the
# place, since the lines before a record are counted for it.
GetPlace = Callable[[], str]


class Piece(NamedTuple):
  """A part of an input file that is read on its own.

  It goes from a first byte, row group or record batch to the one before `end`. A record belongs to the piece in which
  it begins. `num_bytes` is its approximate size in the file, for a progress bar and for dividing the work.
  """

  path: str
  start: int
  end: int
  num_bytes: int


class SourceDocument(NamedTuple):
  """A document as it is in a file.

  Attributes:
    get_place: see `GetPlace`.
    lines: its lines, which `paragraphs_of` takes. The caller must iterate over them before it asks the reader for the
      next record. Iterating may raise `BadRecordError`.
    left_out: kind -> number of parts of the document that were left out, such as tables.
  """

  get_place: GetPlace
  lines: Iterable[str]
  left_out: Mapping[str, int] = {}


class DroppedRecord(NamedTuple):
  """A record that is not damaged but holds no document, such as a redirect: its place, and the reason."""

  get_place: GetPlace
  reason: str


class BadRecord(NamedTuple):
  """A damaged record: its place (see `GetPlace`), and what is wrong with it, with the remedy."""

  get_place: GetPlace
  reason: str


Record = SourceDocument | DroppedRecord | BadRecord


class BadRecordError(Exception):
  """Raised while the paragraphs of a document are read: the rest of it is damaged, at a place such as "line 3"."""

  def __init__(self, place: str, reason: str):
    super().__init__(f"{place}: {reason}")
    self.place, self.reason = place, reason


class Reader(NamedTuple):
  """The functions that read one form of text.

  Attributes:
    check: checks the beginning of a file, and that the libraries that read it are installed. Raises UserError if the
      file has another form or lacks the text field, or if a library is missing.
    plan: cuts a file into pieces of about a number of bytes. The pieces depend only on the contents of the file.
    read: reads the records of a piece in order. Raises UserError if the file is damaged as a whole.
  """

  check: Callable[[str, ReadingSettings], object]
  plan: Callable[[str, ReadingSettings, int], Iterator[Piece]]
  read: Callable[[Piece, ReadingSettings], Iterator[Record]]


# ---- pieces, paragraphs and documents -------------------------------------------------------------------


def whole_file(path: str) -> Piece:
  """Returns a piece that is the whole file."""
  return Piece(path, 0, TO_THE_END, files.size(path))


def byte_ranges(path: str, unit_bytes: int, *, divisible_ending: str = "") -> Iterator[Piece]:
  """Cuts a file into ranges of `unit_bytes` without reading it.

  A compressed file is a single piece, unless it can be read from the middle: if its name ends in `divisible_ending`.
  """
  size = files.size(path)
  if compression(path) not in ("", divisible_ending) or size <= unit_bytes:
    yield whole_file(path)
    return
  for start in range(0, size, unit_bytes):
    end = min(start + unit_bytes, size)
    yield Piece(path, start, end, end - start)


def paragraphs_of(lines: Iterable[str], *, joins_lines: bool) -> Iterator[str]:
  """Yields the paragraphs of some lines: the lines up to a blank line if `joins_lines`, else each line."""
  if not joins_lines:
    yield from filter(None, map(strip_line, lines))
    return
  paragraph_lines: list[str] = []
  num_chars = 0
  for line in map(strip_line, lines):
    if paragraph_lines and (not line or num_chars >= _MAX_PARAGRAPH_CHARS):
      yield " ".join(paragraph_lines)
      paragraph_lines, num_chars = [], 0
    if line:
      paragraph_lines.append(line)
      num_chars += len(line)
  if paragraph_lines:
    yield " ".join(paragraph_lines)
