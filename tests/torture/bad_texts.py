"""Bad texts and tables, which must be refused, and unusual ones, which must give the same result as the usual form."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.conftest import english_like_documents
from tests.torture.attempts import BAD, VALID, Attempt, Expected
from tests.torture.workplace import Finished, Workplace

# ---- text ------------------------------------------------------------------------------------------------


class TextFile(NamedTuple):
  """A text file: what is unusual about it, the end of its name (".txt" or ".txt.gz"), and its content."""

  description: str
  suffix: str
  content: bytes


def texts(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Gives `number` bad text files to data preparation or the training of a vocabulary, then each unusual valid text."""
  for index in range(number):
    seed = rng.randrange(2**31)
    text = _bad_text(rng, seed)
    command = "data preparation" if index % 3 > 0 else "vocabulary"
    if not text.content:
      named = "text"
    elif text.content.strip(b" \t\r\n\xef\xbb\xbf"):
      named = f"text{text.suffix}"
    else:
      named = "--input_file"
    yield _of_text(workplace, f"text, {command}", text, Expected(BAD, (named,)))
  for text in _valid_texts(_plain(rng.randrange(2**31)), rng):
    yield _same_as_usual_form(workplace, text)


def _plain(seed: int) -> bytes:
  """Makes the usual form of a text: twelve documents with a blank line after each."""
  documents = english_like_documents(12, seed=seed)
  return "".join("\n".join(document) + "\n\n" for document in documents).encode()


def _bad_text(rng: random.Random, seed: int) -> TextFile:
  plain = _plain(seed)
  lines = plain.split(b"\n")
  index = rng.randrange(len(lines) - 2)
  packed = gzip.compress(plain)
  not_utf8 = bytes([rng.choice(b"\xff\xfe\xc0\xc1\xf5\x80\xe9")])

  def with_line(line: bytes) -> bytes:
    return b"\n".join([*lines[:index], line, *lines[index:]])

  cut, flipped = rng.randrange(12, len(packed) - 9), rng.randrange(12, len(packed) - 9)
  files: list[tuple[str, str, bytes]] = [
    ("empty", ".txt", b""),
    ("only blank lines", ".txt", b"\n \n\t\r\n" * rng.randrange(1, 50)),
    ("only a byte-order mark", ".txt", b"\xef\xbb\xbf\n"),
    (f"not UTF-8, line {index + 1}", ".txt", with_line(b"caf" + not_utf8 + b" au lait")),
    (f"a lone surrogate, line {index + 1}", ".txt", with_line(b"a \xed\xa0\x80 b")),
    ("UTF-16", ".txt", plain.decode().encode("utf-16")),
    ("UTF-16LE without its mark", ".txt", plain.decode().encode("utf-16-le")),
    ("UTF-32", ".txt", plain.decode().encode("utf-32")),
    ("NUL", ".txt", bytes(rng.randrange(20, 70_000))),
    ("CR line ends", ".txt", plain.replace(b"\n", b"\r")),
    ("GZIP data without .gz", ".txt", packed),
    ("plain text in .gz", ".txt.gz", plain),
    (f"GZIP data cut after {cut} bytes", ".txt.gz", packed[:cut]),
    ("an empty file in .gz", ".txt.gz", b""),
    (f"a bit of GZIP data turned at {flipped}", ".txt.gz",
     packed[:flipped] + bytes([packed[flipped] ^ 1 << rng.randrange(8)]) + packed[flipped + 1 :]),
    ("JSON lines", ".txt", b"".join(b'{"text": "%s"}\n' % line for line in lines if line)),
    ("HTML", ".txt", b"<!DOCTYPE html>\n<html><body>" + plain),
    ("PDF", ".txt", b"%PDF-1.7\n" + rng.randbytes(500)),
    ("Parquet", ".txt", b"PAR1\x15" + rng.randbytes(500)),
  ]  # fmt: skip
  return TextFile(*rng.choice(files))


