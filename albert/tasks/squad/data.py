"""Questions on paragraphs from files in the official form of SQuAD, v1.1 and v2.0. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from albert.config.base import EVALUATION, option
from albert.config.run import FinetuningConfig
from albert.errors import UserError
from albert.io import files
from albert.io.json_values import shown

_REMEDY = "give a file in the form of SQuAD"
_Q = TypeVar("_Q")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(FinetuningConfig):
  """What run_squad.py reads."""

  train_file: str = option(
    "",
    "questions with answers to train on: JSON in the form of SQuAD, comma-separated globs",
    affects_training=False,
  )
  eval_file: str = option(
    "", "questions with answers to evaluate on; none: those of --predict_file", affects_training=False
  )
  predict_file: str = option(
    "", "questions to predict; they need no answers", affects_training=False, resets=("eval_file",)
  )
  version_2_with_negative: bool = option(False, "SQuAD v2.0: questions may be unanswerable")
  max_query_length: int = option(64, "tokens of a question; more is cut", minimum=1)
  doc_stride: int = option(128, "tokens from one window of a long paragraph to the next", minimum=1)
  max_answer_length: int = option(
    30, "tokens of the longest answer that is predicted", minimum=1, affects_training=False, group=EVALUATION
  )
  n_best_size: int = option(
    20, "answers of a question in nbest_predictions.json", minimum=1, affects_training=False, group=EVALUATION
  )
  start_n_top: int = option(
    5, "starts that the v2.0 prediction keeps", minimum=1, affects_training=False, group=EVALUATION
  )
  end_n_top: int = option(
    5, "ends that the v2.0 prediction keeps for each start", minimum=1, affects_training=False, group=EVALUATION
  )
  null_score_diff_threshold: float = option(
    0.0,
    "log odds of being unanswerable above which the answer is empty (v2.0)",
    affects_training=False,
    group=EVALUATION,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.max_seq_length < self.max_query_length + 4:
      raise UserError(
        f"max_seq_length={self.max_seq_length} leaves no room for a paragraph beside max_query_length="
        f"{self.max_query_length} tokens of the question: give at least {self.max_query_length + 4}, or a shorter query"
      )


def recipe_name(config: SquadConfig) -> str:
  """The recipe in configs/ for the version that the flags name."""
  return "squad_v2" if config.version_2_with_negative else "squad_v1"


@dataclasses.dataclass(frozen=True)
class Answer:
  """A piece of a paragraph: context[start : start + len(text)] == text."""

  text: str
  start: int


@dataclasses.dataclass(frozen=True)
class Paragraph:
  """What questions are asked on."""

  title: str
  context: str


@dataclasses.dataclass(frozen=True)
class Question:
  """A question on a paragraph.

  Attributes:
    id: as the file has it.
    index: its place among all questions of the files.
    text: the question.
    paragraph: shared by all questions on it.
    answers: those of the file, in order; none where they were not asked for, or there is none.
    is_impossible: true if the paragraph is known not to answer it.
  """

  id: str
  index: int
  text: str
  paragraph: Paragraph
  answers: tuple[Answer, ...] = ()
  is_impossible: bool = False


def read_questions(paths: Sequence[str], *, version_2: bool, with_answers: bool) -> list[Question]:
  """All questions of the files, in order.

  Args:
    paths: JSON files.
    version_2: true for SQuAD v2.0, where a question may be unanswerable.
    with_answers: false to predict; answers are then not looked at, and need not be there.
  Raises:
    UserError: a file that is no JSON (with line and column) or not of this form (with the place in it); an answer
      that is not where answer_start says, an id that comes twice, a question without an answer (with its id);
      a file of the other version; no questions at all.
  """
  questions: list[Question] = []
  places: dict[str, str] = {}
  for path in paths:
    first, says_is_impossible = len(questions), False
    for where, paragraph, entry in _entries(path, _AnsweredEntry if with_answers else _QuestionEntry):
      question = _question(where, paragraph, entry, len(questions))
      if question.id in places:
        raise UserError(f"{where}: id {question.id!r} is that of {places[question.id]} already: give it another")
      places[question.id] = where
      says_is_impossible |= isinstance(entry, _AnsweredEntry) and entry.is_impossible is not msgspec.UNSET
      if with_answers:
        _check_version(path, question, version_2=version_2)
      questions.append(question)
    if with_answers and version_2 and len(questions) > first and not says_is_impossible:
      raise UserError(
        f"{path}: no question says is_impossible, so this is a SQuAD v1.1 file: leave out --version_2_with_negative, "
        "or give a v2.0 file"
      )
  if not questions:
    raise UserError(f"{', '.join(paths)}: no questions: give a file in the form of SQuAD that has some")
  return questions


class _AnswerEntry(msgspec.Struct):
  text: str
  answer_start: int


class _QuestionEntry(msgspec.Struct):
  """A question to predict; its answers are not looked at."""

  id: str
  question: str


class _AnsweredEntry(_QuestionEntry):
  """A question to train on or to evaluate on."""

  answers: list[_AnswerEntry] | msgspec.UnsetType = msgspec.UNSET
  is_impossible: bool | msgspec.UnsetType = msgspec.UNSET


class _ParagraphEntry(msgspec.Struct, Generic[_Q]):
  context: str
  qas: list[_Q]


class _Article(msgspec.Struct, Generic[_Q]):
  paragraphs: list[_ParagraphEntry[_Q]]
  title: Any = ""


class _File(msgspec.Struct, Generic[_Q]):
  data: list[_Article[_Q]]


def _entries(path: str, kind: type[_QuestionEntry]) -> Iterator[tuple[str, Paragraph, _QuestionEntry]]:
  """(place in the file, paragraph, entry) of every question."""
  content: _File[_QuestionEntry] = files.read_json(path, _File[kind], _REMEDY)  # type: ignore[valid-type]
  for i, article in enumerate(content.data):
    for j, values in enumerate(article.paragraphs):
      paragraph = Paragraph(article.title if isinstance(article.title, str) else "", values.context)
      for k, entry in enumerate(values.qas):
        yield f"{path}: $.data[{i}].paragraphs[{j}].qas[{k}]", paragraph, entry


def _question(where: str, paragraph: Paragraph, entry: _QuestionEntry, index: int) -> Question:
  if not isinstance(entry, _AnsweredEntry):
    return Question(entry.id, index, entry.question, paragraph)
  where = f"{where}, question {entry.id}"
  is_impossible = entry.is_impossible is True
  if isinstance(entry.answers, msgspec.UnsetType):
    raise UserError(f"{where} lacks 'answers': {_REMEDY}")
  if is_impossible and entry.answers:
    raise UserError(f"{where}: is_impossible is true, yet it has answers: mend one of the two")
  found = [_answer(f"{where}: answers[{n}]", paragraph.context, answer) for n, answer in enumerate(entry.answers)]
  return Question(entry.id, index, entry.question, paragraph, tuple(found), is_impossible)


def _answer(where: str, context: str, entry: _AnswerEntry) -> Answer:
  text, start = entry.text, entry.answer_start
  if not text.strip():
    raise UserError(f"{where}: the answer is empty: give its text, or leave it out and say is_impossible")
  found = context[start : start + len(text)] if start >= 0 else ""
  if found != text:
    place = context.find(text)
    remedy = "which the paragraph does not have" if place < 0 else f"which the paragraph has at {place}"
    raise UserError(
      f"{where}: answer_start {start} (in characters, from 0) points at {shown(found)}, but the answer is "
      f"{shown(text)}, {remedy}"
    )
  return Answer(text, start)


def _check_version(path: str, question: Question, *, version_2: bool) -> None:
  if question.is_impossible and not version_2:
    raise UserError(
      f"{path}: question {question.id} is unanswerable, so this is a SQuAD v2.0 file: give --version_2_with_negative, "
      "or a v1.1 file"
    )
  if not question.is_impossible and not question.answers:
    raise UserError(
      f"{path}: question {question.id} has no answer: training and evaluation need one"
      + (" (or is_impossible: true)" if version_2 else "")
    )
