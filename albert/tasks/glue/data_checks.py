"""What a user should know about the rows of a task before it is trained: empty texts, lines that were skipped."""

from __future__ import annotations

from collections.abc import Iterator

from albert.data.tables import Table
from albert.io.wording import counted
from albert.tasks.glue.data import TextRows


def damage_warnings(table: Table) -> Iterator[str]:
  """Yields a warning if damaged lines were skipped."""
  if table.damaged_lines:
    yield (
      f"{table.path}: skipped {counted(len(table.damaged_lines), 'line')} with another number of columns; the first "
      f"one is line {table.damaged_lines[0]}"
    )


def empty_text_warnings(rows: TextRows, table: Table) -> Iterator[str]:
  """Yields a warning if rows have empty texts."""
  columns = [rows.first] if rows.second is None else [rows.first, rows.second]
  empty_rows = [row for row, texts in enumerate(zip(*columns, strict=True)) if not all(map(str.strip, texts))]
  if empty_rows:
    is_single = len(empty_rows) == 1
    number = f"{counted(len(empty_rows), 'row')} of {len(rows)} {'has' if is_single else 'have'} an empty text"
    place = table.location(empty_rows[0])
    yield f"{place}: {number}{'' if is_single else ', this is the first'}: only the label of such a row is learned"