def _valid_texts(plain: bytes, rng: random.Random) -> Iterator[TextFile]:
  yield TextFile("CR LF line ends", ".txt", plain.replace(b"\n", b"\r\n"))
  yield TextFile("a byte-order mark", ".txt", b"\xef\xbb\xbf" + plain)
  yield TextFile("packed", ".txt.gz", gzip.compress(plain, compresslevel=rng.randrange(1, 10)))
  yield TextFile("no line end at the end", ".txt", plain.rstrip(b"\n"))
  yield TextFile("blank lines at the beginning and at the end", ".txt", b"\n\n" + plain + b"\n\r\n \n")
  yield TextFile("two packed parts", ".txt.gz", gzip.compress(plain[:700]) + gzip.compress(plain[700:]))
  yield TextFile("a line of a megabyte", ".txt", plain + b"the captain sold the river " * 40_000 + b"\n")
  yield TextFile("a word of 300,000 letters", ".txt", plain + b"x" * 300_000 + b"\n")
  yield TextFile("NUL in a line", ".txt", plain.replace(b"the", b"the\0", 1))
  yield TextFile("other line ends of Unicode", ".txt", plain.replace(b"the ", "the\u2028".encode(), 3))


def _usual_form(text: TextFile) -> bytes | None:
  """Returns the usual form of an unusual text, or None if a text of this description has none."""
  if text.description in ("CR LF line ends", "no line end at the end"):
    plain = text.content.replace(b"\r\n", b"\n")
    return plain.rstrip(b"\n") + b"\n\n"
  if text.description == "a byte-order mark":
    return text.content.removeprefix(b"\xef\xbb\xbf")
  if text.description in ("packed", "two packed parts"):
    return gzip.decompress(text.content)
  return None


_PREPARATION = ["-m", "data_prep.create_pretraining_data", "--max_seq_length=32", "--num_shards=1", "--num_processes=1",
                "--dupe_factor=1"]  # fmt: skip


def _of_text(workplace: Workplace, group: str, text: TextFile, expected: Expected) -> Attempt:
  def prepare(directory: Path) -> list[str]:
    path = directory / f"text{text.suffix}"
    path.write_bytes(text.content)
    if group.endswith("vocabulary"):
      return ["-m", "data_prep.train_vocab", f"--input_file={path}", "--vocab_size=90", "--output_dir=out"]
    return [*_PREPARATION, f"--input_file={path}", f"--spm_model_file={workplace.vocabulary}", "--output_dir=out"]

  return Attempt(group, text.description, prepare, expected)


def _same_as_usual_form(workplace: Workplace, text: TextFile) -> Attempt:
  """Prepares data from an unusual text, and compares the numbers of documents and tokens with those of its usual form.

  The examples cannot be compared: they depend on the documents' offsets in the file.
  """
  usual_form = _usual_form(text)

  def check(finished: Finished, directory: Path) -> str | None:
    counts = _count_documents_and_tokens(directory / "out")
    if not counts:
      return f"no shard: {finished.stdout!r}"
    if usual_form is None:
      return None
    (directory / "plain").mkdir()
    path = directory / "plain" / "text.txt"
    path.write_bytes(usual_form)
    files = [f"--input_file={path}", f"--spm_model_file={workplace.vocabulary}", "--output_dir=plain/out"]
    preparation = workplace.run([*_PREPARATION, *files], cwd=directory)
    if preparation.code:
      return f"the usual form is refused: {preparation.error!r}"
    expected = _count_documents_and_tokens(directory / "plain" / "out")
    return None if counts == expected else f"{counts} examples instead of {expected}"

  return _of_text(workplace, "text, valid", text, Expected(VALID, (), check))


def _count_documents_and_tokens(directory: Path) -> tuple[int, int] | None:
  """Reads (documents, tokens) from the manifest in a directory; None if there is no manifest."""
  path = directory / "manifest.json"
  if not path.exists():
    return None
  values = json.loads(path.read_text(encoding="utf-8"))
  return values["num_documents"], values["num_tokens"]


# ---- tables ----------------------------------------------------------------------------------------------


