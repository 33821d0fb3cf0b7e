"""Errors of files that a library or TensorFlow raises, as one line.

albert.io.files does this for the files that it opens itself.
"""

from __future__ import annotations

import os
import re
import tempfile

from albert.errors import RunError, UserError
from albert.io import files, local_files

_LONGEST_REASON = 300
# How Python shows bytes of names that are no UTF-8.
_NO_UTF8 = re.compile("[\udc80-\udcff]")
_BYTES_TO_TRY = 64 << 10
_LATER = "run the same command again once the cause is mended; what is finished is kept"


def fault_of(error: BaseException) -> UserError | RunError | None:
  """The one line for an error of the file system, local or remote; None for any other error.

  Args:
    error: an OSError, an error of TensorFlow, or one that a library raised for a name whose bytes are no UTF-8.
  """
  if isinstance(error, OSError):
    return _fault_of_system(error)
  if isinstance(error, UnicodeEncodeError) and _NO_UTF8.search(error.object):
    return UserError(
      f"{error.object[:_LONGEST_REASON]}: this name or text has bytes that are no UTF-8, which TensorFlow refuses: "
      "rename the file, or write the text as UTF-8"
    )
  names = [kind.__name__ for kind in type(error).__mro__]
  reason = " ".join(str(error).split())[:_LONGEST_REASON]
  if "OpError" not in names:
    return None
  if "File system scheme" in reason and "not implemented" in reason:
    return UserError(f"{reason}: give a path of this machine, or of gs://")
  if "HTTP request" not in reason and local_files.system_error(error) is None:
    return None
  if names[0] in ("NotFoundError", "PermissionDeniedError", "UnauthenticatedError"):
    return UserError(f"{reason}: check the path, its rights and your credentials")
  return RunError(f"{reason}: {_LATER}")


def _fault_of_system(error: OSError) -> UserError | RunError:
  path = error.filename if error.filename2 is None else error.filename2
  if not isinstance(path, str | bytes) or error.strerror is None:
    return RunError(f"{error.strerror or str(error) or type(error).__name__}: {_LATER}")
  try:
    with files.naming(os.fsdecode(path), "use"):
      raise OSError(error.errno, error.strerror, os.fsdecode(path))
  except (UserError, RunError) as fault:
    return fault


def fault_of_temporary_directory(error: BaseException) -> RunError | None:
  """The line for an error of TensorFlow on a machine whose temporary directory cannot be written; None for any other.

  tf.function writes the code that it generates there. Where it cannot, it goes on without, and stops later with an
  error that does not say why.
  """
  if not type(error).__module__.startswith("tensorflow"):
    return None
  try:
    with tempfile.TemporaryFile() as file:
      file.write(bytes(_BYTES_TO_TRY))
      file.flush()
  except OSError as reason:
    where = tempfile.tempdir or "TMPDIR"  # None where Python found no directory that can be written
    return RunError(
      f"{where}: cannot write temporary files ({reason.strerror}), which TensorFlow needs: make space there, or set "
      "TMPDIR"
    )
  return None
