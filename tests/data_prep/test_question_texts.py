"""The command data_prep.question_texts: articles of SQuAD and RACE as text with one sentence on each line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep import question_texts
from tests.tasks.race.folders import write_made_up_race
from tests.tasks.squad.question_files import write_made_up_squad


def _run(**flags: str) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, "-m", "data_prep.question_texts", *(f"--{name}={value}" for name, value in flags.items())]
  return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_article_becomes_one_document(tmp_path: Path):
  squad = write_made_up_squad(tmp_path / "dev.json", 9)
  race = write_made_up_race(tmp_path, 3, splits=("dev",))
  completed = _run(squad_file=squad, race_file=f"{race}/dev", output_file=str(tmp_path / "out.txt"))
  assert completed.returncode == 0, completed.stderr
  documents = (tmp_path / "out.txt").read_text().rstrip("\n").split("\n\n")
  assert f"{len(documents)} documents" in completed.stderr
  articles = json.loads(Path(squad).read_text())["data"]
  expected = [" ".join(paragraph["context"] for paragraph in article["paragraphs"]) for article in articles]
  passages = sorted(Path(race).glob("dev/*/*.txt"))
  expected += [json.loads(path.read_text())["article"] for path in passages]
  assert [document.replace("\n", " ") for document in documents] == expected


def test_sentences_and_paragraphs_end_with_a_line():
  articles = [["Mr. Brown has gone. He lives at St. Ives.\tNobody  saw him!", "A title"], [" "]]
  assert list(question_texts.format_documents(articles)) == [
    "Mr. Brown has gone.\nHe lives at St. Ives.\nNobody saw him!\nA title\n\n"
  ]


def test_paragraphs_of_a_passage_end_with_a_line_end_only(tmp_path: Path):
  article = "One\u2028line\x85of\x0btext.\nAnother one."
  path = tmp_path / "race.jsonl"
  path.write_text(json.dumps({"article": article, "question": "?", "options": ["a", "b"]}))
  assert question_texts.read_race_passages(str(path)) == [article.split("\n")]


def test_paragraphs_of_an_article_without_title_are_documents_of_their_own(tmp_path: Path):
  paragraphs = [{"context": f"Text {number}.", "qas": [{"id": str(number), "question": "?"}]} for number in (1, 2)]
  with_two_questions = paragraphs[0] | {"qas": [{"id": "3", "question": "?"}, {"id": "4", "question": "!"}]}
  articles = [{"paragraphs": paragraphs}, {"title": "T", "paragraphs": [with_two_questions]}]
  path = tmp_path / "dev.json"
  path.write_text(json.dumps({"data": articles}))
  assert question_texts.read_squad_articles([str(path)]) == [["Text 1."], ["Text 2."], ["Text 1."]]


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ({}, "error: no input: give --squad_file, --race_file, or both"),
    ({"squad_file": "absent.json"}, "--squad_file: 'absent.json' matches no file"),
    ({"race_file": "{dir}"}, "--race_file: {dir} holds neither"),
    ({"squad_file": "{dir}/bad.json"}, "bad.json"),
  ],
)
def test_bad_input_is_one_line(tmp_path: Path, flags: dict[str, str], message: str):
  (tmp_path / "bad.json").write_text("{")
  flags = {name: value.replace("{dir}", str(tmp_path)) for name, value in flags.items()}
  completed = _run(output_file=str(tmp_path / "out.txt"), **flags)
  assert completed.returncode == 2
  (line,) = completed.stderr.splitlines()
  assert message.replace("{dir}", str(tmp_path)) in line
  assert not (tmp_path / "out.txt").exists()
