"""A JSON file that the code reads: a valid content, and the function that reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class JsonFile:
  """A file from which the code reads JSON.

  Code that reads JSON from a flag or a variable is tested in the same way: `read` takes the value of the flag or the
  variable from a file called `value`.

  Attributes:
    path: the path of the file in a directory.
    valid: a valid content.
    read: a function that reads the file. Its argument is the directory. For a damaged file it raises a UserError,
      unless `result_if_damaged` is given.
    name_in_error: the text with which an error names the file; "" for its path.
    result_if_damaged: what `read` returns for a damaged file, or a text that the returned text contains. The default,
      `...`, says that damage is an error.
    other_files: path in the directory -> content, of other files that `read` needs.
    reads_nan: whether NaN is read as null.
    wrap: converts the bytes of the JSON to the bytes of the file.
    accepted_contents: the names of the contents in test_json_files.BAD_CONTENTS that are not bad for this file.
  """

  path: str
  valid: Any
  read: Callable[[Path], Any]
  name_in_error: str = ""
  result_if_damaged: Any = dataclasses.field(default=...)
  other_files: dict[str, str] = dataclasses.field(default_factory=dict)
  reads_nan: bool = False
  wrap: Callable[[bytes], bytes] = bytes
  accepted_contents: tuple[str, ...] = ()
