"""Bad files of every kind, and unusual valid ones, for the part "inputs": a table of contents for each command.

The unit tests of each reader have many more contents. Here whole commands must end with one line and leave nothing.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from albert.io.records import RecordWriter
from tests.synthetic import VOCAB_SIZE, encode_example, example
from tests.torture.attempts import VALID, Attempt
from tests.torture.workplace import Workplace

# Description of a content -> the content, and what the error names beside the file.
Contents = dict[str, tuple[bytes, str]]

_BAD_JSON: Contents = {
  "cut": (b'{"task": "squ', ""),
  "not UTF-8": (b'{"task": "\xff"}', "UTF-8"),
  "an integer of many digits": (b'{"task": %s}' % (b"7" * 9000), "too long"),
  "nesting": (b'{"task": %s' % (b"[" * 100_000), "nested"),
}
_ROWS = "".join(f"{number}\tthe river {number}\t{('no', 'yes')[number % 2]}\t{number / 2}\n" for number in range(9))
_TABLE = ("id\ttext\tlabel\tscore\n" + _ROWS).encode()
_JSON_LINES = b"".join(b'{"text": "river %d", "label": "%s"}\n' % (n, (b"no", b"yes")[n % 2]) for n in range(9))
_BAD_TABLES: Contents = {
  "a field too few": (_TABLE + b"9\ta\tyes\n", "line 11"),
  "an unknown label": (_TABLE + b"9\ta\tmaybe\t1\n", "line 11"),
  "no column text": (_TABLE.replace(b"text", b"other"), "line 1"),
  "CR line ends": (_TABLE.replace(b"\n", b"\r"), "CR"),
  "only NUL": (bytes(900), ""),
}
_BAD_JSON_LINES: Contents = {
  description: (_JSON_LINES + line, "line 10")
  for description, line in {
    "cut": b'{"text": "a", "la',
    "an unknown label": b'{"text": "a", "label": "maybe"}',
  }.items()
}
_VALID_TABLES: dict[str, tuple[str, bytes]] = {
  "as it is": ("train.tsv", _TABLE),
  "a byte-order mark and CR LF": ("train.tsv", b"\xef\xbb\xbf" + _TABLE.replace(b"\n", b"\r\n")),
  "blank lines at the end": ("train.tsv", _TABLE + b"\n\r\n\n"),
  "a quote and NUL in a TSV file": ("train.tsv", _TABLE.replace(b"river", b'"riv\0er')),
  "an empty text and a megabyte": ("train.tsv", _TABLE + b"9\t\tno\t1\n10\t%s\tno\t1\n" % (b"river " * 170_000)),
  "quotes, commas and line ends": ("train.csv", b'id,text,label\n1,"a, ""b""\nc",no\n2,d,yes\n'),
  "a lone surrogate": ("train.jsonl", _JSON_LINES.replace(b"river", b"\\ud800")),
}
_TEXT = b"They drank the pub dry. The captain sold the river.\nNobody watched.\n\nThe teacher left the garden.\n" * 9
_GZIP = gzip.compress(_TEXT, mtime=0)
_BAD_TEXTS: dict[str, tuple[str, bytes]] = {
  "not UTF-8": ("text.txt", _TEXT + b"caf\xe9\n"),
  "UTF-16": ("text.txt", _TEXT.decode().encode("utf-16")),
  "CR line ends": ("text.txt", _TEXT.replace(b"\n", b"\r")),
  "empty": ("text.txt", b""),
  "half of a GZIP file": ("text.txt.gz", _GZIP[: len(_GZIP) // 2]),
  "a GZIP file with another checksum": ("text.txt.gz", _GZIP[:-8] + b"\0" * 8),
  "no GZIP file": ("text.txt.gz", _TEXT),
}
_VALID_TEXTS: dict[str, tuple[str, bytes]] = {
  "a byte-order mark and CR LF": ("text.txt", b"\xef\xbb\xbf" + _TEXT.replace(b"\n", b"\r\n")),
  "GZIP with two members": ("text.txt.gz", _GZIP + _GZIP),
  "a line of a megabyte, NUL and a word of 300,000 letters": (
    "text.txt",
    _TEXT + b"the captain sold the \0 river " * 40_000 + b"x" * 300_000 + b"\n",
  ),
}
# Feature -> values that it must not have.
_BAD_FEATURES = {
  "input_ids": (VOCAB_SIZE, -1, 2**40),
  "input_mask": (2, -1),
  "segment_ids": (2, -1),
  "masked_lm_positions": (16, -1),
  "masked_lm_ids": (VOCAB_SIZE, -1),
  "masked_lm_weights": (float("nan"), -1.0),
  "next_sentence_labels": (2, -1),
}


def _shards() -> Iterator[tuple[str, Callable[[Path], None]]]:
  def write(path: Path, name: str = "", value: float = 0.0) -> None:
    import numpy as np

    with RecordWriter(str(path)) as writer:
      for index in range(9):
        features = example(index, np.random.default_rng(index))
        if name and index == 4:
          features[name] = np.array(features[name])
          features[name][0] = value
        writer.write(encode_example(features))

  def damage(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: (write(path), path.write_bytes(change(path.read_bytes())))[0]

  for name, values in _BAD_FEATURES.items():
    for value in values:
      yield f"{name} {value}", lambda path, name=name, value=value: write(path, name, value)
  yield "cut", damage(lambda content: content[: len(content) // 2])
  yield "a bit flipped", damage(lambda content: content[:300] + bytes([content[300] ^ 16]) + content[301:])
  yield "text", damage(lambda content: b"not records at all\n" * 20)
  yield "GZIP header", damage(lambda content: b"\x1f\x8b\x08" + content)


def file_attempts(workplace: Workplace) -> Iterator[Attempt]:
  """Gives each command bad files of its kind, and unusual valid ones."""

  def write(name: str, content: bytes, make_argv: Callable[[Path], Sequence[str]]) -> Callable[[Path], Sequence[str]]:
    def prepare(directory: Path) -> Sequence[str]:
      path = directory / name
      path.parent.mkdir(exist_ok=True)
      path.write_bytes(content)
      return make_argv(path)

    return prepare

  squad = ["run_squad.py", f"--spm_model_file={workplace.vocabulary}", "--output_dir=out"]
  model, questions = workplace.model_flags, ["-m", "data_prep.question_texts", "--output_file=out"]

  def read_run(path: Path) -> list[str]:
    shutil.copytree(workplace.pretraining_run, path.parent, ignore=lambda *_: [path.name], dirs_exist_ok=True)
    return ["run_pretraining.py", f"--output_dir={path.parent}", "--do_eval", "--eval_input_file=absent.tfrecord"]

  json_commands: dict[str, Callable[[Path], Sequence[str]]] = {
    "recipe.json": lambda path: [*squad, *model, f"--recipe={path}"],
    "albert_config.json": lambda path: [*squad, f"--albert_config_file={path}"],
    "questions.json": lambda path: [*questions, f"--squad_file={path}"],
    "passage.txt": lambda path: [*questions, f"--race_file={path}"],
    "experiment.json": lambda path: ["-m", "albert.experiments", f"--run={path}", "--output_dir=out", "--dry_run"],
    "run/config.json": read_run,
  }
  for name, make_argv in json_commands.items():
    for description, (content, named) in _BAD_JSON.items():
      names, prepare = (Path(name).name, named), write(name, content, make_argv)
      yield Attempt(f"JSON: {name}", description, prepare, names=names, leaves_nothing=True)

  def train(path: Path) -> list[str]:
    flags = ["--task_name=custom", "--text_columns=text", "--labels=no,yes"]
    flags += ["--id_column=id"] if path.suffix == ".tsv" else []
    model = [f"--spm_model_file={workplace.vocabulary}", *workplace.model_flags, "--max_seq_length=32"]
    steps = ["--do_train", "--from_scratch", "--num_train_steps=1", "--train_batch_size=4", "--output_dir=out"]
    return ["run_classifier.py", f"--train_file={path}", *flags, *model, *steps]

  bad_tables = {"train.tsv": _BAD_TABLES, "train.jsonl": _BAD_JSON_LINES}
  bad_tables["train.csv"] = {"an open quote": (b'text,label\n"a,no\n', "line 2")}
  for name, contents in bad_tables.items():
    for description, (content, named) in contents.items():
      prepare = write(name, content, train)
      yield Attempt("tables", f"{name}: {description}", prepare, names=(name, named), leaves_nothing=True)
  for description, (name, content) in _VALID_TABLES.items():
    yield Attempt("tables, valid", f"{name}: {description}", write(name, content, train), VALID)

  def make_vocabulary(path: Path) -> list[str]:
    return ["-m", "data_prep.train_vocab", f"--input_file={path}", "--vocab_size=60", "--output_dir=out"]

  def prepare_data(path: Path) -> list[str]:
    flags = ["--max_seq_length=32", "--num_shards=1", "--num_processes=1", "--dupe_factor=1", "--output_dir=out"]
    vocabulary = f"--spm_model_file={workplace.vocabulary}"
    return ["-m", "data_prep.create_pretraining_data", f"--input_file={path}", vocabulary, *flags]

  for description, (name, content) in _BAD_TEXTS.items():
    for command in (make_vocabulary, prepare_data):
      yield Attempt("text", f"{description}, {command.__name__}", write(name, content, command), names=[name])
  for description, (name, content) in _VALID_TEXTS.items():
    yield Attempt("text, valid", description, write(name, content, prepare_data), VALID, check=_has_shard)

  def train_on(write_shard: Callable[[Path], None]) -> Callable[[Path], Sequence[str]]:
    def prepare(directory: Path) -> list[str]:
      write_shard(directory / "part-00.tfrecord")
      model = [*workplace.model_flags, f"--vocab_size={VOCAB_SIZE}", "--max_position_embeddings=32"]
      steps = ["--train_batch_size=4", "--num_train_steps=6", "--num_warmup_steps=1", "--log_every_steps=6"]
      files = [f"--input_file={directory}/part-*.tfrecord", "--output_dir=out"]
      return ["run_pretraining.py", "--do_train", *model, *steps, *files]

    return prepare

  for description, write_shard in _shards():
    yield Attempt("shards", description, train_on(write_shard), names=["part-"])


def _has_shard(directory: Path) -> str | None:
  manifest = json.loads((directory / "out" / "manifest.json").read_text(encoding="utf-8"))
  return None if manifest["num_examples"] else "no examples"
