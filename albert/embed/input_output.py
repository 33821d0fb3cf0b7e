"""The files of albert.embed: the texts to embed with their ids, and their embeddings.

The texts are the lines of a file or a column of a table. The embeddings and the ids of their texts are written to a
.npy or Parquet file, piece by piece and atomically.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from albert.data import tables
from albert.errors import UserError
from albert.io import files
from albert.io.text import check_first_line, read_line_batches

_COUNTED_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Files that hold tables, of which --text_column must name a column.
_TABLE_EXTENSIONS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")
NPY, PARQUET = ".npy", ".parquet"
FLAG = "--output_file"

# The numbers of lines, from 1, or the fields of a column.
Ids = Sequence[int] | Sequence[str]
# Appends rows to a file: the id of each row, and float32 [rows, H].
WriteVectors = Callable[[Ids, np.ndarray], None]


class TextChunk(NamedTuple):
  """Consecutive texts of a file, and the id of each."""

  ids: Ids
  texts: Sequence[str]


class InputTexts(NamedTuple):
  """The texts of a file.

  Attributes:
    num_texts: their number.
    ids_are_numbers: whether the ids are the numbers of the texts' lines.
    chunks: the largest number of texts in a chunk -> the chunks, in order.
  """

  num_texts: int
  ids_are_numbers: bool
  chunks: Callable[[int], Iterator[TextChunk]]


def open_texts(path: str, text_column: str, id_column: str) -> InputTexts:
  """Opens the texts of a file.

  Args:
    path: a file.
    text_column: name of the column of texts; "" if each line of the file is a text.
    id_column: name of the column of ids; "" for the numbers of the lines.
  Raises:
    UserError: the file cannot be read or has no texts, or the columns do not fit the file.
  """
  if text_column:
    texts = _open_column(path, text_column, id_column)
  elif id_column:
    raise UserError(f"--id_column={id_column}: give --text_column, too: without it, each line is a text")
  elif os.path.splitext(path)[1].lower() in _TABLE_EXTENSIONS:
    raise UserError(f"--input_file={path}: is a table: give --text_column, the column of its texts")
  else:
    texts = _open_lines(path)
  if not texts.num_texts:
    raise UserError(f"--input_file={path}: has no texts")
  return texts


def _open_lines(path: str) -> InputTexts:
  """Opens a file with one text on each line. The lines are not kept in memory. A blank line is an empty text."""
  num_texts = _count_lines(path)

  def chunks(chunk_size: int) -> Iterator[TextChunk]:
    num_read = 0
    with files.open_file(path) as file:
      for lines in read_line_batches(file, chunk_size, path):
        ids = range(num_read + 1, num_read + 1 + len(lines))
        num_read += len(lines)
        if num_read > num_texts:
          break
        yield TextChunk(ids, [_decode(path, number, line) for number, line in zip(ids, lines, strict=True)])
    if num_read != num_texts:
      raise UserError(f"{path}: changed while it was read: run the command again")

  return InputTexts(num_texts, ids_are_numbers=True, chunks=chunks)


def _decode(path: str, number: int, line: bytes) -> str:
  if number == 1:
    check_first_line(path, line)
    line = line.removeprefix(_BYTE_ORDER_MARK)
  try:
    return line.rstrip(b"\r\n").decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(
      f"{path}, line {number}: not UTF-8 (byte {error.start + 1} of the line is 0x{line[error.start]:02x}): save the "
      "file as UTF-8"
    ) from error


def _count_lines(path: str) -> int:
  """Counts the lines of a file. The last one may lack its line end."""
  num_lines, last = 0, b"\n"
  with files.open_file(path) as file:
    while block := file.read(_COUNTED_BYTES):
      num_lines += block.count(b"\n")
      last = block[-1:]
  return num_lines + (last != b"\n")


def _open_column(path: str, text_column: str, id_column: str) -> InputTexts:
  """Opens a column of a table, which is kept in memory."""
  table = tables.read_table(path, [text_column, *([id_column] if id_column else [])])
  texts = table.columns[text_column]
  ids: Ids = table.unique_names(id_column) if id_column else table.row_numbers

  def chunks(chunk_size: int) -> Iterator[TextChunk]:
    for start in range(0, len(table), chunk_size):
      yield TextChunk(ids[start : start + chunk_size], texts[start : start + chunk_size])

  return InputTexts(len(table), ids_are_numbers=not id_column, chunks=chunks)


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
def write_vectors(path: str, num_rows: int, hidden_size: int, *, ids_are_numbers: bool) -> Iterator[WriteVectors]:
  """A context for writing a file of embeddings.

  The file appears under its name when all rows are written. After an error, nothing has changed. The ids of a .npy file
  are written to `ids_file(path)`, which is renamed before the .npy file.

  Args:
    path: ends in .npy or .parquet; a file that exists is replaced.
    num_rows: number of all rows.
    hidden_size: H.
    ids_are_numbers: whether the ids are int, not str.

  Yields:
    The function that appends rows, for all rows in their order.

  Raises:
    UserError: the path or its permissions are wrong.
    RunError: the disk failed.
  """
  if not files.is_remote(path):
    files.remove_leftovers(path.rpartition("/")[0] or ".")
  with contextlib.ExitStack() as stack:
    file = stack.enter_context(files.write_whole(path))
    if path.endswith(NPY):
      write = _npy_writer(file, stack.enter_context(files.write_whole(ids_file(path))), num_rows, hidden_size)
    else:
      pyarrow = _import_pyarrow(path)
      id_type = pyarrow.int64() if ids_are_numbers else pyarrow.string()
      schema = pyarrow.schema([("id", id_type), ("embedding", pyarrow.list_(pyarrow.float32(), hidden_size))])
      write = _parquet_writer(stack.enter_context(pyarrow.parquet.ParquetWriter(file, schema)), pyarrow)
    yield write


def _npy_writer(file: BinaryIO, ids_of_rows: BinaryIO, num_rows: int, hidden_size: int) -> WriteVectors:
  """Writes vectors to one file and ids to another one, an id on each line."""
  header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, hidden_size)}
  np.lib.format.write_array_header_1_0(file, header)

  def write(ids: Ids, vectors: np.ndarray) -> None:
    file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
    ids_of_rows.write("".join(f"{text_id}\n" for text_id in ids).encode())

  return write


def _parquet_writer(file: Any, pyarrow: Any) -> WriteVectors:
  """Writes a Parquet file with the columns `id`, an int64 or a string, and `embedding`, H float32 numbers."""

  def write(ids: Ids, vectors: np.ndarray) -> None:
    values = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    columns = [
      pyarrow.array(list(ids), file.schema.field("id").type),
      pyarrow.FixedSizeListArray.from_arrays(values, vectors.shape[1]),
    ]
    file.write_batch(pyarrow.record_batch(columns, schema=file.schema))

  return write


def _import_pyarrow(path: str) -> Any:
  try:
    import pyarrow
    import pyarrow.parquet
  except ImportError as error:
    raise UserError(
      f"{FLAG}={path}: writing Parquet files needs pyarrow ({error}): pip install 'pyarrow>=15', or give a {NPY} file"
    ) from error
  return pyarrow
