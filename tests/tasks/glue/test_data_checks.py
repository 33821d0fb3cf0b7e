"""Tests of the warnings about the rows of a custom task."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert.tasks.glue.data import read_rows
from albert.tasks.glue.data_checks import empty_text_warnings
from albert.tasks.glue.specs import ClassifierConfig, custom_spec


def warnings_of(path: Path, content: str, columns: str) -> list[str]:
  path.write_text(content, encoding="utf-8")
  spec = custom_spec(ClassifierConfig(task_name="custom", text_columns=columns), ["no", "yes"])
  return list(empty_text_warnings(*read_rows(str(path), spec.dev["dev"], spec)))


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
