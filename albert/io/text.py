"""Text: its encoding, its lines as they arrive, labels, and the wording of values and names in messages.

Errors name the encoding of a file that is not UTF-8. Lines of a file or a pipe are read in batches of those that have
already arrived, in bounded memory.
"""

from __future__ import annotations

import codecs
import io
import itertools
import queue
import re
import threading
import unicodedata
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
# Which of the first four bytes of a text that begins with Latin letters are zero, without a byte order mark (RFC 4627).
_ZERO_BYTES: dict[tuple[bool, ...], str] = {
  (False, True, True, True): "UTF-32",
  (True, True, True, False): "UTF-32",
  (False, True, False, True): "UTF-16",
  (True, False, True, False): "UTF-16",
}
# The first bytes of files that are not text -> the format and the remedy.
_OTHER_FORMATS = {
  b"\x1f\x8b": "is gzip data: unpack it with gunzip",
  b"PK\x03\x04": "is an Excel workbook or another ZIP archive: save it as CSV (UTF-8), or unpack it",
  b"\xd0\xcf\x11\xe0": "is an Excel workbook: save it as CSV (UTF-8)",
}
# Longer lines are refused. A model needs about 1 GB of memory for a text of this size.
MAX_LINE_BYTES = 16 << 20
# Reading ahead stops when the lines that were read but not taken have this many bytes. The last one of them may exceed
# this number by MAX_LINE_BYTES.
_MAX_AHEAD_BYTES = 32 << 20
# Seconds to wait for another line before a batch that is not full is returned.
_SECONDS_TO_WAIT = 0.05


def counted(number: int, noun: str, separator: str = "") -> str:
  """Returns a number with its noun, whose plural ends in "s": "1 weight", "2 weights". "," separates thousands."""
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


def quote_names(names: Iterable[Any]) -> str:
  """Returns names in quotes, joined as `join_names` does; "none" if there are none."""
  return join_names(repr(str(name)) for name in names) or "none"


def format_value(value: Any) -> str:
  """Formats a value for an error message. Only the beginning of a long value is shown."""
  text = _LITERALS[value] if value is None or isinstance(value, bool) else repr(value)
  return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


def label_name(text: str) -> str:
  """Returns the label in a field: without whitespace at its ends, and with composed characters (NFC)."""
  return unicodedata.normalize("NFC", text.strip())


def replace_surrogates(text: str) -> str:
  """Replaces each lone surrogate in a text by U+FFFD. JSON can contain them ("\\ud800"), UTF-8 cannot."""
  return _SURROGATES.sub("\ufffd", text)


def encode_utf8(text: str) -> bytes:
  """Encodes a text as UTF-8, with U+FFFD for each lone surrogate."""
  try:
    return text.encode("utf-8")
  except UnicodeEncodeError:
    return replace_surrogates(text).encode("utf-8")


def check_encoding(source: str, start: bytes) -> None:
  """Checks that a file is not in UTF-16 or UTF-32.

  Args:
    source: the file's name; the error begins with it.
    start: the first bytes of the file.

  Raises:
    UserError: it has the byte order mark of UTF-16 or UTF-32, or begins with Latin letters in this encoding.
  """
  names = (name for mark, name in _BYTE_ORDER_MARKS.items() if start.startswith(mark))
  name = next(names, None) or _ZERO_BYTES.get(tuple(byte == 0 for byte in start[:4]))
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
  """Checks that a file is text, its encoding, and its line ends.

  Args:
    source: the file's name; the error begins with it.
    line: the first line of the file with its line end.

  Raises:
    UserError: the file is compressed, a spreadsheet, in UTF-16 or UTF-32, or its lines end in CR without LF.
  """
  for beginning, description in _OTHER_FORMATS.items():
    if line.startswith(beginning):
      raise UserError(f"{source}: {description}")
  check_encoding(source, line)
  if not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
    raise UserError(f"{source}: its lines end in CR alone (as on Mac OS 9): save it with the line ends LF or CRLF")


class _LineQueue(queue.Queue[bytes | Exception]):
  """Lines that were read ahead, then b"" or an error. It is full with `maxsize` lines or _MAX_AHEAD_BYTES."""

  _num_bytes = 0

  def _qsize(self) -> int:
    return self.maxsize if self._num_bytes >= _MAX_AHEAD_BYTES else super()._qsize()

  def _put(self, item: bytes | Exception) -> None:
    super()._put(item)
    self._num_bytes += len(item) if isinstance(item, bytes) else 0

  def _get(self) -> bytes | Exception:
    item = super()._get()
    self._num_bytes -= len(item) if isinstance(item, bytes) else 0
    return item


def _read_lines(file: BinaryIO, source: str, lines: _LineQueue) -> None:
  """Puts the lines of a file into a queue, and b"" or an error at the end."""
  # The readline of a remote file accepts no limit.
  limits = (MAX_LINE_BYTES + len(b"\r\n"),) if isinstance(file, io.IOBase) else ()
  try:
    for line_number in itertools.count(1):
      line = file.readline(*limits)
      if len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
        raise UserError(
          f"{source}, line {line_number}: has more than {MAX_LINE_BYTES >> 20} MiB: divide it into several lines"
        )
      lines.put(line)
      if not line:
        return
  except (UserError, RunError) as error:
    lines.put(error)
  except Exception as error:
    reason = getattr(error, "strerror", None) or error
    lines.put(UserError(f"{source}: cannot read it ({reason}): pipe texts into the command, or give --input_file"))


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
  lines = _LineQueue(2 * max_lines)
  threading.Thread(target=_read_lines, args=(file, source, lines), daemon=True).start()

  def take(seconds: float | None) -> bytes | Exception | None:
    try:
      return lines.get(timeout=seconds)
    except queue.Empty:
      return None

  first_lines = min(first_lines or max_lines, max_lines)
  limit, item = first_lines, take(None)
  while item:  # b"" is the end
    if isinstance(item, Exception):
      raise item
    batch, num_bytes, item = [item], len(item), None
    while len(batch) < limit and num_bytes < _MAX_AHEAD_BYTES:
      item = take(_SECONDS_TO_WAIT if len(batch) < first_lines else 0)
      if not item or isinstance(item, Exception):
        break
      batch.append(item)
      num_bytes += len(item)
      item = None
    yield batch
    if item is None:
      limit, item = max_lines, take(0)
    if item is None:
      limit, item = first_lines, take(None)
