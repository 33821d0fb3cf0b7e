"""The tasks of the Python API: what is learned, from which data. The model is chosen later. Needs no TensorFlow.

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
from albert.data.rows import Rows, TableData, is_path, rows_of
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.tasks.answers import ClassAnswer, LabelsAnswer
from albert.tasks.glue.files import find_labels
from albert.tasks.glue.flags import format_class_weights, format_columns, format_labels, parse_labels
from albert.tasks.glue.specs import CUSTOM, canonical_name
from albert.tasks.splits import DEV, EVAL_SEED, EVAL_SHARE, FILE_FIELDS, TEST, TRAIN, hold_out

# Split -> the constructor's argument for its data.
_ARGUMENT_NAMES = {TRAIN: "train", DEV: "eval", TEST: "test"}


class TaskDefinition(abc.ABC):
  """A task and its data. Estimator adds the model and the settings of the training.

  Attributes:
    task_name: the name of the task in albert.tasks.registry.TASKS.
    default_settings: the values of settings that the Estimator is not given, for a new run. They replace values of the
      recipe.
    file_fields: split ("train", "dev" or "test") -> the field of the task's config that names its file.
    settings: field of the task's config -> its value, for the fields that the definition sets.
    rows: split -> its rows, if they are in memory.
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
    """Converts the labels in answers to the type that they have in the training data."""
    return answers

  def _add_data(
    self, split: str, data: TableData | None, required: Sequence[str], optional: Sequence[str] = ()
  ) -> None:
    """Adds the data of a split: a path to `settings`, or data in memory to `rows`. None adds nothing."""
    if data is None:
      return
    if is_path(data):
      self.settings[self.file_fields[split]] = existing_file(data, _ARGUMENT_NAMES[split])
    else:
      self.rows[split] = rows_of(data, _ARGUMENT_NAMES[split], required, optional)

  def _hold_out_groups(self, column: str, share: float, seed: int) -> None:
    """Moves a share of the training rows in memory to DEV. Rows with the same value in a column stay together."""
    if TRAIN in self.rows and share:
      rows = self.rows[TRAIN]
      groups = [str(value) for value in rows.columns[column]]
      self.rows[TRAIN], self.rows[DEV] = hold_out(rows, share, seed, groups=groups)


def existing_file(path: TableData, name: str) -> str:
  """Returns an absolute path. Raises UserError if there is no such file; the message calls it `name`."""
  text = os.fspath(path)
  if not files.exists(text):
    raise UserError(f"{name}={text}: no such file; give data in memory as a list, a dict of columns or a frame")
  return files.absolute(str(text))


class _TextDefinition(TaskDefinition):
  """The base class of classification and regression of texts."""

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
    text_columns = [text] if isinstance(text, str) else list(text)
    id_columns = [id] if id else []
    labeled_columns = [*text_columns, label, *id_columns]
    for name in labeled_columns:
      if not isinstance(name, str) or name != name.strip() or not name:
        raise UserError(f"the column {name!r} is empty, has spaces at its ends, or is not a text: rename it")
    self.settings |= {
      "task_name": CUSTOM,
      "text_columns": format_columns(text_columns),
      "label_column": label,
      "id_column": id,
    }
    self._label_column = label
    self._add_data(TRAIN, train, labeled_columns)
    self._add_data(DEV, eval, labeled_columns)
    self._add_data(TEST, test, text_columns, id_columns)
    if train is not None and eval is None and eval_share:
      if not 0 < eval_share < 1:
        raise UserError(f"eval_share={eval_share}: give a share between 0 and 1, or 0 to train on all rows")
      self.settings |= {"eval_share": float(eval_share), "eval_seed": eval_seed}

  def has(self, split: str) -> bool:
    """Whether the definition gives data for a split, or holds out a share of train for it."""
    return super().has(split) or (split == DEV and "eval_share" in self.settings)


