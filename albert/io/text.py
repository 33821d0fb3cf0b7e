"""Text: its encoding, its lines as they arrive, and the wording of values and names in messages.

Errors name the encoding of a file that is not UTF-8. Lines of a file or a pipe are read in batches of those that have
already arrived, in bounded memory.
"""

from __future__ import annotations

import codecs
import collections
import io
import itertools
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from albert.errors import RunError, UserError

# Numbers of names that `counted_names` and `join_names` show, and of characters of a name and of a value.
_MAX_COUNTED_NAMES, _MAX_JOINED_NAMES = 4, 20
_MAX_NAME_CHARS, MAX_VALUE_CHARS = 40, 60
_LITERALS = {None: "null", True: "true", False: "false"}
_SURROGATES = re.compile(r"[\ud800-\udfff]")
# UTF-32 comes first: its little-endian byte order mark begins with UTF-16's.
_BYTE_ORDER_MARKS = {
  codecs.BOM_UTF32_LE: "UTF-32",
  codecs.BOM_UTF32_BE: "UTF-32",
  codecs.BOM_UTF16_LE: "UTF-16",
  codecs.BOM_UTF16_BE: "UTF-16",
}
# Maximum and minimum number of bytes that are searched for the zero bytes of Latin letters in UTF-16 and UTF-32.
_MAX_SEARCHED_BYTES = 64
_MIN_SEARCHED_BYTES = 4


# Longer lines are refused. A model needs about 1 GB of memory for a text of this size.
MAX_LINE_BYTES = 16 << 20
# Reading ahead stops when the lines that were read but not taken have this many bytes. The last one of them may exceed
# this number by MAX_LINE_BYTES.
_MAX_AHEAD_BYTES = 32 << 20
# Seconds to wait for another line before a batch that is not full is returned.
_SECONDS_TO_WAIT = 0.05


def counted(number: int, noun: str, separator: str = "") -> str:
  """Returns a number with its noun: "1 weight", "2 weights".

  Args:
    number: the number.
    noun: the noun in the singular. Its plural ends in "s".
    separator: "," to separate thousands.
  """
  return f"{number:{separator}} {noun}{'' if number == 1 else 's'}"


def counted_names(names: Sequence[str], noun: str) -> str:
  """Returns the number of names with their noun, and the first names: "1 weight: a", "5 weights: a, b, c, d, ..."."""
  shown_names = [*names[:_MAX_COUNTED_NAMES], *(["..."] if len(names) > _MAX_COUNTED_NAMES else [])]
  return f"{counted(len(names), noun)}: {', '.join(shown_names)}"


def name_and_others(name: str, num_others: int) -> str:
  """Returns a name with the number of the others: "a", "a and 1 other", "a and 2 others"."""
  return f"{name} and {counted(num_others, 'other')}" if num_others else name


def join_names(names: Iterable[str]) -> str:
  """Returns the first 20 names, each shortened to 40 characters, separated by commas."""
  shown = list(itertools.islice(names, _MAX_JOINED_NAMES + 1))
  shortened = [name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}..." for name in shown]
  more = ", ..." if len(shown) > _MAX_JOINED_NAMES else ""
  return ", ".join(shortened[:_MAX_JOINED_NAMES]) + more


def format_value(value: Any) -> str:
  """Formats a value for an error message. Only the beginning of a long value is shown."""
  text = _LITERALS[value] if value is None or isinstance(value, bool) else repr(value)
  return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


def replace_surrogates(text: str) -> str:
  """Replaces each lone surrogate in a text by U+FFFD. JSON can contain them ("\\ud800"), UTF-8 cannot."""
  return _SURROGATES.sub("\ufffd", text)


def encode_utf8(text: str) -> bytes:
  """Encodes a text as UTF-8, with U+FFFD for each lone surrogate."""
  try:
    return text.encode("utf-8")
  except UnicodeEncodeError:
    return replace_surrogates(text).encode("utf-8")


