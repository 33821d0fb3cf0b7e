"""Input and output of albert.embed: reads texts with ids, writes embeddings, and finds the nearest rows of queries.

The texts are the lines of a file or a column of a table. The embeddings and the ids of their texts are written to a
.npy or Parquet file, piece by piece and atomically.

N rows, Q queries, H hidden.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from albert.data import rows, tables
from albert.errors import UserError
from albert.io import files

# Files that hold tables, of which --text_column must name a column.
_TABLE_EXTENSIONS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")
NPY, PARQUET, JSON_LINES = ".npy", ".parquet", ".jsonl"
# Scores are compared as multiples of this, so that rounding errors do not decide about the order of equal texts.
_SCORE_UNIT = 1e-6
# The bits of a row's number in an int64 that also holds a score, and the queries that are compared with rows together.
_ROW_BITS = 40
_LAST_ROW = (1 << _ROW_BITS) - 1
_QUERIES_OF_BLOCK = 512
INPUT_FLAG, FLAG = "--input_file", "--output_file"

# The numbers of lines, from 1, or the fields of a column.
Ids = Sequence[int] | Sequence[str]
# Appends rows to a file: the id of each row, and float32 [rows, H].
WriteVectors = Callable[[Ids, np.ndarray], None]


class InputTexts(NamedTuple):
  """The texts of a file.

  Attributes:
    num_texts: their number.
    ids_are_numbers: whether the ids are the numbers of the texts' lines.
    pairs: the id and the text of each, in order.
  """

  num_texts: int
  ids_are_numbers: bool
  pairs: Iterator[tuple[int | str, str]]


def open_texts(path: str, text_column: str, id_column: str, flag: str = INPUT_FLAG) -> InputTexts:
  """Opens the texts of a file.

  Args:
    path: a file.
    text_column: name of the column of texts; "" if each line of the file is a text.
    id_column: name of the column of ids; "" for the numbers of the lines.
    flag: the flag that names the file, for messages.
  Raises:
    UserError: the file cannot be read or has no texts, or the columns do not fit the file.
  """
  if not files.exists(path):
    raise UserError(f"{flag}={path}: no such file")
  is_table = os.path.splitext(path)[1].lower() in _TABLE_EXTENSIONS
  if text_column and (is_table or flag == INPUT_FLAG):
    table = tables.read_table(path, [text_column, *([id_column] if id_column else [])])
    ids = table.unique_names(id_column) if id_column else table.row_numbers
    texts = InputTexts(len(table), not id_column, zip(ids, table.columns[text_column], strict=True))
  elif id_column and flag == INPUT_FLAG:
    raise UserError(f"--id_column={id_column}: give --text_column, too: without it, each line is a text")
  elif is_table:
    raise UserError(f"{flag}={path}: is a table: give --text_column, the column of its texts")
  else:
    num_lines = sum(1 for _ in tables.read_lines(path))
    texts = InputTexts(num_lines, True, _read_lines(path, num_lines))
  if not texts.num_texts:
    raise UserError(f"{flag}={path}: has no texts")
  return texts


def _read_lines(path: str, num_lines: int) -> Iterator[tuple[int, str]]:
  """The numbers and the texts of the lines, which are not kept in memory. A blank line is an empty text."""
  number = 0
  for number, line in tables.read_lines(path):
    if number > num_lines:
      break
    yield number, line.rstrip("\r\n")
  if number != num_lines:
    raise UserError(f"{path}: changed while it was read: run the command again")


def check_output(path: str, *, for_queries: bool = False) -> None:
  """Checks that a file of embeddings, or of the nearest rows of queries, can be written.

  Raises:
    UserError: its name has another extension, it is no file, its directory does not exist, or pyarrow is missing.
  """
  extensions = (JSON_LINES,) if for_queries else (NPY, PARQUET)
  if not path.endswith(extensions):
    raise UserError(f"{FLAG}={path}: must end in {' or '.join(extensions)}")
  if files.is_dir(path):
    raise UserError(f"{FLAG}={path}: is a directory: give a file")
  files.check_not_special(path, name=f"{FLAG}={path}", remedy="give the path of a file")
  directory = path.rpartition("/")[0]
  if directory and not files.is_remote(path) and not files.is_dir(directory):
    raise UserError(f"{FLAG}={path}: there is no directory {directory}: make it first")
  if path.endswith(PARQUET):
    rows.import_pyarrow(f"{FLAG}={path}")


@contextlib.contextmanager
def write_vectors(path: str, num_rows: int, hidden_size: int, *, ids_are_numbers: bool) -> Iterator[WriteVectors]:
  """A context for writing a file of embeddings.

  The file appears under its name when all rows are written. After an error, nothing has changed. The ids of a .npy file
  are written to NAME.ids.txt, which is renamed before the .npy file.

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
      ids_file = stack.enter_context(files.write_whole(f"{path.removesuffix(NPY)}.ids.txt"))
      header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, hidden_size)}
      np.lib.format.write_array_header_1_0(file, header)

      def write(ids: Ids, vectors: np.ndarray) -> None:
        file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
        ids_file.write("".join(f"{text_id}\n" for text_id in ids).encode())

    else:
      pyarrow = rows.import_pyarrow(f"{FLAG}={path}")
      id_type = pyarrow.int64() if ids_are_numbers else pyarrow.string()
      schema = pyarrow.schema([("id", id_type), ("embedding", pyarrow.list_(pyarrow.float32(), hidden_size))])
      parquet = stack.enter_context(pyarrow.parquet.ParquetWriter(file, schema))

      def write(ids: Ids, vectors: np.ndarray) -> None:
        values = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
        embeddings = pyarrow.FixedSizeListArray.from_arrays(values, hidden_size)
        parquet.write_batch(pyarrow.record_batch([pyarrow.array(list(ids), id_type), embeddings], schema=schema))

    yield write


