"""Reads tables with a column of text: Parquet files, and the Arrow files in which Hugging Face datasets are saved."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from albert.data import rows
from albert.errors import UserError
from albert.io import files
from albert.io.text import quote_names
from data_prep.readers.records import BadRecord, Piece, Reader, ReadingSettings, Record, SourceDocument, whole_file

# Rows that are in memory at a time.
_BATCH_ROWS = 64
# The names of pyarrow's types of text.
_TEXT_TYPES = frozenset(("string", "large_string", "string_view"))
# First bytes of an Arrow file in the file format. Arrow files in the stream format begin in another way.
_FILE_FORMAT_MAGIC = b"ARROW1"


def _check_column(path: str, schema: Any, field: str, pyarrow: Any) -> None:
  """Checks that a table has one column with the name of the text field, and that it holds text."""
  num_columns = schema.names.count(field)
  if num_columns > 1:
    raise UserError(f"{path}: {num_columns} columns are called {field!r}: rename all but one")
  if not num_columns:
    raise UserError(f"{path}: no column {field!r} (its columns: {quote_names(schema.names)}): give --text_field")
  column_type = schema.field(field).type
  if pyarrow.types.is_dictionary(column_type) or pyarrow.types.is_run_end_encoded(column_type):
    column_type = column_type.value_type
  if str(column_type) not in _TEXT_TYPES:  # a list or struct of strings is none of them
    raise UserError(f"{path}: the column {field!r} is not text, but {column_type}: give --text_field")


def _read_rows(batches: Iterator[Any], num_rows_before: int, field: str) -> Iterator[Record]:
  """Yields the documents in the rows of record batches, before which the file has `num_rows_before` rows."""
  row_number = num_rows_before
  for batch in batches:
    for value in batch.column(batch.schema.get_field_index(field)):
      row_number += 1
      get_place = functools.partial("row {}".format, row_number)
      try:
        text = value.as_py()
      except UnicodeDecodeError as error:
        yield BadRecord(get_place, f"not UTF-8 text ({error.reason}): correct or remove the row")
      else:
        yield SourceDocument(get_place, (text or "").split("\n"))


# ---- Parquet -------------------------------------------------------------------------------------------


def _open_parquet(path: str, settings: ReadingSettings) -> Any:
  pyarrow = rows.import_pyarrow(path)
  try:
    file = pyarrow.parquet.ParquetFile(rows.open_source(path, pyarrow))
    _check_column(path, file.schema_arrow, settings.text_field, pyarrow)
  except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
    raise rows.damage_error(path, error) from error
  return file


def _plan_parquet(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  """Cuts a Parquet file at row groups."""
  with _open_parquet(path, settings) as file:
    metadata = file.metadata
    columns = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    column = columns.index(settings.text_field)
    sizes = [metadata.row_group(n).column(column).total_compressed_size for n in range(metadata.num_row_groups)]
  yield from _group_parts(path, sizes, unit_bytes)


def _read_parquet(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  with _open_parquet(piece.path, settings) as file:
    num_rows_before = sum(file.metadata.row_group(n).num_rows for n in range(piece.start))
    batches = file.iter_batches(_BATCH_ROWS, list(range(piece.start, piece.end)), columns=[settings.text_field])
    checked = _checked_batches(piece.path, batches, settings.text_field)
    yield from _read_rows(checked, num_rows_before, settings.text_field)


def _group_parts(path: str, sizes: list[int], unit_bytes: int) -> Iterator[Piece]:
  """Yields pieces of consecutive row groups or record batches, whose numbers of bytes are `sizes`."""
  start, num_bytes = 0, 0
  for index, size in enumerate(sizes):
    if index > start and num_bytes + size > unit_bytes:
      yield Piece(path, start, index, num_bytes)
      start, num_bytes = index, 0
    num_bytes += size
  if start < len(sizes):
    yield Piece(path, start, len(sizes), num_bytes)


def _checked_batches(path: str, batches: Iterator[Any], field: str) -> Iterator[Any]:
  """Yields record batches. If the file is damaged, raises a UserError that names it.

  pyarrow does not check values when it reads them: wrong offsets of texts would end the process.
  """
  pyarrow = rows.import_pyarrow(path)
  try:
    for batch in batches:
      batch.validate()
      try:
        batch.column(batch.schema.get_field_index(field)).validate(full=True)
      except pyarrow.ArrowInvalid as error:
        if "UTF8" not in str(error):  # text that is not UTF-8 is an error of its row, not of the file
          raise
      yield batch
  except (pyarrow.ArrowException, OSError) as error:
    raise rows.damage_error(path, error) from error


# ---- saved datasets ------------------------------------------------------------------------------------


def _open_arrow(path: str, settings: ReadingSettings) -> Iterator[Any]:
  """Opens an Arrow file in the file format or the stream format, and returns its record batches."""
  pyarrow = rows.import_pyarrow(path)
  try:
    source = rows.open_source(path, pyarrow)
    is_file_format = source.read(len(_FILE_FORMAT_MAGIC)) == _FILE_FORMAT_MAGIC
    source.seek(0)
    reader = pyarrow.ipc.open_file(source) if is_file_format else pyarrow.ipc.open_stream(source)
    _check_column(path, reader.schema, settings.text_field, pyarrow)
  except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: a column's name
    raise rows.damage_error(path, error) from error
  batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file_format else iter(reader)
  return _checked_batches(path, batches, settings.text_field)


def _plan_arrow(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  """Cuts an Arrow file at record batches. A remote file is a single piece, since batches cannot be skipped there."""
  if files.is_remote(path):
    yield whole_file(path)
  else:
    yield from _group_parts(path, [batch.nbytes for batch in _open_arrow(path, settings)], unit_bytes)


def _read_arrow(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  num_rows_before = 0
  for index, batch in enumerate(_open_arrow(piece.path, settings)):
    if index >= piece.end:
      return
    if index >= piece.start:
      yield from _read_rows(iter([batch]), num_rows_before, settings.text_field)
    num_rows_before += batch.num_rows


PARQUET_READER = Reader(_open_parquet, _plan_parquet, _read_parquet)
DATASETS_READER = Reader(_open_arrow, _plan_arrow, _read_arrow)
