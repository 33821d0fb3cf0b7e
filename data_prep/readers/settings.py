"""The settings with which text is read. Each one is a flag of the commands that read text."""

from __future__ import annotations

import dataclasses

from albert.config.base import Config, option
from albert.errors import UserError
from data_prep.text import sentences

AUTO = "auto"
# The forms of text, for --text_format.
TEXT = "text"
JSON_LINES = "jsonl"
PARQUET = "parquet"
DATASETS = "datasets"
WIKIPEDIA = "wikipedia"
WIKIEXTRACTOR = "wikiextractor"
TEXT_FORMATS = (AUTO, TEXT, JSON_LINES, PARQUET, DATASETS, WIKIPEDIA, WIKIEXTRACTOR)
# Where a document of plain text ends.
BLANK_LINE, FILE = "blank_line", "file"
# How a paragraph becomes sentences.
LINES, SPLIT = "lines", "split"
# Where a paragraph ends: LINE or BLANK_LINE.
LINE = "line"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingSettings(Config):
  """How documents and sentences are found in the input files.

  The attributes are described by their `option` texts, which --help prints.

  Raises:
    UserError: a value is out of range, or two values do not fit together.
  """

  text_format: str = option(
    AUTO,
    "form of the input files; auto: by their names (.jsonl, .ndjson and .json: jsonl; .parquet; .arrow: datasets; "
    ".xml: wikipedia; wiki_00 and so on: wikiextractor; all others: text). Files may be compressed (.gz, .bz2, .zst)",
    choices=TEXT_FORMATS,
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
    if not self.splits_sentences(text_format):
      return False
    if self.paragraph != AUTO:
      return self.paragraph == BLANK_LINE
    return text_format == TEXT and self.document == FILE

  @property
  def needs_no_conversion(self) -> bool:
    """Whether plain text needs no conversion: it has a sentence on each line and a blank line after each document."""
    return self.document == BLANK_LINE and not (
      self.splits_sentences(TEXT) or self.skip_bad_records or self.drop_duplicates
    )
