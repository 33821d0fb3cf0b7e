"""The sample corpus, made from a directory of small generated packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from data_prep import sample_corpus
from data_prep.sample_corpus import (
  Document,
  find_modules,
  module_sentences,
  shorten_lists,
  split_documents,
  unique_documents,
)

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
           "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]  # fmt: skip


def sentence(word: str, kind: str) -> str:
  return f"The {kind} of the {word} function is described in this text."


@pytest.fixture
def packages(tmp_path: Path) -> Path:
  """Twenty modules with four sentences each, and files that must be ignored."""
  folder = tmp_path / "packages"
  (folder / "pack" / "tests").mkdir(parents=True)
  for word in NUMBERS:
    (folder / "pack" / f"{word}.py").write_text(
      f'"""{sentence(word, "purpose")}"""\nraise SystemExit("imported")\n'
      f'def f():\n  """{sentence(word, "argument")}\n\n  {sentence(word, "result")}\n  """\n'
      f"class C:\n  '''{sentence(word, 'class')}'''\n",
      encoding="utf-8",
    )
  (folder / "pack" / "zz_copy.py").write_bytes((folder / "pack" / "one.py").read_bytes())
  (folder / "pack" / "broken.py").write_text('"""The file of this text is not Python."""\ndef (', encoding="utf-8")
  (folder / "pack" / "tests" / "inner.py").write_text('"""The test of this text is left out."""', encoding="utf-8")
  (folder / "pack" / "test_more.py").write_text('"""The test of this text is left out."""', encoding="utf-8")
  return folder


def test_module_sentences_in_order_of_the_file(packages: Path) -> None:
  assert module_sentences(str(packages / "pack" / "two.py")) == [
    [sentence("two", "purpose")],
    [sentence("two", "argument"), sentence("two", "result")],
    [sentence("two", "class")],
  ]
  assert module_sentences(str(packages / "pack" / "broken.py")) == []


def test_long_strings_count_as_documentation(tmp_path: Path) -> None:
  path = tmp_path / "doc.py"
  path.write_text(
    'add_doc("name", """\n  The text of an added docstring is read too.\n\n  It has a second line as well.\n""")\n'
    'X = f"""\n  The text of a formatted {name} is no documentation.\n\n  It is for the use of the program.\n"""\n',
    encoding="utf-8",
  )
  assert module_sentences(str(path)) == [
    ["The text of an added docstring is read too.", "It has a second line as well."]
  ]


def test_find_modules_leaves_out_tests(packages: Path) -> None:
  assert list(find_modules(str(packages))) == sorted(f"pack/{name}.py" for name in [*NUMBERS, "broken", "zz_copy"])


def test_docstrings_that_mostly_repeat_earlier_ones_are_left_out() -> None:
  a, b, c, d, e = (f"The {word} sentence of the document is here." for word in NUMBERS[:5])
  f, g = "Another one of them is new here.", "The last one of them is new here."
  documents = unique_documents(
    [
      ("first", [["Notes:", a, b], [c]]),
      ("copy", [[a, b, c.upper()]]),  # nothing new
      ("mostly", [[a, b, c, d]]),  # one new sentence of four
      ("partly", [[a, "Notes:", e, f, g], [d]]),  # d was in "mostly"
      ("short", [["It is a new sentence.", "Notes:"]]),
    ]
  )
  assert list(documents) == [Document("first", ("Notes:", a, b, c)), Document("partly", (a, "Notes:", e, f, g))]


def test_split_is_by_name_and_keeps_the_order() -> None:
  documents = [Document(f"pack/{i}.py", (f"The text of document {i} is here.",)) for i in range(1000)]
  train, heldout = split_documents(documents, 0.05)
  assert len(heldout) == 50
  assert sorted(train + heldout, key=documents.index) == documents
  assert train == sorted(train, key=documents.index)
  assert split_documents(documents[::-1], 0.05)[1] == heldout[::-1]
  few_train, few_heldout = split_documents(documents, 0.05, max_bytes=10_000)
  size = sum(len(document.text) for document in few_train + few_heldout)
  assert 9_900 < size <= 10_000
  assert set(few_train) | set(few_heldout) < set(documents)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, "-m", "data_prep.sample_corpus", *arguments]
  return subprocess.run(
    command, capture_output=True, text=True, check=False, cwd=Path(sample_corpus.__file__).parents[1]
  )


def test_command_line(packages: Path, tmp_path: Path) -> None:
  outputs = []
  for processes in (1, 2):
    done = run(f"--packages_dir={packages}", f"--output_dir={tmp_path / str(processes)}", "--heldout_fraction=0.1",
               f"--num_processes={processes}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "18 documents, 72 sentences" in done.stdout
    assert "2 documents, 8 sentences" in done.stdout
    assert "reading docstrings: 100%" in done.stderr
    outputs.append([(tmp_path / str(processes) / name).read_bytes() for name in ("train.txt", "heldout.txt")])
  assert outputs[0] == outputs[1]
  train, heldout = (text.decode().split("\n\n")[:-1] for text in outputs[0])
  assert [len(document.split("\n")) for document in train + heldout] == [4] * 20
  train_lines, heldout_lines = ({line for text in part for line in text.split("\n")} for part in (train, heldout))
  assert train_lines.isdisjoint(heldout_lines)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "--output_dir"),
    (["--output_dir=x", "--heldout_fraction=1"], "--heldout_fraction=1: must be below 1"),
    (["--output_dir=x", "--max_megabytes=0"], "--max_megabytes=0: must be above 0"),
    (["--output_dir=x", "--packages_dir=nowhere"], "nowhere: no such directory"),
    (["--output_dir=x", "--packages_dir=tests/data_prep/__init__.py"], "no such directory"),
  ],
)
def test_bad_flags(arguments: list[str], message: str) -> None:
  done = run(*arguments)
  assert done.returncode == 2
  assert message in done.stderr
  assert done.stderr.count("\n") == 1


def test_too_little_text(tmp_path: Path) -> None:
  (tmp_path / "empty").mkdir()
  done = run(f"--packages_dir={tmp_path / 'empty'}", f"--output_dir={tmp_path / 'out'}")
  assert done.returncode == 2
  assert "0 documents of prose, of which at least 2 are needed within the limit" in done.stderr
  assert not (tmp_path / "out").exists()


def test_only_lists_of_entries_are_shortened():
  sentences = ["Adds.", "Args:", "a: One.", "b: Two.", "c: Three.", "Returns:", "The sum.", "Of both.", "As a float."]
  assert shorten_lists(sentences) == [*sentences[:4], *sentences[5:]]
