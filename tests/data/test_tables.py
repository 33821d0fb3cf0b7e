"""Tables are read with any byte-order mark, line end and quotes. Each mistake in a file is an error of one line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas
import pytest

from albert.data.tables import (
  SEPARATORS,
  Table,
  bit_matrix,
  concatenate,
  find_separator,
  label_matrix,
  read_header,
  read_table,
)
from albert.errors import UserError
from albert.tasks.glue.files import find_labels

ROWS = [
  ["7", 'He said "no', "1"],
  ["8", "a, b's\u2028line", "0"],  # U+2028 does not end a line
  ["9", "  spaces kept ", "1"],
]
HEADER = ["id", "text", "label"]


def encode_tsv(rows: list[list[str]], line_end: str = "\n") -> bytes:
  return "".join("\t".join(row) + line_end for row in rows).encode()


def encode_csv(rows: list[list[str]]) -> bytes:
  text = io.StringIO(newline="")
  csv.writer(text).writerows(rows)
  return text.getvalue().encode()


def encode_json_lines(rows: list[list[str]]) -> bytes:
  return "".join(json.dumps(dict(zip(HEADER, row, strict=True))) + "\n" for row in rows).encode()


def write_file(tmp_path: Path, content: bytes, name: str = "table.tsv") -> str:
  path = tmp_path / name
  path.write_bytes(content)
  return str(path)


@pytest.mark.parametrize(
  ("name", "content"),
  [
    ("table.tsv", encode_tsv([HEADER, *ROWS])),
    ("crlf.tsv", encode_tsv([HEADER, *ROWS], "\r\n")),
    ("mark.tsv", b"\xef\xbb\xbf" + encode_tsv([HEADER, *ROWS])),
    ("no_last_line_end.tsv", encode_tsv([HEADER, *ROWS])[:-1]),
    ("blank_lines_at_the_end.tsv", encode_tsv([HEADER, *ROWS]) + b"\n\r\n"),
    ("table.csv", encode_csv([HEADER, *ROWS])),
    ("mark.csv", b"\xef\xbb\xbf" + encode_csv([HEADER, *ROWS])),
    ("table.CSV", encode_csv([HEADER, *ROWS]) + b"\r\n"),
    ("table.jsonl", encode_json_lines(ROWS)),
    ("table.json", b"\xef\xbb\xbf" + encode_json_lines(ROWS) + b"\n"),
    ("list.json", json.dumps([dict(zip(HEADER, row, strict=True)) for row in ROWS], indent=1).encode()),
    ("table.txt", encode_tsv([HEADER, *ROWS])),
  ],
)
def test_every_format_gives_the_same_columns(tmp_path: Path, name: str, content: bytes) -> None:
  path = write_file(tmp_path, content, name)
  assert read_header(path) == HEADER
  table = read_table(path, ["label", "text"])
  assert table.columns == {"label": ["1", "0", "1"], "text": [row[1] for row in ROWS]}
  first = 1 if "json" in name else 2  # JSON has no header
  assert list(table.row_numbers) == [first, first + 1, first + 2]


def test_the_header_may_be_an_argument_for_a_file_without_a_header(tmp_path: Path) -> None:
  table = read_table(write_file(tmp_path, encode_tsv(ROWS)), ["text"], header=HEADER)
  assert table.non_empty_texts("text") == [row[1] for row in ROWS]
  assert table.location(2).endswith("table.tsv, line 3")


def test_empty_texts_at_the_end_of_a_csv_file_of_one_column_are_rows(tmp_path: Path) -> None:
  table = read_table(write_file(tmp_path, b'text\n"a"\n""\nb\n""\n""\n\n', "t.csv"), ["text"])
  assert table.columns["text"] == ["a", "", "b", "", ""]


def test_a_quoted_field_may_span_lines(tmp_path: Path) -> None:
  table = read_table(write_file(tmp_path, b'id,text\n1,"a\nb ""c"""\n2,d\n', "t.csv"), ["id", "text"])
  assert table.columns["text"] == ['a\nb "c"', "d"]
  assert list(table.row_numbers) == [2, 4]


def test_fields_may_be_longer_than_the_limit_of_pythons_csv_module(tmp_path: Path) -> None:
  text = "word " * 50_000
  path = write_file(tmp_path, b'text\n"' + text.encode() + b'"\n', "t.csv")
  assert read_table(path, ["text"]).non_empty_texts("text") == [text]


