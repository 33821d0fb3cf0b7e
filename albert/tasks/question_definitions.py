"""The Python API's tasks of questions: spans of a context, and options to choose from. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from albert.data.rows import ABSENT, Rows, TableData
from albert.errors import UserError
from albert.io.json_values import format_value
from albert.tasks.definitions import EVAL_SEED, EVAL_SHARE, TaskDefinition
from albert.tasks.splits import DEV, TEST, TRAIN

# Passes over the data and the share of warm-up steps, for data of any size. The recipes are for SQuAD and RACE.
_SHORT_RUN = {"num_train_epochs": 2.0, "warmup_proportion": 0.1}


class QuestionAnswering(TaskDefinition):
  """Answers questions with spans of a context, as in SQuAD.

  Data in memory has a question and a context in each row and, to train or to evaluate, answers: a text, or a list of
  texts, which are found in the context; or a list of dicts with text and answer_start. The forms
  {"text": [...], "answer_start": [...]} and {"data": [...]} of a whole file of SQuAD are accepted, too. An id, a title
  and is_impossible are optional.

  Args:
    train: data to train on: JSON files in the format of SQuAD (globs), or data in memory. None to use a trained model.
    eval: data to evaluate on, in the same forms. Without it, a share of train is held out if train is in memory.
    test: data for predict(), in the same forms; it needs no answers. predict(data) takes other data.
    version_2_with_negative: whether questions may be unanswerable: their answers are empty.
    eval_share: the share of train that is held out without eval. Questions about one context stay together. 0: none.
    eval_seed: seed of that choice.

  Raises:
    UserError: a row lacks a field, or its answer is not in the context; the message names the row.

  Example:
    >>> train = [
    ...   {"question": "Where do they drink?", "context": "They drink in the pub.", "answers": "the pub"},
    ...   {"question": "Who sleeps?", "context": "The dog sleeps at home.", "answers": "The dog"},
    ... ]
    >>> task = albert.tasks.QuestionAnswering(train=train, eval_share=0)
  """

  task_name = "squad"
  default_settings: ClassVar[Mapping[str, Any]] = _SHORT_RUN

  def __init__(
    self,
    train: TableData | None = None,
    *,
    eval: TableData | None = None,
    test: TableData | None = None,
    version_2_with_negative: bool = False,
    eval_share: float = EVAL_SHARE,
    eval_seed: int = EVAL_SEED,
  ):
    super().__init__()
    self.settings["version_2_with_negative"] = version_2_with_negative
    optional = ["id", "title", "is_impossible"]
    for split, data in ((TRAIN, train), (DEV, eval)):
      self._add(split, flat_squad(data), ["question", "context", "answers"], optional)
      if split in self.rows:
        self.rows[split] = _with_answers(self.rows[split], version_2_with_negative)
    self._add(TEST, flat_squad(test), ["question", "context"], ["id", "title"])
    if eval is None:
      self._hold_out_groups("context", eval_share, eval_seed)


def flat_squad(data: TableData | None) -> TableData | None:
  """Converts {"data": [...]}, the content of a file of SQuAD, to a list of dicts, one for each question.

  Args:
    data: the content of a file, or data in another form, which is returned unchanged.
  Raises:
    UserError: an article or a paragraph lacks a part.
  """
  if not isinstance(data, Mapping) or "data" not in data:
    return data
  try:
    return [
      {"title": article.get("title", ""), "context": paragraph["context"], **question}
      for article in data["data"]
      for paragraph in article["paragraphs"]
      for question in paragraph["qas"]
    ]
  except (KeyError, TypeError, AttributeError) as error:
    raise UserError(f"an article or a paragraph lacks {error}: give data in the form of SQuAD") from error


def _with_answers(rows: Rows, may_be_impossible: bool) -> Rows:
  """Converts the answers of each row to a list of dicts with text and answer_start."""
  contexts = rows.columns["context"]
  answers = [_answers(rows, i, answer, contexts[i]) for i, answer in enumerate(rows.columns["answers"])]
  columns = {**rows.columns, "answers": answers}
  if may_be_impossible:
    given = rows.columns.get("is_impossible", [ABSENT] * len(rows))
    columns["is_impossible"] = [
      not found if value in (ABSENT, None) else value for value, found in zip(given, answers, strict=True)
    ]
  return Rows(rows.name, columns, rows.numbers, rows.unit)


def _answers(rows: Rows, index: int, value: Any, context: Any) -> list[Any]:
  if isinstance(value, dict):
    texts, starts = value.get("text"), value.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
      raise UserError(f"{rows.location(index)}: answers {format_value(value)}: give lists of text and answer_start")
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
  listed = value if isinstance(value, list) else [] if value in (None, "") else [value]
  return [_answer(rows, index, answer, context) for answer in listed]


def _answer(rows: Rows, index: int, answer: Any, context: Any) -> Any:
  if not isinstance(answer, str):
    return answer
  start = context.find(answer) if isinstance(context, str) else -1
  if start < 0:
    raise UserError(f"{rows.location(index)}: the context does not have the answer {format_value(answer)}")
  return {"text": answer, "answer_start": start}


class MultipleChoice(TaskDefinition):
  """Chooses one of several options for each question about an article, as in RACE.

  Data in memory has an article, a question and a list of options in each row and, to train or to evaluate, an answer: a
  letter from A, or the index of the option from 0. A "_" in the question is replaced by the option. An id is optional.

  Args:
    train: data to train on: a file of JSON lines, a folder such as RACE/train, or data in memory. None to use a trained
      model.
    eval: data to evaluate on, in the same forms. Without it, a share of train is held out if train is in memory.
    test: data for predict(), in the same forms; it needs no answers. predict(data) takes other data.
    eval_share: the share of train that is held out without eval. Questions about one article stay together. 0: none.
    eval_seed: seed of that choice.

  Raises:
    UserError: a row lacks a field; the message names the row. Other errors are reported by Estimator.

  Example:
    >>> train = [
    ...   {"article": "It rained.", "question": "It was _.", "options": ["wet", "dry"], "answer": "A"},
    ...   {"article": "The sun shone.", "question": "It was _.", "options": ["wet", "dry"], "answer": 1},
    ... ]
    >>> task = albert.tasks.MultipleChoice(train=train, eval_share=0)
  """

  task_name = "race"
  default_settings: ClassVar[Mapping[str, Any]] = {**_SHORT_RUN, "eval_every_steps": 0, "select_checkpoint": "newest"}

  def __init__(
    self,
    train: TableData | None = None,
    *,
    eval: TableData | None = None,
    test: TableData | None = None,
    eval_share: float = EVAL_SHARE,
    eval_seed: int = EVAL_SEED,
  ):
    super().__init__()
    fields = ["article", "question", "options"]
    self._add(TRAIN, train, [*fields, "answer"], ["id"])
    self._add(DEV, eval, [*fields, "answer"], ["id"])
    self._add(TEST, test, fields, ["id"])
    if eval is None:
      self._hold_out_groups("article", eval_share, eval_seed)
