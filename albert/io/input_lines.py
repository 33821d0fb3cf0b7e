"""Reads the lines of a file or a pipe in batches of the lines that have already arrived, in bounded memory."""

from __future__ import annotations

import collections
import io
import itertools
import threading
from collections.abc import Iterator
from typing import BinaryIO

from albert.errors import RunError, UserError

# Longer lines are refused. A model needs about 1 GB of memory for a text of this size.
MAX_LINE_BYTES = 16 << 20
# Reading ahead stops when the lines that were read but not taken have this many bytes. The last one of them may exceed
# this number by MAX_LINE_BYTES.
_MAX_AHEAD_BYTES = 32 << 20
# Seconds to wait for another line before a batch that is not full is returned.
_SECONDS_TO_WAIT = 0.05


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
