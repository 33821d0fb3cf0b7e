"""Local files whose errors name them: a full disk, a wrong path or a device that fails is one line."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from albert.errors import RunError, UserError

# .NAME.KEY-PID-RANDOM.tmp, where KEY is of the host (processes.host_key).
STAGING_NAME = re.compile(r"^\.(?P<name>.+)\.(?P<key>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{12}\.tmp$", re.DOTALL)
_BUFFER_BYTES = 64 << 10
# Errors of a wrong path. Any other may pass: a full disk, too many open files, a device that does not answer.
_ERRORS_OF_PATHS = {
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
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
# "PATH; REASON", before what TensorFlow adds.
_TENSORFLOW_REASON = re.compile(r"; ([^;\[\n]+?)\s*(?:\[|\n|$)")


def final_path(path: str) -> str:
  """The path with the names that its staging files and directories are to get."""
  matches = ((STAGING_NAME.match(name), name) for name in path.split("/"))
  return "/".join(match["name"] if match else name for match, name in matches)


def system_error(error: BaseException) -> OSError | None:
  """The error of the system behind an exception of Python or of TensorFlow; None if it is no such error."""
  if isinstance(error, OSError):
    return error
  if "OpError" in (kind.__name__ for kind in type(error).__mro__):  # without importing TensorFlow
    for reason in _TENSORFLOW_REASON.findall(str(error)):
      if reason in _NUMBERS:
        return OSError(_NUMBERS[reason], reason)
  return None


def explained(error: OSError, what: str, remedy: str) -> UserError | RunError:
  """The one line for an error of the system: UserError for a wrong path, else RunError."""
  if error.errno in _ERRORS_OF_PATHS:
    return UserError(f"{what} ({error.strerror}): {remedy}")
  return RunError(f"{what} ({error.strerror or error}): run the same command again once the cause is mended")


@contextlib.contextmanager
def naming(path: str, verb: str = "write") -> Iterator[None]:
  """Turns an error of the system, also one that TensorFlow reports, into one line that names the file.

  Args:
    path: of the file or directory, if the error has none. Of a staging file the line has the name that it is to get.
    verb: what cannot be done with it.
  Raises:
    UserError: the path or its rights are wrong.
    RunError: the disk or the system failed.
  """
  try:
    yield
  except Exception as error:
    found = system_error(error)
    if found is None:
      raise
    name = final_path(os.fsdecode(found.filename) if isinstance(found.filename, str | bytes) else path)
    raise explained(found, f"{name}: cannot {verb} it", "check the path and its rights") from error


class _LocalFile(io.FileIO):
  """A local file. Its errors name it: those of reading and writing, unlike those of opening, have no name."""

  def readinto(self, buffer: Any) -> int | None:
    with naming(str(self.name), "read"):
      return super().readinto(buffer)

  def readall(self) -> bytes:
    with naming(str(self.name), "read"):
      return super().readall()

  def write(self, data: Any) -> int | None:  # type: ignore[override]
    with naming(str(self.name)):
      return super().write(data)


def open_local(path: str, mode: str) -> BinaryIO:
  """As open(path, mode), for a binary mode; raises as `naming`, as do reading and writing the file."""
  with naming(path, "read" if "r" in mode else "write"):
    raw = _LocalFile(path, mode.replace("b", ""), opener=lambda name, flags: os.open(name, flags, 0o666))
    buffered = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
    return cast("BinaryIO", buffered(raw, _BUFFER_BYTES))
