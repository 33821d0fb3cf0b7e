"""The questions about paragraphs that a task reads, once, in the format of SQuAD v1.1 and v2.0. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from albert.data.rows import DataSource, Rows
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.text import format_value
from albert.tasks.finetuning import FinetuningData
from albert.tasks.splits import DEV, FILE_FIELDS, TEST
from albert.tasks.squad.flags import SquadConfig

_REMEDY = "give data in the form of SQuAD"


class SquadAnswer(msgspec.Struct, frozen=True):
  """An answer, which is a span of the paragraph: context[start : start + len(text)] == text.

  Attributes:
    text: the answer.
    start: its offset in the paragraph, in characters.
  """

  text: str
  start: int = msgspec.field(name="answer_start")


@dataclasses.dataclass(frozen=True)
class SquadParagraph:
  """A paragraph, which several questions may share.

  Attributes:
    title: the title of its article.
    context: its text.
  """

  title: str
  context: str


@dataclasses.dataclass(frozen=True)
class SquadQuestion:
  """A question about a paragraph.

  Attributes:
    id: the id in the file.
    index: the number of the question among all questions of the files, from 0.
    text: the question.
    paragraph: the paragraph.
    answers: the answers in the file, in order; () if they were not read, or if the question is unanswerable.
  """

  id: str
  index: int
  text: str
  paragraph: SquadParagraph
  answers: tuple[SquadAnswer, ...] = ()


class SquadData(FinetuningData):
  """The questions of each split."""

  rows_are_examples = False
  config: SquadConfig

  def find(self, split: str) -> Sequence[str]:
    """Returns the paths of the files of a split, which a flag gives."""
    flag = FILE_FIELDS[TEST if split == DEV and not self.config.eval_file else split]
    globs: str = getattr(self.config, flag)
    if not globs:
      name = "--eval_file (or --predict_file)" if split == DEV else f"--{flag}"
      raise UserError(f"{name} is missing: the {split} set, JSON in the form of SQuAD")
    return files.expand_globs(globs, flag=f"--{flag}")

  def checkpoint_settings(self) -> dict[str, Any]:
    """Adds the version of SQuAD, which determines the head."""
    return super().checkpoint_settings() | {"version_2_with_negative": self.config.version_2_with_negative}

  def read_split(self, split: str) -> Sequence[SquadQuestion]:
    """Reads the questions of a split, see read_questions; those of the test set without answers."""
    version_2 = self.config.version_2_with_negative
    return read_questions(self.sources(split), version_2=version_2, with_answers=split != TEST)


def read_questions(sources: Sequence[DataSource], *, version_2: bool, with_answers: bool) -> list[SquadQuestion]:
  """Reads all questions of the files, or of rows in memory, in order.

  Args:
    sources: JSON files, or rows with question, context and, if they are known, answers, id, title and is_impossible.
    version_2: whether the files belong to SQuAD v2.0, where a question may be unanswerable.
    with_answers: whether answers are read, for training and evaluation. To predict, the files need none.
  Raises:
    UserError: one of these mistakes is in a file: it is not JSON (the message gives line and column); it has another
      format (the message gives the JSON path); it belongs to the other version of SQuAD; an answer is not at its
      answer_start; an id is repeated; a question has no answer.
  """
  questions: list[SquadQuestion] = []
  locations: dict[str, str] = {}  # id -> file and JSON path
  for source in sources:
    num_before, has_key = len(questions), False
    for location, paragraph, values in _read_entries(source):
      entry = json_values.convert(location, values, _AnsweredEntry if with_answers else _QuestionEntry, _REMEDY)
      if entry.id in locations:
        raise UserError(f"{location}: id {entry.id!r} is already used by {locations[entry.id]}: give another id")
      locations[entry.id] = location
      answers: tuple[SquadAnswer, ...] = ()
      if isinstance(entry, _AnsweredEntry):
        _check_answers(location, paragraph.context, entry, version_2)
        answers, has_key = tuple(entry.answers), has_key or "is_impossible" in values
      questions.append(SquadQuestion(entry.id, len(questions), entry.question, paragraph, answers))
    if with_answers and version_2 and not has_key and len(questions) > num_before:
      raise UserError(
        f"{source}: no question says is_impossible, so this is a SQuAD v1.1 file: leave out --version_2_with_negative, "
        "or give a v2.0 file"
      )
  return questions


class _QuestionEntry(msgspec.Struct):
  """A question to predict. Its answers are not read."""

  id: str
  question: str


class _AnsweredEntry(_QuestionEntry):
  """A question to train on or to evaluate on."""

  answers: list[SquadAnswer]
  is_impossible: bool = False


class _ParagraphOfRow(msgspec.Struct):
  """The keys of a row in memory that describe its paragraph. Its other keys are those of a question entry."""

  context: str
  title: Any = ""


class _ParagraphEntry(msgspec.Struct):
  context: str
  qas: list[dict[str, Any]]


class _Article(msgspec.Struct):
  paragraphs: list[_ParagraphEntry]
  title: Any = ""


class _SquadFile(msgspec.Struct):
  data: list[_Article]


def _read_entries(source: DataSource) -> Iterator[tuple[str, SquadParagraph, dict[str, Any]]]:
  """Yields for every question its location for error messages, its paragraph and its other values."""
  if isinstance(source, Rows):
    for index, number in enumerate(source.row_numbers):
      location, row = source.location(index), source.values(index)
      of_row = json_values.convert(location, row, _ParagraphOfRow, _REMEDY)
      yield location, _make_paragraph(of_row.title, of_row.context), {"id": str(number), **row}
    return
  content = files.read_json(source, _SquadFile, _REMEDY)
  for i, article in enumerate(content.data):
    for j, of_article in enumerate(article.paragraphs):
      paragraph = _make_paragraph(article.title, of_article.context)
      for k, values in enumerate(of_article.qas):
        yield f"{source}: $.data[{i}].paragraphs[{j}].qas[{k}]", paragraph, values


def _make_paragraph(title: Any, context: str) -> SquadParagraph:
  return SquadParagraph(title if isinstance(title, str) else "", context)


def _check_answers(location: str, context: str, entry: _AnsweredEntry, version_2: bool) -> None:
  """Checks that the context has the answers; for SQuAD v2.0 there are none if the file says is_impossible."""
  location = f"{location}, question {entry.id}"
  if entry.is_impossible and entry.answers:
    raise UserError(f"{location}: is_impossible is true, but it has answers: correct one of the two")
  if entry.is_impossible and not version_2:
    raise UserError(f"{location} is unanswerable, so this is a SQuAD v2.0 file: give --version_2_with_negative")
  if not entry.is_impossible and not entry.answers:
    note = " (or is_impossible: true)" if version_2 else ""
    raise UserError(f"{location} has no answer: training and evaluation need one{note}")
  for number, answer in enumerate(entry.answers):
    text, start = answer.text, answer.start
    if not text.strip():
      raise UserError(f"{location}: answers[{number}]: the answer is empty: give its text, or leave it out")
    text_at_start = context[start : start + len(text)] if start >= 0 else ""
    if text_at_start != text:
      offset = context.find(text)
      place = "does not have" if offset < 0 else f"has at {offset}"
      raise UserError(
        f"{location}: answers[{number}]: answer_start {start} (in characters, from 0) points at "
        f"{format_value(text_at_start)}, but the answer is {format_value(text)}, which the paragraph {place}"
      )
