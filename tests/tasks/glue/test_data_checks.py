"""Tests of what is said about the rows of a custom task: empty and repeated texts, and the rows of each label."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert.data.tables import Table
from albert.tasks.glue.files import (
  TextRows,
  duplicate_warnings,
  duplicates,
  empty_text_warnings,
  read_text_table,
  rows_of_table,
  summary,
  summary_line,
)
from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.glue.specs import TaskSpec, custom_spec


def warnings_of(path: Path, content: str, columns: str) -> list[str]:
  path.write_text(content, encoding="utf-8")
  spec = custom_spec(ClassifierConfig(task_name="custom", text_columns=columns), ["no", "yes"])
  table = read_text_table(str(path), spec.dev["dev"], spec)
  return list(empty_text_warnings(rows_of_table(table, spec.dev["dev"], spec), table))


@pytest.mark.parametrize(
  ("name", "content", "columns", "message"),
  [
    (
      "a.csv",
      'text,label\n"a\nb",yes\n" ",no\nc,no\n"",yes\n',
      "text",
      "a.csv, line 4: 2 rows of 4 have an empty",
    ),
    ("a.jsonl", '{"a": "x", "b": null, "label": "no"}\n', "a,b", "a.jsonl, line 1: 1 row of 1 has an empty text:"),
  ],
)
def test_rows_with_empty_texts_are_counted_and_the_first_is_named(
  tmp_path: Path, name: str, content: str, columns: str, message: str
) -> None:
  (warning,) = warnings_of(tmp_path / name, content, columns)
  assert warning.startswith(f"{tmp_path}/{message}")


def test_rows_without_empty_texts_give_no_warning(tmp_path: Path) -> None:
  assert warnings_of(tmp_path / "a.tsv", "text\tlabel\na\tyes\n.\tno\n", "text") == []


def read_table_of(path: Path, content: str, **options: bool) -> tuple[TextRows, Table, TaskSpec]:
  path.write_text(content, encoding="utf-8")
  spec = custom_spec(ClassifierConfig(task_name="custom", text_columns="a,b", **options), ["no", "yes"])  # type: ignore[arg-type]
  table = read_text_table(str(path), spec.dev["dev"], spec)
  return rows_of_table(table, spec.dev["dev"], spec), table, spec


def test_texts_in_both_sets_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
  header = "a,b,label\n"
  train, train_table, _ = read_table_of(tmp_path / "t.csv", header + "x,1,no\ny,2,no\nx,1,yes\nz,3,no\nw,4,no\n")
  dev, dev_table, _ = read_table_of(tmp_path / "d.csv", header + 'y,1,no\nX,"1\n",no\nZ,3,no\nw, 4,no\nw,4,no\n')
  pairs = duplicates(train, dev)
  assert pairs == [(1, 0), (2, 3), (3, 4), (4, 4)]
  assert list(duplicate_warnings(train_table, dev_table, pairs)) == [
    f"{tmp_path}/d.csv: 4 rows of 5 have texts that are in {tmp_path}/t.csv, too: line 3 (line 2), line 5 (line 5), "
    "line 6 (line 6), ...: the results will be better than on new texts"
  ]
  (warning,) = duplicate_warnings(train_table, dev_table, pairs[:1])
  assert "d.csv: 1 row of 5 has a text that is in" in warning
  assert list(duplicate_warnings(train_table, dev_table, [])) == []


def test_a_summary_counts_labels_and_gives_the_range_of_numbers(tmp_path: Path) -> None:
  path = tmp_path / "t.csv"
  rows, table, spec = read_table_of(path, "a,b,label\nx,1,no\ny,2,no\n")
  assert summary(rows, table, spec) == {"source": str(path), "rows": 2, "labels": {"no": 2, "yes": 0}}
  assert summary_line("dev", summary(rows, table, spec)) == f"{path} (dev): 2 rows; no: 2, yes: 0"
  rows, table, spec = read_table_of(path, "a,b,label\nx,1,0.5\ny,2,4\n", regression=True)
  assert summary(rows, table, spec) == {"source": str(path), "rows": 2, "least": 0.5, "mean": 2.25, "greatest": 4.0}
  assert summary_line("train", summary(rows, table, spec)).endswith("2 rows; numbers from 0.5 to 4, mean 2.25")
