"""What a reader yields for each record of a file: a document, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from data_prep.readers.settings import ReadingSettings

# The reasons for which a record gives no document. Readers of single forms have more.
NO_TEXT = "no text"


class Piece(NamedTuple):
  """A part of an input file that is read on its own.

  Attributes:
    path: the file.
    text_format: its form, one of `settings.TEXT_FORMATS`.
    start: the first byte, row group or record batch. A record belongs to the piece in which it begins.
    end: the byte, row group or record batch after the last one.
    num_bytes: number of bytes of the file that the piece takes, for a progress bar and for dividing the work.
  """

  path: str
  text_format: str
  start: int
  end: int
  num_bytes: int


class SourceDocument(NamedTuple):
  """A document as it is in a file.

  Attributes:
    place: returns where it is in its file, such as "line 3".
    paragraphs: its paragraphs, or its lines if each line is a sentence. They are read before the next record. Iterating
      over them may raise `BadRecordError`.
    left_out: kind -> number of parts of the document that were left out, such as tables.
  """

  place: Callable[[], str]
  paragraphs: Iterable[str]
  left_out: Mapping[str, int] = {}


class DroppedRecord(NamedTuple):
  """A record that is left out as its form demands, such as a redirect of Wikipedia.

  Attributes:
    place: returns where it is in its file.
    reason: why it is left out, in a few words. Records are counted by reason.
    text: its text, or the beginning of it.
  """

  place: Callable[[], str]
  reason: str
  text: str


class BadRecord(NamedTuple):
  """A damaged record.

  Attributes:
    place: returns where it is in its file.
    reason: what is wrong with it, and the remedy.
  """

  place: Callable[[], str]
  reason: str


Record = SourceDocument | DroppedRecord | BadRecord


class BadRecordError(Exception):
  """Raised while the paragraphs of a document are read: the rest of it is damaged.

  Attributes:
    place: where it is damaged, such as "line 3".
    reason: what is wrong, and the remedy.
  """

  def __init__(self, place: str, reason: str):
    super().__init__(f"{place}: {reason}")
    self.place, self.reason = place, reason


class Reader(Protocol):
  """The functions of a module that reads one form of text."""

  def check(self, path: str, settings: ReadingSettings) -> None:
    """Checks the beginning of a file, and that the libraries that read it are installed.

    Raises:
      UserError: the file has another form, it lacks the text field, or a library is missing.
    """

  def plan(self, path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
    """Cuts a file into pieces of about `unit_bytes`. It depends on nothing but the contents of the file."""

  def read(self, piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
    """Reads the records of a piece in order.

    Raises:
      UserError: the file is damaged as a whole.
    """
