"""Generates small GLUE archives, for the tests of the task, of run_classifier.py and of averages of runs.

The files of every task have the columns and the irregularities of the published files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.conftest import english_like_documents

# The header lines of the published files. They are copied from these files, not from albert.tasks.glue.specs, which is
# tested with them. Files without a header (CoLA's train.tsv and dev.tsv) are not listed.
_MNLI_COLUMNS = (
  "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
  "sentence1\tsentence2"
)
_STS_B_COLUMNS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
HEADERS = {
  "CoLA/test.tsv": "index\tsentence",
  "SST-2/train.tsv": "sentence\tlabel",
  "SST-2/dev.tsv": "sentence\tlabel",
  "SST-2/test.tsv": "index\tsentence",
  "MRPC/train.tsv": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
  "MRPC/dev.tsv": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
  "MRPC/test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
  "STS-B/train.tsv": f"{_STS_B_COLUMNS}\tscore",
  "STS-B/dev.tsv": f"{_STS_B_COLUMNS}\tscore",
  "STS-B/test.tsv": _STS_B_COLUMNS,
  "QQP/train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
  "QQP/dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
  "QQP/test.tsv": "id\tquestion1\tquestion2",
  "MNLI/train.tsv": f"{_MNLI_COLUMNS}\tlabel1\tgold_label",
  "MNLI/dev_matched.tsv": f"{_MNLI_COLUMNS}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
  "MNLI/dev_mismatched.tsv": f"{_MNLI_COLUMNS}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
  "MNLI/test_matched.tsv": _MNLI_COLUMNS,
  "MNLI/test_mismatched.tsv": _MNLI_COLUMNS,
  "QNLI/train.tsv": "index\tquestion\tsentence\tlabel",
  "QNLI/dev.tsv": "index\tquestion\tsentence\tlabel",
  "QNLI/test.tsv": "index\tquestion\tsentence",
  "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel",
  "RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel",
  "RTE/test.tsv": "index\tsentence1\tsentence2",
  "WNLI/train.tsv": "index\tsentence1\tsentence2\tlabel",
  "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel",
  "WNLI/test.tsv": "index\tsentence1\tsentence2",
  "diagnostic/diagnostic.tsv": "index\tsentence1\tsentence2",
}
LABELS = {
  "CoLA": ["0", "1"],
  "SST-2": ["0", "1"],
  "MRPC": ["0", "1"],
  "QQP": ["0", "1"],
  "MNLI": ["contradiction", "entailment", "neutral"],
  "QNLI": ["entailment", "not_entailment"],
  "RTE": ["entailment", "not_entailment"],
  "WNLI": ["0", "1"],
}
# The first word of a row's last text depends on the row's class, so that a model can learn the task.
_WORD_OF_CLASS = ("nobody", "the", "an")
_NAMES = ("Jane", "Susan", "Grace", "Emma", "Ann", "Mary")
_SENTENCES = [sentence for document in english_like_documents(30, seed=5) for sentence in document]


def _make_sentence(rng: random.Random, class_index: int) -> str:
  """Makes a sentence of a class. One of five has an unbalanced quotation mark, as some published texts do."""
  sentence = rng.choice(_SENTENCES)
  quotation_mark = "" if rng.random() < 0.8 else '"'
  return f"{_WORD_OF_CLASS[class_index]} {quotation_mark}{sentence}"


def _make_cells(task: str, index: int, rng: random.Random) -> dict[str, str]:
  """Makes a value for every column of any file of the task."""
  labels = LABELS.get(task, [])
  class_index = index % (len(labels) or 3)
  label = labels[class_index] if labels else f"{2.5 * class_index:.3f}"  # the scores of STS-B are 0, 2.5 and 5
  first_text, second_text = rng.choice(_SENTENCES), _make_sentence(rng, class_index)
  if task == "WNLI":
    caller, called = rng.sample(_NAMES, 2)
    first_text = f"{caller} called {called} because she needed help."
    second_text = f"{called if class_index == 0 else caller} needed help."
  if task == "QNLI":
    first_text = (
      f"Who {_SENTENCES[index // 2]}"  # two rows for each question: a sentence that answers it, and one that doesn't
    )
  cells = {"index": str(index), "id": str(7 * index), "label": label, "gold_label": label, "label1": label}
  cells |= {"is_duplicate": label, "Quality": label, "score": label, "mark": "" if class_index else "*"}
  cells |= {"sentence1": first_text, "sentence2": second_text, "question1": first_text, "question2": second_text}
  cells |= {"#1 String": first_text, "#2 String": second_text, "question": first_text}
  return cells | {"sentence": second_text}


def _make_text(task: str, name: str, num_rows: int) -> str:
  """Makes the text of a file. Columns without a value in _make_cells hold the name of the column and the row."""
  rng = random.Random(f"{task}/{name}")
  header = HEADERS.get(f"{task}/{name}")
  columns = header.split("\t") if header else ["source", "label", "mark", "sentence"]
  lines = [header] if header else []
  for index in range(num_rows):
    cells = _make_cells(task, index, rng)
    lines.append("\t".join(cells.get(column, f"{column}{index}") for column in columns))
  return "".join(f"{line}\n" for line in lines)


def file_names(task: str) -> list[str]:
  names = [name.split("/")[1] for name in HEADERS if name.startswith(f"{task}/")]
  return names if task != "CoLA" else ["train.tsv", "dev.tsv", "test.tsv"]


def write_archive(directory: Path, tasks: Iterable[str], num_rows: int = 12) -> Path:
  """Writes the files of some tasks, and returns their directory. Training files have four times num_rows rows."""
  for task in tasks:
    folder = directory / task
    folder.mkdir(parents=True, exist_ok=True)
    for name in file_names(task):
      text = _make_text(task, name, 4 * num_rows if name == "train.tsv" else num_rows)
      content = text.encode()
      if task == "MRPC":
        content = b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")
      (folder / name).write_bytes(content)
  return directory


def edit_line(path: Path, line: int, change: Callable[[str], str]) -> None:
  """Replaces a line of a file by the result of `change`. Lines are counted from 1."""
  lines = path.read_text(encoding="utf-8").split("\n")
  lines[line - 1] = change(lines[line - 1])
  path.write_text("\n".join(lines), encoding="utf-8")


def read_tsv_rows(path: Path) -> list[list[str]]:
  return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