def detect_utf16_or_utf32(start: bytes) -> str:
  """Recognizes UTF-16 and UTF-32.

  A text without a byte order mark is recognized if it begins with Latin letters, whose other bytes are all zero.

  Args:
    start: the first bytes of a file; at most 64 are used.

  Returns:
    "UTF-16", "UTF-32", or "" for any other encoding.
  """
  for mark, name in _BYTE_ORDER_MARKS.items():
    if start.startswith(mark):
      return name
  start = start[:_MAX_SEARCHED_BYTES]
  start = start[: len(start) // 4 * 4]  # whole characters of UTF-32
  if len(start) < _MIN_SEARCHED_BYTES:
    return ""
  for name, width in (("UTF-32", 4), ("UTF-16", 2)):
    for letter_offset in (0, width - 1):  # little-endian, big-endian
      other_bytes = [start[offset::width] for offset in range(width) if offset != letter_offset]
      if all(start[letter_offset::width]) and not any(map(any, other_bytes)):
        return name
  return ""


def check_encoding(source: str, start: bytes) -> None:
  """Checks that a file is not in UTF-16 or UTF-32.

  Args:
    source: the file's name; the error begins with it.
    start: the first bytes of the file.

  Raises:
    UserError: it is in UTF-16 or UTF-32.
  """
  name = detect_utf16_or_utf32(start)
  if name:
    raise UserError(f"{source} is {name}: save it as UTF-8")


def decode_utf8(source: str, data: bytes, remedy: str = "save the file as UTF-8") -> str:
  """Decodes UTF-8, with or without a byte order mark.

  Args:
    source: the file, and the line if `data` is one line of it; errors begin with it.
    data: the bytes.
    remedy: what the user can do if they are not UTF-8.

  Raises:
    UserError: they are not UTF-8; the message names the line and the byte.
  """
  check_encoding(source, data)
  try:
    return data.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    content: bytes = error.object  # without the byte order mark, as the error's positions
    lines = content[: error.start].split(b"\n")  # up to the wrong byte
    line = f", line {len(lines)}" if b"\n" in content.rstrip() else ""
    raise UserError(
      f"{source}{line}: not UTF-8 (byte {len(lines[-1]) + 1} of the line is 0x{content[error.start]:02x}): {remedy}"
    ) from error


def check_first_line(source: str, line: bytes) -> None:
  """Checks the encoding and the line ends of a file.

  Args:
    source: the file's name; the error begins with it.
    line: the first line of the file with its line end.

  Raises:
    UserError: the file is in UTF-16 or UTF-32, or its lines end in CR without LF.
  """
  check_encoding(source, line)
  if not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
    raise UserError(f"{source}: its lines end in CR alone (as on Mac OS 9): save it with the line ends LF or CRLF")


class _LineReader:
  """Reads lines ahead in a thread of its own.

  Args:
    file: an open binary file or pipe.
    source: its name, for errors.
    max_lines: how many lines are read ahead at most.
  """

  def __init__(self, file: BinaryIO, source: str, max_lines: int):
    self._file, self._source, self._max_lines = file, source, max_lines
    self._lines: collections.deque[bytes] = collections.deque()
    self._num_bytes = 0
    self._changed = threading.Condition()  # the lock of all these fields, notified after each change
    self._is_at_end = False
    self._error: Exception | None = None
    threading.Thread(target=self._read, daemon=True).start()

  def _read(self) -> None:
    try:
      for line_number in itertools.count(1):
        line = self._next_line(line_number)
        if not line:
          break
        with self._changed:
          self._changed.wait_for(lambda: len(self._lines) < self._max_lines and self._num_bytes < _MAX_AHEAD_BYTES)
          self._lines.append(line)
          self._num_bytes += len(line)
          self._changed.notify_all()
    except Exception as error:  # raised again in the thread that takes the lines
      self._error = error
    with self._changed:
      self._is_at_end = True
      self._changed.notify_all()

  def _next_line(self, line_number: int) -> bytes:
    """Reads a line with its line end; b"" at the end of the file."""
    if not isinstance(self._file, io.IOBase):  # a remote file, whose readline accepts no limit
      return self._file.readline()
    line: bytes = self._file.readline(MAX_LINE_BYTES + len(b"\r\n"))
    if len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
      raise UserError(
        f"{self._source}, line {line_number}: has more than {MAX_LINE_BYTES >> 20} MiB: give a shorter text, or texts "
        "on lines of their own"
      )
    return line

  def take(self) -> bytes | None:
    """Waits for the next line and returns it; None at the end. Errors of reading are raised after the last line."""
    return self._take(None)

  def take_soon(self) -> bytes | None:
    """Returns the next line if it is available or arrives within _SECONDS_TO_WAIT, else None."""
    return self._take(_SECONDS_TO_WAIT)

  def take_arrived(self) -> bytes | None:
    """Returns the next line if it is available, else None."""
    return self._take(0)

  def _take(self, seconds: float | None) -> bytes | None:
    with self._changed:
      self._changed.wait_for(lambda: self._lines or self._is_at_end, seconds)
      if self._lines:
        line = self._lines.popleft()
        self._num_bytes -= len(line)
        self._changed.notify_all()
        return line
    if seconds is None and self._error is not None:
      raise self._as_user_error(self._error)
    return None

  def _as_user_error(self, error: Exception) -> Exception:
    if isinstance(error, UserError | RunError):
      return error
    reason = getattr(error, "strerror", None) or error
    user_error = UserError(
      f"{self._source}: cannot read it ({reason}): pipe texts into the command, or give --input_file"
    )
    user_error.__cause__ = error
    return user_error


def read_line_batches(
  file: BinaryIO, max_lines: int, source: str = "the input", *, first_lines: int | None = None
) -> Iterator[list[bytes]]:
  """Yields lists of lines that arrived together. Lines that arrive slowly are yielded one by one.

  The first list is short, so that the caller can soon begin. So is a list that is asked for when no line has arrived,
  for example after a pause.

  Args:
    file: an open binary file or pipe.
    max_lines: maximum number of lines in a list. Lists of long lines are shorter: no line is added to a list that has
      _MAX_AHEAD_BYTES (32 MiB), so with the last line a list has at most 48 MiB.
    source: the file's name, for errors.
    first_lines: maximum number of lines in a short list. Only while a list has fewer lines does the reader wait for
      more. None: max_lines.

  Yields:
    Lists of lines with their line ends.

  Raises:
    UserError: a line has more than MAX_LINE_BYTES, or the file cannot be read. The lines before are yielded first.
  """
  reader = _LineReader(file, source, 2 * max_lines)
  first_lines = min(first_lines or max_lines, max_lines)
  line, limit = reader.take(), first_lines
  while line is not None:
    batch, num_bytes = [line], len(line)
    while len(batch) < limit and num_bytes < _MAX_AHEAD_BYTES:
      line = reader.take_soon() if len(batch) < first_lines else reader.take_arrived()
      if line is None:
        break
      batch.append(line)
      num_bytes += len(line)
    yield batch
    line, limit = reader.take_arrived(), max_lines
    if line is None:
      line, limit = reader.take(), first_lines
