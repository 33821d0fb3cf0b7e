"""Tests of reading SQuAD's files, and of errors, which name the file, the JSON path and the question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert.data.rows import rows_of
from albert.errors import UserError
from albert.tasks.squad.files import SquadAnswer, SquadData, SquadQuestion, read_questions
from albert.tasks.squad.flags import SquadConfig
from tests.tasks.squad.question_files import make_qa, write_squad

CONTEXT = "Café Müller opened in 1978.\nPina Bausch made it."


def write_questions(tmp_path: Path, *qas: dict[str, Any]) -> str:
  return write_squad(tmp_path / "squad.json", [(CONTEXT, list(qas))])


def read_files(*paths: str, version_2: bool = False, with_answers: bool = True) -> list[SquadQuestion]:
  return read_questions(paths, version_2=version_2, with_answers=with_answers)


def test_beside_the_longest_question_a_sequence_has_room_for_cls_two_seps_and_a_token() -> None:
  assert SquadConfig(max_seq_length=48, max_query_length=44).max_query_length == 44
  shortest = SquadConfig(max_seq_length=8)
  assert (shortest.max_query_length, shortest.doc_stride, shortest.max_answer_length) == (2, 2, 3)
  message = r"--max_query_length=45 leaves no room .* --max_seq_length=48: give --max_q.*=12"
  with pytest.raises(UserError, match=message):
    SquadConfig(max_seq_length=48, max_query_length=45)


def test_questions_of_several_files_are_read_in_order(tmp_path: Path) -> None:
  first_file = write_squad(
    tmp_path / "a.json",
    [
      (CONTEXT, [make_qa("a", "When?", CONTEXT, "1978", "in 1978"), make_qa("b", "Who?", CONTEXT, "Pina Bausch")]),
      ("A b.", [make_qa("c", "What?", "A b.", "b")]),
      ("C d.", []),
    ],
  )
  second_file = write_squad(tmp_path / "b.json", [("E f.", [make_qa("d", "f?", "E f.", "f")])])
  questions = read_files(first_file, second_file)
  assert [question.index for question in questions] == [0, 1, 2, 3]
  ids_and_texts = [(question.id, question.text) for question in questions]
  assert ids_and_texts == [("a", "When?"), ("b", "Who?"), ("c", "What?"), ("d", "f?")]
  assert questions[0].answers == (SquadAnswer("1978", 22), SquadAnswer("in 1978", 19))
  assert questions[0].paragraph is questions[1].paragraph
  assert (questions[2].paragraph.title, questions[2].paragraph.context) == ("T0", "A b.")


def test_an_unanswerable_question_of_v2_has_no_answers_even_if_some_are_plausible(tmp_path: Path) -> None:
  path = write_questions(
    tmp_path,
    make_qa("a", "When?", CONTEXT, "1978", is_impossible=False),
    make_qa("b", "Why?", CONTEXT, is_impossible=True) | {"plausible_answers": [{"text": "1978", "answer_start": 22}]},
  )
  assert [len(question.answers) for question in read_files(path, version_2=True)] == [1, 0]


def test_predicting_needs_no_answers_and_accepts_both_versions(tmp_path: Path) -> None:
  without_answers = {"id": "a", "question": "When?"}
  for version_2 in (False, True):
    (question,) = read_files(write_questions(tmp_path, without_answers), version_2=version_2, with_answers=False)
    assert question.answers == ()
  wrong_answer = make_qa("a", "When?", CONTEXT, is_impossible=True) | {"answers": [{"text": "x", "answer_start": 99}]}
  assert len(read_files(write_questions(tmp_path, wrong_answer), with_answers=False)) == 1


def answers_field(text: str, answer_start: Any) -> dict[str, Any]:
  return {"answers": [{"text": text, "answer_start": answer_start}]}


# (fields that replace those of the valid question q1, which is the second one of the file; the error)
BAD_QUESTIONS = [
  (answers_field("1978", 23), r"answer_start 23 .* points at '978\.', but .* '1978', which the paragraph has at 22$"),
  (answers_field("a", len(CONTEXT)), rf"but the answer is 'a', which the paragraph has at {CONTEXT.rfind('a')}$"),
  (answers_field("1979", 22), r"points at '1978', but the answer is '1979', which the paragraph does not have$"),
  # 1978 is at 22 - 48 = -26 from the end, but offsets count from the beginning.
  (answers_field("1978", -26), r"question q1: answers\[0\]: answer_start -26 .* points at ''"),
  (answers_field(" ", 4), r"question q1: answers\[0\]: the answer is empty"),
  ({"answers": [{"text": "it.", "answer_start": start} for start in (45, 4500)]}, r"answers\[1\]: answer_start 4500"),
  (answers_field("1978", "22"), r"answer_start must be a whole number or null, it is a text"),
  ({"answers": []}, "question q1 has no answer: training and evaluation need one$"),
  ({"answers": [], "is_impossible": True}, r"q1 is unanswerable, as in a SQuAD v2\.0 file: give --version_2_with"),
  ({"is_impossible": True}, "question q1: is_impossible is true, but it has answers"),
  ({"id": 7.5}, r"data\[0\]\.paragraphs\[0\]\.qas\[1\]: \$\.id must be a whole number or a text, it is a number: give"),
  ({"answers": [{"text": "1979"}]}, r"\[0\]: no answer_start for '1979', which the paragraph does not have: correct"),
  ({"answers": [{"text": "a"}]}, r"no answer_start for 'a', which the paragraph has several times: give answer_start$"),
  ({"answers": {"text": ["1978"], "answer_start": []}}, r"qas\[1\]: answers .*: give lists of text and answer_start$"),
  ({"id": "q0"}, r"qas\[1\]: id 'q0' is already used by .*qas\[0\]: "),
]


@pytest.mark.parametrize(("changes", "message"), BAD_QUESTIONS)
def test_a_bad_question_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
  valid, bad = make_qa("q0", "Who?", CONTEXT, "Pina"), make_qa("q1", "When?", CONTEXT, "1978") | changes
  path = write_questions(tmp_path, valid, bad)
  with pytest.raises(UserError, match=message) as caught:
    read_files(path)
  assert path in str(caught.value)


def test_a_file_of_the_other_version_is_refused(tmp_path: Path) -> None:
  with pytest.raises(UserError, match=r"no question says is_impossible, as in SQuAD v1\.1: leave out"):
    read_files(write_questions(tmp_path, make_qa("a", "When?", CONTEXT, "1978")), version_2=True)
  with pytest.raises(UserError, match=r"question b has no answer.* \(or is_impossible: true\)"):
    read_files(write_questions(tmp_path, make_qa("b", "Why?", CONTEXT, is_impossible=False)), version_2=True)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("{}", "lacks 'data': give data in the form of SQuAD"),
    ('{"context": "a"}\n', "line 1: lacks 'answers': add them, or predict with"),
    ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"data\[0\]\.paragraphs\[0\] lacks 'context'"),
    ('{"data": [{"paragraphs": [{"context": "a"}]}]}', r"data\[0\]\.paragraphs\[0\] lacks 'qas'"),
  ],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: str, message: str) -> None:
  path = tmp_path / "squad.json"
  path.write_text(content)
  with pytest.raises(UserError, match=message):
    read_files(str(path))


@pytest.mark.parametrize("name", ["a.jsonl", "lines.json", "list.json", "a.parquet"])
def test_rows_of_datasets_are_read(tmp_path: Path, name: str) -> None:
  columns = [(7, "When?", ["1978"], [22]), (8, "Why?", [], []), (9, "Who?", ["Pina"], [28])]
  rows = [
    {"id": i, "title": "T", "context": CONTEXT, "question": text, "answers": {"text": answers, "answer_start": starts}}
    for i, text, answers, starts in columns
  ]
  path = tmp_path / name
  if name.endswith(".parquet"):
    pytest.importorskip("pandas").DataFrame(rows).to_parquet(path)
  else:
    path.write_text(json.dumps(rows) if name == "list.json" else "".join(json.dumps(row) + "\n" for row in rows))
  questions = read_files(str(path), version_2=True)
  assert [(question.id, question.text) for question in questions] == [("7", "When?"), ("8", "Why?"), ("9", "Who?")]
  assert [question.answers for question in questions] == [(SquadAnswer("1978", 22),), (), (SquadAnswer("Pina", 28),)]
  place = {"a.parquet": ": row 2", "list.json": r": \$\[1\]"}.get(name, ", line 2")
  with pytest.raises(UserError, match=rf"{name}{place}, question 8 is unanswerable.*: give --version_2_with_negative"):
    read_files(str(path))


def test_articles_need_no_version_and_answers_no_offset(tmp_path: Path) -> None:
  qas = [{"id": 1, "question": "When?", "answers": [{"text": "1978"}]}]
  (tmp_path / "a.json").write_text(json.dumps([{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]))
  row = {"context": CONTEXT, "question": "When?", "answers": {"text": ["1978"]}}
  (tmp_path / "b.jsonl").write_text("\n" + json.dumps(row))
  for name, question_id in {"a.json": "1", "b.jsonl": "2"}.items():
    (question,) = read_files(str(tmp_path / name))
    assert (question.id, question.answers) == (question_id, (SquadAnswer("1978", 22),))
  with pytest.raises(UserError, match="no question says is_impossible"):
    read_files(str(tmp_path / "b.jsonl"), version_2=True)


def test_each_split_is_read_once_and_the_test_set_without_answers(tmp_path: Path) -> None:
  path = write_questions(tmp_path, make_qa("a", "When?", CONTEXT, "1978"))
  data = SquadData(SquadConfig(predict_file=path))
  dev, test = data.rows("dev"), data.rows("test")  # without --eval_file, both are those of --predict_file
  Path(path).unlink()
  rows = rows_of([{"question": "Who?", "context": CONTEXT}], "data", ["question", "context"])
  of_rows = data.with_source("test", rows)
  assert (of_rows.rows("dev"), data.rows("test")) == (dev, test)
  questions = [dev[0], test[0], of_rows.rows("test")[0]]
  assert [(question.id, len(question.answers)) for question in questions] == [("a", 1), ("a", 0), ("0", 0)]
  with pytest.raises(UserError, match=r"^--train_file is missing: the train set, JSON in the form of SQuAD"):
    data.rows("train")
