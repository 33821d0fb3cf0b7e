"""Text and tables as they should not be, and unusual ones that are valid: these must give what the usual form gives."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conftest import english_like_documents
from tests.torture.attempts import BAD, VALID, Attempt, Expected
from tests.torture.workplace import Finished, Workplace

# ---- text ------------------------------------------------------------------------------------------------


def texts(places: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Text for data preparation and for the vocabulary."""
  for index in range(number):
    seed = rng.randrange(2**31)
    name, suffix, data = _bad_text(rng, seed)
    prepares = index % 3 > 0
    expected = Expected(BAD, (f"text{suffix}" if data.strip(b" \t\r\n\xef\xbb\xbf") else "--input_file",))
    if not data:
      expected = Expected(BAD, ("text",))
    yield _of_text(places, f"text, {'data preparation' if prepares else 'vocabulary'}", name, suffix, data, expected)
  for name, suffix, data in _valid_texts(_plain(rng.randrange(2**31)), rng):
    plain = _plain_of(name, data)
    yield _same_as(places, name, suffix, data, plain)


def _plain(seed: int, documents: int = 12) -> bytes:
  found = english_like_documents(documents, seed=seed)
  return "".join("\n".join(document) + "\n\n" for document in found).encode()


def _bad_text(rng: random.Random, seed: int) -> tuple[str, str, bytes]:
  """(what is wrong, ending of the file's name, content)."""
  plain = _plain(seed)
  lines = plain.split(b"\n")
  place = rng.randrange(len(lines) - 2)
  packed = gzip.compress(plain)
  spoiled = bytes([rng.choice(b"\xff\xfe\xc0\xc1\xf5\x80\xe9")])

  def with_line(line: bytes) -> bytes:
    return b"\n".join([*lines[:place], line, *lines[place:]])

  cut, turned = rng.randrange(12, len(packed) - 9), rng.randrange(12, len(packed) - 9)
  kinds: list[tuple[str, str, bytes]] = [
    ("empty", ".txt", b""),
    ("only blank lines", ".txt", b"\n \n\t\r\n" * rng.randrange(1, 50)),
    ("only a byte-order mark", ".txt", b"\xef\xbb\xbf\n"),
    (f"not UTF-8, line {place + 1}", ".txt", with_line(b"caf" + spoiled + b" au lait")),
    (f"a lone surrogate, line {place + 1}", ".txt", with_line(b"a \xed\xa0\x80 b")),
    ("UTF-16", ".txt", plain.decode().encode("utf-16")),
    ("UTF-16LE without its mark", ".txt", plain.decode().encode("utf-16-le")),
    ("UTF-32", ".txt", plain.decode().encode("utf-32")),
    ("NUL", ".txt", bytes(rng.randrange(20, 70_000))),
    ("CR line ends", ".txt", plain.replace(b"\n", b"\r")),
    ("GZIP data without .gz", ".txt", packed),
    ("plain text in .gz", ".txt.gz", plain),
    (f"GZIP data cut after {cut} bytes", ".txt.gz", packed[:cut]),
    ("an empty file in .gz", ".txt.gz", b""),
    (f"a bit of GZIP data turned at {turned}", ".txt.gz",
     packed[:turned] + bytes([packed[turned] ^ 1 << rng.randrange(8)]) + packed[turned + 1 :]),
    ("JSON lines", ".txt", b"".join(b'{"text": "%s"}\n' % line for line in lines if line)),
    ("HTML", ".txt", b"<!DOCTYPE html>\n<html><body>" + plain),
    ("PDF", ".txt", b"%PDF-1.7\n" + rng.randbytes(500)),
    ("Parquet", ".txt", b"PAR1\x15" + rng.randbytes(500)),
  ]  # fmt: skip
  return rng.choice(kinds)