def test_json_numbers_booleans_and_null_become_texts(tmp_path: Path) -> None:
  path = write_file(tmp_path, b'{"a": 3, "b": 2.5, "c": true}\n{"a": null, "b": "", "c": false}\n', "t.jsonl")
  table = read_table(path, ["a", "b", "c"])
  assert table.columns == {"a": ["3", ""], "b": ["2.5", ""], "c": ["true", "false"]}


def test_columns_become_numbers_labels_and_ids(tmp_path: Path) -> None:
  content = encode_tsv([["score", "label", "id"], ["1.5", " b ", "u"], ["-2", "a", "v "]])
  table = read_table(write_file(tmp_path, content), ["score", "label", "id"])
  assert table.numbers("score").tolist() == [1.5, -2.0]
  assert table.numbers("score").dtype == np.float32
  assert table.label_indices("label", ["a", "b"]).tolist() == [1, 0]
  assert table.unique_names("id") == ["u", "v"]


def test_labels_are_the_same_with_composed_and_decomposed_characters(tmp_path: Path) -> None:
  table = read_table(write_file(tmp_path, "label\ncafé\ncafe\u0301\nthé\n".encode()), ["label"])
  assert table.label_indices("label", ["the\u0301", "café"]).tolist() == [1, 1, 0]
  assert find_labels(table, "label") == ["café", "thé"]
  assert label_matrix(table, "label", ["cafe\u0301", "thé"], ";").tolist() == [[1, 0], [1, 0], [0, 1]]
  bits = read_table(write_file(tmp_path, b"label\n1;0\n0;1\n1;1\n"), ["label"])
  assert label_matrix(bits, "label", ["cafe\u0301", "thé"], ";").tolist() == [[1, 0], [0, 1], [1, 1]]


def check_columns(table: Table) -> None:
  """Reads the columns as ids, texts, numbers and labels."""
  table.unique_names("id")
  table.non_empty_texts("text")
  table.numbers("score", 0, 5)
  table.label_indices("label", ["no", "yes"])


def tsv_line(**changes: str) -> bytes:
  """Returns a line of a TSV file with valid fields, except for the changes."""
  fields = {"id": "4", "text": "a", "score": "1", "label": "yes"} | changes
  return encode_tsv([list(fields.values())])


COLUMNS = ["id", "text", "score", "label"]
GOOD_FILE = encode_tsv([COLUMNS]) + tsv_line()

