"""Multiple-choice questions on articles, from RACE's folders (Lai et al. 2017) or JSON lines. No TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from albert.config.base import option
from albert.config.run import FinetuningConfig
from albert.data import tables
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.json_values import shown
from albert.io.text_encoding import check_first_line

LEVELS = ("middle", "high")
UNKNOWN = -1
_A = ord("A")
_BOM = b"\xef\xbb\xbf"
_ALL = "all.txt"
_find_level = re.compile(rf"({'|'.join(LEVELS)})(\d+\.txt-\d+$|/.)").match
_is_numbered = re.compile(r"\d+\.txt").fullmatch
_REMEDY = "training and evaluation need the answers; --predict_file takes questions without"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaceConfig(FinetuningConfig):
  """What run_race.py reads."""

  data_dir: str = option(
    "",
    "folder RACE (or the one that holds it), with {train,dev,test}/{middle,high}/*.txt",
    affects_training=False,
    resets=("train_file", "eval_file", "predict_file"),
  )
  train_file: str = option(
    "",
    "JSON lines (or a folder such as RACE/train) to train on, instead of those in data_dir",
    affects_training=False,
  )
  eval_file: str = option("", "the same to evaluate on", affects_training=False)
  predict_file: str = option("", "the same to predict; it needs no answers", affects_training=False)
  max_qa_length: int = option(128, "last tokens that are kept of question and option", minimum=1)


@dataclasses.dataclass(frozen=True)
class ChoiceQuestion:
  """A question with its options.

  Attributes:
    id: in RACE's folders level, file and number of the question, such as high19432.txt-0, or high/asc00000.txt-0
      where the file's name is not a number.
    article: shared by all questions on it.
    text: the question; "_" in it stands for the option.
    options: two or more.
    answer: place of the right option; -1 where it is not known.
  """

  id: str
  article: str
  text: str
  options: tuple[str, ...]
  answer: int = UNKNOWN


def level_of(question_id: str) -> str:
  """middle or high for a question of RACE's folders, else ""."""
  found = _find_level(question_id)
  return found[1] if found else ""


def option_name(place: int) -> str:
  """A to Z, then 27, 28, ..."""
  return chr(_A + place) if place < 26 else str(place + 1)


def passages_in(folder: str, flag: str) -> list[str]:
  """The files of passages in a folder such as RACE/train. UserError if there are none."""
  for layout in (files.join("*", "*.txt"), "*.txt"):
    pattern = files.join(folder, layout)
    try:
      return files.expand_globs(pattern, flag=flag)
    except UserError as error:
      if "matches no file" not in str(error):
        raise
  raise UserError(f"{flag}: {folder} holds neither middle/*.txt and high/*.txt nor *.txt: give a folder as of RACE")


def read_questions(paths: Sequence[str], *, with_answers: bool) -> list[ChoiceQuestion]:
  """All questions of the files, in order.

  Args:
    paths: passages of RACE (*.txt: one JSON object, or one on each line as in the original's all.txt; answers are
      letters), or JSON lines with article, question, options, and answer (a letter, or the option's place from 0)
      and id where there are such.
    with_answers: false to predict; answers are not read then.
  Raises:
    UserError: what is no JSON (with line and column), lacks a field, has fewer than two options or an answer
      that is none of them, an id that comes twice; each with file and place.
  """
  questions: list[ChoiceQuestion] = []
  ids: dict[str, str] = {}
  for path in paths:
    read = _passages if path.endswith(".txt") else _json_lines
    for where, question in read(path, with_answers):
      if question.id in ids:
        raise UserError(
          f"{where}: id {question.id!r} is that of {ids[question.id]} already: remove one of the two if they are the "
          "same question, else give it another id"
        )
      ids[question.id] = where
      questions.append(question)
  return questions


def _passages(path: str, with_answers: bool) -> Iterator[tuple[str, ChoiceQuestion]]:
  for where, passage_id, passage in _passage_objects(path):
    texts, options = passage.questions, passage.options
    answers = passage.answers if with_answers else [None] * len(texts)
    if not isinstance(answers, list):
      problem = "lacks 'answers'" if answers is msgspec.UNSET else f"'answers' must be a list, it is {shown(answers)}"
      raise UserError(f"{where} {problem}: {_REMEDY}")
    if not len(texts) == len(options) == len(answers):
      raise UserError(
        f"{where}: {len(texts)} questions, {len(options)} lists of options and {len(answers)} answers: give one of each"
      )
    for n, (text, choices, answer) in enumerate(zip(texts, options, answers, strict=True)):
      place = f"{where}: question {n + 1}"
      question = _question(place, f"{passage_id}-{n}", passage.article, text, choices)
      if with_answers:
        # A number is refused: nothing says whether RACE's first option would be 0 or 1.
        index = UNKNOWN if isinstance(answer, int) else _answer_index(answer, question.options)
        question = _with_answer(place, question, answer, index)
      yield place, question


