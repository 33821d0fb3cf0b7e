"""What to learn, and from which data: the tasks of the Python API, before a model is chosen. Needs no TensorFlow.

    task = albert.tasks.Classification(train=frame, text="comment", label="kind")
    estimator = albert.Estimator(task, init_checkpoint="downloads/albert_base")

Data is the path of a file, or data in memory: a pandas frame, a dict of columns, a list of dicts, or a list of tuples
(see albert.data.rows.rows_of). Errors about data in memory name the row, counted from 0, and the column.
"""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from albert.data import tables
from albert.data.rows import DataSource, Rows, TableData, is_path, rows_of
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.tasks.answers import ClassAnswer
from albert.tasks.glue.data import read_labels
from albert.tasks.glue.specs import CUSTOM, canonical_name, format_labels, parse_labels
from albert.tasks.splits import DEV, FILE_FIELDS, TEST, TRAIN, hold_out

# The share of the training data that is held out without eval, and the seed of the choice.
EVAL_SHARE, EVAL_SEED = 0.1, 12345
_PARAMETERS = {TRAIN: "train", DEV: "eval", TEST: "test"}


class TaskDefinition(abc.ABC):
  """A task and its data. Estimator adds the model and the settings of the training.

  Attributes:
    task_name: the name of the task in albert.tasks.registry.TASKS.
    default_settings: settings of a new run that replace those of the task's recipe, unless the Estimator gets others.
    file_fields: split ("train", "dev" or "test") -> the field of the task's config that names its file.
    settings: the fields of the task's config that the definition gives -> their values.
    rows: split -> the rows in memory.
  """

  task_name: str
  default_settings: ClassVar[Mapping[str, Any]] = {}
  file_fields: ClassVar[Mapping[str, str]] = FILE_FIELDS

  def __init__(self) -> None:
    self.settings: dict[str, Any] = {}
    self.rows: dict[str, Rows] = {}

  def has(self, split: str) -> bool:
    """Whether the definition gives data for a split."""
    return split in self.rows or bool(self.settings.get(self.file_fields[split]))

  def convert_answers(self, answers: list[Any]) -> list[Any]:
    """Gives the labels in answers the type that they have in the training data."""
    return answers

  def _add(self, split: str, data: TableData | None, required: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Adds the data of a split: the path of a file to settings, or data in memory to rows."""
    if data is None:
      return
    if is_path(data):
      self.settings[self.file_fields[split]] = existing_file(data, _PARAMETERS[split])
    else:
      self.rows[split] = rows_of(data, _PARAMETERS[split], required, optional)

  def _hold_out_groups(self, column: str, share: float, seed: int) -> None:
    """Moves a share of the training rows in memory to DEV. Rows with the same value in a column stay together."""
    if TRAIN in self.rows and share:
      rows = self.rows[TRAIN]
      groups = [str(value) for value in rows.columns[column]]
      self.rows[TRAIN], self.rows[DEV] = hold_out(rows, share, seed, groups=groups)


def existing_file(path: TableData, name: str) -> str:
  """Returns a path as a string. Raises UserError if there is no such file; `name` says what the path is."""
  text = os.fspath(path)
  if not files.exists(text):
    raise UserError(f"{name}={text}: no such file; give data in memory as a list, a dict of columns or a frame")
  return str(text)


class _TextDefinition(TaskDefinition):
  """The data that classification and regression share."""

  task_name = "classifier"

  def __init__(
    self,
    train: TableData | None,
    *,
    eval: TableData | None,
    test: TableData | None,
    text: str | Sequence[str],
    label: str,
    id: str,
    eval_share: float,
    eval_seed: int,
  ):
    super().__init__()
    texts = [text] if isinstance(text, str) else list(text)
    for name in (*texts, label, *([id] if id else [])):
      if not isinstance(name, str) or "," in name or name != name.strip() or not name:
        raise UserError(f"the column {name!r} has a comma, or spaces at its ends, or is not a text: rename it")
    self.settings |= {"task_name": CUSTOM, "text_columns": ",".join(texts), "label_column": label, "id_column": id}
    self._texts, self._label = texts, label
    ids = [id] if id else []
    labeled = [*texts, label, *ids]
    self._add(TRAIN, train, labeled)
    self._add(DEV, eval, labeled)
    self._add(TEST, test, texts, ids)
    self._training: DataSource | None = self.rows.get(TRAIN) or self.settings.get(FILE_FIELDS[TRAIN])
    if self._training is not None and eval is None and eval_share:
      rows = self._training if isinstance(self._training, Rows) else _read_file(self._training, labeled)
      self.rows[TRAIN], self.rows[DEV] = hold_out(rows, eval_share, eval_seed, order=self._order(rows))
      self._training = rows

  def _order(self, rows: Rows) -> Sequence[Any]:
    """By what the held-out rows are distributed: labels as text."""
    return [str(value) for value in rows.columns[self._label]]


def _read_file(path: str, names: Sequence[str]) -> Rows:
  table = tables.read_table(path, names)
  return Rows(path, table.columns, table.line_numbers, unit="line")


class Classification(_TextDefinition):
  """Classifies texts or pairs of texts into two or more classes.

  Args:
    train: data to train on: the path of a TSV, CSV or JSONL file, or data in memory. None to use a trained model.
    eval: data to evaluate on, in the same forms. Without it, a share of train is held out.
    test: data for predict(), in the same forms; it needs no labels. predict(data) takes other data.
    text: the column of the text, or the two columns of a pair.
    label: the column of the label: texts, whole numbers or bools.
    id: the column of ids for predictions files; "" to number the rows from 0.
    labels: all labels; by default those in train, sorted.
    eval_share: the share of train that is held out without eval, with about the same shares of labels; 0 for none.
    eval_seed: seed of that choice.

  Raises:
    UserError: a column is missing, or a label cannot be used; the message names the row and the column.

  Example:
    >>> data = {"comment": ["very good", "bad", "fine", "poor"], "kind": [1, 0, 1, 0]}
    >>> task = albert.tasks.Classification(train=data, text="comment", label="kind", eval_share=0.5)
  """

  def __init__(
    self,
    train: TableData | None = None,
    *,
    eval: TableData | None = None,
    test: TableData | None = None,
    text: str | Sequence[str] = "text",
    label: str = "label",
    id: str = "",
    labels: Sequence[Any] | None = None,
    eval_share: float = EVAL_SHARE,
    eval_seed: int = EVAL_SEED,
  ):
    super().__init__(
      train, eval=eval, test=test, text=text, label=label, id=id, eval_share=eval_share, eval_seed=eval_seed
    )
    for split in (TRAIN, DEV):
      if split in self.rows:
        self.rows[split] = self._with_whole_labels(self.rows[split])
    self._label_values: dict[str, Any] = {}
    if isinstance(self._training, Rows):
      self._training = self._with_whole_labels(self._training)
      self._label_values = {_label_text(value): value for value in self._training.columns[label]}
    if labels is not None:
      self._label_values |= {_label_text(value): value for value in labels}
      self.settings["labels"] = format_labels([_label_text(value) for value in labels])
      parse_labels(self.settings["labels"])
    elif self._training is not None:
      self.settings["labels"] = format_labels(read_labels(self._training, label))

  def _with_whole_labels(self, rows: Rows) -> Rows:
    """Converts labels such as 1.0, which a column of whole numbers with a gap has, to whole numbers."""
    labels = list(rows.columns[self._label])
    for index, value in enumerate(labels):
      if isinstance(value, float):
        if not value.is_integer():
          raise UserError(
            f"{rows.location(index)}: {self._label} {value:g} is not a class: use albert.tasks.Regression to predict "
            "numbers"
          )
        labels[index] = int(value)
    return dataclasses.replace(rows, columns={**rows.columns, self._label: labels})

  def convert_answers(self, answers: list[Any]) -> list[Any]:
    """Gives the labels in answers the type that they have in the training data."""
    values = self._label_values
    return [
      ClassAnswer(
        values.get(answer.label, answer.label),
        answer.probability,
        {values.get(label, label): probability for label, probability in answer.probabilities.items()},
      )
      for answer in answers
    ]


def _label_text(value: Any) -> str:
  """A label as predictions files write it."""
  return ("true" if value else "false") if isinstance(value, bool) else str(value).strip()


class Regression(_TextDefinition):
  """Predicts a number for each text or pair of texts.

  Args:
    train: data to train on: the path of a TSV, CSV or JSONL file, or data in memory. None to use a trained model.
    eval: data to evaluate on, in the same forms. Without it, a share of train is held out.
    test: data for predict(), in the same forms; it needs no labels. predict(data) takes other data.
    text: the column of the text, or the two columns of a pair.
    label: the column of the number.
    id: the column of ids for predictions files; "" to number the rows from 0.
    eval_share: the share of train that is held out without eval, spread over the numbers; 0 for none.
    eval_seed: seed of that choice.

  Raises:
    UserError: a column is missing, or a label is not a number; the message names the row and the column.

  Example:
    >>> pairs = [("A man plays.", "Someone plays.", 4.2), ("A dog runs.", "A cat sleeps.", 0.3)]
    >>> task = albert.tasks.Regression(train=pairs, text=("first", "second"), label="score", eval_share=0)
  """

  def __init__(
    self,
    train: TableData | None = None,
    *,
    eval: TableData | None = None,
    test: TableData | None = None,
    text: str | Sequence[str] = "text",
    label: str = "label",
    id: str = "",
    eval_share: float = EVAL_SHARE,
    eval_seed: int = EVAL_SEED,
  ):
    super().__init__(
      train, eval=eval, test=test, text=text, label=label, id=id, eval_share=eval_share, eval_seed=eval_seed
    )
    self.settings["regression"] = True

  def _order(self, rows: Rows) -> Sequence[Any]:
    return tables.read_table(rows, [self._label]).numbers(self._label).tolist()


class Glue(TaskDefinition):
  """A task of GLUE by its name, with its files.

  Args:
    name: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI or AX.
    data_dir: the folder that GLUE's archives were unpacked into, or the folder of the task.

  Raises:
    UserError: there is no such task.

  Example:
    >>> task = albert.tasks.Glue("MRPC", data_dir="glue_data")
  """

  task_name = "classifier"

  def __init__(self, name: str, data_dir: str | os.PathLike[str] = ""):
    super().__init__()
    task_name = canonical_name(name)
    if task_name == CUSTOM:
      raise UserError("Glue('custom'): use albert.tasks.Classification or albert.tasks.Regression for your own data")
    self.settings |= {"task_name": task_name, "data_dir": os.fspath(data_dir)}

  def has(self, split: str) -> bool:
    """Whether the training set is given. The other sets of data_dir are looked for when they are needed."""
    return split == TRAIN and bool(self.settings["data_dir"])


class Pretraining(TaskDefinition):
  """Pretrains on TFRecord shards: masked LM, and sentence order or next sentence.

  Args:
    train: shards that data_prep wrote: paths or glob patterns, separated by commas. None to use a trained model.
    eval: shards of held-out documents. No share of train is held out.
    test: a text file whose lines contain [MASK], for predict(). predict(data) takes a list of such texts.

  Raises:
    UserError: something else than paths is given.

  Example:
    >>> task = albert.tasks.Pretraining(train="shards/train-*.tfrecord", eval="shards/eval-*.tfrecord")
  """

  task_name = "pretraining"
  file_fields: ClassVar[Mapping[str, str]] = {TRAIN: "input_file", DEV: "eval_input_file", TEST: "predict_file"}

  def __init__(
    self,
    train: str | os.PathLike[str] | None = None,
    *,
    eval: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
  ):
    super().__init__()
    paths = {TRAIN: train, DEV: eval, TEST: test}
    for split, path in paths.items():
      if path is not None and not is_path(path):
        raise UserError(f"{_PARAMETERS[split]}: pretraining reads files: give their paths, separated by commas")
    self.settings |= {self.file_fields[split]: os.fspath(path) for split, path in paths.items() if path is not None}


class TaskOfRun(TaskDefinition):
  """The task of a finished run, with the settings and the files that the run recorded.

  Args:
    output_dir: the directory of the run.

  Raises:
    UserError: there is no run in the directory.
  """

  def __init__(self, output_dir: str | os.PathLike[str]):
    super().__init__()
    path = files.join(os.fspath(output_dir), output_files.CONFIG)
    if not files.exists(path):
      raise UserError(
        f"{os.fspath(output_dir)}: holds no run: give the output_dir of a run, which has {output_files.CONFIG}"
      )
    self.task_name = output_files.read_config(path).get("task", "")
    if not self.task_name:
      raise UserError(f"{path}: does not name the task of its run: give the output_dir of a run")
