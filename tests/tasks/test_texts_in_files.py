"""Any text that a task writes to a file, or that a user may write there, is read back as it was."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from albert.data import tables
from albert.io.text import replace_surrogates
from albert.tasks import predictions
from albert.tasks.predictions import write_mistakes
from albert.tasks.race import files as race_files
from albert.tasks.squad import files as squad_files
from albert.tasks.squad.nbest import SquadPredictions
from albert.tasks.squad.results import prediction_paths, write_predictions
from tests.tokenization.reference import random_texts


def _read_text_column(path: Path) -> list[str]:
  return tables.read_table(str(path), ["text"]).columns["text"]


def _write_and_read_tsv(texts: Sequence[str], directory: Path) -> list[str]:
  path = directory / "a.tsv"
  path.write_text("".join(f"{text}\t1\n" for text in ["text", *texts]), encoding="utf-8", newline="")
  return _read_text_column(path)


def _write_and_read_csv(texts: Sequence[str], directory: Path) -> list[str]:
  path = directory / "a.csv"
  content = io.StringIO(newline="")
  writer = csv.writer(content, lineterminator="\n", quoting=csv.QUOTE_ALL)
  writer.writerow(["text"])
  writer.writerows([text] for text in texts)
  path.write_text(content.getvalue(), encoding="utf-8", newline="")
  return _read_text_column(path)


def _write_and_read_json_lines(texts: Sequence[str], directory: Path) -> list[str]:
  path = directory / "a.jsonl"
  path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  return _read_text_column(path)


def _write_and_read_squad(texts: Sequence[str], directory: Path) -> list[str]:
  path = directory / "squad.json"
  paragraphs = [{"context": text, "qas": [{"id": str(number), "question": text}]} for number, text in enumerate(texts)]
  path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
  questions = squad_files.read_questions([str(path)], version_2=False, with_answers=False)
  return [
    question.text if question.text == question.paragraph.context else "the question differs from its paragraph"
    for question in questions
  ]


def _write_and_read_race(texts: Sequence[str], directory: Path) -> list[str]:
  """Writes each text as an article, the question about it and two options. Only the article is returned."""
  path = directory / "race.jsonl"
  questions = [{"article": text, "question": text, "options": [text, text]} for text in texts]
  path.write_text("".join(json.dumps(question) + "\n" for question in questions))
  return [question.article for question in race_files.read_questions([str(path)], with_answers=False)]


def _write_and_read_squad_predictions(texts: Sequence[str], directory: Path) -> list[str]:
  answers = {str(number): [{"text": text, "probability": 1.0}] for number, text in enumerate(texts)}
  write_predictions(prediction_paths(str(directory), "dev"), SquadPredictions(answers), 0.0)
  official_format = json.loads((directory / "predictions_dev.json").read_text(encoding="utf-8"))
  return [official_format[str(number)] for number in range(len(texts))]


def _write_and_read_mistakes(texts: Sequence[str], directory: Path) -> list[str]:
  """Writes the texts as examples with label "a" that were predicted as "b", all with the same probability."""
  labels = np.zeros(len(texts), np.int32)
  scores = np.array([[0.1, 0.9]] * len(texts))
  wrong_predictions = predictions.Predictions([str(label) for label in labels], ("a", "b"), scores, labels)
  path = write_mistakes(str(directory), "dev", wrong_predictions, [("text", texts)])
  return _read_text_column(Path(path))


def _as_cell(text: str) -> str:
  """Replaces the characters that separate the cells and lines of a TSV file."""
  return text.translate({ord(character): " " for character in "\t\r\n"})


_WriteAndRead = Callable[[Sequence[str], Path], list[str]]
_Convert = Callable[[str], str]
# For each kind of file: a function that writes texts into it and returns what the task's own reader reads; the form of
# a text that the file can hold; and the text that must be read. JSON may have lone surrogates, which readers replace.
# A line of a table that is blank is left out, so another text is written in place of an empty one.
TASK_FILES: dict[str, tuple[_WriteAndRead, _Convert, _Convert]] = {
  "a.tsv": (_write_and_read_tsv, lambda text: replace_surrogates(_as_cell(text)) or ".", str),
  "a.csv": (_write_and_read_csv, lambda text: replace_surrogates(text) or " ", str),
  "a.jsonl": (_write_and_read_json_lines, str, replace_surrogates),
  "squad.json": (_write_and_read_squad, str, replace_surrogates),
  "race.jsonl": (_write_and_read_race, str, replace_surrogates),
  "predictions": (_write_and_read_squad_predictions, str, str),
  "mistakes": (_write_and_read_mistakes, str, lambda text: _as_cell(replace_surrogates(text))),
}


@pytest.mark.parametrize("name", TASK_FILES)
def test_texts_are_read_as_they_were_written(name: str, tmp_path: Path) -> None:
  write_and_read, to_writable, to_expected = TASK_FILES[name]
  texts = ["", " ", "\ud800", '"', "\\ud800", "\u2028a\x85", "x" * 2**20, *random_texts(500, seed=3)]
  written = [to_writable(text) for text in texts]
  assert write_and_read(written, tmp_path) == list(map(to_expected, written))