class TableFile(NamedTuple):
  """A training file of a custom task: what is unusual about it, its name and content, and the flags for it.

  `bad_line` is the number of the line that the error must name, 0 if it need not name one.
  """

  description: str
  name: str
  content: bytes
  bad_line: int
  flags: Sequence[str]


def tables(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Gives `number` bad tables (TSV, CSV, JSON lines) to a custom task, then each unusual valid one; and bad GLUE files.

  --predict_file names a file that doesn't exist. The run with a valid table therefore gets past it, and ends with an
  error about --predict_file before it trains.
  """
  for _ in range(number):
    table = _bad_table(rng)
    names = (table.name, f"line {table.bad_line}") if table.bad_line else (table.name,)
    yield _of_table(workplace, "tables", table, Expected(BAD, names, leaves_nothing=True))
  for table in _valid_tables(rng):
    expected = Expected(BAD, ("--predict_file=absent.tsv",), leaves_nothing=True)
    yield _of_table(workplace, "tables, valid", table, expected)
  yield from _of_glue(workplace, rng)


_REGRESSION = ["--regression", "--label_column=score"]
_COLUMNS = ["id", "text", "label", "score"]


def _rows(rng: random.Random) -> list[list[str]]:
  words = ["river", "harbour", "teacher", "garden", "captain", "letter"]
  return [
    [str(number), " ".join(rng.choices(words, k=5)), "yes" if number % 2 else "no", f"{rng.uniform(0, 5):.3f}"]
    for number in range(rng.randrange(6, 20))
  ]


def _table(rows: Sequence[Sequence[str]], separator: str = "\t", header: Sequence[str] = _COLUMNS) -> bytes:
  return "".join(separator.join(row) + "\n" for row in [header, *rows]).encode()


def _json_lines(rows: Sequence[Sequence[str]]) -> list[bytes]:
  return [json.dumps(dict(zip(_COLUMNS, row, strict=True))).encode() for row in rows]


def _bad_table(rng: random.Random) -> TableFile:
  return rng.choice([_bad_fields, _bad_fields, _bad_numbers, _bad_header, _bad_csv, _bad_json_lines])(rng)


def _bad_fields(rng: random.Random) -> TableFile:
  rows = _rows(rng)
  index = rng.randrange(len(rows))
  row = rows[index]
  description, bad_row = rng.choice(
    [
      ("a field too few", row[:-1]),
      ("a field too many", [*row, "x"]),
      ("an empty text", [row[0], rng.choice(["", "  "]), *row[2:]]),
      ("an empty label", [*row[:2], "", row[3]]),
      ("an unknown label", [*row[:2], "maybe", row[3]]),
      ("a label in capitals", [*row[:2], "YES", row[3]]),
      ("an id twice", [rows[index - 1][0], *row[1:]]),
      ("no id", ["", *row[1:]]),
      ("commas", [",".join(row)]),
    ]
  )
  line = index + 2
  if description == "an id twice" and index == 0:
    line = len(rows) + 1  # the first row has the id of the last, which is the one that repeats it
  rows[index] = bad_row
  flags = ["--labels=no,yes", "--id_column=id"]
  if description not in ("an id twice", "no id") and rng.random() < 0.3:
    not_utf8 = bytes([rng.choice(b"\xff\xc0\x80\xe9")])
    lines = _table(rows).split(b"\n")
    lines[line - 1] = lines[line - 1][:3] + not_utf8 + lines[line - 1][3:]
    return TableFile("not UTF-8", "train.tsv", b"\n".join(lines), line, flags)
  return TableFile(description, "train.tsv", _table(rows), line, flags)


def _bad_numbers(rng: random.Random) -> TableFile:
  rows = _rows(rng)
  index = rng.randrange(len(rows))
  value = rng.choice(
    ["nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e39", "-1e308", "1e999", "2e19", "high", "1,5", "", " ", "0x10",
     "9" * rng.randrange(40, 6000), "--1", "1 2"]
  )  # fmt: skip
  rows[index][3] = value
  shown = value if len(value) < 30 else f"{len(value)} digits"
  return TableFile(f"score {shown!r}", "train.tsv", _table(rows), index + 2, _REGRESSION)


def _bad_header(rng: random.Random) -> TableFile:
  rows, flags = _rows(rng), ["--labels=no,yes", "--id_column=id"]
  missing = rng.choice(["text", "label", "id"])
  renamed = ["other" if column == missing else column for column in _COLUMNS]
  twice = ["text" if column == "score" else column for column in _COLUMNS]
  files: list[tuple[str, str, bytes, int, list[str]]] = [
    (f"no column {missing}", "train.tsv", _table(rows, header=renamed), 1, flags),
    ("a column twice", "train.tsv", _table(rows, header=twice), 1, flags),
    ("no header", "train.tsv", _table(rows).split(b"\n", 1)[1], 1, flags),
    ("CR line ends", "train.tsv", _table(rows).replace(b"\n", b"\r"), 1, flags),
    ("UTF-16", "train.tsv", _table(rows).decode().encode("utf-16"), 0, flags),
    ("commas instead of tabs", "train.tsv", _table(rows, ","), 1, flags),
    ("tabs instead of commas", "train.csv", _table(rows), 1, flags),
    ("empty", "train.tsv", b"", 0, flags),
    ("only line ends", "train.tsv", b"\n\n\n", 0, flags),
    ("only the header", "train.tsv", _table([]), 0, flags),
    ("only NUL", "train.tsv", bytes(rng.randrange(1, 5000)), 1, flags),
    ("one label", "train.tsv", _table([[*row[:2], "yes", row[3]] for row in rows]), 0, []),
  ]
  return TableFile(*rng.choice(files))


def _bad_csv(rng: random.Random) -> TableFile:
  rows, flags = _rows(rng), ["--labels=no,yes"]
  index = rng.randrange(len(rows))
  row = rows[index]
  text = rng.choice([f'"{row[1]}', f'"{row[1]}"x', f'"a"b"{row[1]}"'])
  rows[index] = [row[0], text, *row[2:]]
  return TableFile(f"quotes {text[:3]}...{text[-3:]}", "train.csv", _table(rows, ","), index + 2, flags)


def _bad_json_lines(rng: random.Random) -> TableFile:
  lines = _json_lines(_rows(rng))
  index = rng.randrange(len(lines))
  line = lines[index]
  column = rng.choice(["text", "label"])
  values = json.loads(line)
  without = json.dumps({key: value for key, value in values.items() if key != column}).encode()
  wrong = rng.choice([None, [], ["a"], {}, {"a": 1}])
  description, bad_line = rng.choice(
    [
      ("cut", line[: rng.randrange(1, len(line) - 1)]),
      ("a list", b"[" + line + b"]"),
      ("a number", b"5"),
      ("null", b"null"),
      ("two objects", line + line),
      ("not UTF-8", line.replace(b'": "', b'": "\xff', 1)),
      ("deep nesting", b'{"text": ' + b"[" * 100_000),
      (f"no {column}", without),
      (f"{wrong!r} as {column}", json.dumps(values | {column: wrong}).encode()),
      ("NaN", line.replace(json.dumps(values["text"]).encode(), b"NaN")),
      ("an integer of 5,000 digits", line.replace(json.dumps(values["text"]).encode(), b"7" * 5000)),
      ("a key twice", b'{"text": "a", ' + line[1:]),
      ("a blank text", json.dumps(values | {"text": " "}).encode()),
      ("an unknown label", json.dumps(values | {"label": "maybe"}).encode()),
    ]
  )
  lines[index] = bad_line
  return TableFile(
    f"JSON lines: {description}", "train.jsonl", b"\n".join(lines) + b"\n", index + 1, ["--labels=no,yes"]
  )


def _valid_tables(rng: random.Random) -> Iterator[TableFile]:
  rows = _rows(rng)
  plain = _table(rows)

  def tsv(description: str, content: bytes, flags: Sequence[str] = ("--labels=no,yes",)) -> TableFile:
    return TableFile(description, "train.tsv", content, 0, flags)

  def json_lines(description: str, content: bytes) -> TableFile:
    return TableFile(description, "train.jsonl", content, 0, ["--labels=no,yes"])

  yield tsv("as it is", plain)
  yield tsv("labels of the file", plain, [])
  yield tsv("a byte-order mark and CR LF", b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
  yield tsv("no line end at the end", plain.rstrip(b"\n"))
  yield tsv("blank lines at the end", plain + b"\n\r\n\n")
  yield tsv("quotes in a TSV file", plain.replace(b"river", b'"river', 1))
  yield tsv("NUL in a text", plain.replace(b"river", b"\0river"))
  yield tsv("a text of a megabyte", plain.replace(b"river", b"river " * 170_000, 1))
  quoted = [[row[0], f'"{row[1]}, ""and"" a\nnew line"', *row[2:]] for row in rows]
  csv = _table(quoted, ",")
  yield TableFile("quotes, commas and line ends in a CSV file", "train.csv", csv, 0, ["--labels=no,yes"])
  yield json_lines("JSON lines", b"\n\n".join(_json_lines(rows)))
  with_surrogate = b"\n".join(_json_lines(rows)).replace(b"river", b"\\ud800")
  yield json_lines("JSON lines with a lone surrogate", with_surrogate)
  yield tsv("numbers", plain, _REGRESSION)
  numbers = [[*row[:3], rng.choice(["-0.0", "1e-400", "1e18", " 3 ", "+4", "1_0", ".5"])] for row in rows]
  yield tsv("unusual numbers", _table(numbers), _REGRESSION)


def _of_table(workplace: Workplace, group: str, table: TableFile, expected: Expected) -> Attempt:
  def prepare(directory: Path) -> list[str]:
    path = directory / table.name
    path.write_bytes(table.content)
    flags = [f"--train_file={path}", "--task_name=custom", "--text_columns=text", "--predict_file=absent.tsv"]
    return [*_classifier_command(workplace), *flags, *table.flags]

  return Attempt(group, f"{table.name}: {table.description}", prepare, expected)


def _classifier_command(workplace: Workplace) -> list[str]:
  model = [f"--spm_model_file={workplace.vocabulary}", *workplace.model_flags, "--max_seq_length=32"]
  return ["run_classifier.py", *model, "--output_dir=out", "--do_train", "--do_predict", "--from_scratch"]


def _of_glue(workplace: Workplace, rng: random.Random) -> Iterator[Attempt]:
  """Writes a bad value into one field of a training file of a GLUE task."""
  for task, file, column, value in (
    ("STS-B", "train.tsv", 9, rng.choice(["nan", "inf", "5.1", "-0.2", "1e39", "", "five"])),
    ("STS-B", "train.tsv", 9, rng.choice(["NaN", "-inf", "1e999", "6"])),
    ("STS-B", "train.tsv", 0, ""),
    ("MRPC", "train.tsv", 0, rng.choice(["2", "-1", "nan", "yes", ""])),
    ("MRPC", "train.tsv", 3, ""),
    ("CoLA", "train.tsv", 1, rng.choice(["2", "", "one"])),
  ):
    first_line = 1 if task == "CoLA" else 2  # CoLA has no header
    line = rng.randrange(first_line, 20)

    def prepare(directory: Path, task=task, file=file, column=column, value=value, line=line) -> list[str]:
      folder = directory / task
      folder.mkdir()
      lines = (workplace.glue_dir / task / file).read_bytes().decode().split("\n")
      fields = lines[line - 1].split("\t")
      end = "\r" if fields[-1].endswith("\r") else ""
      fields[column] = value + (end if column == len(fields) - 1 else "")
      lines[line - 1] = "\t".join(fields)
      (folder / file).write_bytes("\n".join(lines).encode())
      return [
        *_classifier_command(workplace),
        f"--task_name={task}",
        f"--data_dir={directory}",
        f"--train_file={folder / file}",
      ]

    expected = Expected(BAD, (file, f"line {line}"), leaves_nothing=True)
    yield Attempt("tables", f"{task}, {value!r} in column {column}, line {line}", prepare, expected)
