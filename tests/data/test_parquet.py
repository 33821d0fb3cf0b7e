"""Tests of tables in Parquet files: the same columns as in JSON lines, and errors that name the row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas
import pytest

from albert.data.rows import rows_of
from albert.data.tables import read_header, read_table
from albert.errors import UserError

pytest.importorskip("pyarrow")

FRAME = pandas.DataFrame(
  {
    "text, long": ["one", 'two "2"\nlines', None, ""],
    "kind": pandas.Categorical(["b", "a", "b", "a"]),
    "number": [1, 2, -3, 4],
    "score": [0.5, float("nan"), 1e-3, 2.0],
    "flag": [True, False, True, True],
    "day": pandas.to_datetime(["2020-01-01"] * 4),
  }
)
COLUMNS = ["text, long", "kind", "number", "score", "flag"]


@pytest.fixture
def path(tmp_path: Path) -> str:
  FRAME.to_parquet(tmp_path / "t.parquet", row_group_size=3)
  return str(tmp_path / "t.parquet")


def test_parquet_has_the_columns_of_the_frame_that_wrote_it(path: str) -> None:
  assert read_header(path) == list(FRAME.columns)
  table = read_table(path, COLUMNS)
  in_memory = read_table(rows_of(FRAME[COLUMNS], "train", COLUMNS), COLUMNS)
  assert table.columns == in_memory.columns
  assert table.columns["score"] == ["0.5", "", "0.001", "2.0"]
  assert table.columns["flag"][:2] == ["true", "false"]
  assert table.location(3) == f"{path}: row 4"


@pytest.mark.parametrize(
  ("names", "message"),
  [
    (["text"], r"t\.parquet: no column 'text'; there are: 'text, long', 'kind', 'number', 'score', 'flag', 'day'$"),
    (["day"], r"t\.parquet: row 1: 'day' must be a text or a number, is a (datetime|Timestamp)$"),
  ],
)
def test_columns_that_are_missing_or_of_another_type_are_refused(path: str, names: list[str], message: str) -> None:
  with pytest.raises(UserError, match=message):
    read_table(path, names)


def test_an_empty_cell_is_named_by_its_row(path: str) -> None:
  with pytest.raises(UserError, match=r"t\.parquet: row 3: column 'text, long' is empty: fill it in or remove the row"):
    read_table(path, COLUMNS).non_empty_texts("text, long")


def test_a_damaged_file_and_one_that_is_not_parquet_are_refused(path: str) -> None:
  content = Path(path).read_bytes()
  for damaged in (b"text,kind\na,b\n", content[: len(content) // 2], b""):
    Path(path).write_bytes(damaged)
    with pytest.raises(UserError, match=r"t\.parquet: cannot be read \(.*\): write the file again") as raised:
      read_table(path, COLUMNS)
    assert "\n" not in str(raised.value)


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
  with pytest.raises(UserError, match=r"none\.parquet"):
    read_table(str(tmp_path / "none.parquet"), COLUMNS)


def test_without_pyarrow_the_message_says_how_to_install_it(path: str, monkeypatch: Any) -> None:
  monkeypatch.setitem(sys.modules, "pyarrow", None)
  message = r"t\.parquet: reading .* Parquet .* needs pyarrow .*: pip install 'pyarrow>=15'$"
  with pytest.raises(UserError, match=message):
    read_table(path, COLUMNS)