class _Passage(msgspec.Struct):
  """A passage of RACE's folders. Its answers are only looked at where they are needed."""

  article: str
  questions: list[str]
  options: list[list[str]]
  answers: Any = msgspec.UNSET
  id: str | msgspec.UnsetType = msgspec.UNSET


class _JsonLine(msgspec.Struct):
  """A question in JSON lines."""

  article: str
  question: str
  options: list[str]
  answer: Any = msgspec.UNSET
  id: str | msgspec.UnsetType = msgspec.UNSET


def _passage_objects(path: str) -> Iterator[tuple[str, str, _Passage]]:
  """(file and line, id, passage) of each passage in a .txt file."""
  folder, name = os.path.basename(os.path.dirname(path)), os.path.basename(path)
  with files.open_file(path) as file:
    content = file.read().removeprefix(_BOM)
  lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
  is_one = _is_object(content)
  if not is_one and (len(lines) < 2 or not _is_object(lines[0][1])):
    json_values.parse(path, content, dict[str, Any])  # raises, with the line and the column
  if is_one and name != _ALL:
    yield path, _passage_id(folder, name), json_values.parse(path, content, _Passage)
    return
  for number, line in [(lines[0][0], content)] if is_one else lines:
    where = f"{path}, line {number}"
    passage = json_values.parse(where, line.rstrip(), _Passage)
    own = f"{name}-{number}" if isinstance(passage.id, msgspec.UnsetType) else passage.id
    # RACE's ids begin with the level: high19432.txt.
    yield where, _passage_id(folder, own.removeprefix(folder)) if folder in LEVELS else own, passage


def _is_object(content: bytes) -> bool:
  try:
    json_values.parse("", content, dict[str, Any])
  except UserError:
    return False
  return True


def _passage_id(folder: str, name: str) -> str:
  """high19432.txt as RACE writes it. Other names get a slash, so that level_of reads the level from the id alone."""
  return f"{folder}/{name}" if folder in LEVELS and not _is_numbered(name) else f"{folder}{name}"


def _json_lines(path: str, with_answers: bool) -> Iterator[tuple[str, ChoiceQuestion]]:
  with files.open_file(path) as file:
    content = file.read()
  check_first_line(path, content[: content.find(b"\n") + 1] or content)
  for number, line in enumerate(content.removeprefix(_BOM).split(b"\n"), start=1):
    if not line.strip():
      continue
    where = f"{path}, line {number}"
    found = json_values.parse(where, line.rstrip(), _JsonLine)
    identity = f"{os.path.basename(path)}-{number}" if isinstance(found.id, msgspec.UnsetType) else found.id
    question = _question(where, identity, found.article, found.question, found.options)
    if with_answers:
      if found.answer is msgspec.UNSET:
        raise UserError(f"{where} lacks 'answer': {_REMEDY}")
      question = _with_answer(where, question, found.answer, _answer_index(found.answer, question.options))
    yield where, question


def _question(where: str, identity: str, article: str, text: str, options: Sequence[str]) -> ChoiceQuestion:
  """A question without its answer."""
  if len(options) < 2:
    raise UserError(f"{where}: {len(options)} option(s): give two or more")
  identity = identity.strip()  # as it is read from a predictions file
  if not identity:
    raise UserError(f"{where}: 'id' is empty: give each question one, or none any")
  tables.check_name(where, "id", identity)
  return ChoiceQuestion(identity, article, text, tuple(options))


def _answer_index(answer: Any, options: Sequence[str]) -> int:
  """The place of the right option, given by its letter or its number from 0; UNKNOWN if it is none of them."""
  if isinstance(answer, int) and not isinstance(answer, bool):
    return answer if 0 <= answer < len(options) else UNKNOWN
  names = [option_name(n) for n in range(len(options))]
  return names.index(answer) if isinstance(answer, str) and answer in names else UNKNOWN


def _with_answer(where: str, question: ChoiceQuestion, answer: Any, index: int) -> ChoiceQuestion:
  if index == UNKNOWN:
    last = option_name(len(question.options) - 1)
    raise UserError(f"{where}: answer {shown(answer)} is none of the options, which are A to {last}: {_REMEDY}")
  return dataclasses.replace(question, answer=index)
