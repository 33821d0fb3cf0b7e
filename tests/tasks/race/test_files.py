"""Tests of reading RACE's folders and JSON lines, and of errors, which name the file and the line or the question."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

from albert.errors import UserError
from albert.tasks.race.files import ChoiceQuestion, RaceData, find_passages, level_of, option_name, read_questions
from tests.tasks.race.folders import write_made_up_race

PASSAGE = {
  "article": "It rained. She took the bus.",
  "questions": ["She took _ .", "Why?"],
  "options": [["a cab", "the bus", "a train", "none"], ["rain", "fun"]],
  "answers": ["B", "A"],
  "id": "high7.txt",
}
ROW = {"id": "one", "article": "It rained.", "question": "Why?", "options": ["rain", "fun", "no"], "answer": "C"}


def write_passage(tmp_path: Path, **changes: Any) -> str:
  """Writes PASSAGE with changed fields to high/7.txt. A field that is None is left out. Returns the path."""
  folder = tmp_path / "high"
  folder.mkdir(exist_ok=True)
  passage = {name: value for name, value in (PASSAGE | changes).items() if value is not None}
  (folder / "7.txt").write_text(json.dumps(passage), encoding="utf-8")
  return str(folder / "7.txt")


def write_rows(tmp_path: Path, *rows: dict[str, Any]) -> str:
  path = tmp_path / "own.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
  return str(path)


def test_a_passage_is_read_as_questions_that_share_its_article(tmp_path: Path) -> None:
  first_question, second_question = read_questions([write_passage(tmp_path)], with_answers=True)
  article = "It rained. She took the bus."
  assert first_question == ChoiceQuestion(
    "high7.txt-0", article, "She took _ .", ("a cab", "the bus", "a train", "none"), 1
  )
  assert second_question == ChoiceQuestion("high7.txt-1", article, "Why?", ("rain", "fun"), 0)
  assert first_question.article is second_question.article


def test_the_folder_gives_the_level_for_any_file_name(tmp_path: Path) -> None:
  # Path of a file -> the id of its first question, and the level. Only the folders high and middle give a level.
  expected = {
    "high/asc00000.txt": ("high/asc00000.txt-0", "high"),
    "middle/a b.txt": ("middle/a b.txt-0", "middle"),
    "high/middle7.txt": ("high/middle7.txt-0", "high"),
    "own/x.txt": ("ownx.txt-0", ""),
  }
  for path in expected:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(json.dumps(PASSAGE), encoding="utf-8")
  questions = read_questions([str(tmp_path / path) for path in expected], with_answers=True)
  first_questions = questions[::2]  # each file has two
  assert [(question.id, level_of(question.id)) for question in first_questions] == list(expected.values())


def write_all_passages(tmp_path: Path, further_line: str = "") -> str:
  """Writes two passages to high/all.txt, in lines 1 and 3, and a further line 5. Returns the path."""
  path = tmp_path / "high" / "all.txt"
  path.parent.mkdir(exist_ok=True)
  passages = [PASSAGE | {"id": "high7.txt"}, PASSAGE | {"id": "asc1.txt", "article": "Line\nbreaks."}]
  text = "\ufeff" + "\r\n\n".join(json.dumps(passage) for passage in passages) + "\n\n" + further_line
  path.write_text(text, encoding="utf-8", newline="")
  return str(path)


def test_all_passages_may_be_in_one_file_as_in_the_original(tmp_path: Path) -> None:
  path = write_all_passages(tmp_path)
  questions = read_questions([path], with_answers=True)
  assert [(question.id, question.answer) for question in questions] == [
    ("high7.txt-0", 1), ("high7.txt-1", 0), ("high/asc1.txt-0", 1), ("high/asc1.txt-1", 0)
  ]  # fmt: skip
  assert [level_of(question.id) for question in questions] == ["high"] * 4
  assert questions[2].article == "Line\nbreaks."
  with pytest.raises(UserError, match=r"line 1: question 1: id 'high7\.txt-0' is already used by .*7\.txt: question 1"):
    read_questions([write_passage(tmp_path), path], with_answers=True)


def test_a_file_outside_of_races_folders_may_hold_one_passage(tmp_path: Path) -> None:
  path = tmp_path / "all.txt"
  path.write_text(json.dumps(PASSAGE, indent=1), encoding="utf-8")
  assert read_questions([str(path)], with_answers=True)[1].id == "high7.txt-1"
  path.write_text(json.dumps(PASSAGE | {"id": ""}), encoding="utf-8")
  assert read_questions([str(path)], with_answers=True)[1].id == "all.txt-1-1"


def test_a_bad_passage_in_a_file_of_all_passages_is_named_with_its_line(tmp_path: Path) -> None:
  without_answer = json.dumps(PASSAGE | {"answers": [None, "A"]})
  for bad_line, message in (
    ('{"id": }', r"all\.txt, line 5: not JSON \(.*, column 8\)"),
    (without_answer, r"all\.txt, line 5: question 1: answer null is not one of the options"),
    (json.dumps(PASSAGE | {"id": 3}), r"all\.txt, line 5: \$\.id must be a text, it is a whole number"),
  ):
    with pytest.raises(UserError, match=message):
      read_questions([write_all_passages(tmp_path, bad_line)], with_answers=True)


def test_predicting_needs_no_answers(tmp_path: Path) -> None:
  for changes in ({"answers": None}, {"answers": ["?", "!"]}, {"answers": [None]}):
    questions = read_questions([write_passage(tmp_path, **changes)], with_answers=False)
    assert [question.answer for question in questions] == [-1, -1]
  row = {name: value for name, value in ROW.items() if name != "answer"}
  assert read_questions([write_rows(tmp_path, row)], with_answers=False)[0].answer == -1


def test_json_lines_with_any_number_of_options(tmp_path: Path) -> None:
  many_options = ROW | {"id": "many", "options": [str(n) for n in range(30)], "answer": 28}
  letter_answer = many_options | {"id": "letters", "answer": "Z"}
  without_id = {name: value for name, value in ROW.items() if name != "id"}
  text_answer = many_options | {"id": "text", "answer": "5"}
  path = Path(write_rows(tmp_path, ROW, many_options, letter_answer, without_id, text_answer))
  path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n\n"))
  questions = read_questions([str(path)], with_answers=True)
  assert [(question.id, len(question.options), question.answer) for question in questions] == [
    ("one", 3, 2), ("many", 30, 28), ("letters", 30, 25), ("own.jsonl-7", 3, 2), ("text", 30, 5)  # row 4: line 7
  ]  # fmt: skip
  assert [option_name(index) for index in (0, 25, 26, 29)] == ["A", "Z", "27", "30"]


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"article": None}, r"7\.txt: lacks 'article': a passage is an object with article, questions"),
    ({"answers": None}, r"7\.txt: question 1: answer null is not one of the options, which are A to D: give"),
    ({"answers": "B"}, r"7\.txt: \$\.answers must be a list or null, it is a text"),
    ({"answers": ["B"]}, r"7\.txt: 2 questions, 2 lists of options and 1 answers$"),
    ({"answers": ["B", "C"]}, r"7\.txt: question 2: answer 'C' is not one of the options, which are A to B"),
    ({"answers": ["b", "A"]}, r"question 1: answer 'b' is not one"),
    ({"answers": [-1, "A"]}, r"question 1: answer -1 is not one"),
    ({"answers": [True, "A"]}, r"question 1: answer true is not one"),
    ({"answers": [None, "A"]}, r"question 1: answer null is not one of the options, which are A to D: give"),
    ({"answers": ["B", 0]}, r"7\.txt: question 2: answer 0 is not one of the options, which are A to B"),
    ({"answers": ["B", ["A"]]}, r"question 2: answer \['A'\] is not one of the options"),
    ({"options": [["a", "b"], ["c"]]}, "question 2: 1 option: give two or more"),
  ],
)
def test_an_error_names_the_file_of_a_bad_passage(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
  path = write_passage(tmp_path, **changes)
  with pytest.raises(UserError, match=message) as caught:
    read_questions([path], with_answers=True)
  assert path in str(caught.value)


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    ([ROW, ROW], r"own\.jsonl, line 2: id 'one' is already used by .*own\.jsonl, line 1: "),
    ([ROW, {**ROW, "id": 5}], r"line 2: \$\.id must be a text, it is a whole number"),
    ([{**ROW, "answer": "D"}], r"line 1: answer 'D' is not one of the options, which are A to C"),
    ([{**ROW, "answer": 3}], r"line 1: answer 3 is not one of the options"),
    ([{**ROW, "answer": None}], r"line 1: answer null is not one of the options, which are A to C: give"),
    ([{**ROW, "answer": 1.0}], r"line 1: answer 1\.0 is not one of the options"),
    ([{name: ROW[name] for name in ("article", "question", "options")}], "line 1: answer null is not one of the opt"),
    ([{"article": "a"}], r"line 1: lacks 'question': a question is an object with article, question"),
  ],
)
def test_an_error_names_a_bad_line(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
  with pytest.raises(UserError, match=message):
    read_questions([write_rows(tmp_path, *rows)], with_answers=True)


def test_text_that_is_not_json_is_refused_with_line_and_column(tmp_path: Path) -> None:
  passage_file = Path(write_passage(tmp_path))
  passage_file.write_text('{"article": "a",\n "questions": [,]}')
  with pytest.raises(UserError, match=r"7\.txt, line 2: not JSON \(.*, column 16\)"):
    read_questions([str(passage_file)], with_answers=True)


def test_the_passages_of_a_folder_are_found(tmp_path: Path) -> None:
  root = write_made_up_race(tmp_path, 3, splits=("train",))
  paths = find_passages(f"{root}/train", "--x")
  assert [Path(path).parts[-2:] for path in paths] == [
    (folder, f"{n}.txt") for folder in ("high", "middle") for n in range(3)
  ]
  assert find_passages(f"{root}/train/high", "--x") == paths[:3]
  assert len(read_questions(paths, with_answers=True)) == 2 * 6  # two questions for each passage
  split: Any = types.SimpleNamespace(sources=lambda _: paths)
  assert RaceData.source_names(split, "train").endswith("RACE/train (6 files)")  # a message with all would be too long
  with pytest.raises(UserError, match=r"--x: .*RACE holds neither middle/\*\.txt and high/\*\.txt nor \*\.txt"):
    find_passages(root, "--x")
  renamed = Path(root).rename(tmp_path / "RACE [v2], all")
  assert len(find_passages(f"{renamed}/train", "--x")) == len(paths)


def test_an_id_must_fit_into_a_column_of_a_predictions_file(tmp_path: Path) -> None:
  path = write_rows(tmp_path, ROW | {"id": " a\u2028"})
  assert [question.id for question in read_questions([path], with_answers=True)] == ["a"]
  for bad_id, message in ((" ", "'id' is empty"), ("a\nb", r"id 'a\\nb' has a tab or a line end")):
    path = write_rows(tmp_path, ROW | {"id": bad_id})
    with pytest.raises(UserError, match=rf"own\.jsonl, line 1: {message}"):
      read_questions([path], with_answers=True)
