"""Lines of a file or a pipe, as many at once as are there, in bounded memory."""

from __future__ import annotations

import collections
import io
import threading
from collections.abc import Iterator
from typing import BinaryIO

from albert.errors import RunError, UserError

# A longer line is refused. A text of this size takes about 1 GB to answer.
MAX_LINE_BYTES = 16 << 20
# Lines of this many bytes together are read ahead.
_MAX_AHEAD_BYTES = 32 << 20
# Seconds that a line is waited for before those that are there are answered.
_PATIENCE = 0.05


class _Reader:
  """Reads lines in a thread.

  Args:
    file: what to read.
    source: its name, for errors.
    size: lines that are read ahead at most.
  """

  def __init__(self, file: BinaryIO, source: str, size: int):
    self._file, self._source, self._size = file, source, size
    self._lines: collections.deque[bytes] = collections.deque()
    self._num_bytes = 0
    self._changed = threading.Condition()
    self._at_end = False
    self._error: Exception | None = None
    threading.Thread(target=self._read, daemon=True).start()

  def _read(self) -> None:
    try:
      number = 0
      while line := self._next_line(number := number + 1):
        with self._changed:
          self._changed.wait_for(lambda: len(self._lines) < self._size and self._num_bytes < _MAX_AHEAD_BYTES)
          self._lines.append(line)
          self._num_bytes += len(line)
          self._changed.notify_all()
    except Exception as error:  # of the file; raised in the thread that takes the lines
      self._error = error
    with self._changed:
      self._at_end = True
      self._changed.notify_all()

  def _next_line(self, number: int) -> bytes:
    if not isinstance(self._file, io.IOBase):  # a remote file, whose readline has no limit
      return self._file.readline()
    line: bytes = self._file.readline(MAX_LINE_BYTES + 2)
    if len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
      raise UserError(
        f"{self._source}, line {number}: has more than {MAX_LINE_BYTES >> 20} MiB: give a shorter text, or texts on "
        "lines of their own"
      )
    return line

  def take(self) -> bytes | None:
    """The next line, waited for as long as it takes; None at the end. Raises what went wrong after the lines before."""
    return self._take(None)

  def take_soon(self) -> bytes | None:
    """The next line if it is there or comes soon, else None."""
    return self._take(_PATIENCE)

  def _take(self, seconds: float | None) -> bytes | None:
    with self._changed:
      self._changed.wait_for(lambda: self._lines or self._at_end, seconds)
      if self._lines:
        line = self._lines.popleft()
        self._num_bytes -= len(line)
        self._changed.notify_all()
        return line
    if seconds is None and self._error is not None:
      raise self._as_ending(self._error)
    return None

  def _as_ending(self, error: Exception) -> Exception:
    if isinstance(error, UserError | RunError):
      return error
    reason = getattr(error, "strerror", None) or error
    wrapped = UserError(f"{self._source}: cannot read it ({reason}): pipe texts into the command, or give --input_file")
    wrapped.__cause__ = error
    return wrapped


def windows(file: BinaryIO, size: int, source: str = "the input") -> Iterator[list[bytes]]:
  """Lists of lines that are there together, so that a slow writer is answered line by line.

  Args:
    file: what to read.
    size: lines of a list at most. Fewer if they are long: a list has at most twice 32 MiB.
    source: what the file is called in errors.
  Raises:
    UserError: a line has more than MAX_LINE_BYTES, or the file cannot be read; after the lines before it.
  """
  reader = _Reader(file, source, 2 * size)
  while (line := reader.take()) is not None:
    window, num_bytes = [line], len(line)
    while len(window) < size and num_bytes < _MAX_AHEAD_BYTES and (line := reader.take_soon()) is not None:
      window.append(line)
      num_bytes += len(line)
    yield window
