"""The files of multiple-choice questions about articles: RACE's folders (Lai et al. 2017), or JSON lines.

Worker processes import this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from albert.data import tables
from albert.data.rows import DataSource, Rows
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.files import NoMatchError, expand_globs
from albert.io.text import check_first_line, format_value
from albert.tasks.finetuning import FinetuningData
from albert.tasks.race.flags import RaceConfig
from albert.tasks.splits import FILE_FIELDS, TEST

LEVELS = ("middle", "high")
# The index of an answer that is not known.
UNKNOWN_ANSWER = -1
_BOM = b"\xef\xbb\xbf"
# In the original's download, this file has the passages of a folder, one on each line.
_ALL_PASSAGES_FILE = "all.txt"
# An id of RACE: high19432.txt-0, or high/asc00000.txt-0.
_ID_WITH_LEVEL = re.compile(rf"({'|'.join(LEVELS)})(\d+\.txt-\d+$|/.)")
_NUMBERED_FILE = re.compile(r"\d+\.txt")
_REMEDY = "training and evaluation need the answers; --predict_file takes questions without"


@dataclasses.dataclass(frozen=True)
class ChoiceQuestion:
  """A question with its options.

  Attributes:
    id: the id. For RACE's folders it consists of the level, the file name and the number of the question:
      high19432.txt-0, or high/asc00000.txt-0 if the name of the file is not a number.
    article: the article, which several questions may share.
    text: the question. It may contain "_", for which an option is inserted.
    options: the texts of two or more options.
    answer: index of the correct option, from 0; UNKNOWN_ANSWER (-1) if it is not known.
  """

  id: str
  article: str
  text: str
  options: tuple[str, ...]
  answer: int = UNKNOWN_ANSWER


def level_of(question_id: str) -> str:
  """Returns the level of a RACE question, "middle" or "high", with which its id begins; "" for other questions."""
  match = _ID_WITH_LEVEL.match(question_id)
  return match[1] if match else ""


def option_name(index: int) -> str:
  """Returns the name of an option: A to Z for the indices 0 to 25, then 27, 28 and so on."""
  return chr(ord("A") + index) if index < 26 else str(index + 1)


class RaceData(FinetuningData):
  """The questions of each split."""

  config: RaceConfig

  def find(self, split: str) -> Sequence[DataSource]:
    """Returns the files of a split: those that a flag gives (a file, or a folder of passages), or those in data_dir."""
    flag, paths = f"--{FILE_FIELDS[split]}", getattr(self.config, FILE_FIELDS[split])
    if paths:
      return find_passages(paths, flag) if files.is_dir(paths) else expand_globs(paths, flag=flag)
    if not self.config.data_dir:
      raise UserError(f"--data_dir is missing: the folder RACE with its {split} set (or give {flag})")
    return find_passages(split_folder(self.config.data_dir, split), "--data_dir")

  def read_split(self, split: str) -> Sequence[ChoiceQuestion]:
    """Reads the questions of a split, with their answers except for the test set."""
    return read_questions(self.sources(split), with_answers=split != TEST)


def find_passages(folder: str, flag: str) -> list[str]:
  """Finds the files of passages in a folder such as RACE/train.

  Args:
    folder: the folder.
    flag: the flag that names it, for the error.
  Raises:
    UserError: there are no such files.
  """
  for layout in (files.join("*", "*.txt"), "*.txt"):
    with contextlib.suppress(NoMatchError):
      return expand_globs([files.join(folder, layout)], flag=flag)
  raise UserError(
    f"{flag}: {folder} holds neither middle/*.txt and high/*.txt nor *.txt: give a folder with the layout of RACE"
  )


def split_folder(data_dir: str, split: str) -> str:
  """Returns the folder of a split. `data_dir` is the folder RACE or, as in the original code, the one that has it."""
  folder = files.join(data_dir, split)
  folder_in_race = files.join(data_dir, "RACE", split)
  return folder_in_race if not files.is_dir(folder) and files.is_dir(folder_in_race) else folder


def read_questions(sources: Sequence[DataSource], *, with_answers: bool) -> list[ChoiceQuestion]:
  """Reads all questions of the files, or of rows in memory, in order.

  A file of RACE (*.txt) holds one passage as a JSON object, or one passage on each line (all.txt). Its answers are
  letters. Any other file holds a question on each line, as a JSON object with the keys article, question, options and,
  if they are known, answer (a letter, or the index of the option from 0) and id. Rows in memory have the same keys.

  Args:
    sources: paths of files, or rows in memory.
    with_answers: whether the answers are read and required, for training and evaluation.
  Raises:
    UserError: the text is not JSON, lacks a field, has fewer than two options or an answer that is not one of them, or
      an id occurs twice. The message names the file and the line or question.
  """
  questions: list[ChoiceQuestion] = []
  ids: dict[str, str] = {}
  for source in sources:
    for location, question in _read_source(source, with_answers):
      if question.id in ids:
        raise UserError(
          f"{location}: id {question.id!r} is already used by {ids[question.id]}: remove one of the two if they are "
          "the same question, otherwise give this one a different id"
        )
      ids[question.id] = location
      questions.append(question)
  return questions


def _read_source(source: DataSource, with_answers: bool) -> Iterator[tuple[str, ChoiceQuestion]]:
  """Yields each question with its location, which error messages name."""
  if isinstance(source, Rows):
    return _read_rows(source, with_answers)
  if source.endswith(".txt"):
    return _read_passages(source, with_answers)
  return _read_json_lines(source, with_answers)


def _read_rows(rows: Rows, with_answers: bool) -> Iterator[tuple[str, ChoiceQuestion]]:
  for index, number in enumerate(rows.row_numbers):
    location = rows.location(index)
    row = json_values.convert(location, rows.values(index), _JsonLine)
    yield location, _make_question_of_line(location, row, str(number), with_answers)


def _read_passages(path: str, with_answers: bool) -> Iterator[tuple[str, ChoiceQuestion]]:
  for location, passage_id, passage in _parse_passages(path):
    texts, option_lists = passage.questions, passage.options
    answers = _answers_of_passage(location, passage) if with_answers else [None] * len(texts)
    if not len(texts) == len(option_lists) == len(answers):
      raise UserError(
        f"{location}: {len(texts)} questions, {len(option_lists)} lists of options and {len(answers)} answers: give "
        "one of each"
      )
    for index, (text, options, answer) in enumerate(zip(texts, option_lists, answers, strict=True)):
      question_location = f"{location}: question {index + 1}"
      question = _make_question(question_location, f"{passage_id}-{index}", passage.article, text, options)
      if with_answers:
        # A number is refused, because RACE does not say whether it would count from 0 or from 1.
        answer_index = UNKNOWN_ANSWER if isinstance(answer, int) else _answer_index(answer, question.options)
        question = _set_answer(question_location, question, answer, answer_index)
      yield question_location, question


def _answers_of_passage(location: str, passage: _Passage) -> list[Any]:
  """Returns the answers of a passage. Raises UserError if it has no list of answers."""
  if passage.answers is msgspec.UNSET:
    raise UserError(f"{location} lacks 'answers': {_REMEDY}")
  if not isinstance(passage.answers, list):
    raise UserError(f"{location} 'answers' must be a list, it is {format_value(passage.answers)}: {_REMEDY}")
  return passage.answers


class _Passage(msgspec.Struct):
  """A passage of RACE's folders. The type of its answers is checked only if they are needed."""

  article: str
  questions: list[str]
  options: list[list[str]]
  answers: Any = msgspec.UNSET
  id: str | msgspec.UnsetType = msgspec.UNSET