def _valid_texts(plain: bytes, rng: random.Random) -> Iterator[tuple[str, str, bytes]]:
  yield "CR LF line ends", ".txt", plain.replace(b"\n", b"\r\n")
  yield "a byte-order mark", ".txt", b"\xef\xbb\xbf" + plain
  yield "packed", ".txt.gz", gzip.compress(plain, compresslevel=rng.randrange(1, 10))
  yield "no line end at the end", ".txt", plain.rstrip(b"\n")
  yield "blank lines at the beginning and at the end", ".txt", b"\n\n" + plain + b"\n\r\n \n"
  yield "two packed parts", ".txt.gz", gzip.compress(plain[:700]) + gzip.compress(plain[700:])
  yield "a line of a megabyte", ".txt", plain + b"the captain sold the river " * 40_000 + b"\n"
  yield "a word of 300,000 letters", ".txt", plain + b"x" * 300_000 + b"\n"
  yield "NUL in a line", ".txt", plain.replace(b"the", b"the\0", 1)
  yield "other line ends of Unicode", ".txt", plain.replace(b"the ", "the\u2028".encode(), 3)


def _plain_of(name: str, data: bytes) -> bytes | None:
  """The usual form of the same text, whose shards are the same; None where there is none."""
  if name in ("CR LF line ends", "no line end at the end"):
    plain = data.replace(b"\r\n", b"\n")
    return plain.rstrip(b"\n") + b"\n\n"
  return {
    "a byte-order mark": lambda: data.removeprefix(b"\xef\xbb\xbf"),
    "packed": lambda: gzip.decompress(data),
    "two packed parts": lambda: gzip.decompress(data),
  }.get(name, lambda: None)()


_PREPARATION = ["-m", "data_prep.create_pretraining_data", "--max_seq_length=32", "--num_shards=1", "--num_processes=1",
                "--dupe_factor=1"]  # fmt: skip


def _of_text(
  places: Workplace, group: str, name: str, suffix: str, data: bytes, expected: Expected
) -> Attempt:  # fmt: skip
  def prepare(directory: Path) -> list[str]:
    path = directory / f"text{suffix}"
    path.write_bytes(data)
    if group.endswith("vocabulary"):
      return ["-m", "data_prep.train_vocab", f"--input_file={path}", "--vocab_size=90", "--output_dir=out"]
    return [*_PREPARATION, f"--input_file={path}", f"--spm_model_file={places.vocabulary}", "--output_dir=out"]

  return Attempt(group, name, prepare, expected)


def _same_as(places: Workplace, name: str, suffix: str, data: bytes, plain: bytes | None) -> Attempt:
  def check(finished: Finished, directory: Path) -> str | None:
    made = _examples(directory / "out")
    if not made:
      return f"no shard: {finished.stdout!r}"
    if plain is None:
      return None
    (directory / "plain").mkdir()
    usual = directory / "plain" / "text.txt"
    usual.write_bytes(plain)
    files = [f"--input_file={usual}", f"--spm_model_file={places.vocabulary}", "--output_dir=plain/out"]
    other = places.run([*_PREPARATION, *files], cwd=directory)
    if other.code:
      return f"the usual form is refused: {other.error!r}"
    # Offsets of documents in the file, from which random streams are made, differ: only the tokens can be compared.
    same = _examples(directory / "plain" / "out")
    return None if made == same else f"{made} examples instead of {same}"

  return _of_text(places, "text, valid", name, suffix, data, Expected(VALID, (), check))


def _examples(directory: Path) -> tuple[int, int] | None:
  """(documents, tokens) of the manifest in a directory."""
  path = directory / "manifest.json"
  if not path.exists():
    return None
  values = json.loads(path.read_text(encoding="utf-8"))
  return values["num_documents"], values["num_tokens"]


# ---- tables ----------------------------------------------------------------------------------------------


