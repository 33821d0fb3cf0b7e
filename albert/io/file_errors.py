"""Turns file errors that libraries or TensorFlow raise into UserError and RunError, whose messages are one line.

albert.io.files does this for the files that it opens.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator

from albert.errors import RunError, UserError
from albert.io import local_files

_MAX_REASON_CHARS = 300
# Surrogates, with which Python represents bytes of file names that are not UTF-8.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_TEST_FILE_BYTES = 64 << 10  # size of the file that is written as a test of the temporary directory
_RUN_AGAIN = "run the same command again once the cause is fixed; finished work is kept"


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
    return _convert_system_error(error)
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
  if "HTTP request" not in reason and local_files.find_system_error(error) is None:
    return None
  if class_names[0] in ("NotFoundError", "PermissionDeniedError", "UnauthenticatedError"):
    return UserError(f"{reason}: check the path, its rights and your credentials")
  return RunError(f"{reason}: {_RUN_AGAIN}")


def _convert_system_error(error: OSError) -> UserError | RunError:
  """Converts an error of the operating system. The message names the file if `error` does."""
  path = error.filename if error.filename2 is None else error.filename2  # filename2 is the target of a rename
  if not isinstance(path, str | bytes) or error.strerror is None:
    return RunError(f"{error.strerror or str(error) or type(error).__name__}: {_RUN_AGAIN}")
  return local_files.file_error(error, os.fsdecode(path), "use")


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
      f"{directory}: cannot write temporary files ({reason.strerror}), which TensorFlow needs: make space there, or "
      "set TMPDIR"
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