class _JsonLine(msgspec.Struct):
  """A question on a line of JSON, or in a row in memory."""

  article: str
  question: str
  options: list[str]
  answer: Any = msgspec.UNSET
  id: str | msgspec.UnsetType = msgspec.UNSET


def _parse_passages(path: str) -> Iterator[tuple[str, str, _Passage]]:
  """Yields the location (file and line), the id and the content of each passage of a .txt file."""
  folder, name = os.path.basename(os.path.dirname(path)), os.path.basename(path)
  with files.open_file(path) as file:
    content = file.read().removeprefix(_BOM)
  if _is_json_object(content) and name != _ALL_PASSAGES_FILE:
    yield path, _passage_id(folder, name), json_values.parse(path, content, _Passage)
    return
  for number, line in _split_passages(path, content):
    location = f"{path}, line {number}"
    passage = json_values.parse(location, line.rstrip(), _Passage)
    line_id = f"{name}-{number}" if isinstance(passage.id, msgspec.UnsetType) else passage.id
    if folder in LEVELS:
      # RACE's ids begin with the level: high19432.txt.
      line_id = _passage_id(folder, line_id.removeprefix(folder))
    yield location, line_id, passage


def _split_passages(path: str, content: bytes) -> list[tuple[int, bytes]]:
  """Splits a file with a passage on each line. Returns the number of each line, from 1, and its content."""
  lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
  if _is_json_object(content):  # a single passage, whose JSON may take several lines
    first_number, _ = lines[0]
    return [(first_number, content)]
  if len(lines) < 2 or not _is_json_object(lines[0][1]):
    json_values.parse(path, content, dict[str, Any])  # raises an error that names the line and the column
  return lines


