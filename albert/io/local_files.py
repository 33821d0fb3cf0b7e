"""Local files: opening and flushing them, and which process writes them. Errors are one line with the path.

The errors are those of the files that are opened here, and those that libraries and TensorFlow raise.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import platform
import re
import stat as stat_module
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from albert.errors import RunError, UserError

# Names that files.staging_path makes: .NAME.KEY-PID-RANDOM.tmp, where KEY identifies the host (host_key).
STAGING_NAME = re.compile(r"^\.(?P<name>.+)\.(?P<key>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{12}\.tmp$", re.DOTALL)
_BUFFER_BYTES = 64 << 10
_MAX_REASON_CHARS = 300
# Errors that mean a wrong path. Others, such as a full disk or too many open files, may go away by themselves.
_WRONG_PATH_ERRORS = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_WRONG_PATH_NUMBERS = (errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EROFS)
# "No such file or directory" -> errno.ENOENT, and so on.
_ERROR_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
# TensorFlow's messages contain "PATH; REASON", followed by details of the operation.
_TENSORFLOW_REASON = re.compile(r"; ([^;\[\n]+?)\s*(?:\[|\n|$)")
# Surrogates, with which Python represents bytes of file names that are not UTF-8.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_TEST_FILE_BYTES = 64 << 10  # size of the file that is written as a test of the temporary directory
_RUN_AGAIN = "run the same command again once the cause is fixed; finished work is kept"
_REGULAR_FILE, _PIPE = "a regular file", "a pipe"
SPECIAL_FILES = (_PIPE, "a socket", "a device")
# File type -> its name in error messages.
_KIND_NAMES = {
  stat_module.S_IFREG: _REGULAR_FILE,
  stat_module.S_IFDIR: "a directory",
  stat_module.S_IFIFO: _PIPE,
  stat_module.S_IFSOCK: "a socket",
  stat_module.S_IFCHR: "a device",
  stat_module.S_IFBLK: "a device",
}


def describe_kind(path: str) -> str:
  """Says what a path is, following links: a value of _KIND_NAMES, or "" if it does not exist or cannot be inspected."""
  try:
    return _KIND_NAMES[stat_module.S_IFMT(os.stat(path).st_mode)]
  except OSError:
    return ""


def check_is_regular(path: str, *, or_pipe: bool = False) -> None:
  """Checks that a path is a regular file.

  A path that does not exist or cannot be inspected passes: opening it reports the error.

  Args:
    path: a local path.
    or_pipe: whether a pipe passes too, because the caller reads it once from beginning to end.

  Raises:
    UserError: the path is a directory, a pipe, a socket or a device.
  """
  kind = describe_kind(path)
  if kind in ("", _REGULAR_FILE) or (or_pipe and kind == _PIPE):
    return
  remedy = "save its output as a file, because it may be read more than once" if kind == _PIPE else "give a file"
  raise UserError(f"{path} is {kind}, not a regular file: {remedy}")


class _LocalFile(io.FileIO):
  """A local file whose read and write errors name the file, which Python's do not."""

  def readinto(self, buffer: Any) -> int | None:
    with convert_errors(str(self.name), "read"):
      return super().readinto(buffer)

  def readall(self) -> bytes:
    with convert_errors(str(self.name), "read"):
      return super().readall()

  def write(self, data: Any) -> int | None:  # type: ignore[override]
    with convert_errors(str(self.name)):
      return super().write(data)


def open_local(path: str, mode: str) -> BinaryIO:
  """Opens a local file in a binary mode.

  Args:
    path: a local path.
    mode: "rb", "wb" or "ab".

  Returns:
    The open file. Its methods that read and write raise the same errors.

  Raises:
    UserError: the path or its permissions are wrong.
    RunError: the disk or the system failed.
  """
  with convert_errors(path, "read" if "r" in mode else "write"):
    raw = _LocalFile(path, mode.replace("b", ""), opener=lambda name, flags: os.open(name, flags, 0o666))
    buffered = io.BufferedReader if "r" in mode else io.BufferedWriter
    return cast("BinaryIO", buffered(raw, _BUFFER_BYTES))


