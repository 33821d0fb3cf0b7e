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
from albert.io.progress import log
from albert.io.text import counted, format_value
from albert.tasks.finetuning import FinetuningData
from albert.tasks.race.flags import RaceConfig
from albert.tasks.splits import FILE_FIELDS, TEST

LEVELS = ("middle", "high")
# The index of an answer that is not known.
UNKNOWN_ANSWER = -1
# An id of RACE: high19432.txt-0, or high/asc00000.txt-0.
_ID_WITH_LEVEL = re.compile(rf"({'|'.join(LEVELS)})(\d+\.txt-\d+$|/.)")
_NUMBERED_FILE = re.compile(r"\d+\.txt")
# The ends of messages about lines and files that lack a key, or have a value of another type.
_ENTRY_REMEDY = "a question is an object with article, question, options (a list of texts) and answer (such as A)"
_PASSAGE_REMEDY = "a passage is an object with article, questions, options (lists of texts) and answers, one on a line"


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
    if paths.endswith((".csv", ".tsv")):
      raise UserError(f"{flag}={paths}: a table: give JSON lines of questions, or a folder such as RACE/train")
    if paths:
      return find_passages(paths, flag) if files.is_dir(paths) else files.expand_globs(paths, flag=flag)
    if not self.config.data_dir:
      raise UserError(f"{flag} or --data_dir is missing: the {split} set, or the folder RACE that has one")
    return find_passages(split_folder(self.config.data_dir, split), "--data_dir")

  def read_split(self, split: str) -> Sequence[ChoiceQuestion]:
    """Reads the questions of a split, with their answers except for the test set."""
    questions = read_questions(self.sources(split), with_answers=split != TEST)
    if empty := [question.id for question in questions if not all(map(str.strip, question.options))]:
      number = f"{counted(len(empty), 'question')} of {len(questions):,}"
      log(f"warning: {self.source_names(split)}: {number} with an empty option: fill it in, as in {empty[0]}")
    return questions


def find_passages(folder: str, flag: str) -> list[str]:
  """Finds the files of passages in a folder such as RACE/train.

  Args:
    folder: the folder.
    flag: the flag that names it, for the error.
  Raises:
    UserError: there are no such files.
  """
  for layout in (files.join("*", "*.txt"), "*.txt"):
    with contextlib.suppress(files.NoMatchError):
      return files.expand_globs([files.join(folder, layout)], flag=flag)
  remedy = "a folder like RACE/dev"
  if flag == "--data_dir":
    remedy = "the folder that holds train, dev and test" + ", or no --do_predict" * folder.endswith(TEST)
  problem = "holds neither middle/*.txt and high/*.txt nor *.txt" if files.is_dir(folder) else "does not exist"
  raise UserError(f"{flag}: {folder} {problem}: give {remedy}")


def split_folder(data_dir: str, split: str) -> str:
  """Returns the folder of a split. `data_dir` is the folder RACE or, as in the original code, the one that has it."""
  folder = files.join(data_dir, split)
  folder_in_race = files.join(data_dir, "RACE", split)
  return folder_in_race if not files.is_dir(folder) and files.is_dir(folder_in_race) else folder


def read_questions(sources: Sequence[DataSource], *, with_answers: bool) -> list[ChoiceQuestion]:
  """Reads all questions of the files, or of rows in memory, in order.

  A file of RACE (*.txt) holds one passage as a JSON object, or one passage on each line (all.txt). Its answers are
  letters. Any other file holds a question on each line, as a JSON object with the keys article, question, options and,
  if they are known, answer (a letter, the option's text or its index from 0) and id. Rows in memory have the same keys.

  Args:
    sources: paths of files, or rows in memory.
    with_answers: whether the answers are read and required, for training and evaluation.
  Raises:
    UserError: the text is not JSON, lacks a field, has fewer than two options or an answer that is not one of them, or
      an id occurs twice. The message names the file and the line or question.
  """
  questions: list[ChoiceQuestion] = []
  seen: dict[str, str] = {}  # id -> file and line
  for source in sources:
    is_passages = isinstance(source, str) and source.endswith(".txt")
    entries = _read_passages(str(source), with_answers) if is_passages else _read_entries(source)
    for location, unanswered, answer in entries:
      # A number in RACE's files is refused, because RACE does not say whether it would count from 0 or from 1.
      question = _set_answer(location, unanswered, answer, not is_passages) if with_answers else unanswered
      if question.id in seen:
        raise UserError(f"{location}: id {question.id!r} is already used by {seen[question.id]}: change or remove one")
      seen[question.id] = location
      questions.append(question)
  return questions