class NearestRows:
  """Finds the rows whose vectors have the largest cosine with those of queries. Rows are added in blocks.

  Cosines are rounded to six decimals. Of equal ones, the row that comes first is nearer.

  Args:
    queries: float32 [Q, H].
    top_k: the number of rows for each query.
  """

  def __init__(self, queries: np.ndarray, top_k: int):
    self._queries, self._top_k, self._num_rows = _normalized(queries), top_k, 0
    # Each number holds a score and a row. Of equal scores, that of an earlier row is larger, so no two are equal.
    self._keys = np.zeros([len(queries), 0], np.int64)

  def add(self, vectors: np.ndarray) -> None:
    """Adds the next rows, float32 [rows, H]."""
    rows = _normalized(vectors)
    rows_from_last = _LAST_ROW - np.arange(self._num_rows, self._num_rows + len(rows))
    self._num_rows += len(rows)
    num_kept = min(self._top_k, self._num_rows)
    kept = np.zeros([len(self._queries), num_kept], np.int64)
    for start in range(0, len(kept), _QUERIES_OF_BLOCK):
      block = slice(start, start + _QUERIES_OF_BLOCK)
      scores = np.rint(self._queries[block] @ rows.T / _SCORE_UNIT).astype(np.int64)
      keys = np.concatenate([self._keys[block], (scores << _ROW_BITS) + rows_from_last], axis=1)
      kept[block] = np.partition(keys, -num_kept, axis=1)[:, -num_kept:]
    self._keys = kept

  def result(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the rows, from 0, int64 [Q, top_k], and their cosines, float64; the nearest first."""
    keys = -np.sort(-self._keys, axis=1)
    return _LAST_ROW - (keys & _LAST_ROW), (keys >> _ROW_BITS) * _SCORE_UNIT


def _normalized(vectors: np.ndarray) -> np.ndarray:
  """Returns vectors of length 1, float64. A vector of zeros stays as it is."""
  lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
  return np.asarray(vectors / np.where(lengths, lengths, 1.0))