# Mistake -> the content of t.tsv, and the error.
MISTAKES = {
  "too few columns": (
    GOOD_FILE + b"5\ta\t1\n",
    r"t\.tsv, line 3: 3 columns instead of 4 \('id', 'text', 'score', 'label'\): .*tabs",
  ),
  "too many columns": (GOOD_FILE + b"5\ta\t1\tyes\t\n", r"t\.tsv, line 3: 5 columns instead of 4"),
  "blank line inside": (GOOD_FILE + b"\n" + tsv_line(id="5"), r"t\.tsv, line 3: .*: remove the blank line"),
  "empty field": (GOOD_FILE + tsv_line(id="5", text="  "), r"t\.tsv, line 3: column 'text' is empty"),
  "empty label": (GOOD_FILE + tsv_line(id="5", label=""), r"t\.tsv, line 3: column 'label' is empty"),
  "duplicate id": (
    GOOD_FILE + tsv_line(id="5") + tsv_line(id=" 4"),
    r"t\.tsv, line 4: id '4' is already used in line 2",
  ),
  "not a number": (GOOD_FILE + tsv_line(id="5", score="high"), r"t\.tsv, line 3: score 'high' is not a number"),
  "an underscore": (
    GOOD_FILE + tsv_line(id="5", score="1_0"),
    r"t\.tsv, line 3: score '1_0' is not a number: write it",
  ),
  "a digit of Arabic": (GOOD_FILE + tsv_line(id="5", score="٣"), r"t\.tsv, line 3: score '٣' is not a number"),
  "not a finite number": (GOOD_FILE + tsv_line(id="5", score="nan"), r"t\.tsv, line 3: score 'nan' is not a number"),
  "infinite": (GOOD_FILE + tsv_line(id="5", score="inf"), r"t\.tsv, line 3: score 'inf' is too large"),
  "a label that overflows": (
    GOOD_FILE + tsv_line(id="5", score="1e39"),
    r"line 3: score '1e39' is too large: its square",
  ),
  "a square that overflows": (
    GOOD_FILE + tsv_line(id="5", score="-2e19"),
    r"line 3: score '-2e19' is too large: its square",
  ),
  "out of range": (GOOD_FILE + tsv_line(id="5", score="5.1"), r"t\.tsv, line 3: score 5\.1 is not between 0 and 5"),
  "unknown label": (
    GOOD_FILE + tsv_line(id="5", label="maybe"),
    r"t\.tsv, line 3: label 'maybe' is not a label .*: no, yes",
  ),
  "missing column": (b"id\ttext\tscore\n", r"t\.tsv, line 1: no column 'label'; there are: 'id', 'text', 'score'"),
  "a column twice": (encode_tsv([[*COLUMNS, "text"]]), r"t\.tsv, line 1: 2 columns are called 'text'"),
  "not UTF-8": (
    GOOD_FILE + tsv_line(id="5", text="caf~").replace(b"~", b"\xe9"),
    r"line 3: not UTF-8 \(byte 6 .* 0xe9\)",
  ),
  "UTF-16 only inside": (GOOD_FILE + b"\xff\xfe\n", r"line 3: not UTF-8 \(byte 1 of the line is 0xff\): save the file"),
  "UTF-16": ("id\ttext\n".encode("utf-16"), r"t\.tsv is UTF-16: save it as UTF-8"),
  "empty file": (b"", r"t\.tsv: its first line is blank or missing"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_is_one_line_that_names_file_and_line(tmp_path: Path, name: str) -> None:
  content, message = MISTAKES[name]
  with pytest.raises(UserError, match=message) as raised:
    check_columns(read_table(write_file(tmp_path, content, "t.tsv"), COLUMNS))
  assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("t.csv", b'id,text\n1,"a\n2,b\n', r"t\.csv, line 2: unexpected end of data"),
    ("t.csv", b'id,text\n1,"a"b\n', r"t\.csv, line 2: .*"),
    ("t.csv", b"id,text\n1,a,b\n", r"t\.csv, line 2: 3 columns instead of 2 .*commas"),
    ("t.jsonl", b'{"id": 1, "text": "a"}\n{"id": 2\n', r"t\.jsonl, line 2: not JSON \(.*, column"),
    ("t.jsonl", b'{"id": 1, "text": "a"}\n[1]\n', r"t\.jsonl, line 2: must be an object, it is a list"),
    ("t.jsonl", b'{"id": 1, "sentence": "a"}\n', r"t\.jsonl, line 1: no 'text'; there are: 'id', 'sentence'"),
    ("t.json", b'[{"id": 1, "text": "a"}, {"id": 2}]', r"t\.json: row 2: no 'text'; there are: 'id'"),
    ("t.jsonl", b'{"id": 1, "text": ["a"]}', r"t\.jsonl, line 1: 'text' must be a text or .* give --multi_label if"),
    ("t.csv", b"id;text\n1;a\n2;b;c\n", r"t\.csv, line 3: 3 columns instead of 2 .* separated by semicolons"),
    (
      "t.txt",
      b"id;text;x,id,text,y\n",
      r"t\.txt: fields may be separated by commas or semicolons: give --separator=',' or --separator=';'",
    ),
    ("t.csv", b"\nid,text\n", r"t\.csv: its first line is blank or missing: write the names of the columns there"),
    ("t.csv.gz", b"\x1f\x8b\x08\0", r"t\.csv\.gz: damaged GZIP data \(.*\): copy it again"),
    ("t.csv.gz", b"id,text\n", r"t\.csv\.gz: damaged GZIP data \(Not a gzipped file"),
    ("t.csv", b"\x1f\x8b\x08\0", r"t\.csv: is gzip data: unpack it with gunzip"),
    ("t.xlsx", b"PK\3\4\x14\0", r"t\.xlsx: is an Excel workbook or another ZIP archive: save it as CSV"),
  ],
)
def test_an_error_in_csv_or_json_names_file_and_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
  with pytest.raises(UserError, match=message):
    read_table(write_file(tmp_path, content, name), ["id", "text"])


@pytest.mark.parametrize("separator", list(SEPARATORS))
@pytest.mark.parametrize("name", ["t.csv", "t.txt", "t.csv.gz"])
@pytest.mark.parametrize("index", [False, True])
def test_files_of_pandas_are_read_with_their_separator(tmp_path: Path, separator: str, name: str, index: bool) -> None:
  frame = pandas.DataFrame(ROWS, columns=HEADER)
  if (separator, name) == ("\t", "t.txt"):  # its quotes are ordinary characters, as in GLUE's files
    frame["text"] = frame["text"].str.replace('"', "")
  frame.to_csv(tmp_path / name, sep=separator, index=index)
  assert read_table(str(tmp_path / name), ["text", "label"]).columns == {
    column: frame[column].tolist() for column in ("text", "label")
  }
  frame.to_csv(tmp_path / name, sep=separator, index=False, header=False)
  separator = find_separator(str(tmp_path / name), num_fields=3)
  table = read_table(str(tmp_path / name), ["text", "label"], header=HEADER, separator=separator)
  assert table.columns["text"] == frame["text"].tolist()
  assert table.row_numbers == [1, 2, 3]


