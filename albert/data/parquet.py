"""Reads columns of Parquet files with pyarrow, an optional library that is imported when a file is opened."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from albert.data.rows import Rows
from albert.errors import UserError
from albert.io import files
from albert.io.file_errors import required_library
from albert.io.wording import join_names

EXTENSION = ".parquet"


def import_pyarrow(path: str) -> Any:
  """Imports pyarrow with its modules for Parquet and Arrow files.

  Args:
    path: the file to read, for the message.
  Raises:
    UserError: pyarrow is not installed; the message gives the command that installs it.
  """
  with required_library(path, "reading Parquet and Arrow files needs pyarrow", "pip install 'pyarrow>=15'"):
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
  return pyarrow


def open_source(path: str, pyarrow: Any) -> Any:
  """Opens a file for pyarrow. A local file is mapped into memory, so that skipped parts of it are not read."""
  if not files.is_remote(path):
    files.check_is_regular(path)
    return pyarrow.memory_map(path)
  return pyarrow.PythonFile(io.BufferedReader(_RemoteFile(path)), mode="r")


def damage_error(path: str, error: Exception) -> UserError:
  """Makes the error for a file that pyarrow cannot read."""
  return UserError(f"{path}: cannot be read ({' '.join(str(error).split())}): write the file again, or leave it out")


class _RemoteFile(io.RawIOBase):
  """A remote file with the methods that pyarrow needs."""

  def __init__(self, path: str):
    self._file, self._size = files.open_file(path), files.size(path)

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    data = self._file.read(len(buffer))
    buffer[: len(data)] = data
    return len(data)

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    base = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._size}[whence]
    self._file.seek(base + offset)
    return base + offset

  def tell(self) -> int:
    return self._file.tell()


def _open_file(path: str, pyarrow: Any) -> Any:
  try:
    return pyarrow.parquet.ParquetFile(open_source(path, pyarrow))
  except (pyarrow.ArrowException, OSError) as error:
    raise damage_error(path, error) from error


def column_names(path: str) -> list[str]:
  """Returns the names of the columns of a Parquet file.

  Raises:
    UserError: pyarrow is not installed, or the file cannot be read.
  """
  with _open_file(path, import_pyarrow(path)) as file:
    return list(file.schema_arrow.names)


def read_columns(path: str, names: Sequence[str]) -> Rows:
  """Reads columns of a Parquet file.

  Args:
    path: local or remote.
    names: the names of the columns to read.
  Returns: the rows, numbered from 1. Missing values and NaN are None.
  Raises:
    UserError: pyarrow is not installed, the file cannot be read, or it lacks a column or has it twice.
  """
  pyarrow = import_pyarrow(path)
  with _open_file(path, pyarrow) as file:
    existing = file.schema_arrow.names
    for name in names:
      if existing.count(name) != 1:
        problem = f"{existing.count(name)} columns are called" if name in existing else "no column"
        raise UserError(f"{path}: {problem} {name!r}; there are: {join_names(existing)}")
    try:
      table = file.read(columns=list(dict.fromkeys(names)))
      columns = {name: [_without_nan(value) for value in table.column(name).to_pylist()] for name in names}
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: not UTF-8, or a date out of range
      raise damage_error(path, error) from error
  return Rows(path, columns, range(1, table.num_rows + 1))


def _without_nan(value: Any) -> Any:
  return None if isinstance(value, float) and math.isnan(value) else value