def sync(file: BinaryIO) -> None:
  """Flushes an open file to the disk. A remote file is flushed when it is closed.

  Raises:
    RunError: the disk failed.
  """
  file.flush()
  if hasattr(file, "fileno"):  # a remote file has none
    with convert_errors(str(file.name)):
      os.fsync(file.fileno())


def sync_tree(directory: str) -> None:
  """Flushes all files below a directory to the disk, so that the directory can be renamed.

  Raises:
    RunError: the disk failed.
  """
  # os.walk finds nothing at a remote path, whose files are flushed when they are closed.
  for folder, _, names in os.walk(directory):
    for name in names:
      with open_local(os.path.join(folder, name), "rb") as file:
        sync(file)
    sync_directory(folder)


def sync_directory(path: str) -> None:
  """Flushes a directory to the disk, so that a rename in it survives a power cut. Errors are ignored."""
  with contextlib.suppress(OSError):
    descriptor = os.open(path, os.O_RDONLY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)


def final_path(path: str) -> str:
  """Replaces the names of staging files and directories in a path by the names that they get when they are complete."""
  names = path.split("/")
  for index in range(len(names)):
    while match := STAGING_NAME.match(names[index]):
      names[index] = match["name"]
  return "/".join(names)


def find_system_error(error: BaseException) -> OSError | None:
  """Finds the system error behind an exception.

  Args:
    error: an OSError, an error of TensorFlow whose message contains a system error, or any other exception.

  Returns:
    The system error, or None.
  """
  if isinstance(error, OSError):
    return error
  if "OpError" in (kind.__name__ for kind in type(error).__mro__):  # without importing TensorFlow
    for reason in _TENSORFLOW_REASON.findall(str(error)):
      if reason in _ERROR_NUMBERS:
        return OSError(_ERROR_NUMBERS[reason], reason)
  return None


def describe_error(error: Exception) -> str:
  """Returns the system's message about an error of writing, or else the error's own text, at most 300 characters."""
  system_error = find_system_error(error)
  if system_error is not None and system_error.strerror:
    return system_error.strerror
  return " ".join(str(error).split())[:_MAX_REASON_CHARS] or type(error).__name__


def _file_error(error: OSError, path: str, verb: str) -> UserError | RunError:
  """Converts a system error to one line: a UserError for a wrong path, a RunError for any other error.

  The message names the file of the error, or else `path`; a staging file by the name that it gets when it is complete.
  """
  failed_path = error.filename if error.filename2 is None else error.filename2  # filename2 is the target of a rename
  path = os.fsdecode(failed_path) if isinstance(failed_path, str | bytes) else path
  problem = f"{final_path(path)}: cannot {verb} it ({error.strerror or str(error) or type(error).__name__})"
  if isinstance(error, _WRONG_PATH_ERRORS) or error.errno in _WRONG_PATH_NUMBERS:
    return UserError(f"{problem}: check the path and its rights")
  return RunError(f"{problem}: run the same command again once the cause is fixed")


@contextlib.contextmanager
def convert_errors(path: str, verb: str = "write") -> Iterator[None]:
  """Context manager that turns system errors, also those that TensorFlow reports, into one line that names the file.

  Args:
    path: the file or directory, for errors that name none. For a staging file, the error gives its final name.
    verb: what could not be done with the file, such as "read".

  Raises:
    UserError: the path or its permissions are wrong.
    RunError: the disk or the system failed.
  """
  try:
    yield
  except Exception as error:
    cause = find_system_error(error)
    if cause is None:
      raise
    raise _file_error(cause, path, verb) from error


