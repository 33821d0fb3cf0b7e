"""The questions about paragraphs that a task reads, once. Needs no TensorFlow.

A file has the format of SQuAD v1.1 or v2.0; or it has rows, one for each question, as the library datasets writes them:

    {"id": "1", "title": "", "context": "A b.", "question": "What?", "answers": {"text": ["b"], "answer_start": [2]}}

Rows are JSON lines, Parquet, or a JSON list.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from albert.data.rows import PARQUET_EXTENSION, DataSource, Rows, parquet_column_names, read_parquet
from albert.data.tables import read_objects
from albert.errors import UserError
from albert.io import files, json_text, json_values
from albert.io.text import format_value
from albert.tasks.finetuning import FinetuningData
from albert.tasks.splits import DEV, FILE_FIELDS, TEST
from albert.tasks.squad.flags import NUM_SPECIAL_TOKENS, SquadConfig
from albert.tokenization.packing import window_starts

SQUAD_REMEDY = "give data in the form of SQuAD, or rows as JSON lines or Parquet"
# The columns of rows.
_COLUMNS = ("id", "title", "context", "question", "answers", "is_impossible")
# The beginning of a file with an object on each line, unlike SQuAD's files.
_JSON_LINES = re.compile(rb'\s*\{[^\n]*\}[ \t\r]*\n\s*\{|\s*\{\s*"(?:id|title|context|question)"[^\n]*\}\s*$')


class SquadAnswer(msgspec.Struct, frozen=True):
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
    answers: the answers in the file, in order; () if they were not read, or if the question is unanswerable.
  """

  id: str
  index: int
  text: str
  paragraph: SquadParagraph
  answers: tuple[SquadAnswer, ...] = ()


class SquadData(FinetuningData):
  """The questions of each split."""

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

  def count_windows(self, rows: Sequence[SquadQuestion]) -> Sequence[int]:
    """Returns the number of windows of each question."""
    config, counts = self.config, []
    for question in rows:
      query, text = self.tokenizer.encode_batch([question.text, question.paragraph.context])
      room = config.max_seq_length - min(len(query), config.max_query_length) - NUM_SPECIAL_TOKENS
      counts.append(len(window_starts(len(text), room, config.doc_stride)))
    return counts

  def read_split(self, split: str) -> Sequence[SquadQuestion]:
    """Reads the questions of a split, see read_questions; those of the test set without answers."""
    version_2 = self.config.version_2_with_negative
    return read_questions(self.sources(split), version_2=version_2, with_answers=split != TEST)


def read_questions(sources: Sequence[DataSource], *, version_2: bool, with_answers: bool) -> list[SquadQuestion]:
  """Reads all questions of the files, or of rows in memory, in order.

  Args:
    sources: files, or rows in memory with question, context and, if they are known, answers, id, title and
      is_impossible.
    version_2: whether the files belong to SQuAD v2.0, where a question may be unanswerable.
    with_answers: whether answers are read, for training and evaluation. To predict, the files need none.
  Raises:
    UserError: one of these mistakes is in a file: it is not JSON (the message gives line and column); it has another
      format (the message gives the JSON path or the line); it belongs to the other version of SQuAD; an answer is not
      at its answer_start, or has none and does not stand exactly once in its paragraph; an id is repeated; a question
      has no answer.
  """
  questions: list[SquadQuestion] = []
  seen: dict[str, str] = {}  # id -> file and JSON path
  for source in sources:
    num_before, has_key = len(questions), False
    for location, paragraph, values in _read_entries(source):
      if with_answers and isinstance(values.get("answers"), dict):
        values["answers"] = answer_list(location, values["answers"])
        if not values["answers"]:  # datasets has no is_impossible
          values.setdefault("is_impossible", True)
      if with_answers and "answers" not in values:
        remedy = "add them, or predict with --predict_file and --do_predict alone"
        raise UserError(f"{location}: lacks 'answers': {remedy}")
      entry = json_values.convert(location, values, _AnsweredEntry if with_answers else _QuestionEntry, SQUAD_REMEDY)
      question_id = str(entry.id)
      if question_id in seen:
        raise UserError(f"{location}: id {question_id!r} is already used by {seen[question_id]}: change or remove one")
      seen[question_id] = location
      answers: tuple[SquadAnswer, ...] = ()
      if isinstance(entry, _AnsweredEntry):
        answers = _find_answers(location, paragraph.context, entry, version_2)
        has_key = has_key or "is_impossible" in values
      questions.append(SquadQuestion(question_id, len(questions), entry.question, paragraph, answers))
    if with_answers and version_2 and not has_key and len(questions) > num_before:
      raise UserError(
        f"{source}: no question says is_impossible, as in SQuAD v1.1: leave out --version_2_with_negative, or give v2.0"
      )
  return questions


class _QuestionEntry(msgspec.Struct):
  """A question to predict. Its answers are not read."""

  id: str | int
  question: str


class _AnswerEntry(msgspec.Struct):
  text: str
  answer_start: int | None = None


