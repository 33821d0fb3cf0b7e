"""What a reader yields for each record of a file: a document, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from data_prep.readers.settings import ReadingSettings

# A reason why a record gives no document. Some readers have other reasons, such as "redirect".
NO_TEXT = "no text"
# A function that returns where a record is in its file, such as "line 3". It is called only if a message needs the
# place, since the lines before a record are counted for it.
GetPlace = Callable[[], str]


class Piece(NamedTuple):
  """A part of an input file that is read on its own.

  Attributes:
    path: the file.
    text_format: its form, one of `settings.TEXT_FORMATS`.
    start: the first byte, row group or record batch. A record belongs to the piece in which it begins.
    end: the byte, row group or record batch after the last one.
    num_bytes: approximate size of the piece in the file, for a progress bar and for dividing the work.
  """

  path: str
  text_format: str
  start: int
  end: int
  num_bytes: int


class SourceDocument(NamedTuple):
  """A document as it is in a file.

  Attributes:
    get_place: see `GetPlace`.
    paragraphs: its paragraphs, or its lines if each line is a sentence. The caller must iterate over them before it
      asks the reader for the next record. Iterating may raise `BadRecordError`.
    left_out: kind -> number of parts of the document that were left out, such as tables.
  """

  get_place: GetPlace
  paragraphs: Iterable[str]
  left_out: Mapping[str, int] = {}


class DroppedRecord(NamedTuple):
  """A record that is not damaged but holds no document, such as a redirect of Wikipedia.

  Attributes:
    get_place: see `GetPlace`.
    reason: why it is left out, in a few words. Records are counted by reason.
    text: its text, or the beginning of it.
  """

  get_place: GetPlace
  reason: str
  text: str


class BadRecord(NamedTuple):
  """A damaged record.

  Attributes:
    get_place: see `GetPlace`.
    reason: what is wrong with it, and the remedy.
  """

  get_place: GetPlace
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
    """Cuts a file into pieces of about `unit_bytes`. The pieces depend only on the contents of the file."""

  def read(self, piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
    """Reads the records of a piece in order.

    Raises:
      UserError: the file is damaged as a whole.
    """