def test_without_a_header_two_separators_that_fit_are_both_named(tmp_path: Path) -> None:
  path = write_file(tmp_path, b"Well, good;yes\nNo, bad;no\n", "t.csv")
  with pytest.raises(UserError, match=r"t\.csv: fields may be separated by commas or semicolons: give"):
    find_separator(path, num_fields=2)
  assert find_separator(path, num_fields=5) == find_separator(path, num_fields=1) == ""


def test_rows_of_several_files_keep_their_file_and_line(tmp_path: Path) -> None:
  first = read_table(write_file(tmp_path, b"id,yes,no\n1,1,0\n2,0,1.0\n", "a.csv"), ["id", "yes", "no"])
  second = read_table(write_file(tmp_path, b'{"id": 2, "yes": true, "no": 3}', "b.jsonl"), ["id", "yes", "no"])
  table = concatenate([first, second])
  np.testing.assert_array_equal(bit_matrix(table, ["yes"]), [[1], [0], [1]])
  with pytest.raises(UserError, match=r"b\.jsonl, line 1: column 'no' is '3': give 1 for this label, or 0"):
    bit_matrix(table.select([1, 2]), ["yes", "no"])
  with pytest.raises(UserError, match=r"b\.jsonl, line 1: id '2' is already used in .*a\.csv, line 3: give"):
    table.unique_names("id")


def test_a_missing_file_is_refused() -> None:
  with pytest.raises(UserError, match=r"nowhere\.tsv: cannot read it"):
    read_table("nowhere.tsv", ["a"])


def test_damaged_lines_up_to_a_share_of_the_file_are_left_out_and_listed(tmp_path: Path) -> None:
  # 1 damaged line of 22 after the header, which is 4.5%.
  rows = [[str(number), "x"] for number in range(21)]
  content = encode_tsv([["a", "b"], *rows[:20]]) + b"cut\n" + encode_tsv(rows[20:])
  path = write_file(tmp_path, content)
  table = read_table(path, ["a"], tolerated_damage=0.05)
  assert table.columns["a"] == [str(number) for number in range(21)]
  assert list(table.damaged_lines) == [22]
  with pytest.raises(UserError, match="line 22: 1 column instead of 2"):
    read_table(path, ["a"], tolerated_damage=0.04)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_files_in_utf_16_or_utf_32_or_with_line_ends_of_old_macs_are_refused(
  tmp_path: Path, name: str, encoding: str
) -> None:
  text = {"a.tsv": "a\tb\nx\t1\n", "a.csv": "a,b\nx,1\n", "a.jsonl": '{"a": "x", "b": "1"}\n'}[name]
  (tmp_path / name).write_bytes(text.encode(encoding))
  with pytest.raises(UserError, match=rf"{name} is {encoding[:6].upper()}: save it as UTF-8$"):
    read_table(str(tmp_path / name), ["a", "b"])
  (tmp_path / name).write_bytes(text.replace("\n", "\r").encode() * 2)
  with pytest.raises(UserError, match=rf"{name}: its lines end in CR alone"):
    read_table(str(tmp_path / name), ["a", "b"])


def test_a_carriage_return_outside_of_quotes_in_csv_is_refused(tmp_path: Path) -> None:
  (tmp_path / "a.csv").write_bytes(b"a,b\nx\ry,1\n")
  with pytest.raises(UserError, match=r"a\.csv, line 2: a carriage return outside of quotes: quote the field$"):
    read_table(str(tmp_path / "a.csv"), ["a", "b"])


def test_ids_that_cannot_be_written_to_predictions_are_refused(tmp_path: Path) -> None:
  (tmp_path / "a.jsonl").write_text('{"id": "1", "a": "x"}\n{"id": "a\\tb", "a": "y"}\n')
  with pytest.raises(UserError, match=r"a\.jsonl, line 2: id 'a\\tb' has a tab or a line end: remove it$"):
    read_table(str(tmp_path / "a.jsonl"), ["id"]).unique_names("id")