def tables(places: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Tables (TSV, CSV, JSON lines) of a custom task, for classification and for regression."""
  for _ in range(number):
    name, file, data, line, given = _bad_table(rng)
    names = (file, f"line {line}") if line else (file,)
    yield _of_table(places, "tables", name, file, data, given, Expected(BAD, names, leaves_nothing=True))
  for name, file, data, given in _valid_tables(rng):
    # The file to predict does not exist: with a valid table this is what is said.
    expected = Expected(BAD, ("--predict_file=absent.tsv",), leaves_nothing=True)
    yield _of_table(places, "tables, valid", name, file, data, given, expected)
  yield from _of_glue(places, rng)


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


def _bad_table(rng: random.Random) -> tuple[str, str, bytes, int, list[str]]:
  """(what is wrong, file, content, its line or 0, flags)."""
  return rng.choice([_bad_fields, _bad_fields, _bad_numbers, _bad_header, _bad_csv, _bad_json_lines])(rng)


def _bad_fields(rng: random.Random) -> tuple[str, str, bytes, int, list[str]]:
  rows = _rows(rng)
  place = rng.randrange(len(rows))
  row = rows[place]
  name, new = rng.choice(
    [
      ("a field too few", row[:-1]),
      ("a field too many", [*row, "x"]),
      ("an empty text", [row[0], rng.choice(["", "  "]), *row[2:]]),
      ("an empty label", [*row[:2], "", row[3]]),
      ("an unknown label", [*row[:2], "maybe", row[3]]),
      ("a label in capitals", [*row[:2], "YES", row[3]]),
      ("an id twice", [rows[place - 1][0], *row[1:]]),
      ("no id", ["", *row[1:]]),
      ("commas", [",".join(row)]),
    ]
  )
  line = place + 2
  if name == "an id twice" and place == 0:
    line = len(rows) + 1  # the last row has the id of the first then
  rows[place] = new
  flags = ["--labels=no,yes", "--id_column=id"]
  if name not in ("an id twice", "no id") and rng.random() < 0.3:
    spoiled = bytes([rng.choice(b"\xff\xc0\x80\xe9")])
    data = _table(rows).split(b"\n")
    data[line - 1] = data[line - 1][:3] + spoiled + data[line - 1][3:]
    return "not UTF-8", "train.tsv", b"\n".join(data), line, flags
  return name, "train.tsv", _table(rows), line, flags


def _bad_numbers(rng: random.Random) -> tuple[str, str, bytes, int, list[str]]:
  rows = _rows(rng)
  place = rng.randrange(len(rows))
  value = rng.choice(
    ["nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e39", "-1e308", "1e999", "2e19", "high", "1,5", "", " ", "0x10",
     "9" * rng.randrange(40, 6000), "--1", "1 2"]
  )  # fmt: skip
  rows[place][3] = value
  shown = value if len(value) < 30 else f"{len(value)} digits"
  return f"score {shown!r}", "train.tsv", _table(rows), place + 2, _REGRESSION


def _bad_header(rng: random.Random) -> tuple[str, str, bytes, int, list[str]]:
  rows, flags = _rows(rng), ["--labels=no,yes", "--id_column=id"]
  missing = rng.choice(["text", "label", "id"])
  renamed = ["other" if column == missing else column for column in _COLUMNS]
  twice = ["text" if column == "score" else column for column in _COLUMNS]
  return rng.choice(
    [
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
  )


def _bad_csv(rng: random.Random) -> tuple[str, str, bytes, int, list[str]]:
  rows, flags = _rows(rng), ["--labels=no,yes"]
  place = rng.randrange(len(rows))
  row = rows[place]
  text = rng.choice([f'"{row[1]}', f'"{row[1]}"x', f'"a"b"{row[1]}"'])
  rows[place] = [row[0], text, *row[2:]]
  return f"quotes {text[:3]}...{text[-3:]}", "train.csv", _table(rows, ","), place + 2, flags


def _bad_json_lines(rng: random.Random) -> tuple[str, str, bytes, int, list[str]]:
  lines = _json_lines(_rows(rng))
  place = rng.randrange(len(lines))
  line = lines[place]
  column = rng.choice(["text", "label"])
  values = json.loads(line)
  without = json.dumps({key: value for key, value in values.items() if key != column}).encode()
  wrong = rng.choice([None, [], ["a"], {}, {"a": 1}])
  name, new = rng.choice(
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
  lines[place] = new
  return f"JSON lines: {name}", "train.jsonl", b"\n".join(lines) + b"\n", place + 1, ["--labels=no,yes"]


def _valid_tables(rng: random.Random) -> Iterator[tuple[str, str, bytes, list[str]]]:
  rows, flags = _rows(rng), ["--labels=no,yes"]
  plain = _table(rows)
  yield "as it is", "train.tsv", plain, flags
  yield "labels of the file", "train.tsv", plain, []
  yield "a byte-order mark and CR LF", "train.tsv", b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"), flags
  yield "no line end at the end", "train.tsv", plain.rstrip(b"\n"), flags
  yield "blank lines at the end", "train.tsv", plain + b"\n\r\n\n", flags
  yield "quotes in a TSV file", "train.tsv", plain.replace(b"river", b'"river', 1), flags
  yield "NUL in a text", "train.tsv", plain.replace(b"river", b"\0river"), flags
  yield "a text of a megabyte", "train.tsv", plain.replace(b"river", b"river " * 170_000, 1), flags
  quoted = [[row[0], f'"{row[1]}, ""and"" a\nnew line"', *row[2:]] for row in rows]
  yield "quotes, commas and line ends in a CSV file", "train.csv", _table(quoted, ","), flags
  yield "JSON lines", "train.jsonl", b"\n\n".join(_json_lines(rows)), flags
  yield (
    "JSON lines with a lone surrogate",
    "train.jsonl",
    b"\n".join(_json_lines(rows)).replace(b"river", b"\\ud800"),
    flags,
  )
  yield "numbers", "train.tsv", plain, _REGRESSION
  numbers = [[*row[:3], rng.choice(["-0.0", "1e-400", "1e18", " 3 ", "+4", "1_0", ".5"])] for row in rows]
  yield "unusual numbers", "train.tsv", _table(numbers), _REGRESSION


def _of_table(
  places: Workplace, group: str, name: str, file: str, data: bytes, given: Sequence[str], expected: Expected
) -> Attempt:
  def prepare(directory: Path) -> list[str]:
    path = directory / file
    path.write_bytes(data)
    flags = [f"--train_file={path}", "--task_name=custom", "--text_columns=text", "--predict_file=absent.tsv"]
    return [*_classifier(places), *flags, *given]

  return Attempt(group, f"{file}: {name}", prepare, expected)


def _classifier(places: Workplace) -> list[str]:
  model = [f"--spm_model_file={places.vocabulary}", *places.model_flags, "--max_seq_length=32"]
  return ["run_classifier.py", *model, "--output_dir=out", "--do_train", "--do_predict", "--from_scratch"]


def _of_glue(places: Workplace, rng: random.Random) -> Iterator[Attempt]:
  """Files of GLUE's own tasks."""
  for task, file, column, value in (
    ("STS-B", "train.tsv", 9, rng.choice(["nan", "inf", "5.1", "-0.2", "1e39", "", "five"])),
    ("STS-B", "train.tsv", 9, rng.choice(["NaN", "-inf", "1e999", "6"])),
    ("STS-B", "train.tsv", 0, ""),
    ("MRPC", "train.tsv", 0, rng.choice(["2", "-1", "nan", "yes", ""])),
    ("MRPC", "train.tsv", 3, ""),
    ("CoLA", "train.tsv", 1, rng.choice(["2", "", "one"])),
  ):
    first = 1 if task == "CoLA" else 2
    line = rng.randrange(first, 20)

    def prepare(directory: Path, task=task, file=file, column=column, value=value, line=line) -> list[str]:
      folder = directory / task
      folder.mkdir()
      lines = (places.glue / task / file).read_bytes().decode().split("\n")
      fields = lines[line - 1].split("\t")
      end = "\r" if fields[-1].endswith("\r") else ""
      fields[column] = value + (end if column == len(fields) - 1 else "")
      lines[line - 1] = "\t".join(fields)
      (folder / file).write_bytes("\n".join(lines).encode())
      return [*_classifier(places), f"--task_name={task}", f"--data_dir={directory}", f"--train_file={folder / file}"]

    expected = Expected(BAD, (file, f"line {line}"), leaves_nothing=True)
    yield Attempt("tables", f"{task}, {value!r} in column {column}, line {line}", prepare, expected)