def _is_json_object(content: bytes) -> bool:
  try:
    json_values.parse("", content, dict[str, Any])
  except UserError:
    return False
  return True


def _passage_id(folder: str, name: str) -> str:
  """Returns the id as RACE spells it, such as high19432.txt. A slash precedes a file name that is not a number."""
  return f"{folder}/{name}" if folder in LEVELS and not _NUMBERED_FILE.fullmatch(name) else f"{folder}{name}"


def _read_json_lines(path: str, with_answers: bool) -> Iterator[tuple[str, ChoiceQuestion]]:
  with files.open_file(path) as file:
    content = file.read()
  check_first_line(path, content[: content.find(b"\n") + 1] or content)
  for number, line in enumerate(content.removeprefix(_BOM).split(b"\n"), start=1):
    if not line.strip():
      continue
    location = f"{path}, line {number}"
    json_line = json_values.parse(location, line.rstrip(), _JsonLine)
    yield location, _make_question_of_line(location, json_line, f"{os.path.basename(path)}-{number}", with_answers)


def _make_question_of_line(location: str, line: _JsonLine, default_id: str, with_answers: bool) -> ChoiceQuestion:
  """Makes the question of a line of JSON or of a row in memory. Its id is `default_id` if the line has no id."""
  question_id = default_id if isinstance(line.id, msgspec.UnsetType) else line.id
  question = _make_question(location, question_id, line.article, line.question, line.options)
  if not with_answers:
    return question
  if line.answer is msgspec.UNSET:
    raise UserError(f"{location} lacks 'answer': {_REMEDY}")
  return _set_answer(location, question, line.answer, _answer_index(line.answer, question.options))


def _make_question(location: str, question_id: str, article: str, text: str, options: Sequence[str]) -> ChoiceQuestion:
  """Makes a question without its answer."""
  if len(options) < 2:
    raise UserError(f"{location}: {len(options)} option(s): give two or more")
  question_id = question_id.strip()  # ids are also stripped when a predictions file is read
  if not question_id:
    raise UserError(f"{location}: 'id' is empty: give each question an id, or leave out all ids")
  tables.check_name(location, "id", question_id)
  return ChoiceQuestion(question_id, article, text, tuple(options))


def _answer_index(answer: Any, options: Sequence[str]) -> int:
  """Returns the index of the option that a letter or a number from 0 names; UNKNOWN_ANSWER if it names none."""
  if isinstance(answer, int) and not isinstance(answer, bool):
    return answer if 0 <= answer < len(options) else UNKNOWN_ANSWER
  names = [option_name(n) for n in range(len(options))]
  return names.index(answer) if isinstance(answer, str) and answer in names else UNKNOWN_ANSWER


def _set_answer(location: str, question: ChoiceQuestion, answer: Any, index: int) -> ChoiceQuestion:
  """Returns the question with its answer. `answer` is the value in the file, for the error message."""
  if index == UNKNOWN_ANSWER:
    last = option_name(len(question.options) - 1)
    raise UserError(
      f"{location}: answer {format_value(answer)} is not one of the options, which are A to {last}: {_REMEDY}"
    )
  return dataclasses.replace(question, answer=index)