class Classification(_TextDefinition):
  """Classifies texts or pairs of texts into two or more classes.

  Args:
    train: data to train on: the path of a TSV, CSV, JSONL or Parquet file, or data in memory. None if nothing is
      trained.
    eval: data to evaluate on, in the same forms. If it is not given, a share of train is held out.
    test: the data that predict() without an argument predicts, in the same forms. It needs no labels.
    text: the column of the text, or the two columns of a pair.
    label: the column of the label: texts, whole numbers or bools.
    id: the column of ids for predictions files; "" to number the rows from 0.
    labels: all labels; by default those in train, sorted.
    multi_label: whether a row may have several labels, or none. Its label is then a list, or a text with a separator;
      if `labels` is given, also a list of 0 and 1 for each of them.
    label_separator: separates the labels in a text.
    class_weights: the weights of the labels in the training loss: "balanced", or label -> weight. Labels without an
      entry have weight 1.
    eval_share: the share of train that is held out if eval is not given; 0 for none. The labels have about the same
      shares in it as in train, and rows with the same text stay together. eval_split.json in output_dir lists the rows.
    eval_seed: seed of the choice of the held-out rows.

  Raises:
    UserError: a column is missing, or a label cannot be used; the message names the row and the column. Files are read
      when the Estimator is made.

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
    multi_label: bool = False,
    label_separator: str = ",",
    class_weights: str | Mapping[Any, float] = "",
    eval_share: float = EVAL_SHARE,
    eval_seed: int = EVAL_SEED,
  ):
    super().__init__(
      train, eval=eval, test=test, text=text, label=label, id=id, eval_share=eval_share, eval_seed=eval_seed
    )
    if multi_label:
      self.settings |= {"multi_label": True, "label_separator": label_separator}
    for split in (TRAIN, DEV):
      if split in self.rows and not multi_label:
        self.rows[split] = self._with_integer_labels(self.rows[split])
    self._label_values: dict[str, Any] = {}  # the text of a label -> the label with its own type
    if TRAIN in self.rows:
      fields = self.rows[TRAIN].columns[label]
      self._label_values = {_label_text(value): value for field in fields for value in _values_of(field)}
    if labels is not None:
      self._label_values |= {_label_text(value): value for value in labels}
      self.settings["labels"] = format_labels([_label_text(value) for value in labels])
      parse_labels(self.settings["labels"])  # raises an error if they are not possible
    elif TRAIN in self.rows:  # the labels of a file are found when it is read
      separator = label_separator if multi_label else ""
      table = tables.read_table(self.rows[TRAIN], [label], list_columns={label: separator} if separator else {})
      self.settings["labels"] = format_labels(find_labels(table, label, separator))
    if class_weights:
      if not isinstance(class_weights, str):
        class_weights = {_label_text(name): weight for name, weight in class_weights.items()}
      self.settings["class_weights"] = format_class_weights(class_weights)

  def _with_integer_labels(self, rows: Rows) -> Rows:
    """Converts labels such as 1.0 to integers. pandas converts a column of integers to floats if a value is missing."""
    labels = list(rows.columns[self._label_column])
    for index, value in enumerate(labels):
      if isinstance(value, float):
        if not value.is_integer():
          raise UserError(
            f"{rows.location(index)}: {self._label_column} {value:g} is not a class: use albert.tasks.Regression to "
            "predict numbers"
          )
        labels[index] = int(value)
    return dataclasses.replace(rows, columns={**rows.columns, self._label_column: labels})

  def convert_answers(self, answers: list[Any]) -> list[Any]:
    """Converts the labels in answers to the type that they have in the training data."""
    converted_answers: list[Any] = []
    for answer in answers:
      if isinstance(answer, LabelsAnswer):
        labels = [self._label_values.get(text, text) for text in answer.labels]
        numbers = [
          {self._label_values.get(text, text): number for text, number in numbers.items()}
          for numbers in (answer.probabilities, answer.thresholds)
        ]
        converted_answers.append(LabelsAnswer(labels, *numbers))
        continue
      label = self._label_values.get(answer.label, answer.label)
      probabilities = {
        self._label_values.get(text, text): probability for text, probability in answer.probabilities.items()
      }
      converted_answers.append(ClassAnswer(label, answer.probability, probabilities))
    return converted_answers


def _values_of(field: Any) -> Sequence[Any]:
  """The labels of a row: the elements of a list, or the field itself."""
  return field if isinstance(field, list) else [field]


def _label_text(value: Any) -> str:
  """Returns the text of a label in predictions files."""
  if isinstance(value, bool):
    return "true" if value else "false"
  return str(value).strip()


class Regression(_TextDefinition):
  """Predicts a number for each text or pair of texts.

  Args:
    train: data to train on: the path of a TSV, CSV, JSONL or Parquet file, or data in memory. None if nothing is
      trained.
    eval: data to evaluate on, in the same forms. If it is not given, a share of train is held out.
    test: the data that predict() without an argument predicts, in the same forms. It needs no labels.
    text: the column of the text, or the two columns of a pair.
    label: the column of the number.
    id: the column of ids for predictions files; "" to number the rows from 0.
    eval_share: the share of train that is held out if eval is not given; 0 for none. The numbers have about the same
      distribution in it as in train, and rows with the same text stay together. eval_split.json in output_dir lists the
      rows.
    eval_seed: seed of the choice of the held-out rows.

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


class Glue(TaskDefinition):
  """A task of GLUE. Its data is in the files of GLUE's archives.

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
    """Whether the split is the training set, and data_dir is given. The files of other splits are found later."""
    return split == TRAIN and bool(self.settings["data_dir"])


class Pretraining(TaskDefinition):
  """Pretrains on TFRecord shards: masked LM, and sentence order or next sentence.

  Args:
    train: shards that data_prep wrote: paths or glob patterns, separated by commas. None if nothing is trained.
    eval: shards of held-out documents. They are not taken from train.
    test: the text file that predict() without an argument predicts. Its lines contain [MASK].

  Raises:
    UserError: an argument is not a path.

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
        raise UserError(f"{_ARGUMENT_NAMES[split]}: pretraining reads files: give their paths, separated by commas")
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
