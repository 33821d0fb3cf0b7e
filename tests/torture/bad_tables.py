"""Training tables (TSV, CSV, JSON lines) for the part "inputs": bad ones must be refused, unusual ones accepted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.torture.attempts import BAD, Attempt, Expected
from tests.torture.workplace import Workplace


class TableFile(NamedTuple):
  """A training file of a custom task.

  Attributes:
    description: what is bad or unusual about it.
    name: its file name.
    content: its bytes.
    bad_line: the number of the line that the error must name, from 1; 0 if it need not name a line.
    flags: further flags of run_classifier.py that the file needs.
  """

  description: str
  name: str
  content: bytes
  bad_line: int
  flags: Sequence[str]


def table_attempts(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Gives `number` bad tables to a custom task, then each unusual valid table, and then bad files to GLUE tasks.

  All tables come with a --predict_file that doesn't exist. A valid table is accepted if the error is about
  --predict_file. So nothing is trained.
  """
  for _ in range(number):
    table = _bad_table(rng)
    names = (table.name, f"line {table.bad_line}") if table.bad_line else (table.name,)
    yield _table_attempt(workplace, "tables", table, Expected(BAD, names, leaves_nothing=True))
  for table in _unusual_tables(rng):
    expected = Expected(BAD, ("--predict_file=absent.tsv",), leaves_nothing=True)
    yield _table_attempt(workplace, "tables, valid", table, expected)
  yield from _glue_attempts(workplace, rng)


_COLUMNS = ["id", "text", "label", "score"]
_LABELS = "--labels=no,yes"
_REGRESSION = ["--regression", "--label_column=score"]


def _random_rows(rng: random.Random) -> list[list[str]]:
  """Returns 6 to 19 rows of valid cells, in the order of _COLUMNS."""
  words = ["river", "harbour", "teacher", "garden", "captain", "letter"]
  return [
    [str(number), " ".join(rng.choices(words, k=5)), "yes" if number % 2 else "no", f"{rng.uniform(0, 5):.3f}"]
    for number in range(rng.randrange(6, 20))
  ]


def _encode_table(rows: Sequence[Sequence[str]], separator: str = "\t", header: Sequence[str] = _COLUMNS) -> bytes:
  return "".join(separator.join(row) + "\n" for row in [header, *rows]).encode()


def _encode_json_lines(rows: Sequence[Sequence[str]]) -> list[bytes]:
  return [json.dumps(dict(zip(_COLUMNS, row, strict=True))).encode() for row in rows]


def _bad_table(rng: random.Random) -> TableFile:
  makers = [_table_with_bad_field, _table_with_bad_field, _table_with_bad_number, _table_with_bad_header,
            _csv_with_bad_quotes, _json_lines_with_bad_line]  # fmt: skip
  make_table = rng.choice(makers)  # bad fields are twice as frequent
  return make_table(rng)


def _table_with_bad_field(rng: random.Random) -> TableFile:
  rows = _random_rows(rng)
  index = rng.randrange(len(rows))
  row_id, text, label, score = rows[index]
  description, bad_row = rng.choice(
    [
      ("a field too few", [row_id, text, label]),
      ("a field too many", [row_id, text, label, score, "x"]),
      ("an empty label", [row_id, text, "", score]),
      ("an unknown label", [row_id, text, "maybe", score]),
      ("a label in capitals", [row_id, text, "YES", score]),
      ("an id twice", [rows[index - 1][0], text, label, score]),
      ("no id", ["", text, label, score]),
      ("commas", [",".join(rows[index])]),
    ]
  )
  line = index + 2  # line 1 is the header
  if description == "an id twice" and index == 0:
    line = len(rows) + 1  # rows[-1] is the last row: the first row got its id, so the last one repeats it
  rows[index] = bad_row
  flags = [_LABELS, "--id_column=id"]
  if description not in ("an id twice", "no id") and rng.random() < 0.3:
    # In addition, a byte of the line is not UTF-8, which is the first error that is found.
    not_utf8 = bytes([rng.choice(b"\xff\xc0\x80\xe9")])
    lines = _encode_table(rows).split(b"\n")
    lines[line - 1] = lines[line - 1][:3] + not_utf8 + lines[line - 1][3:]
    return TableFile("not UTF-8", "train.tsv", b"\n".join(lines), line, flags)
  return TableFile(description, "train.tsv", _encode_table(rows), line, flags)


