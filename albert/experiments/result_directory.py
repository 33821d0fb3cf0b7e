"""Checks the directory of an experiment's results.

The file scale.json there has the name of their scale. A command with another --scale is refused, because it would
replace them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

import msgspec

from albert.errors import RunError, UserError
from albert.io import files

FILE_NAME = "scale.json"
# What the system says about a full disk and about a quota that is used up. Errors of other commands are known only by
# the line that they print.
_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
# A command that fails may not be able to print its error, if its output is on the same disk. The disk counts as full
# below this number of bytes.
_LITTLE_SPACE = 64 << 10


class _ScaleFile(msgspec.Struct):
  """The content of scale.json.

  Attributes:
    scale: name of the scale.
  """

  scale: str


def check_is_local(output_dir: str) -> None:
  """Raises UserError if the value of --output_dir is on a remote file system."""
  if files.is_remote(output_dir):
    raise UserError(f"--output_dir={output_dir}: give a local directory, because the log is appended to")


def check_scale(directory: str, scale: str) -> None:
  """Checks that an experiment's directory has no results of another scale.

  Args:
    directory: the directory of the experiment's results.
    scale: name of the scale of this command.
  Raises:
    UserError: the results there are of another scale.
  """
  path = files.join(directory, FILE_NAME)
  if not files.exists(path):
    return
  recorded = files.read_json(path, _ScaleFile, "delete this file").scale
  if recorded != scale:
    raise UserError(
      f"--scale={scale}: {directory} has results of the scale {recorded} ({path}): give --scale={recorded}, or another "
      "--output_dir"
    )


def record_scale(directory: str, scale: str) -> None:
  """Writes the scale of the results in an experiment's directory."""
  files.makedirs(directory)
  files.write_json(files.join(directory, FILE_NAME), {"scale": scale})


@contextlib.contextmanager
def refuse_full_disk(output_dir: str) -> Iterator[None]:
  """Context manager for the work in a directory of results, which turns errors of a full disk into UserError.

  These are errors of writing the results, and failures of the commands of a plan.

  Args:
    output_dir: the directory.
  Raises:
    UserError: the disk is full. Everything finished is kept.
  """
  try:
    yield
  except (RunError, OSError) as error:
    if not _means_full_disk(error) and not _has_little_space(output_dir):
      raise
    raise UserError(
      f"{error}; the disk of {output_dir} is full: make space there. Everything finished is kept, and the same command "
      "continues"
    ) from error


def _means_full_disk(error: RunError | OSError) -> bool:
  """Whether an error is that of a full disk, or contains the line about one that a command has printed."""
  if isinstance(error, OSError) and error.errno in _FULL_DISK_ERRORS:
    return True
  return any(os.strerror(number) in str(error) for number in _FULL_DISK_ERRORS)


def _has_little_space(directory: str) -> bool:
  """Whether hardly anything can be written to the disk of a directory. False if the directory does not exist."""
  try:
    status = os.statvfs(directory)
  except OSError:
    return False
  return status.f_bavail * status.f_frsize < _LITTLE_SPACE
