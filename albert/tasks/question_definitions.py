"""The tasks of the Python API that answer questions: with a span of a text, or with one of several options.

Importing this module does not import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from albert.data.rows import ABSENT, Rows, TableData
from albert.errors import UserError
from albert.io.text import format_value
from albert.tasks.definitions import TaskDefinition
from albert.tasks.splits import DEV, EVAL_SEED, EVAL_SHARE, TEST, TRAIN

# The recipes give numbers of steps, which are right for the sizes of SQuAD and RACE only. These settings depend on the
# size of the data instead.
_RELATIVE_LENGTHS = {"num_train_epochs": 2.0, "warmup_proportion": 0.1}


class QuestionAnswering(TaskDefinition):
  """Answers questions with spans of a context, as in SQuAD.

  Each row of data in memory has the columns question and context; for training and evaluation also answers. An entry of
  the column answers is a text or a list of texts, whose first occurrence in the context is used; or a list of dicts
  with text and answer_start; or {"text": [...], "answer_start": [...]}. The columns id, title and is_impossible are
  optional. The content of a whole file of SQuAD, {"data": [...]}, is accepted, too.

  Args:
    train: data to train on: JSON files in the format of SQuAD (globs), or data in memory. None if nothing is
      trained.
    eval: data to evaluate on, in the same forms. If it is not given and train is in memory, a share of train is held
      out.
    test: the data that predict() without an argument predicts, in the same forms. It needs no answers.
    version_2_with_negative: whether questions may be unanswerable. Such a question has no answers.
    eval_share: the share of train that is held out if eval is not given; 0 for none. Questions about one context stay
      together.
    eval_seed: seed of the choice of the held-out rows.

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
  default_settings: ClassVar[Mapping[str, Any]] = _RELATIVE_LENGTHS

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
      self._add_data(split, flat_squad(data), ["question", "context", "answers"], optional)
      if split in self.rows:
        self.rows[split] = _with_answers(self.rows[split], version_2_with_negative)
    self._add_data(TEST, flat_squad(test), ["question", "context"], ["id", "title"])
    if eval is None:
      self._hold_out_groups("context", eval_share, eval_seed)


def flat_squad(data: TableData | None) -> TableData | None:
  """Converts {"data": [...]}, the content of a file of SQuAD, to a list of dicts, one for each question.

  Args:
    data: the content of a file, or data in another form, which is returned unchanged.
  Raises:
    UserError: an article or a paragraph lacks a key.
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


def _with_answers(rows: Rows, version_2: bool) -> Rows:
  """Converts the answers of each row to a list of dicts with text and answer_start.

  For SQuAD v2.0, rows without is_impossible get it: True if the row has no answers.
  """
  contexts = rows.columns["context"]
  answers = [_convert_answers(rows, i, value, contexts[i]) for i, value in enumerate(rows.columns["answers"])]
  columns = {**rows.columns, "answers": answers}
  if version_2:
    is_impossible = list(rows.columns.get("is_impossible", [ABSENT] * len(rows)))
    for index, value in enumerate(is_impossible):
      if value in (ABSENT, None):
        is_impossible[index] = not answers[index]
    columns["is_impossible"] = is_impossible
  return Rows(rows.name, columns, rows.row_numbers, rows.unit)


def _convert_answers(rows: Rows, index: int, value: Any, context: Any) -> list[Any]:
  """Converts the value of the column "answers" in row `index` to a list of dicts with text and answer_start."""
  if isinstance(value, dict):
    texts, starts = value.get("text"), value.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
      raise UserError(f"{rows.location(index)}: answers {format_value(value)}: give lists of text and answer_start")
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
  if value in (None, ""):
    return []
  answers = value if isinstance(value, list) else [value]
  return [_convert_answer(rows, index, answer, context) for answer in answers]


def _convert_answer(rows: Rows, index: int, answer: Any, context: Any) -> Any:
  """Converts a text to a dict with text and answer_start. Any other value is returned unchanged, and checked later."""
  if not isinstance(answer, str):
    return answer
  start = context.find(answer) if isinstance(context, str) else -1
  if start < 0:
    raise UserError(f"{rows.location(index)}: the context does not have the answer {format_value(answer)}")
  return {"text": answer, "answer_start": start}


class MultipleChoice(TaskDefinition):
  """Chooses one of several options for each question about an article, as in RACE.

  Each row of data in memory has the columns article, question and options (a list of texts); for training and
  evaluation also answer: a letter (A is the first option), or the index of the option from 0. If the question contains
  "_", the options are inserted there. The column id is optional.

  Args:
    train: data to train on: a file of JSON lines, a folder such as RACE/train, or data in memory. None if nothing is
      trained.
    eval: data to evaluate on, in the same forms. If it is not given and train is in memory, a share of train is held
      out.
    test: the data that predict() without an argument predicts, in the same forms. It needs no answers.
    eval_share: the share of train that is held out if eval is not given; 0 for none. Questions about one article stay
      together.
    eval_seed: seed of the choice of the held-out rows.

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
  default_settings: ClassVar[Mapping[str, Any]] = {
    **_RELATIVE_LENGTHS,
    "eval_every_steps": 0,
    "select_checkpoint": "newest",
  }

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
    self._add_data(TRAIN, train, [*fields, "answer"], ["id"])
    self._add_data(DEV, eval, [*fields, "answer"], ["id"])
    self._add_data(TEST, test, fields, ["id"])
    if eval is None:
      self._hold_out_groups("article", eval_share, eval_seed)
