"""Writes embeddings and the ids of their texts to a .npy or Parquet file, piece by piece and atomically."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from albert.errors import UserError
from albert.io import files, local_files

NPY, PARQUET = ".npy", ".parquet"
FLAG = "--output_file"


class VectorWriter(abc.ABC):
  """Writes the rows of a file of embeddings."""

  @abc.abstractmethod
  def write(self, ids: Sequence[int] | Sequence[str], vectors: np.ndarray) -> None:
    """Appends rows.

    Args:
      ids: the id of each row.
      vectors: float32 [rows, H].
    """


def ids_file(path: str) -> str:
  """The path of the ids that belong to a .npy file: vectors.npy has its ids in vectors.ids.txt."""
  return f"{path.removesuffix(NPY)}.ids.txt"


def check_output(path: str) -> None:
  """Checks that a file of embeddings can be written.

  Raises:
    UserError: its name has another extension, it is no file, its directory does not exist, or pyarrow is missing.
  """
  if not path.endswith((NPY, PARQUET)):
    raise UserError(f"{FLAG}={path}: must end in {NPY} or {PARQUET}")
  if files.is_dir(path):
    raise UserError(f"{FLAG}={path}: is a directory: give a file")
  files.check_not_special(path, name=f"{FLAG}={path}", remedy="give the path of a file")
  directory = path.rpartition("/")[0]
  if directory and not files.is_remote(path) and not files.is_dir(directory):
    raise UserError(f"{FLAG}={path}: there is no directory {directory}: make it first")
  if path.endswith(PARQUET):
    _import_pyarrow(path)


@contextlib.contextmanager
def write_vectors(path: str, num_rows: int, hidden_size: int, *, ids_are_numbers: bool) -> Iterator[VectorWriter]:
  """A context for writing a file of embeddings.

  The file appears under its name when all rows are written. After an error, nothing has changed. The ids of a .npy file
  are written to `ids_file(path)`, which is renamed before the .npy file.

  Args:
    path: ends in .npy or .parquet; a file that exists is replaced.
    num_rows: number of all rows.
    hidden_size: H.
    ids_are_numbers: whether the ids are int, not str.

  Yields:
    The writer, for all rows in their order.

  Raises:
    UserError: the path or its permissions are wrong.
    RunError: the disk failed.
  """
  if not files.is_remote(path):
    files.remove_leftovers(path.rpartition("/")[0] or ".")
  with contextlib.ExitStack() as stack:
    file = stack.enter_context(_staged(path))
    writer: VectorWriter
    if path.endswith(NPY):
      writer = _NpyWriter(file, stack.enter_context(_staged(ids_file(path))), num_rows, hidden_size)
    else:
      pyarrow = _import_pyarrow(path)
      id_type = pyarrow.int64() if ids_are_numbers else pyarrow.string()
      schema = pyarrow.schema([("id", id_type), ("embedding", pyarrow.list_(pyarrow.float32(), hidden_size))])
      writer = _ParquetWriter(stack.enter_context(pyarrow.parquet.ParquetWriter(file, schema)), pyarrow)
    yield writer


@contextlib.contextmanager
def _staged(path: str) -> Iterator[BinaryIO]:
  """Opens a staging file, which is synced and renamed to `path` at the end, or removed after an error."""
  staging = files.staging_path(path)
  try:
    with files.open_file(staging, "wb") as file:
      yield file
      local_files.sync(file)
    files.replace(staging, path)
  except BaseException:
    files.discard(staging)
    raise


class _NpyWriter(VectorWriter):
  """Writes vectors to one file and ids to another one, an id on each line."""

  def __init__(self, file: BinaryIO, ids: BinaryIO, num_rows: int, hidden_size: int):
    self._file, self._ids = file, ids
    header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, hidden_size)}
    np.lib.format.write_array_header_1_0(file, header)

  def write(self, ids: Sequence[int] | Sequence[str], vectors: np.ndarray) -> None:
    self._file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
    self._ids.write("".join(f"{text_id}\n" for text_id in ids).encode())


class _ParquetWriter(VectorWriter):
  """Writes a Parquet file with the columns `id`, an int64 or a string, and `embedding`, H float32 numbers."""

  def __init__(self, file: Any, pyarrow: Any):
    self._file, self._pyarrow = file, pyarrow

  def write(self, ids: Sequence[int] | Sequence[str], vectors: np.ndarray) -> None:
    pyarrow, schema = self._pyarrow, self._file.schema
    values = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    columns = [
      pyarrow.array(list(ids), schema.field("id").type),
      pyarrow.FixedSizeListArray.from_arrays(values, vectors.shape[1]),
    ]
    self._file.write_batch(pyarrow.record_batch(columns, schema=schema))


def _import_pyarrow(path: str) -> Any:
  try:
    import pyarrow
    import pyarrow.parquet
  except ImportError as error:
    raise UserError(
      f"{FLAG}={path}: writing Parquet files needs pyarrow ({error}): pip install 'pyarrow>=15', or give a {NPY} file"
    ) from error
  return pyarrow
