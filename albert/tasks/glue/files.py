"""The files of a classification or regression task: where they are, and their rows, which are read once.

Reading checks the files. A command does it before TensorFlow is imported, so that a mistake is reported at once.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from albert.data.rows import DataSource, Rows
from albert.data.tables import Table
from albert.errors import UserError
from albert.io import files
from albert.tasks.glue.config import RANKING, ClassifierConfig
from albert.tasks.glue.data import TextRows, find_file, find_labels, make_spec, read_text_table, rows_of_table
from albert.tasks.glue.labels import format_labels
from albert.tasks.glue.own_data.eval_share import divide
from albert.tasks.glue.specs import CUSTOM, FileFormat, Submission, TaskSpec
from albert.tasks.splits import DEV, FILE_FIELDS, TEST, TRAIN


class SplitRows(NamedTuple):
  """The rows of a split, and the table that they were made of, which has their line numbers."""

  rows: TextRows
  table: Table


class TextData:
  """The data of a task: its splits, and their rows. Needs no TensorFlow.

  Files of a custom task are read here if the command needs them. Those of GLUE are large and published, so it is only
  checked here that they exist; they are read when `rows` is called. Each split is read once.

  Args:
    config: the flags.
    train, evaluate, predict: what the command does.

  Attributes:
    config: the flags, with the labels of the task.
    spec: the task. If no flag gives its labels, they are those of the training file.
    formats: split -> layout of its file.
    submissions: test split -> the file for gluebenchmark.com with its predictions.
    evaluation_splits: the splits to evaluate on.
    splits: split -> its rows, as far as they were read.

  Raises:
    UserError: the task is unknown; flags do not fit together; a flag or a file is missing; or a file cannot be used.
  """

  formats: Mapping[str, FileFormat]
  submissions: Mapping[str, Submission]
  evaluation_splits: tuple[str, ...]

  def __init__(
    self, config: ClassifierConfig, *, train: bool = False, evaluate: bool = False, predict: bool = False
  ) -> None:
    self.config = config
    self.spec = make_spec(config)
    self.splits: dict[str, SplitRows] = {}
    self._memory: dict[str, Rows] = {}  # split -> its rows in memory
    self._training_table: Table | None = None  # the training file, if it was read for its labels
    self._set_layout()
    splits = self._splits_of_command(train=train, evaluate=evaluate, predict=predict)
    for split in splits:
      self.find(split)
    if self.spec.name == CUSTOM and not self.spec.labels and not config.regression:
      self._training_table = read_text_table(config.train_file, self.formats[TRAIN], self.spec)
      labels = find_labels(self._training_table, config.label_column, self.spec.label_separator)
      self.spec = make_spec(config, labels)
    self.config = _with_labels(config, self.spec)
    for split in splits if self.spec.name == CUSTOM else ():
      self.rows(split)

  def _set_layout(self) -> None:
    """Decides the splits of the task and the layouts of their files."""
    spec, config = self.spec, self.config
    dev_formats: Mapping[str, FileFormat | None] = spec.dev
    if config.eval_file:
      # The file replaces all development sets (MNLI has two), and has the layout of the first one.
      dev_formats = {DEV: next(iter(spec.dev.values()), spec.train)}
    self.submissions = self._choose_submissions()
    test_formats = {split: submission.test_file for split, submission in self.submissions.items()}
    all_formats = {TRAIN: spec.train, **dev_formats, **test_formats}
    self.formats = {split: file for split, file in all_formats.items() if file}
    self.evaluation_splits = tuple(split for split in dev_formats if split in self.formats)

  def _choose_submissions(self) -> Mapping[str, Submission]:
    """Returns split -> test set to predict. --predict_file, or rows in memory, replace all test sets of the task.

    If the task has several test sets, it is not known which of them --predict_file is. Then no file for
    gluebenchmark.com is written.
    """
    first = next(iter(self.spec.submissions.values()))
    if TEST in self._memory:  # rows to predict need no ids
      id_column = self.config.id_column if self.config.id_column in self._memory[TEST].columns else ""
      file_format = FileFormat("", (), first.test_file.texts, id=id_column, allows_empty_texts=True)
      return {TEST: Submission("", file_format)}
    if not self.config.predict_file:
      return self.spec.submissions
    return {TEST: Submission(first.name if len(self.spec.submissions) == 1 else "", first.test_file)}

  def _splits_of_command(self, *, train: bool, evaluate: bool, predict: bool) -> list[str]:
    splits = [TRAIN] if train else []
    if evaluate:
      self.check_can_evaluate()
      splits += self.evaluation_splits
    return splits + (self.prediction_splits() if predict else [])

  def prediction_splits(self) -> list[str]:
    """Returns the test sets, without an optional one whose file does not exist."""
    return [
      split for split, submission in self.submissions.items() if not submission.is_optional or self.has_file(split)
    ]

  def check_can_evaluate(self) -> None:
    """Raises UserError if the task has no split to evaluate on."""
    if not self.evaluation_splits:
      raise UserError(f"{self.spec.name} has no labels to evaluate with: give --do_predict")

  def is_divided(self, split: str) -> bool:
    """Whether the split is a part of the training data, because of --eval_share."""
    return bool(self.config.eval_share) and split in (TRAIN, DEV)

  def splits_with_data_of(self, split: str) -> Collection[str]:
    """Returns the splits that are made from the data of a split: both parts of divided training data, or itself."""
    return (TRAIN, DEV) if self.is_divided(split) else (split,)

  def find(self, split: str) -> str:
    """Returns the path of a split's file: the one that a flag gives, or else the task's file in data_dir.

    Raises:
      UserError: the task does not have this split, a flag is missing, or there is no such file.
    """
    spec = self.spec
    if split == DEV and self.config.eval_share:
      return self.find(TRAIN)
    if split not in self.formats:
      # Only the diagnostic set AX lacks splits.
      raise UserError(f"{spec.name} has no {split} set; it is for --do_predict with a model of {spec.model_of}")
    flags = {TRAIN: "train_file"} | dict.fromkeys(self.submissions, "predict_file")
    flag = flags.get(split, "eval_file")
    path: str = getattr(self.config, flag)
    if not path:
      return self._find_in_data_dir(split, flag)
    if not files.exists(path):
      raise UserError(f"--{flag}={path}: no such file")
    return path

  def _find_in_data_dir(self, split: str, flag: str) -> str:
    """Returns the path of a split's file in data_dir. `flag` is the flag that could name it instead, for errors."""
    config, spec = self.config, self.spec
    if spec.name == CUSTOM:
      advice = "; or give --eval_share=0.1 to hold out a tenth of --train_file" if split == DEV else ""
      raise UserError(f"--{flag} is missing: the {split} set of a custom task{advice}")
    if not config.data_dir:
      raise UserError(f"--data_dir is missing: the folder of {spec.name}'s files (or give --{flag})")
    folder, name = self._folder(split), self.formats[split].name
    path = find_file(config.data_dir, folder, name)
    if path is None:
      raise UserError(
        f"--data_dir={config.data_dir}: neither {files.join(config.data_dir, folder, name)} nor "
        f"{files.join(config.data_dir, name)} exists: give the folder of {spec.name}, or --{flag}"
      )
    return path

  def _folder(self, split: str) -> str:
    submission = self.submissions.get(split)
    return (submission.folder if submission else "") or self.spec.folder

  def has_file(self, split: str) -> bool:
    """Whether a split's file is in data_dir."""
    return find_file(self.config.data_dir, self._folder(split), self.formats[split].name) is not None

  def sources(self, split: str) -> Sequence[DataSource]:
    """Returns the file of a split, or its rows in memory; with --eval_share those of the training data.

    With --formulation=ranking, the training file follows if it exists: its sentences are candidates, too.
    """
    split = TRAIN if self.is_divided(split) else split
    sources = [self._memory[split] if split in self._memory else self.find(split)]
    if self.config.formulation == RANKING and split != TRAIN:
      name = self.formats[TRAIN].name
      train_file = self.config.train_file or find_file(self.config.data_dir, self.spec.folder, name)
      sources += [train_file] if train_file and files.exists(train_file) else []
    return sources

  def rows(self, split: str) -> SplitRows:
    """Returns the rows of a split, which are read when this is first called.

    Raises:
      UserError: see `find`, read_text_table, rows_of_table and divide. The message names the file and the line.
    """
    if split not in self.splits:
      source, divides = self.sources(split)[0], self.is_divided(split)
      file_format = self.formats[TRAIN if divides else split]
      if self._training_table is not None and (divides or split == TRAIN):
        table, self._training_table = self._training_table, None
      else:
        table = read_text_table(source, file_format, self.spec)
      read = SplitRows(rows_of_table(table, file_format, self.spec), table)
      parts = divide(*read, self.spec, self.config.eval_share, self.config.eval_seed) if divides else {split: read}
      self.splits |= {name: SplitRows(*part) for name, part in parts.items()}
    return self.splits[split]

  def with_source(self, split: str, source: DataSource) -> TextData:
    """Returns a copy that has other data for a split, and keeps what was read for the others.

    Args:
      split: "train", "dev" or "test".
      source: the path of a file, or rows in memory. Rows to predict need no ids.
    """
    data = copy.copy(self)
    dropped = self.splits_with_data_of(split)
    data.splits = {name: rows for name, rows in self.splits.items() if name not in dropped}
    if split == TRAIN:
      data._training_table = None
    data._memory = {name: rows for name, rows in self._memory.items() if name != split}
    if isinstance(source, Rows):
      data._memory[split] = source
    else:
      changes: dict[str, Any] = {FILE_FIELDS[split]: source}
      data.config = dataclasses.replace(data.config, **changes)
    if split == DEV:  # the task has a development set now, so nothing is held out
      data.config = dataclasses.replace(data.config, eval_share=0.0)
    data._set_layout()
    return data


def _with_labels(config: ClassifierConfig, spec: TaskSpec) -> ClassifierConfig:
  """Returns the flags with the name, the labels and the positive label that a run records."""
  config = dataclasses.replace(config, task_name=spec.name, labels=format_labels(spec.labels))
  if spec.positive_metrics:
    config = dataclasses.replace(config, positive_label=spec.labels[spec.positive_class])
  return config
