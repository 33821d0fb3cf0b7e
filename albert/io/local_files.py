"""Local files: opening, renaming and flushing them. Errors are one line that names the file."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from albert.errors import RunError, UserError

# Names that files.staging_path makes: .NAME.KEY-PID-RANDOM.tmp, where KEY identifies the host (processes.host_key).
STAGING_NAME = re.compile(r"^\.(?P<name>.+)\.(?P<key>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{12}\.tmp$", re.DOTALL)
_BUFFER_BYTES = 64 << 10
_MAX_REASON_CHARS = 300
# Errors that mean a wrong path. Others, such as a full disk or too many open files, may go away by themselves.
_WRONG_PATH_ERRORS = {
  errno.EACCES,
  errno.EEXIST,
  errno.EINVAL,
  errno.EISDIR,
  errno.ELOOP,
  errno.ENAMETOOLONG,
  errno.ENOENT,
  errno.ENOTDIR,
  errno.ENXIO,
  errno.EPERM,
  errno.EROFS,
}
# "No such file or directory" -> errno.ENOENT, and so on.
_ERROR_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
# TensorFlow's messages contain "PATH; REASON", followed by details of the operation.
_TENSORFLOW_REASON = re.compile(r"; ([^;\[\n]+?)\s*(?:\[|\n|$)")


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


def one_line_error(error: OSError, problem: str, remedy: str) -> UserError | RunError:
  """Converts a system error to an error whose message is one line.

  Args:
    error: the system error.
    problem: the path, and what could not be done with it.
    remedy: what the user can do about a wrong path.

  Returns:
    UserError for a wrong path, RunError for any other error.
  """
  if error.errno in _WRONG_PATH_ERRORS:
    return UserError(f"{problem} ({error.strerror}): {remedy}")
  reason = error.strerror or str(error) or type(error).__name__
  return RunError(f"{problem} ({reason}): run the same command again once the cause is fixed")


def file_error(error: OSError, path: str, verb: str) -> UserError | RunError:
  """Converts a system error of a file to an error whose message is one line.

  Args:
    error: the system error.
    path: the file. For a staging file, the message gives its final name.
    verb: what could not be done with the file, such as "read".

  Returns:
    As one_line_error.
  """
  return one_line_error(error, f"{final_path(path)}: cannot {verb} it", "check the path and its rights")


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
    failed_path = os.fsdecode(cause.filename) if isinstance(cause.filename, str | bytes) else path
    raise file_error(cause, failed_path, verb) from error


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
    mode: as of `open`; contains "b".

  Returns:
    The open file. Its methods that read and write raise the same errors.

  Raises:
    UserError: the path or its permissions are wrong.
    RunError: the disk or the system failed.
  """
  with convert_errors(path, "read" if "r" in mode else "write"):
    raw = _LocalFile(path, mode.replace("b", ""), opener=lambda name, flags: os.open(name, flags, 0o666))
    if "+" in mode:
      return cast("BinaryIO", io.BufferedRandom(raw, _BUFFER_BYTES))
    if "r" in mode:
      return cast("BinaryIO", io.BufferedReader(raw, _BUFFER_BYTES))
    return cast("BinaryIO", io.BufferedWriter(raw, _BUFFER_BYTES))


def sync(file: BinaryIO) -> None:
  """Flushes an open file to the disk. A remote file is flushed when it is closed.

  Raises:
    RunError: the disk failed.
  """
  file.flush()
  try:
    descriptor = file.fileno()
  except (AttributeError, OSError):
    return
  with convert_errors(str(file.name)):
    os.fsync(descriptor)


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
  try:
    descriptor = os.open(path, os.O_RDONLY)
  except OSError:
    return
  try:
    os.fsync(descriptor)
  except OSError:
    pass
  finally:
    os.close(descriptor)


def replace(source: str, target: str) -> None:
  """Renames a file or directory, replacing an existing file, and flushes the rename to the disk.

  Raises:
    UserError: a path or its permissions are wrong.
    RunError: the system failed.
  """
  try:
    os.replace(source, target)
  except OSError as error:  # it names both paths; only the target is of interest
    raise one_line_error(error, f"{target}: cannot write it", "check the path and its rights") from error
  sync_directory(os.path.dirname(target) or ".")


def stat(path: str) -> os.stat_result:
  """Reads the metadata of a file or directory, following links.

  Raises:
    UserError: it does not exist or cannot be read, or it is a link whose target does not exist.
  """
  try:
    return os.stat(path)
  except OSError as error:
    if os.path.islink(path):
      raise UserError(
        f"{path}: is a link to {os.readlink(path)}, which cannot be read ({error.strerror}): remove the link, or "
        "restore that file"
      ) from error
    raise UserError(f"{path}: cannot read it ({error.strerror}): check the path and its rights") from error
