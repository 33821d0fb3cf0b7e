"""The files of a classification or regression task: where they are, and their rows, which are read once.

Reading checks the files. A command does it before TensorFlow is imported, so that a mistake is reported at once.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert.data import tables
from albert.data.rows import DataSource
from albert.data.tables import Table, label_matrix, rows_of_labels, split_labels
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import counted, join_names, label_name, quote_names
from albert.tasks.finetuning import FinetuningData
from albert.tasks.glue.flags import RANKING, ClassifierConfig, format_labels, make_class_weights
from albert.tasks.glue.specs import CUSTOM, FileFormat, TaskSpec, make_spec
from albert.tasks.splits import DEV, TEST, TRAIN, TextGroups

# Maximum number of candidates besides the row's own sentence; the rest is left out. The published files have one.
_MAX_OTHER_CANDIDATES = 7
# More labels than this, if they are whole numbers and do not count from 0 or 1, are probably numbers to predict.
_MAX_NUMBERED_CLASSES = 10
_MAX_SHOWN_PAIRS, _MAX_SHOWN_LABELS = 3, 20
# Separators that labels are searched for without --multi_label.
_USUAL_SEPARATORS = (",", ";", "|")
_NO_TABLE = Table("", {}, ())
# Columns by which the files of some tasks are recognized, whose texts are in the same columns as those of other tasks.
_COLUMNS_OF_TASKS = {"old_index": "STS-B", "promptID": "MNLI", "question": "QNLI"}


@dataclasses.dataclass(frozen=True)
class TextRows:
  """N rows. They are stored by column, because worker processes get chunks of rows, and columns are pickled faster.

  Attributes:
    ids: the ids of the rows.
    texts: the columns of texts: one, or two for pairs.
    labels: classes, int32 [N]; several labels, 0 or 1, int32 [N, C]; or the numbers of a regression, float32 [N]. Zeros
      if the file has no labels.
    candidates: for --formulation=ranking, the other sentences of each row's question (see with_candidates).
    table: the table that the rows were made of, with their line numbers; a chunk has none.
  """

  ids: Sequence[str]
  texts: Sequence[Sequence[str]]
  labels: np.ndarray
  candidates: Sequence[Sequence[str]] = ()
  table: Table = _NO_TABLE

  def __len__(self) -> int:
    return len(self.ids)

  def select(self, indices: Sequence[int]) -> TextRows:
    """Returns some of the rows, in the order of the indices. They keep their ids and line numbers."""
    ids, *texts = ([column[i] for i in indices] for column in (self.ids, *self.texts))
    return TextRows(ids, texts, self.labels[np.asarray(indices, np.int64)], table=self.table.select(indices))

  def __getitem__(self, part: slice) -> TextRows:
    texts = [column[part] for column in self.texts]
    return TextRows(self.ids[part], texts, self.labels[part], self.candidates[part])


class TextData(FinetuningData):
  """The data of a task: its splits, their rows, and its labels.

  Args:
    config: the flags.

  Attributes:
    config: the flags, with the name and the labels of the task.
    spec: the task. If no flag gives its labels, it has them after find_labels.
    formats: split -> layout of its file.
    test_splits: the test sets, also those without a file.
    evaluation_splits: the splits to evaluate on.
    undivided: all rows of the training data; only set if a part of it is held out, after it was read.

  Raises:
    UserError: the task is unknown, or flags do not fit together.
  """

  config: ClassifierConfig

  def __init__(self, config: ClassifierConfig):
    super().__init__(config)
    self._has_logged = False  # whether the training data was described
    self.undivided: TextRows
    self._num_duplicates: int | None = None  # rows of the development set that are in the training set, too; if counted
    self._set_spec(config)

  def _set_spec(self, config: ClassifierConfig) -> None:
    """Takes the task that the flags describe. A run records its name, its labels and its positive label."""
    self.spec = spec = make_spec(config)
    positive: dict[str, Any] = {"positive_label": spec.labels[spec.positive_class]} if spec.positive_metrics else {}
    self.config = dataclasses.replace(
      config, task_name=spec.name, labels=format_labels(spec.labels), multi_label=bool(spec.label_separator), **positive
    )
    self._set_layout()

  def _set_layout(self) -> None:
    """Decides the splits of the task and the layouts of their files."""
    spec, config = self.spec, self.config
    dev, test = spec.dev, spec.test
    if config.eval_file and dev:  # it replaces all development sets (MNLI has two), and has the layout of the first one
      dev = {DEV: next(iter(dev.values()))}
    first = next(iter(test.values()))
    if TEST in self._memory:  # rows to predict need no ids
      id_column = config.id_column if config.id_column in self._memory[TEST].columns else ""
      test = {TEST: FileFormat("", first.texts, id=id_column, allows_empty_texts=True)}
    elif config.predict_file:
      # Of several test sets it is not known which --predict_file is, so no file for gluebenchmark.com is written.
      test = {TEST: first if len(test) == 1 else dataclasses.replace(first, submission="")}
    self.formats: Mapping[str, FileFormat] = {**({TRAIN: spec.train} if spec.train else {}), **dev, **test}
    self.evaluation_splits, self.test_splits = tuple(dev), tuple(test)

  def find_labels(self) -> None:
    """Finds the labels of a custom task without --labels in its training data."""
    config = self.config
    if self.spec.name != CUSTOM or self.spec.labels or config.regression:
      return
    if not config.train_file:
      raise UserError("--labels is missing, and there is no --train_file to take the labels of a custom task from")
    table = self._read_table(TRAIN)
    labels = find_labels(table, self.formats[TRAIN].label, self.spec.label_separator)
    if self.spec.label_separator and labels == ["0", "1"]:
      log(f"warning: {table.name}: only 0 and 1 in the label column become two labels: leave --multi_label out")
    self._set_spec(dataclasses.replace(config, labels=format_labels(labels)))
    self._add_rows(TRAIN, table)

  def splits_of_command(self, *, train: bool, evaluate: bool, predict: bool) -> list[str]:
    """Returns the splits that a command needs. Raises UserError if there is no split to evaluate on."""
    if evaluate and not self.evaluation_splits:
      raise UserError(f"{self.spec.name} has no labels to evaluate with: give --do_predict")
    return super().splits_of_command(train=train, evaluate=evaluate, predict=predict)

  def prediction_splits(self) -> list[str]:
    """Returns the test sets, without a further one whose file does not exist."""
    return [split for split in self.test_splits if not self.formats[split].folder or self.has_file(split)]

  def is_divided(self, split: str) -> bool:
    """Whether the split is a part of the training data, because of --eval_share or --folds."""
    return bool(self.config.eval_share or self.config.folds) and split in (TRAIN, DEV)

  def splits_made_of(self, split: str) -> Collection[str]:
    """Returns the splits that are made from the data of a split: both parts of divided training data, or itself."""
    return (TRAIN, DEV) if self.is_divided(split) else (split,)

  def find(self, split: str) -> Sequence[DataSource]:
    """Returns the file of a split: the one that a flag gives, or else the task's file in data_dir.

    With --eval_share or --folds it is that of the training data. With --formulation=ranking, the training file follows
    if it exists: its sentences are candidates, too.

    Raises:
      UserError: the task does not have this split, a flag is missing, or there is no such file.
    """
    config, spec = self.config, self.spec
    if split == DEV and self.is_divided(DEV) and (config.train_file or TRAIN in self._memory):
      return self.sources(TRAIN)
    if split not in self.formats:  # only the diagnostic set AX lacks splits
      raise UserError(f"{spec.name} has no {split} set; it is for --do_predict with a model of {spec.model_of}")
    paths: list[DataSource] = [*self._find(split)]
    if config.formulation == RANKING and split != TRAIN:
      candidates = [config.train_file] if config.train_file else self._paths_in_data_dir(TRAIN)
      paths += [path for path in candidates if files.exists(path)][:1]
    return paths

  def _find(self, split: str) -> list[str]:
    """Returns the paths of a split's own files: one, unless a flag lists several."""
    config, spec = self.config, self.spec
    flag = "train_file" if split == TRAIN else "predict_file" if split in self.test_splits else "eval_file"
    path: str = getattr(config, flag)
    if path and not files.exists(path) and any(character in path for character in ",*?["):
      if config.formulation == RANKING:
        raise UserError(f"--{flag}={path}: --formulation={RANKING} needs the rows of a split in one file")
      return files.expand_globs(path, flag=f"--{flag}")
    if path:
      if not files.exists(path):
        raise UserError(f"--{flag}={path}: no such file")
      return [path]
    if spec.name == CUSTOM:
      can_hold_out = split == DEV and not config.eval_share
      advice = "; or give --eval_share=0.1 to hold out a tenth of --train_file" if can_hold_out else ""
      raise UserError(f"--{flag} is missing: the {split} set of a custom task{advice}")
    if not config.data_dir:
      raise UserError(f"--{flag} or --data_dir is missing: the {split} set, or the folder of {spec.name}'s files")
    paths = self._paths_in_data_dir(split)
    for path in paths:
      if files.exists(path):
        return [path]
    raise UserError(
      f"--data_dir={config.data_dir}: neither {paths[0]} nor {paths[1]} exists: give {spec.name}'s folder, or --{flag}"
    )

  def _paths_in_data_dir(self, split: str) -> list[str]:
    """Returns the paths that a split's file may have: in the task's folder of data_dir, or in data_dir itself."""
    data_dir, file_format = self.config.data_dir, self.formats[split]
    folder, name = file_format.folder or self.spec.folder, file_format.name
    return [files.join(data_dir, folder, name), files.join(data_dir, name)] if data_dir else []

  def has_file(self, split: str) -> bool:
    """Whether a split's file is in data_dir."""
    return any(map(files.exists, self._paths_in_data_dir(split)))

  def row_settings(self, split: str) -> dict[str, Any]:
    """Returns the columns that are read from the file of a split, and which rows belong to it."""
    file_format, config = self.formats[split], self.config
    settings: dict[str, Any] = {"texts": file_format.texts, "label": file_format.label, "id": file_format.id}
    # Settings that an earlier version did not have are left out if they are not given, so that its caches are used.
    given = ("header", "label_columns", "separator") if self.spec.name == CUSTOM else ()
    settings |= {name: value for name in given if (value := getattr(file_format, name))}
    if self.is_divided(split):
      settings |= {"group": config.group_column} if config.group_column else {}
      settings |= {"eval_share": config.eval_share, "eval_seed": config.eval_seed}
      settings |= {"folds": config.folds, "fold": config.fold} if config.folds else {}
    if self.spec.label_separator:
      settings["label_separator"] = self.spec.label_separator
    return settings

  def checkpoint_settings(self) -> dict[str, Any]:
    """Adds the task's name, its formulation and its labels."""
    return super().checkpoint_settings() | {
      "task_name": self.spec.model_of or self.spec.name,
      "formulation": self.config.formulation,
      "labels": format_labels(self.spec.labels),
      "multi_label": self.config.multi_label,
    }

  def texts_of(self, rows: TextRows) -> Iterable[str]:
    return itertools.chain.from_iterable(rows.texts)

  def read_split(self, split: str) -> TextRows:
    """Reads the rows of a split. If it is a part of the training data, this reads both parts."""
    self.find_labels()
    if split not in self._rows:
      self._add_rows(split, self._read_table(split))
    rows: TextRows = self._rows[split]
    if self.config.formulation == RANKING:
      has_training_file = len(self.sources(split)) > 1
      return with_candidates(rows, self.rows(TRAIN) if has_training_file else None)
    return rows

  def _read_table(self, split: str) -> Table:
    """Reads the table of a split, of one or several files."""
    sources = self.sources(split)[: 1 if self.config.formulation == RANKING else None]
    file_format = self.formats[TRAIN if self.is_divided(split) else split]
    return tables.concatenate([read_text_table(source, file_format, self.spec) for source in sources])

  def of_fold(self, fold: int) -> TextData:
    """Returns a copy that holds out another fold of --folds, counted from 1. The file is not read again."""
    self.rows(DEV)
    data = copy.copy(self)
    data.config = dataclasses.replace(self.config, fold=fold)
    data._rows = self._rows | divide(self.undivided, self.spec, data.config)
    return data

  def _add_rows(self, split: str, table: Table) -> None:
    """Converts the table of a split to rows, and logs what seems wrong. Divided data becomes two splits."""
    config, spec, divides = self.config, self.spec, self.is_divided(split)
    file_format = self.formats[TRAIN if divides else split]
    rows = rows_of_table(table, file_format, spec)
    if table.damaged_lines:
      lines = f"{counted(len(table.damaged_lines), 'line')} with another number of columns"
      log(f"warning: {table.name}: skipped {lines}; the first one is line {table.damaged_lines[0]}")
    if file_format.label and spec.name == CUSTOM:
      warn_of_empty_texts(rows)
    if divides:
      self.undivided = rows
    self._rows |= divide(rows, spec, config) if divides else {split: rows}

  def read(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Reads all data that a command needs. Before training, logs the rows of each label, and what seems wrong."""
    super().read(train=train, evaluate=evaluate, predict=predict)
    if train and not self._has_logged:
      self._has_logged = True
      self._log_training()

  def _log_training(self) -> None:
    spec, config = self.spec, self.config
    for split, description in self.summaries().items():
      log(summary_line(split, description), is_detail=True)
      absent = [label for label, count in description.get("labels", {}).items() if not count]
      if absent and split == TRAIN:
        log(f"warning: {self.source_names(split)}: no row has the label {quote_names(absent)}, so it is not learned")
    if spec.is_regression and not np.ptp(self._rows[TRAIN].labels):
      number = self._rows[TRAIN].labels[0]
      log(
        f"warning: {self.source_names(TRAIN)}: all labels are {number:g}, so there is nothing to learn from the texts"
      )
    if spec.name == CUSTOM and DEV in self._rows:
      self._num_duplicates = warn_of_duplicates(self._rows[TRAIN], self._rows[DEV])
    if config.class_weights:
      weights = zip(spec.labels, self.class_weights(), strict=True)
      log(f"class weights: {join_names(f'{label} {weight:.4g}' for label, weight in weights)}", is_detail=True)
    if spec.name == CUSTOM and not spec.is_regression and not spec.label_separator:
      warn_of_numbers(self.source_names(TRAIN), config.label_column, spec.labels, len(self._rows[TRAIN]))

  def summaries(self) -> dict[str, dict[str, Any]]:
    """Returns split -> a summary of its rows, for the splits with labels that were read."""
    found = {split: summary(rows, self.spec) for split, rows in self._rows.items() if self.formats[split].label}
    if self._num_duplicates is not None and DEV in found:
      found[DEV]["rows_in_training_set"] = self._num_duplicates
    return found

  def class_weights(self) -> np.ndarray:
    """Returns the weights of --class_weights for the rows that are trained on, float32 [C]."""
    return make_class_weights(self.config.class_weights, self.spec.labels, self.rows(TRAIN).labels)

  def with_source(self, split: str, source: DataSource, *, cache: bool = True) -> TextData:
    """Returns a copy that has other data for a split. Rows to predict need no ids."""
    data = super().with_source(split, source, cache=cache)
    data._has_logged, data._num_duplicates = self._has_logged and split != TRAIN, None
    if split == DEV:  # the task has a development set now, so nothing is held out
      data.config = dataclasses.replace(data.config, eval_share=0.0, folds=0, fold=0, group_column="")
    data._set_layout()
    return data


def read_text_table(source: DataSource, file_format: FileFormat, spec: TaskSpec) -> Table:
  """Reads the columns of a file of a task, or of its rows in memory. The task's labels are not needed.

  Raises:
    UserError: the file belongs to another task of GLUE; or see tables.read_table.
  """
  label_columns = file_format.label_columns or (file_format.label,)
  names = [*file_format.texts, *filter(None, (*label_columns, file_format.id, file_format.group))]
  if spec.name != CUSTOM and not file_format.header and isinstance(source, str):
    header = tables.read_header(source)
    of_others = [name for name, task in _COLUMNS_OF_TASKS.items() if name in header and task != spec.name]
    missing = [name for name in names if name not in header]
    if header and (missing or of_others):
      fault = f"no column {missing[0]!r}" if missing else f"column {of_others[0]!r} is not one of {spec.name}"
      raise UserError(
        f"{source}, line 1: {fault}; there are: {quote_names(header)}: check --task_name={spec.name} and --data_dir"
      )
  separator = file_format.separator
  if file_format.header and not separator and spec.name == CUSTOM and isinstance(source, str):
    separator = tables.find_separator(source, num_fields=len(file_format.header))
  return tables.read_table(
    source,
    names,
    header=file_format.header or None,
    separator=separator,
    tolerated_damage=file_format.tolerated_damage,
    list_columns={file_format.label: spec.label_separator} if spec.label_separator else {},
  )


def find_labels(table: Table, column: str, separator: str = "") -> list[str]:
  """Finds all labels in a table of a custom task.

  Args:
    table: the table.
    column: the name of the label column.
    separator: separates the labels of a row; "" if each row has one.
  Returns: the different labels, sorted as numbers if all of them are whole numbers, else as text.
  Raises:
    UserError: a label is empty, there is only one label, or the column probably does not hold labels: it has more than
      100 different values, and more than one for every ten rows.
  """
  rows = rows_of_labels(table, column, separator) if separator else [[*map(label_name, table.columns[column])]]
  labels = set(itertools.chain.from_iterable(rows))
  warn_of_combined_label(table.name, sorted(labels - {""}), separator)
  if not separator:
    table.non_empty_texts(column)
  for row, value in enumerate(table.columns[column]):
    tables.check_name(table.location(row), column, value.strip())
  if not len(table):
    raise UserError(f"{table.name}: has no rows: give a file with labels in column {column!r}")
  if len(labels) < 2:
    raise UserError(
      f"{table.name}: column {column!r}: a task needs two or more labels; there are: {quote_names(labels)}"
    )
  if len(labels) > max(100, len(table) // 10):
    raise UserError(
      f"{table.name}: column {column!r} holds {len(labels)} different labels in {len(table)} rows: give --regression "
      "if they are numbers, another --label_column if this is not the label, or all labels as --labels"
    )
  are_numbers = all(label.removeprefix("-").isdecimal() and label.isascii() for label in labels)
  return sorted(labels, key=lambda label: (int(label) if are_numbers else 0, label))  # 1 and 01 in the order of texts


def warn_of_numbers(source: str, column: str, labels: Sequence[str], num_rows: int) -> None:
  """Warns that labels seem to be numbers to predict. Whole numbers that count from 0 or 1 are taken for classes.

  Args:
    source: the training file.
    column: its label column.
    labels: the labels.
    num_rows: the number of its rows.
  """
  numbers = [tables.parse_number(label) for label in labels]
  if not all(map(math.isfinite, numbers)):
    return
  num_labels, are_whole = len(labels), all(map(float.is_integer, numbers))
  are_many = num_labels > _MAX_NUMBERED_CLASSES or 2 * num_labels > num_rows > 2
  if len(set(numbers)) < num_labels or not are_whole or (are_many and max(numbers) > num_labels):
    shown = join_names([*labels[:3], *(["..."] if num_labels > 3 else [])])
    log(
      f"warning: {source}: column {column!r} holds {num_labels} different numbers ({shown}), and each is learned as a "
      "class of its own: give --regression to predict numbers"
    )


def rows_of_table(table: Table, file_format: FileFormat, spec: TaskSpec) -> TextRows:
  """Converts a table to rows.

  Args:
    table: the result of read_text_table.
    file_format: its layout. If it has no label column, the labels are zeros.
    spec: the task.
  Raises:
    UserError: an unknown label, a label that is not a number, an empty field or a repeated id. The message names the
      file and the line.
  """
  texts = [
    table.columns[name] if file_format.allows_empty_texts else table.non_empty_texts(name) for name in file_format.texts
  ]
  ids = table.unique_names(file_format.id) if file_format.id else [str(row) for row in range(len(table))]
  if not file_format.label:
    shape = [len(table), len(spec.labels)] if spec.label_separator else [len(table)]
    labels = np.zeros(shape, np.float32 if spec.is_regression else np.int32)
  elif file_format.label_columns:
    labels = tables.bit_matrix(table, file_format.label_columns)
  elif spec.label_separator:
    labels = label_matrix(table, file_format.label, spec.labels, spec.label_separator)
  elif spec.is_regression:
    labels = table.numbers(file_format.label, spec.low, spec.high)
  else:
    labels = table.label_indices(file_format.label, spec.labels)
  return TextRows(ids, texts, labels, table=table)


def with_candidates(rows: TextRows, more_rows: TextRows | None = None) -> TextRows:
  """Adds to each row the other sentences of its question: candidates for --formulation=ranking.

  MT-DNN and RoBERTa train QNLI this way for the GLUE leaderboard. As in the plain formulation, each row has one
  prediction. Since QNLI's second release the two sentences of a question may be in different files, so sentences of
  the training file are candidates, too. Its labels are not used for this.

  Args:
    rows: pairs of question and sentence.
    more_rows: rows of another file, whose sentences are candidates, too.
  """
  # Question -> its sentences, as the keys of a dict, which holds each sentence once and keeps the order of the files.
  sentences: dict[str, dict[str, None]] = {}
  for rows_of_file in (rows,) if more_rows is None else (rows, more_rows):
    for question, sentence in zip(*rows_of_file.texts, strict=True):
      sentences.setdefault(question, {})[sentence] = None
  candidates = [
    [candidate for candidate in sentences[question] if candidate != sentence][:_MAX_OTHER_CANDIDATES]
    for question, sentence in zip(*rows.texts, strict=True)
  ]
  return dataclasses.replace(rows, candidates=candidates)


def text_keys(rows: TextRows) -> list[str]:
  """Returns a key for each row. Rows with the same texts have the same key; case and whitespace do not matter."""
  return ["\0".join(" ".join(text.casefold().split()) for text in texts) for texts in zip(*rows.texts, strict=True)]


def divide(rows: TextRows, spec: TaskSpec, config: ClassifierConfig) -> dict[str, TextRows]:
  """Divides labeled rows into a training and a development set.

  Args:
    rows: the rows of the training file.
    spec: the task.
    config: eval_share, the share of the rows to evaluate on: of the rows of each class, or of the quantiles of the
      numbers of a regression. Or folds and the fold to evaluate on; the first one if none is given.
  Returns: split -> its rows, in the order of the file.
  Raises:
    UserError: there are too few rows of a class, or too few different texts or groups.
  """
  table, column, minimum = rows.table, config.group_column, config.folds or 2
  groups = TextGroups(table.non_empty_texts(column) if column else text_keys(rows), config.eval_seed)
  remedy = "add one, or give --eval_file, or --eval_share=0 to train on all rows"
  if config.folds:
    remedy = f"--folds={config.folds} needs as many: give fewer folds, or add rows"
  if len(groups.groups) < minimum:
    kind = f"groups in --group_column={column}" if column else "texts"
    raise UserError(f"{table.name}: too few different {kind} ({len(groups.groups)}) to hold some out: {remedy}")
  # Rows that may have several labels, [N, C], are not stratified, nor is the share of groups, which mix the labels.
  has_classes = not spec.is_regression and rows.labels.ndim == 1
  classes = rows.labels if has_classes and (config.folds or not column) else np.zeros(len(rows), np.int32)
  if has_classes and not column:
    for of_class in groups.by_class(classes).values():
      if len(of_class) < minimum:
        label = spec.labels[rows.labels[of_class[0][0]]]
        raise UserError(
          f"{table.location(min(map(min, of_class)))}: too few texts of the label {label!r} to hold one out for "
          f"evaluation ({len(of_class)}): {remedy}"
        )
  if config.folds:
    if spec.is_regression:  # neighbouring numbers are of one class, and in different folds
      classes = np.argsort(np.argsort(rows.labels, kind="stable"), kind="stable") // config.folds
    parts = groups.folds(classes, config.folds)
  else:
    choose = groups.choose_of_numbers if spec.is_regression else groups.choose_of_classes
    parts = np.zeros(len(rows), np.int32)
    parts[choose(rows.labels if spec.is_regression else classes, config.eval_share)] = 1
  if column and has_classes:
    for index, label in enumerate(spec.labels):
      of_label = np.unique(parts[rows.labels == index])
      if of_label.size == 1 and of_label[0] > 0:
        raise UserError(
          f"{table.name}: all rows of the label {label!r} are in groups of --group_column={column} that are held out "
          "together: give another --eval_seed, or hold out less"
        )
  is_held_out = parts == (config.fold or 1)
  train, dev = (np.flatnonzero(is_chosen).tolist() for is_chosen in (~is_held_out, is_held_out))
  return {TRAIN: rows.select(train), DEV: rows.select(dev)}


def warn_of_empty_texts(rows: TextRows) -> None:
  """Logs how many rows have empty texts, if there are some."""
  empty_rows = [row for row, texts in enumerate(zip(*rows.texts, strict=True)) if not all(map(str.strip, texts))]
  if empty_rows:
    number, place = f"{counted(len(empty_rows), 'row')} of {len(rows)}", rows.table.location(empty_rows[0])
    log(f"warning: {place}: an empty text, as in {number}: only the label of such a row is learned")


def warn_of_duplicates(train: TextRows, dev: TextRows) -> int:
  """Counts evaluation rows whose texts are in the training set, too, and logs the first. Empty texts do not count."""
  row_of_key: dict[str, int] = {}
  for row, key in enumerate(text_keys(train)):
    row_of_key.setdefault(key, row)
  pairs = [(row, row_of_key[key]) for row, key in enumerate(text_keys(dev)) if key.strip("\0") and key in row_of_key]
  if not pairs:
    return 0
  shown = [
    f"{dev.table.short_location(row)} ({train.table.short_location(train_row)})"
    for row, train_row in pairs[:_MAX_SHOWN_PAIRS]
  ]
  more = ", ..." if len(pairs) > _MAX_SHOWN_PAIRS else ""
  log(
    f"warning: {dev.table.name}: {counted(len(pairs), 'row')} of {len(dev)} with texts that are in {train.table.name}, "
    f"too: {', '.join(shown)}{more}: the results will be better than on new texts"
  )
  return len(pairs)


def label_scale(numbers: np.ndarray) -> tuple[float, float]:
  """Returns the standard deviation of a regression's labels (1 if all are the same) and their mean."""
  deviation = np.std(numbers, dtype=np.float64) if np.ptp(numbers) else 1.0
  return float(deviation), float(np.mean(numbers, dtype=np.float64))


def summary(rows: TextRows, spec: TaskSpec) -> dict[str, Any]:
  """Describes labeled rows, as JSON values: their number, and the rows of each label or the range of the numbers."""
  description: dict[str, Any] = {"source": rows.table.name, "rows": len(rows)}
  if spec.is_regression:
    numbers = rows.labels.astype(np.float64)
    return description | {"least": numbers.min(), "mean": numbers.mean(), "greatest": numbers.max()}
  counts = rows.labels.sum(axis=0) if rows.labels.ndim > 1 else np.bincount(rows.labels, minlength=len(spec.labels))
  return description | {"labels": {label: int(count) for label, count in zip(spec.labels, counts, strict=True)}}


def summary_line(split: str, description: Mapping[str, Any]) -> str:
  """Returns the line of the log about a summary: "train.csv (train): 8 rows; complaint: 3, praise: 5"."""
  if "labels" in description:
    counts = [f"{label}: {count}" for label, count in description["labels"].items()]
    content = ", ".join([*counts[:_MAX_SHOWN_LABELS], *(["..."] if len(counts) > _MAX_SHOWN_LABELS else [])])
  else:
    least, mean, greatest = (description[name] for name in ("least", "mean", "greatest"))
    content = f"numbers from {least:g} to {greatest:g}, mean {mean:.4g}"
  return f"{description['source']} ({split}): {counted(description['rows'], 'row', ',')}; {content}"


def warn_of_combined_label(source: str, labels: Sequence[str], label_separator: str = "") -> None:
  """Logs the first label that seems to consist of other labels, because its rows may have several labels.

  Such a label is written as a list, or its parts are all labels or parts of other labels. `label_separator` is that of
  the task.
  """
  for separator in _USUAL_SEPARATORS:
    parts_of_labels = [list(dict.fromkeys(split_labels(label, separator))) for label in labels]
    counts = Counter(part for parts in parts_of_labels for part in parts)
    for label, parts in zip(labels, parts_of_labels, strict=True):
      if len(parts) > 1 and (label.startswith("[") or all(counts[part] > 1 for part in parts)):
        flag = "" if label_separator else " --multi_label"
        flag += "" if separator == (label_separator or ",") else f" --label_separator='{separator}'"
        log(
          f"warning: {source}: the label {label!r} consists of the labels {', '.join(map(repr, parts))}, and is "
          f"learned as a class of its own: give{flag} if a row may have several labels"
        )
        return
