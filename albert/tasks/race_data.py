"""Multiple-choice questions on articles, from RACE's folders (Lai et al. 2017) or JSON lines. No TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from albert import files
from albert.config import FinetuningConfig, option
from albert.errors import UserError
from albert.json_values import field, parse_object, shown

LEVELS = ("middle", "high")
UNKNOWN = -1
_A = ord("A")
_find_level = re.compile(rf"({'|'.join(LEVELS)})\d+\.txt-\d+$").match


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaceConfig(FinetuningConfig):
  """What run_race.py reads."""

  data_dir: str = option("", "folder RACE, which holds {train,dev,test}/{middle,high}/*.txt")
  train_file: str = option("", "JSON lines (or a folder such as RACE/train) to train on, instead of those in data_dir")
  eval_file: str = option("", "the same to evaluate on", identity=False)
  predict_file: str = option("", "the same to predict; it needs no answers", identity=False)
  max_qa_length: int = option(128, "last tokens that are kept of question and option", minimum=1)


@dataclasses.dataclass(frozen=True)
class ChoiceQuestion:
  """A question with its options.

  Attributes:
    id: in RACE's folders level, file and number of the question, such as high19432.txt-0.
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
    paths: passages of RACE (*.txt, a JSON object each), or JSON lines with article, question, options, and
      answer (a letter, or the option's place from 0) and id where there are such.
    with_answers: false to predict; answers need not be there then.
  Raises:
    UserError: what is no JSON (with line and column), lacks a field, has fewer than two options or an answer
      that is none of them, an id that comes twice; each with file and place.
  """
  questions: list[ChoiceQuestion] = []
  ids: dict[str, str] = {}
  for path in paths:
    read = _passage if path.endswith(".txt") else _json_lines
    for where, question in read(path, with_answers):
      if question.id in ids:
        raise UserError(f"{where}: id {question.id!r} is that of {ids[question.id]} already: give it another")
      ids[question.id] = where
      questions.append(question)
  return questions


def _passage(path: str, with_answers: bool) -> Iterator[tuple[str, ChoiceQuestion]]:
  values = files.read_json(path)
  article = field(path, values, "article", str)
  texts, options = field(path, values, "questions", list), field(path, values, "options", list)
  answers = field(path, values, "answers", list) if with_answers or "answers" in values else [None] * len(texts)
  if not len(texts) == len(options) == len(answers):
    raise UserError(
      f"{path}: {len(texts)} questions, {len(options)} lists of options and {len(answers)} answers: give one of each"
    )
  folder, name = os.path.split(path)
  for n, (text, choices, answer) in enumerate(zip(texts, options, answers, strict=True)):
    where = f"{path}: question {n + 1}"
    identity = f"{os.path.basename(folder)}{name}-{n}"
    yield where, _question(where, identity, article, text, choices, answer if with_answers else None)


def _json_lines(path: str, with_answers: bool) -> Iterator[tuple[str, ChoiceQuestion]]:
  with files.open_file(path) as file:
    content = file.read()
  for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
    if not line.strip():
      continue
    where = f"{path}, line {number}"
    values = parse_object(where, line)
    article, text = field(where, values, "article", str), field(where, values, "question", str)
    identity = values.get("id", f"{os.path.basename(path)}-{number}")
    if not isinstance(identity, str):
      raise UserError(f"{where}: 'id' must be a text, it is {shown(identity)}")
    if with_answers and "answer" not in values:
      raise UserError(f"{where} lacks 'answer': training and evaluation need it")
    answer = values["answer"] if with_answers else None
    yield where, _question(where, identity, article, text, values.get("options"), answer)


def _question(where: str, identity: str, article: str, text: Any, options: Any, answer: Any) -> ChoiceQuestion:
  if not isinstance(text, str):
    raise UserError(f"{where}: the question must be a text, it is {shown(text)}")
  if not isinstance(options, list) or not all(isinstance(choice, str) for choice in options):
    raise UserError(f"{where}: the options must be a list of texts, they are {shown(options)}")
  if len(options) < 2:
    raise UserError(f"{where}: {len(options)} option(s): give two or more")
  place = UNKNOWN if answer is None else _place(where, answer, len(options))
  return ChoiceQuestion(identity, article, text, tuple(options), place)


def _place(where: str, answer: Any, num_options: int) -> int:
  """The place of the right option."""
  place = UNKNOWN
  if isinstance(answer, int) and not isinstance(answer, bool):
    place = answer
  elif isinstance(answer, str):
    names = [option_name(n) for n in range(num_options)]
    place = names.index(answer) if answer in names else UNKNOWN
  if not 0 <= place < num_options:
    last = option_name(num_options - 1)
    raise UserError(f"{where}: answer {shown(answer)} is none of the options, which are A to {last}")
  return place