class _AnsweredEntry(_QuestionEntry):
  """A question to train on or to evaluate on."""

  answers: list[_AnswerEntry]
  is_impossible: bool = False


class _ParagraphOfRow(msgspec.Struct):
  """The keys of a row that describe its paragraph. Its other keys are those of a question entry."""

  context: str
  title: Any = ""


class _ParagraphEntry(msgspec.Struct):
  context: str
  qas: list[dict[str, Any]]


class _Article(msgspec.Struct):
  paragraphs: list[_ParagraphEntry]
  title: Any = ""


class SquadFile(msgspec.Struct):
  """The content of a file of SQuAD."""

  data: list[_Article]


def _read_entries(source: DataSource) -> Iterator[tuple[str, SquadParagraph, dict[str, Any]]]:
  """Yields for every question its location for error messages, its paragraph and its other values."""
  rows: Iterable[tuple[str, int, dict[str, Any]]] = ()  # the location, the number and the values of each row
  articles: list[_Article] = []
  if isinstance(source, str) and source.lower().endswith(PARQUET_EXTENSION):
    existing = parquet_column_names(source)
    source = read_parquet(source, [name for name in _COLUMNS if name in existing])
  if isinstance(source, Rows) or (data := _read_json(source)) is None:
    rows = read_objects(source)
  else:
    content = json_text.decode(source, data, SQUAD_REMEDY)
    is_list = isinstance(content, list)
    if is_list and all(isinstance(row, dict) and "context" in row for row in content):
      rows = ((f"{source}: $[{i}]", i, row) for i, row in enumerate(content))
    else:
      articles = json_values.convert(source, {"data": content} if is_list else content, SquadFile, SQUAD_REMEDY).data
  for location, number, values in rows:
    of_row = json_values.convert(location, values, _ParagraphOfRow, "a row has context, question and answers")
    yield location, _make_paragraph(of_row.title, of_row.context), {"id": number, **values}
  for i, article in enumerate(articles):
    for j, of_article in enumerate(article.paragraphs):
      paragraph = _make_paragraph(article.title, of_article.context)
      for k, values in enumerate(of_article.qas):
        yield f"{source}: $.data[{i}].paragraphs[{j}].qas[{k}]", paragraph, values


def _read_json(path: str) -> bytes | None:
  """Returns the content of a JSON file; None if it has an object on each line."""
  if path.endswith((".jsonl", ".ndjson")):
    return None
  data = files.read(path)
  return None if _JSON_LINES.match(data) else data


def _make_paragraph(title: Any, context: str) -> SquadParagraph:
  return SquadParagraph(title if isinstance(title, str) else "", context)


def answer_list(location: str, answers: dict[str, Any]) -> list[dict[str, Any]]:
  """Converts {"text": [...], "answer_start": [...]} to a list of objects. Raises UserError if the lists do not fit."""
  texts = answers.get("text")
  starts = answers.get("answer_start", [None] * len(texts) if isinstance(texts, list) else None)
  if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
    raise UserError(f"{location}: answers {format_value(answers)}: give lists of text and answer_start")
  return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _find_answers(location: str, context: str, entry: _AnsweredEntry, version_2: bool) -> tuple[SquadAnswer, ...]:
  """Finds the answers in the context; for SQuAD v2.0 there are none if the file says is_impossible."""
  location = f"{location}, question {entry.id}"
  if entry.is_impossible and entry.answers:
    raise UserError(f"{location}: is_impossible is true, but it has answers: correct one of the two")
  if entry.is_impossible and not version_2:
    raise UserError(f"{location} is unanswerable, as in a SQuAD v2.0 file: give --version_2_with_negative to train")
  if not entry.is_impossible and not entry.answers:
    note = " (or is_impossible: true)" if version_2 else ""
    raise UserError(f"{location} has no answer: training and evaluation need one{note}")
  answers: list[SquadAnswer] = []
  for number, answer in enumerate(entry.answers):
    text, start = answer.text, answer.answer_start
    if not text.strip():
      raise UserError(f"{location}: answers[{number}]: the answer is empty: give its text, or leave it out")
    if start is None:
      start = context.find(text)
      if start < 0 or context.find(text, start + 1) >= 0:
        problem = "does not have" if start < 0 else "has several times"
        raise UserError(
          f"{location}: answers[{number}]: no answer_start for {format_value(text)}, which the paragraph {problem}: "
          f"{'correct the text' if start < 0 else 'give answer_start'}"
        )
    text_at_start = context[start : start + len(text)] if start >= 0 else ""
    if text_at_start != text:
      offsets = [match.start() for match in re.finditer(re.escape(text), context)]
      nearest = min(offsets, key=lambda offset: abs(offset - start), default=0)
      place = f"has at {nearest}" if offsets else "does not have"
      raise UserError(
        f"{location}: answers[{number}]: answer_start {start} (in characters, from 0) points at "
        f"{format_value(text_at_start)}, but the answer is {format_value(text)}, which the paragraph {place}"
      )
    answers.append(SquadAnswer(text, start))
  return tuple(answers)
