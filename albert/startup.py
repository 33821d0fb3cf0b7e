"""Prepares the process of a command: signal handlers, standard streams and the encoding of paths.

A command calls `begin()` before its other imports, so that an interrupt during the imports ends it with one line. This
module imports no large libraries. Importing albert as a library does not change the process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import IO, Any, NoReturn

from albert.errors import Interrupted, UserError
from albert.version import VERSION

VERBOSITIES = QUIET, NORMAL, VERBOSE = ("quiet", "normal", "verbose")
_STDERR = 2  # its descriptor
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Python discards an exception that is raised in a destructor. If this happens to the exception of a signal, the signal
# is sent again after this many seconds.
_SECONDS_UNTIL_SIGNAL_IS_REPEATED = 0.05
# Matches the harmless lines that TensorFlow's C++ code prints during the import, before it reads TF_CPP_MIN_LOG_LEVEL;
# a regular expression of grep.
_IMPORT_MESSAGES = (
  "^[IW][0-9]{4} |^E[0-9]{4} .*(Unable to register|already registered)|^WARNING: All log messages before absl"
)
# Only one thread at a time filters standard error.
_filter_lock = threading.Lock()
# Maximum time to wait for the end of the filter. It does not end while a process that was started during the import
# writes to it.
_SECONDS_FOR_FILTER = 2.0
# Keras reads HDF5 files with h5py, pictures with PIL and scipy, and tables with pandas and pyarrow.
_UNUSED_LIBRARIES = ("h5py", "pandas", "PIL", "pyarrow", "scipy")


class OutputError(OSError):
  """Standard output cannot be written: it is closed, its disk is full, or the reader of the pipe has ended."""


class _StandardStream(io.FileIO):
  """Standard output or standard error.

  Errors of standard output are OutputErrors, so that they can be told from errors of other files. Messages that cannot
  be written to standard error are dropped, so that the command continues.
  """

  def write(self, data: Any) -> int:
    try:
      return super().write(data) or 0
    except OSError as error:
      if self.fileno() == _STDERR:
        return len(data)
      raise OutputError(error.errno, error.strerror) from error


class _State:
  """The state of this process, as attributes of the class, because there is only one process.

  Attributes:
    has_begun: whether `begin` was called.
    is_running: whether a signal raises Interrupted; otherwise it ends the process at once.
    interrupting_signal: the signal that interrupts the command, or 0.
    has_printed_stop: whether the line that says why the command stopped was printed.
    verbosity: one of VERBOSITIES.
    unfiltered_stderr: a descriptor of standard error that is not filtered.
  """

  has_begun = False
  is_running = False
  interrupting_signal = 0
  has_printed_stop = False
  verbosity = NORMAL
  unfiltered_stderr = _STDERR


def begin() -> None:
  """Prepares this process to run a command. Further calls have no effect."""
  if _State.has_begun:
    return
  _State.has_begun = True
  _check_package()
  # With this variable, TensorFlow imports tf_keras at the end of its own import; without it, Keras 3,
  # which no command uses. A value that the user has set stays.
  os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
  if threading.current_thread() is threading.main_thread():
    for signal_number in _SIGNALS:
      # A shell script starts a command with & so that SIGINT is ignored.
      if signal.getsignal(signal_number) is not signal.SIG_IGN:
        signal.signal(signal_number, _on_signal)
    sys.unraisablehook = _on_unraisable
  # Restarts Python in UTF-8 mode if it would decode paths as ASCII or Latin-1. TensorFlow encodes paths as UTF-8.
  if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
    os.environ["PYTHONUTF8"] = "1"
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
  _open_closed_descriptors()
  _replace_streams()


@contextlib.contextmanager
def without_import_messages() -> Iterator[None]:
  """A context in which the import of TensorFlow prints errors only, unless TF_CPP_MIN_LOG_LEVEL asks for more.

  A separate process filters what is written to descriptor 2, so that the last messages of an import that aborts are
  printed, too. Call `quick_imports`, which uses this context.
  """
  is_wanted = "tensorflow" not in sys.modules and os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "3"
  if not is_wanted or sys.__stderr__ is None or not _filter_lock.acquire(blocking=False):
    yield
    return
  import subprocess

  grep = None
  try:
    with contextlib.suppress(OSError):  # there is no grep
      command = ["grep", "-avE", _IMPORT_MESSAGES]
      grep = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=_STDERR, start_new_session=True)
    if grep is not None and grep.stdin is not None:
      _State.unfiltered_stderr = os.dup(_STDERR)
      os.dup2(grep.stdin.fileno(), _STDERR)
      grep.stdin.close()
    yield
  finally:
    if grep is not None:
      os.dup2(_State.unfiltered_stderr, _STDERR)
      os.close(_State.unfiltered_stderr)
      _State.unfiltered_stderr = _STDERR
      with contextlib.suppress(subprocess.TimeoutExpired):
        grep.wait(_SECONDS_FOR_FILTER)
    _filter_lock.release()


@contextlib.contextmanager
def quick_imports(*unused: str) -> Iterator[None]:
  """A context in which a command imports TensorFlow and the modules that need it, in a third less CPU time.

  Messages of TensorFlow that are not errors are hidden. Nothing else happens if `begin` was not called, and nothing at
  all if TensorFlow is imported already.

  The garbage collector is off: it would search the growing heap many times, and imports leave no garbage. After the
  context it ignores the objects that the imports have made. TensorFlow and Keras import some libraries for functions
  that no command calls. In this context these libraries are treated as not installed; later they can be imported.

  Args:
    *unused: further modules that are treated as not installed.
  """
  if not _State.has_begun or "tensorflow" in sys.modules:
    with without_import_messages():
      yield
    return
  blocked_modules = [name for name in (*_UNUSED_LIBRARIES, *unused) if name not in sys.modules]
  for name in blocked_modules:
    sys.modules[name] = None  # type: ignore[assignment]  # so that `import` raises ModuleNotFoundError
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    with without_import_messages():
      yield
  finally:
    for name in blocked_modules:
      del sys.modules[name]
    gc.freeze()
    if was_enabled:
      gc.enable()


def run_command_of(module_name: str) -> None:
  """Runs a console command, and ends the process.

  Args:
    module_name: the command's module, which has functions define_flags() and main(), and OTHER_WORDS, further arguments
      of app.run, if it takes more than flags. It is imported after `begin()`, so that an interrupt during its imports
      ends the command with one line.
  """
  begin()
  module = importlib.import_module(module_name)
  module.define_flags()
  importlib.import_module("albert.app").run(module.main, **getattr(module, "OTHER_WORDS", {}))


def set_verbosity(value: str) -> str:
  """Chooses what is printed on stderr.

  Args:
    value: "quiet" for warnings and errors only; "normal"; or "verbose" for more, such as all metrics of a step.
  Returns:
    The value before.
  Raises:
    UserError: another value is given.

  Example:
    >>> import albert
    >>> albert.set_verbosity("normal")
    'normal'
  """
  if value not in VERBOSITIES:
    raise UserError(f"verbosity is {value!r}: give {QUIET!r}, {NORMAL!r} or {VERBOSE!r}")
  previous, _State.verbosity = _State.verbosity, value
  return previous


def verbosity() -> str:
  """Returns what `set_verbosity` has chosen; "normal" if it was not called."""
  return _State.verbosity


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
  """Context in which signals raise Interrupted, so that unfinished files are removed. Outside, they end the process."""
  _State.is_running = True
  try:
    yield
  finally:
    _State.is_running = False


def interrupting_signal() -> int:
  """Returns the signal that interrupted the command, or 0.

  It is known even if a library has replaced the exception Interrupted, which the signal raised, by another one.
  """
  return _State.interrupting_signal


def stopped_line(signal_number: int) -> str:
  """Returns the line that a command prints when a signal ends it."""
  return f"stopped by {signal.Signals(signal_number).name}"


def print_stop(line: str) -> None:
  """Prints the line that says why the command stops. If a further signal arrives, no second line is printed."""
  previous = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
  try:
    print(line, file=sys.stderr, flush=True)
    _State.has_printed_stop = True
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def end_by_signal(signal_number: int) -> NoReturn:
  """Ends the process at once, with exit code 128 + signal. It prints one line, unless `print_stop` did."""
  for number in _SIGNALS:
    signal.signal(number, lambda *_: None)  # a further signal would print the line again
  if not _State.has_printed_stop:
    with contextlib.suppress(OSError):
      os.write(_State.unfiltered_stderr, f"{stopped_line(signal_number)}\n".encode())
  os._exit(128 + signal_number)


def _check_package() -> None:
  """Ends the process if another distribution replaced or removed albert/__init__.py (docs/design/002-names.md)."""
  package = sys.modules["albert"]
  if getattr(package, "__version__", None) != VERSION:
    path = package.__file__ or os.path.join(os.path.dirname(os.path.abspath(__file__)), "__init__.py")
    print(
      f"error: {path}: is not a file of albert-tf2 {VERSION}: another distribution with the import name albert was "
      "installed or removed here: install albert-tf2 again, in an environment without the other one",
      file=sys.stderr,
    )
    sys.exit(2)


def _on_signal(signal_number: int, frame: FrameType | None) -> None:
  if not _State.is_running or _State.interrupting_signal or _is_importing(frame):
    end_by_signal(signal_number)
  _State.interrupting_signal = signal_number
  raise Interrupted(signal_number)


def _is_importing(frame: FrameType | None) -> bool:
  """Whether the frame is in an import. There, many libraries abort, or take any exception for a missing package."""
  while frame is not None:
    if frame.f_code.co_filename.startswith("<frozen importlib"):
      return True
    frame = frame.f_back
  return False


def _on_unraisable(unraisable: Any) -> None:
  """Sends a signal again if its Interrupted was raised in a destructor, where Python discards exceptions."""
  if isinstance(unraisable.exc_value, Interrupted):
    signal_number = unraisable.exc_value.signal_number
    _State.interrupting_signal = 0
    main = threading.main_thread().ident
    threading.Timer(_SECONDS_UNTIL_SIGNAL_IS_REPEATED, signal.pthread_kill, (main, signal_number)).start()
  else:
    sys.__unraisablehook__(unraisable)


def _open_closed_descriptors() -> None:
  """Opens /dev/null for each closed standard stream. Otherwise the next opened file would get the stream's descriptor.

  Reading from a closed standard input and writing to a closed standard output remain errors. Messages to a closed
  standard error are dropped.
  """
  # Descriptor 0 is opened for writing and 1 for reading, so that their normal use is an error.
  for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
    try:
      os.fstat(descriptor)
    except OSError:
      null_descriptor = os.open(os.devnull, mode)
      if null_descriptor != descriptor:
        os.dup2(null_descriptor, descriptor)
        os.close(null_descriptor)
      os.set_inheritable(descriptor, True)


def _replace_streams() -> None:
  """Replaces standard output and error by _StandardStreams, which escape characters that they cannot encode.

  Streams that a test has replaced are kept.
  """
  if sys.stdin is None:
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
  if sys.stdout is sys.__stdout__:
    sys.stdout = _text_stream(_StandardStream(1, "w", closefd=False), sys.stdout)
  if sys.stderr is sys.__stderr__:
    sys.stderr = _text_stream(_StandardStream(_STDERR, "w", closefd=False), sys.stderr, line_buffering=True)


def _text_stream(file: io.FileIO, old_stream: IO[str] | None, *, line_buffering: bool = False) -> io.TextIOWrapper:
  encoding, is_unbuffered = "utf-8", False
  if isinstance(old_stream, io.TextIOWrapper):
    old_stream.flush()
    encoding, is_unbuffered = old_stream.encoding, old_stream.write_through
    line_buffering = line_buffering or old_stream.line_buffering
  # With python -u, the text layer is unbuffered and the binary buffer is flushed after each write.
  return io.TextIOWrapper(
    io.BufferedWriter(file),
    encoding=encoding,
    errors="backslashreplace",
    line_buffering=line_buffering or is_unbuffered,
    write_through=is_unbuffered,
  )
