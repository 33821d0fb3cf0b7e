"""Tests of --text_columns: names with commas and quotes are given like a line of CSV, or as a JSON list."""

from __future__ import annotations

import csv
import io
import itertools
import json

import pytest

from albert.errors import UserError
from albert.tasks.glue.flags import format_columns, parse_columns

NAMES = ["a", "two words", "question, long", 'he "said"', '"quoted"', "[list]", 'both, "of" [them]', "größe", "it's"]


def write_csv_line(names: tuple[str, ...]) -> str:
  text = io.StringIO()
  csv.writer(text, lineterminator="").writerow(names)
  return text.getvalue()


@pytest.mark.parametrize("names", [*((name,) for name in NAMES), *itertools.permutations(NAMES, 2)])
def test_names_are_read_from_csv_and_json_and_the_written_flag(names: tuple[str, ...]) -> None:
  assert parse_columns(format_columns(names)) == names
  assert parse_columns(json.dumps(names)) == names
  line = write_csv_line(names)
  if not line.startswith("["):  # which begins a JSON list, so such a name is quoted
    assert parse_columns(line) == names


def test_spaces_around_names_and_empty_names_are_left_out() -> None:
  assert parse_columns(" a , b,") == parse_columns('["a ", " b"]') == parse_columns('"a", "b"') == ("a", "b")
  assert parse_columns("") == parse_columns(",") == ()
  assert format_columns(["question", "answer"]) == "question,answer"


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ('"a', r'^--text_columns="a: unexpected end of data: double a quote inside of quotes, and close them$'),
    ('"a"b,c', r"^--text_columns=.*: double a quote inside of quotes"),
    ('["a"', r'^--text_columns=\["a": not JSON .*'),
    ("[1]", r"^--text_columns=\[1\].*give a JSON list of names"),
  ],
)
def test_a_text_that_is_neither_csv_nor_json_is_refused(text: str, message: str) -> None:
  with pytest.raises(UserError, match=message):
    parse_columns(text)
