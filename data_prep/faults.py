"""Errors of the disk and of the system, told in one line that names the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from albert.errors import RunError


def fault(path: str, error: OSError) -> RunError:
  """The line for an error of the system: what failed, where, and that nothing finished is lost."""
  return RunError(
    f"{error.filename or path}: {error.strerror or error}: what is finished is kept, and the same command goes on from "
    "there once the cause is mended"
  )


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
  """Turns an OSError into one line that names the file.

  Raises:
    RunError: the disk or the system failed.
  """
  try:
    yield
  except OSError as error:
    raise fault(path, error) from error