class _Passage(msgspec.Struct):
  """A passage of RACE's folders."""

  article: str
  questions: list[str]
  options: list[list[str]]
  answers: list[Any] | None = None
  id: str = ""


class _Entry(msgspec.Struct):
  """A question on a line of JSON, or in a row in memory."""

  article: str
  question: str
  options: list[str]
  answer: Any = None
  id: str = ""


def _read_entries(source: DataSource) -> Iterator[tuple[str, ChoiceQuestion, Any]]:
  """Yields the location, the content and the answer of each question of a JSON file, or of rows in memory."""
  prefix = "" if isinstance(source, Rows) else f"{os.path.basename(source)}-"
  for location, number, values in tables.read_objects(source):
    entry = json_values.convert(location, values, _Entry, _ENTRY_REMEDY)
    question = _make_question(location, entry.id or f"{prefix}{number}", entry.article, entry.question, entry.options)
    yield location, question, entry.answer


def _read_passages(path: str, with_answers: bool) -> Iterator[tuple[str, ChoiceQuestion, Any]]:
  """Yields the location, the content and, if it is read, the answer of each question of a .txt file."""
  for location, passage_id, passage in _parse_passages(path):
    texts, option_lists = passage.questions, passage.options
    answers = passage.answers if with_answers and passage.answers is not None else [None] * len(texts)
    if not len(texts) == len(option_lists) == len(answers):
      raise UserError(
        f"{location}: {len(texts)} questions, {len(option_lists)} lists of options and {len(answers)} answers"
      )
    for index, (text, options, answer) in enumerate(zip(texts, option_lists, answers, strict=True)):
      of_question = f"{location}: question {index + 1}"
      yield of_question, _make_question(of_question, f"{passage_id}-{index}", passage.article, text, options), answer


def _parse_passages(path: str) -> Iterator[tuple[str, str, _Passage]]:
  """Yields the location (file and line), the id and the content of each passage of a .txt file."""
  folder, name = os.path.basename(os.path.dirname(path)), os.path.basename(path)
  content = files.read(path)
  lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
  if len(lines) < 2 or not lines[0][1].rstrip().endswith(b"}"):
    lines = [(0, content)]  # a single passage, whose JSON may take several lines
  for number, text in lines:
    location = f"{path}, line {number}" if number else path
    passage = json_values.parse(location, text.rstrip(), _Passage, _PASSAGE_REMEDY)
    if not number and name != "all.txt":  # in the original's download, all.txt has all passages of its folder
      passage_id = _passage_id(folder, name)
    else:
      passage_id = passage.id or f"{name}-{max(number, 1)}"
      if folder in LEVELS:  # RACE's ids begin with the level: high19432.txt
        passage_id = _passage_id(folder, passage_id.removeprefix(folder))
    yield location, passage_id, passage


def _passage_id(folder: str, name: str) -> str:
  """Returns the id as RACE spells it, such as high19432.txt. A slash precedes a file name that is not a number."""
  return f"{folder}/{name}" if folder in LEVELS and not _NUMBERED_FILE.fullmatch(name) else f"{folder}{name}"


def _make_question(location: str, question_id: str, article: str, text: str, options: Sequence[str]) -> ChoiceQuestion:
  """Makes a question without its answer."""
  if len(options) < 2:
    raise UserError(f"{location}: {counted(len(options), 'option')}: give two or more")
  question_id = question_id.strip()  # ids are also stripped when a predictions file is read
  if not question_id:
    raise UserError(f"{location}: 'id' is empty: give each question an id, or leave out all ids")
  tables.check_name(location, "id", question_id)
  return ChoiceQuestion(question_id, article, text, tuple(options))


def _set_answer(location: str, question: ChoiceQuestion, answer: Any, may_be_number: bool) -> ChoiceQuestion:
  """Returns the question with its answer. In files of RACE it is a letter; else also the option's text or number."""
  names = [option_name(index) for index in range(len(question.options))]
  if answer in names:
    return dataclasses.replace(question, answer=names.index(answer))
  answer = question.options.index(answer) if may_be_number and answer in question.options else answer
  if may_be_number and type(answer) is int and 0 <= answer < len(names):
    return dataclasses.replace(question, answer=answer)
  raise UserError(
    f"{location}: answer {format_value(answer)} is not one of the options, which are A to {names[-1]}: give its letter"
    f"{', its text, or its number from 0 without quotes' * may_be_number}; only --predict_file needs no answers"
  )