def _table_with_bad_number(rng: random.Random) -> TableFile:
  rows = _random_rows(rng)
  index = rng.randrange(len(rows))
  value = rng.choice(
    ["nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e39", "-1e308", "1e999", "2e19", "high", "1,5", "", " ", "0x10",
     "9" * rng.randrange(40, 6000), "--1", "1 2"]
  )  # fmt: skip
  rows[index][_COLUMNS.index("score")] = value
  shown = value if len(value) < 30 else f"{len(value)} digits"
  return TableFile(f"score {shown!r}", "train.tsv", _encode_table(rows), index + 2, _REGRESSION)


def _table_with_bad_header(rng: random.Random) -> TableFile:
  """Makes a table whose header is wrong or cannot be read, or that has no usable rows."""
  rows, flags = _random_rows(rng), [_LABELS, "--id_column=id"]
  missing = rng.choice(["text", "label", "id"])
  renamed = ["other" if column == missing else column for column in _COLUMNS]
  twice = ["text" if column == "score" else column for column in _COLUMNS]
  files: list[tuple[str, str, bytes, int, list[str]]] = [
    (f"no column {missing}", "train.tsv", _encode_table(rows, header=renamed), 1, flags),
    ("a column twice", "train.tsv", _encode_table(rows, header=twice), 1, flags),
    ("no header", "train.tsv", _encode_table(rows).split(b"\n", 1)[1], 1, flags),
    ("CR line ends", "train.tsv", _encode_table(rows).replace(b"\n", b"\r"), 1, flags),
    ("UTF-16", "train.tsv", _encode_table(rows).decode().encode("utf-16"), 0, flags),
    ("commas instead of tabs", "train.tsv", _encode_table(rows, ","), 1, flags),
    ("tabs instead of commas", "train.csv", _encode_table(rows), 1, flags),
    ("empty", "train.tsv", b"", 0, flags),
    ("only line ends", "train.tsv", b"\n\n\n", 0, flags),
    ("only the header", "train.tsv", _encode_table([]), 0, flags),
    ("only NUL", "train.tsv", bytes(rng.randrange(1, 5000)), 1, flags),
    ("one label", "train.tsv", _encode_table([[*row[:2], "yes", row[3]] for row in rows]), 0, []),
  ]
  return TableFile(*rng.choice(files))


def _csv_with_bad_quotes(rng: random.Random) -> TableFile:
  rows, flags = _random_rows(rng), [_LABELS]
  index = rng.randrange(len(rows))
  text = rows[index][1]
  bad_text = rng.choice([f'"{text}', f'"{text}"x', f'"a"b"{text}"'])
  rows[index][1] = bad_text
  return TableFile(f"quotes {bad_text[:3]}...{bad_text[-3:]}", "train.csv", _encode_table(rows, ","), index + 2, flags)


def _json_lines_with_bad_line(rng: random.Random) -> TableFile:
  lines = _encode_json_lines(_random_rows(rng))
  index = rng.randrange(len(lines))
  line = lines[index]
  column = rng.choice(["text", "label"])
  fields = json.loads(line)
  text = json.dumps(fields["text"]).encode()
  without_column = json.dumps({key: value for key, value in fields.items() if key != column}).encode()
  wrong_value = rng.choice([[], ["a"], {}, {"a": 1}, *([None] if column == "label" else [])])
  description, bad_line = rng.choice(
    [
      ("cut", line[: rng.randrange(1, len(line) - 1)]),
      ("a list", b"[" + line + b"]"),
      ("a number", b"5"),
      ("null", b"null"),
      ("two objects", line + line),
      ("not UTF-8", line.replace(b'": "', b'": "\xff', 1)),
      ("deep nesting", b'{"text": ' + b"[" * 100_000),
      (f"no {column}", without_column),
      (f"{wrong_value!r} as {column}", json.dumps(fields | {column: wrong_value}).encode()),
      ("NaN", line.replace(text, b"NaN")),
      ("an integer of 5,000 digits", line.replace(text, b"7" * 5000)),
      ("a key twice", b'{"text": "a", ' + line[1:]),
      ("an unknown label", json.dumps(fields | {"label": "maybe"}).encode()),
    ]
  )
  lines[index] = bad_line
  return TableFile(f"JSON lines: {description}", "train.jsonl", b"\n".join(lines) + b"\n", index + 1, [_LABELS])


