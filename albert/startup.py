"""What a command does before its other imports: signals, standard streams and the encoding of paths.

Imports nothing heavy. A command calls `begin()` in the first lines of its file, so that an interrupt during the imports
ends it with one line. Importing albert as a library changes none of this.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from types import FrameType
from typing import IO, Any, NoReturn

from albert.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds after which a signal is delivered again that a destructor has swallowed.
_SECONDS_TO_REPEAT = 0.05


class OutputError(OSError):
  """Standard output cannot be written: it is closed, full, or a pipe that nobody reads."""


class _OutputFile(io.FileIO):
  """Standard output; its errors are told from those of other files."""

  def write(self, data: Any) -> int:
    try:
      return super().write(data) or 0
    except OSError as error:
      raise OutputError(error.errno, error.strerror) from error


class _MessageFile(io.FileIO):
  """Standard error: messages that nobody can read are dropped, and the work goes on."""

  def write(self, data: Any) -> int:
    try:
      return super().write(data) or 0
    except OSError:
      return len(data)


class _State:
  """Of this process. `requested`: the signal under way, or 0."""

  has_begun = False
  is_running = False
  requested = 0


def begin() -> None:
  """Prepares this process to be a command; a second call does nothing."""
  if _State.has_begun:
    return
  _State.has_begun = True
  if threading.current_thread() is threading.main_thread():
    for number in _SIGNALS:
      if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(number, _on_signal)
    sys.unraisablehook = _on_unraisable
  _use_utf8()
  _open_closed_descriptors()
  _replace_streams()


def start_running() -> None:
  """From here until `stop_running` a signal raises Interrupted, so that what was begun is cleaned up."""
  _State.is_running = True


def stop_running() -> None:
  """From here a signal ends the process at once."""
  _State.is_running = False


def interrupted_by() -> int:
  """The signal that has interrupted the command, or 0. Libraries may have made another exception of it."""
  return _State.requested


def stopped_line(number: int) -> str:
  """What is said when a signal has ended the command."""
  return f"stopped by {signal.Signals(number).name}"


def end_by_signal(number: int) -> NoReturn:
  """Ends the process now, with one line."""
  with contextlib.suppress(OSError):
    os.write(2, f"{stopped_line(number)}\n".encode())
  os._exit(128 + number)


def _on_signal(number: int, frame: FrameType | None) -> None:
  if not _State.is_running or _State.requested or _is_importing(frame):
    end_by_signal(number)
  _State.requested = number
  raise Interrupted(number)


def _is_importing(frame: FrameType | None) -> bool:
  """True within an import, where many libraries take any exception for a missing package, or abort."""
  while frame is not None:
    if frame.f_code.co_filename.startswith("<frozen importlib"):
      return True
    frame = frame.f_back
  return False


def _on_unraisable(unraisable: Any) -> None:
  """An interrupt that fell into a destructor, which can raise nothing, is delivered again."""
  if isinstance(unraisable.exc_value, Interrupted):
    number = unraisable.exc_value.signal_number
    _State.requested = 0
    main = threading.main_thread().ident
    threading.Timer(_SECONDS_TO_REPEAT, signal.pthread_kill, (main, number)).start()
  else:
    sys.__unraisablehook__(unraisable)


def _use_utf8() -> None:
  """Starts Python again in its UTF-8 mode where it would take paths for ASCII or Latin-1: TensorFlow takes UTF-8."""
  if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
    os.environ["PYTHONUTF8"] = "1"
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _open_closed_descriptors() -> None:
  """Opens /dev/null where a standard stream is closed: the next file would get its number, and the stream's text.

  Standard input cannot be read then, standard output cannot be written, and messages are dropped.
  """
  for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
    try:
      os.fstat(descriptor)
    except OSError:
      opened = os.open(os.devnull, mode)
      if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
      os.set_inheritable(descriptor, True)


def _replace_streams() -> None:
  """Streams whose errors are told apart, and that escape what their encoding lacks. A test's own streams stay."""
  if sys.stdin is None:
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
  if sys.stdout is sys.__stdout__:
    sys.stdout = _text_stream(_OutputFile(1, "w", closefd=False), sys.stdout)
  if sys.stderr is sys.__stderr__:
    sys.stderr = _text_stream(_MessageFile(2, "w", closefd=False), sys.stderr, line_buffering=True)


def _text_stream(file: io.FileIO, old: IO[str] | None, *, line_buffering: bool = False) -> io.TextIOWrapper:
  encoding, is_unbuffered = "utf-8", False
  if isinstance(old, io.TextIOWrapper):
    old.flush()
    encoding, is_unbuffered = old.encoding, old.write_through
    line_buffering = line_buffering or old.line_buffering
  # Python writes unbuffered text (python -u) to a buffer that is flushed after each write.
  return io.TextIOWrapper(
    io.BufferedWriter(file),
    encoding=encoding,
    errors="backslashreplace",
    line_buffering=line_buffering or is_unbuffered,
    write_through=is_unbuffered,
  )