def convert_file_error(error: BaseException) -> UserError | RunError | None:
  """Converts an error of a local or remote file system to an error whose message is one line.

  Args:
    error: any exception.

  Returns:
    UserError for a wrong path, RunError for a failure of the system, None for an error that does not come from a file
    system. Errors of file systems are OSErrors, some errors of TensorFlow, and encoding errors for file names that are
    not UTF-8.
  """
  if isinstance(error, OSError):
    if not isinstance(error.filename, str | bytes) or error.strerror is None:
      return RunError(f"{error.strerror or str(error) or type(error).__name__}: {_RUN_AGAIN}")
    return _file_error(error, os.fsdecode(error.filename), "use")
  if isinstance(error, UnicodeEncodeError) and _NOT_UTF8.search(error.object):
    return UserError(
      f"{error.object[:_MAX_REASON_CHARS]}: this name or text has bytes that are not UTF-8, which TensorFlow refuses: "
      "rename the file, or write the text as UTF-8"
    )
  class_names = [base.__name__ for base in type(error).__mro__]  # names, because TensorFlow may not be imported
  reason = " ".join(str(error).split())[:_MAX_REASON_CHARS]
  if "OpError" not in class_names:
    return None
  if "File system scheme" in reason and "not implemented" in reason:
    return UserError(f"{reason}: give a path of this machine, or of gs://")
  if "HTTP request" not in reason and find_system_error(error) is None:
    return None
  if class_names[0] in ("NotFoundError", "PermissionDeniedError", "UnauthenticatedError"):
    return UserError(f"{reason}: check the path, its rights and your credentials")
  return RunError(f"{reason}: {_RUN_AGAIN}")


def temporary_directory_error(error: BaseException) -> RunError | None:
  """Makes the error for a temporary directory that cannot be written, if TensorFlow failed because of it.

  tf.function writes the code that it generates to the temporary directory. If that fails, TensorFlow continues and
  later raises an error that does not name the cause.

  Args:
    error: any exception.

  Returns:
    RunError that names the directory; None if it can be written or `error` is not TensorFlow's.
  """
  if not type(error).__module__.startswith("tensorflow"):
    return None
  try:
    with tempfile.TemporaryFile() as file:
      file.write(bytes(_TEST_FILE_BYTES))
      file.flush()
  except OSError as reason:
    directory = tempfile.tempdir or "TMPDIR"  # None if Python found no writable directory
    return RunError(
      f"{directory}: cannot write temporary files ({reason.strerror}), which TensorFlow needs: make space or set TMPDIR"
    )
  return None


@contextlib.contextmanager
def required_library(path: str, need: str, advice: str) -> Iterator[None]:
  """A context for the imports of a library that only some files need.

  Args:
    path: the file to read, for the message.
    need: what needs which library, such as "reading .zst files needs zstandard".
    advice: the command that installs it.

  Raises:
    UserError: the library cannot be imported.
  """
  try:
    yield
  except ImportError as error:
    raise UserError(f"{path}: {need} ({error}): {advice}") from error


@functools.cache
def host_key() -> str:
  """Returns eight hexadecimal digits that identify the host, its last start and the container.

  Process ids can be compared only between processes with the same key.
  """
  parts = [platform.node()]
  with contextlib.suppress(OSError):  # not Linux
    parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
  with contextlib.suppress(OSError):  # not Linux
    parts.append(os.readlink("/proc/self/ns/pid"))
  return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:8]


def has_ended(key: str, pid: int) -> bool:
  """Whether a process has certainly ended.

  Args:
    key: `host_key()` of the process.
    pid: its process id.

  Returns:
    True if it has ended; False if it is running, or if it is on another host, where this is unknown.
  """
  if key != host_key():
    return False
  try:
    os.kill(pid, 0)  # signal 0 only checks that the process exists
  except ProcessLookupError:
    return True
  except (OSError, OverflowError):  # another user's process, or a number that is no process id
    pass
  return False