def _unusual_tables(rng: random.Random) -> Iterator[TableFile]:
  """Yields valid tables: an ordinary one, and then unusual ones."""
  rows = _random_rows(rng)
  ordinary = _encode_table(rows)

  def tsv(description: str, content: bytes, flags: Sequence[str] = (_LABELS,)) -> TableFile:
    return TableFile(description, "train.tsv", content, 0, flags)

  def json_lines(description: str, content: bytes) -> TableFile:
    return TableFile(description, "train.jsonl", content, 0, [_LABELS])

  yield tsv("as it is", ordinary)
  yield tsv("labels of the file", ordinary, [])
  yield tsv("a byte-order mark and CR LF", b"\xef\xbb\xbf" + ordinary.replace(b"\n", b"\r\n"))
  yield tsv("no line end at the end", ordinary.rstrip(b"\n"))
  yield tsv("blank lines at the end", ordinary + b"\n\r\n\n")
  yield tsv("quotes in a TSV file", ordinary.replace(b"river", b'"river', 1))
  yield tsv("NUL in a text", ordinary.replace(b"river", b"\0river"))
  yield tsv("an empty text", _encode_table([*rows, ["empty", rng.choice(["", "  "]), "no", "1"]]))
  yield tsv("a text of a megabyte", ordinary.replace(b"river", b"river " * 170_000, 1))
  rows_with_quotes = [[row[0], f'"{row[1]}, ""and"" a\nnew line"', *row[2:]] for row in rows]
  csv = _encode_table(rows_with_quotes, ",")
  yield TableFile("quotes, commas and line ends in a CSV file", "train.csv", csv, 0, [_LABELS])
  yield json_lines("JSON lines", b"\n\n".join(_encode_json_lines(rows)))
  with_surrogate = b"\n".join(_encode_json_lines(rows)).replace(b"river", b"\\ud800")
  yield json_lines("JSON lines with a lone surrogate", with_surrogate)
  yield tsv("numbers", ordinary, _REGRESSION)
  rows_with_numbers = [[*row[:3], rng.choice(["-0.0", "1e-400", "1e18", " 3 ", "+4", "1_0", ".5"])] for row in rows]
  yield tsv("unusual numbers", _encode_table(rows_with_numbers), _REGRESSION)


def _table_attempt(workplace: Workplace, group: str, table: TableFile, expected: Expected) -> Attempt:
  def prepare(directory: Path) -> list[str]:
    path = directory / table.name
    path.write_bytes(table.content)
    flags = [f"--train_file={path}", "--task_name=custom", "--text_columns=text", "--predict_file=absent.tsv"]
    return [*_classifier_command(workplace), *flags, *table.flags]

  return Attempt(group, f"{table.name}: {table.description}", prepare, expected)


def _classifier_command(workplace: Workplace) -> list[str]:
  model = [f"--spm_model_file={workplace.vocabulary}", *workplace.model_flags, "--max_seq_length=32"]
  return ["run_classifier.py", *model, "--output_dir=out", "--do_train", "--do_predict", "--from_scratch"]


def _glue_attempts(workplace: Workplace, rng: random.Random) -> Iterator[Attempt]:
  """Writes a bad value into one field of a training file of a GLUE task."""
  for task, column, value in (
    ("STS-B", 9, rng.choice(["nan", "inf", "5.1", "-0.2", "1e39", "", "five"])),  # the score
    ("STS-B", 9, rng.choice(["NaN", "-inf", "1e999", "6"])),
    ("STS-B", 0, ""),  # the id
    ("MRPC", 0, rng.choice(["2", "-1", "nan", "yes", ""])),  # the label
    ("MRPC", 3, ""),  # the first sentence
    ("CoLA", 1, rng.choice(["2", "", "one"])),  # the label
  ):
    first_line = 1 if task == "CoLA" else 2  # CoLA has no header
    yield _glue_attempt(workplace, task, rng.randrange(first_line, 20), column, value)


def _glue_attempt(workplace: Workplace, task: str, line: int, column: int, value: str) -> Attempt:
  """Writes `value` into a field of train.tsv. Lines are numbered from 1, columns from 0."""

  def prepare(directory: Path) -> list[str]:
    folder = directory / task
    folder.mkdir()
    lines = (workplace.glue_dir / task / "train.tsv").read_bytes().decode().split("\n")
    fields = lines[line - 1].split("\t")
    line_end = "\r" if fields[-1].endswith("\r") else ""
    fields[column] = value + (line_end if column == len(fields) - 1 else "")
    lines[line - 1] = "\t".join(fields)
    path = folder / "train.tsv"
    path.write_bytes("\n".join(lines).encode())
    flags = [f"--task_name={task}", f"--data_dir={directory}", f"--train_file={path}"]
    return [*_classifier_command(workplace), *flags]

  expected = Expected(BAD, ("train.tsv", f"line {line}"), leaves_nothing=True)
  return Attempt("tables", f"{task}, {value!r} in column {column}, line {line}", prepare, expected)
