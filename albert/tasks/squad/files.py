"""The questions about paragraphs that a task reads, once, in the format of SQuAD v1.1 and v2.0. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from albert.data.rows import DataSource, Rows
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.text import format_value
from albert.tasks.finetuning import FinetuningData
from albert.tasks.splits import TEST
from albert.tasks.squad.flags import SquadConfig, find_files

_REMEDY = "give a file in the form of SQuAD"
_EntryT = TypeVar("_EntryT")


@dataclasses.dataclass(frozen=True)
class SquadAnswer:
  """An answer, which is a span of the paragraph: context[start : start + len(text)] == text.

  Attributes:
    text: the answer.
    start: its offset in the paragraph, in characters.
  """

  text: str
  start: int


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
    answers: the answers in the file, in order; () if they were not read or there are none.
    is_impossible: whether the file says that the paragraph does not answer the question.
  """

  id: str
  index: int
  text: str
  paragraph: SquadParagraph
  answers: tuple[SquadAnswer, ...] = ()
  is_impossible: bool = False


class SquadData(FinetuningData):
  """The questions of each split."""

  config: SquadConfig

  def find(self, split: str) -> Sequence[str]:
    """Returns the paths of the files of a split, which a flag gives."""
    return find_files(self.config, split)

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
    UserError: there are no questions, or one of these mistakes is in a file: it is not JSON (the message gives line and
      column); it has another format (the message gives the JSON path); it belongs to the other version of SQuAD; an
      answer is not at its answer_start; an id is repeated; a question has no answer.
  """
  questions: list[SquadQuestion] = []
  locations: dict[str, str] = {}  # id -> file and JSON path
  for source in sources:
    num_before, has_key = len(questions), False
    for location, paragraph, entry in _read_entries(source, _AnsweredEntry if with_answers else _QuestionEntry):
      question = _make_question(location, paragraph, entry, len(questions))
      if question.id in locations:
        raise UserError(
          f"{location}: id {question.id!r} is already used by {locations[question.id]}: give this question a different "
          "id"
        )
      locations[question.id] = location
      if isinstance(entry, _AnsweredEntry):
        _check_answer_is_stated(source, question, version_2=version_2)
        has_key = has_key or entry.is_impossible is not msgspec.UNSET
      questions.append(question)
    if with_answers and version_2 and not has_key and len(questions) > num_before:
      raise UserError(
        f"{source}: no question says is_impossible, so this is a SQuAD v1.1 file: leave out --version_2_with_negative, "
        "or give a v2.0 file"
      )
  if not questions:
    raise UserError(f"{', '.join(map(str, sources))}: no questions: give a file in the form of SQuAD that has some")
  return questions


class _AnswerEntry(msgspec.Struct):
  text: str
  answer_start: int


class _QuestionEntry(msgspec.Struct):
  """A question to predict. Its answers are not read."""

  id: str
  question: str


class _AnsweredEntry(_QuestionEntry):
  """A question to train on or to evaluate on."""

  answers: list[_AnswerEntry] | msgspec.UnsetType = msgspec.UNSET
  is_impossible: bool | msgspec.UnsetType = msgspec.UNSET


class _ParagraphEntry(msgspec.Struct, Generic[_EntryT]):
  context: str
  qas: list[_EntryT]


class _Article(msgspec.Struct, Generic[_EntryT]):
  paragraphs: list[_ParagraphEntry[_EntryT]]
  title: Any = ""


class _SquadFile(msgspec.Struct, Generic[_EntryT]):
  data: list[_Article[_EntryT]]


class _ParagraphOfRow(msgspec.Struct):
  """The keys of a row in memory that describe its paragraph. Its other keys are those of a question entry."""

  context: str
  title: Any = ""


def _read_entries(
  source: DataSource, entry_type: type[_QuestionEntry]
) -> Iterator[tuple[str, SquadParagraph, _QuestionEntry]]:
  """Yields for every question its location for error messages, its paragraph and its entry of a type."""
  if isinstance(source, Rows):
    for index, number in enumerate(source.row_numbers):
      location, row = source.location(index), source.values(index)
      of_row = json_values.convert(location, row, _ParagraphOfRow)
      entry = json_values.convert(location, {"id": str(number), **row}, entry_type)  # its number is the default id
      yield location, _make_paragraph(of_row.title, of_row.context), entry
    return
  file_type = _SquadFile[entry_type]  # type: ignore[valid-type]
  content: _SquadFile[_QuestionEntry] = files.read_json(source, file_type, _REMEDY)
  for i, article in enumerate(content.data):
    for j, paragraph_entry in enumerate(article.paragraphs):
      paragraph = _make_paragraph(article.title, paragraph_entry.context)
      for k, entry in enumerate(paragraph_entry.qas):
        yield f"{source}: $.data[{i}].paragraphs[{j}].qas[{k}]", paragraph, entry


def _make_paragraph(title: Any, context: str) -> SquadParagraph:
  return SquadParagraph(title if isinstance(title, str) else "", context)


def _make_question(location: str, paragraph: SquadParagraph, entry: _QuestionEntry, index: int) -> SquadQuestion:
  """Converts an entry of a file to a question, and checks its answers if they were read."""
  if not isinstance(entry, _AnsweredEntry):
    return SquadQuestion(entry.id, index, entry.question, paragraph)
  location = f"{location}, question {entry.id}"
  is_impossible = entry.is_impossible is True
  if isinstance(entry.answers, msgspec.UnsetType):
    raise UserError(f"{location} lacks 'answers': {_REMEDY}")
  if is_impossible and entry.answers:
    raise UserError(f"{location}: is_impossible is true, but it has answers: correct one of the two")
  answers = [
    _make_answer(f"{location}: answers[{n}]", paragraph.context, answer) for n, answer in enumerate(entry.answers)
  ]
  return SquadQuestion(entry.id, index, entry.question, paragraph, tuple(answers), is_impossible)


def _make_answer(location: str, context: str, entry: _AnswerEntry) -> SquadAnswer:
  """Converts an entry of a file to an answer, and checks that the context has its text at answer_start."""
  text, start = entry.text, entry.answer_start
  if not text.strip():
    raise UserError(f"{location}: the answer is empty: give its text, or leave it out and say is_impossible")
  text_at_start = context[start : start + len(text)] if start >= 0 else ""
  if text_at_start != text:
    offset = context.find(text)
    true_place = "which the paragraph does not have" if offset < 0 else f"which the paragraph has at {offset}"
    raise UserError(
      f"{location}: answer_start {start} (in characters, from 0) points at {format_value(text_at_start)}, but the "
      f"answer is {format_value(text)}, {true_place}"
    )
  return SquadAnswer(text, start)


def _check_answer_is_stated(source: DataSource, question: SquadQuestion, *, version_2: bool) -> None:
  """Checks that a question has an answer or, for SQuAD v2.0 only, that the file says it is unanswerable."""
  if question.is_impossible and not version_2:
    raise UserError(
      f"{source}: question {question.id} is unanswerable, so this is a SQuAD v2.0 file: give "
      "--version_2_with_negative, or a v1.1 file"
    )
  if not question.is_impossible and not question.answers:
    raise UserError(
      f"{source}: question {question.id} has no answer: training and evaluation need one"
      + (" (or is_impossible: true)" if version_2 else "")
    )
