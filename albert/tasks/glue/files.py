"""The files of a classification or regression task: where they are, and their rows, which are read once.

Reading checks the files. A command does it before TensorFlow is imported, so that a mistake is reported at once.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.data import tables
from albert.data.rows import DataSource, source_sha256
from albert.data.tables import Table, label_matrix, rows_of_labels, split_labels
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import counted, join_names
from albert.tasks.finetuning import FinetuningData
from albert.tasks.glue.flags import RANKING, ClassifierConfig, format_labels, make_class_weights
from albert.tasks.glue.specs import CUSTOM, SPECS, FileFormat, Submission, TaskSpec, make_spec, tasks_of_header
from albert.tasks.splits import DEV, TEST, TRAIN, TextGroups

# Maximum number of candidates besides the row's own sentence; the rest is left out. The published files have one.
_MAX_OTHER_CANDIDATES = 7
_MAX_SHOWN_PAIRS, _MAX_SHOWN_LABELS = 3, 20
# Separators that labels are searched for without --multi_label.
_USUAL_SEPARATORS = (",", ";", "|")


@dataclasses.dataclass(frozen=True)
class TextRows:
  """N rows. They are stored by column, because worker processes get chunks of rows, and columns are pickled faster.

  Attributes:
    ids: the ids of the rows.
    first: the texts, or the first texts of the pairs.
    second: the second texts of the pairs; None for single texts.
    labels: classes, int32 [N]; several labels, 0 or 1, int32 [N, C]; or the numbers of a regression, float32 [N]. Zeros
      if the file has no labels.
    candidates: for --formulation=ranking, the other sentences of each row's question (see with_candidates).
  """

  ids: Sequence[str]
  first: Sequence[str]
  second: Sequence[str] | None
  labels: np.ndarray
  candidates: Sequence[Sequence[str]] = ()

  def __len__(self) -> int:
    return len(self.first)

  def select(self, indices: Sequence[int]) -> TextRows:
    """Returns some of the rows, in the order of the indices. They keep their ids."""
    ids, first = [self.ids[i] for i in indices], [self.first[i] for i in indices]
    second = None if self.second is None else [self.second[i] for i in indices]
    return TextRows(ids, first, second, self.labels[np.asarray(indices, np.int64)])

  def __getitem__(self, part: slice) -> TextRows:
    second = None if self.second is None else self.second[part]
    return TextRows(self.ids[part], self.first[part], second, self.labels[part], self.candidates[part])


class SplitRows(NamedTuple):
  """The rows of a split, and the table that they were made of, which has their line numbers."""

  rows: TextRows
  table: Table


class TextData(FinetuningData):
  """The data of a task: its splits, their rows, and its labels.

  Args:
    config: the flags.

  Attributes:
    config: the flags, with the labels of the task.
    spec: the task. If no flag gives its labels, it has them after find_labels.
    formats: split -> layout of its file.
    submissions: test split -> the file for gluebenchmark.com with its predictions.
    evaluation_splits: the splits to evaluate on.
    splits: split -> its rows, as far as they were read.

  Raises:
    UserError: the task is unknown, or flags do not fit together.
  """

  config: ClassifierConfig
  formats: Mapping[str, FileFormat]
  submissions: Mapping[str, Submission]

  def __init__(self, config: ClassifierConfig):
    super().__init__(config)
    self.spec = make_spec(config)
    self.splits: dict[str, SplitRows] = {}
    self._training_table: Table | None = None  # the training file, if it was read for its labels
    self.config = _with_labels(config, self.spec)
    self._set_layout()

  def find_labels(self) -> None:
    """Finds the labels of a custom task without --labels in its training file."""
    config = self.config
    if self.spec.name == CUSTOM and not self.spec.labels and not config.regression:
      self._training_table = read_text_table(config.train_file, self.formats[TRAIN], self.spec)
      labels = find_labels(self._training_table, config.label_column, self.spec.label_separator)
      self.spec = make_spec(config, labels)
      self.config = _with_labels(config, self.spec)

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
    """Returns split -> test set to predict. --predict_file, or rows in memory, replace all test sets of the task."""
    first = next(iter(self.spec.submissions.values()))
    if TEST in self._memory:  # rows to predict need no ids
      id_column = self.config.id_column if self.config.id_column in self._memory[TEST].columns else ""
      file_format = FileFormat("", (), first.test_file.texts, id=id_column, allows_empty_texts=True)
      return {TEST: Submission("", file_format)}
    if not self.config.predict_file:
      return self.spec.submissions
    # Of several test sets it is not known which --predict_file is, so no file for gluebenchmark.com is written.
    return {TEST: Submission(first.name if len(self.spec.submissions) == 1 else "", first.test_file)}

  def splits_of_command(self, *, train: bool, evaluate: bool, predict: bool) -> list[str]:
    """Returns the splits that a command needs. Raises UserError if there is no split to evaluate on."""
    if evaluate and not self.evaluation_splits:
      raise UserError(f"{self.spec.name} has no labels to evaluate with: give --do_predict")
    return super().splits_of_command(train=train, evaluate=evaluate, predict=predict)

  def prediction_splits(self) -> list[str]:
    """Returns the test sets, without an optional one whose file does not exist."""
    return [
      split for split, submission in self.submissions.items() if not submission.is_optional or self.has_file(split)
    ]

  def is_divided(self, split: str) -> bool:
    """Whether the split is a part of the training data, because of --eval_share."""
    return bool(self.config.eval_share) and split in (TRAIN, DEV)

  def splits_made_of(self, split: str) -> Collection[str]:
    """Returns the splits that are made from the data of a split: both parts of divided training data, or itself."""
    return (TRAIN, DEV) if self.is_divided(split) else (split,)

  def find(self, split: str) -> Sequence[DataSource]:
    """Returns the file of a split: the one that a flag gives, or else the task's file in data_dir.

    With --eval_share it is that of the training data. With --formulation=ranking, the training file follows if it
    exists: its sentences are candidates, too.

    Raises:
      UserError: the task does not have this split, a flag is missing, or there is no such file.
    """
    if split == DEV and self.is_divided(DEV):
      return self.sources(TRAIN)
    paths = [self._find(split)]
    if self.config.formulation == RANKING and split != TRAIN:
      name = self.formats[TRAIN].name
      train_file = self.config.train_file or find_file(self.config.data_dir, self.spec.folder, name)
      paths += [train_file] if train_file and files.exists(train_file) else []
    return paths

  def _find(self, split: str) -> str:
    """Returns the path of a split's own file."""
    spec = self.spec
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

  def row_settings(self, split: str) -> dict[str, Any]:
    """Returns the columns that are read from the file of a split, and which rows belong to it."""
    file_format, config = self.formats[split], self.config
    settings: dict[str, Any] = {"texts": file_format.texts, "label": file_format.label, "id": file_format.id}
    if self.is_divided(split):
      settings |= {"eval_share": config.eval_share, "eval_seed": config.eval_seed}
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

  def read_split(self, split: str) -> TextRows:
    """Reads the rows of a split. With --eval_share, this reads the training and the development set."""
    if split not in self.splits:
      divides, spec, config = self.is_divided(split), self.spec, self.config
      file_format = self.formats[TRAIN if divides else split]
      if self._training_table is not None and (divides or split == TRAIN):
        table, self._training_table = self._training_table, None
      else:
        table = read_text_table(self.sources(split)[0], file_format, spec)
      rows = rows_of_table(table, file_format, spec)
      for warning in _warnings_of(rows, table, file_format, spec):
        log(f"warning: {warning}")
      if divides:
        self.splits |= divide(rows, table, spec, config.eval_share, config.eval_seed)
      else:
        self.splits[split] = SplitRows(rows, table)
    rows = self.splits[split].rows
    if self.config.formulation == RANKING:
      has_training_file = len(self.sources(split)) > 1
      return with_candidates(rows, self.rows(TRAIN) if has_training_file else None)
    return rows

  def rows(self, split: str) -> TextRows:
    """Returns the rows of a split, which are read only once."""
    rows: TextRows = super().rows(split)
    return rows

  def read(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Reads all data that a command needs. Before training, logs the rows of each label, and what seems wrong."""
    was_read = TRAIN in self.splits
    super().read(train=train, evaluate=evaluate, predict=predict)
    if train and not was_read:
      self._log_training()

  def _log_training(self) -> None:
    spec, splits, config = self.spec, self.splits, self.config
    for split, description in self.summaries().items():
      log(summary_line(split, description))
    if spec.name == CUSTOM and DEV in splits:
      pairs = duplicates(splits[TRAIN].rows, splits[DEV].rows)
      for warning in duplicate_warnings(splits[TRAIN].table, splits[DEV].table, pairs):
        log(f"warning: {warning}")
    if config.class_weights:
      weights = zip(spec.labels, self.class_weights(), strict=True)
      log(f"class weights: {join_names(f'{label} {weight:.4g}' for label, weight in weights)}")
    combined = combined_label_warning(spec.labels) if spec.name == CUSTOM and not spec.label_separator else None
    if combined:
      log(f"warning: {self.source_names(TRAIN)}: {combined}")

  def summaries(self) -> dict[str, dict[str, Any]]:
    """Returns split -> a summary of its rows, for the splits with labels that were read."""
    return {
      split: summary(rows, table, self.spec)
      for split, (rows, table) in self.splits.items()
      if self.formats[split].label
    }

  def class_weights(self) -> np.ndarray:
    """Returns the weights of --class_weights for the rows that are trained on, float32 [C]."""
    return make_class_weights(self.config.class_weights, self.spec.labels, self.rows(TRAIN).labels)

  def with_source(self, split: str, source: DataSource, *, cache: bool = True) -> TextData:
    """Returns a copy that has other data for a split. Rows to predict need no ids."""
    data = super().with_source(split, source, cache=cache)
    changed = self.splits_made_of(split)
    data.splits = {name: rows for name, rows in self.splits.items() if name not in changed}
    if split == TRAIN:
      data._training_table = None
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


def find_file(data_dir: str, folder: str, name: str) -> str | None:
  """Looks for a file in a folder of data_dir, and in data_dir itself.

  Args:
    data_dir: the directory.
    folder: the folder in it.
    name: the name of the file.
  Returns: the path of the file; None if it is in neither of them.
  """
  for path in (files.join(data_dir, folder, name), files.join(data_dir, name)):
    if data_dir and files.exists(path):
      return path
  return None


def read_text_table(source: DataSource, file_format: FileFormat, spec: TaskSpec) -> Table:
  """Reads the columns of a file of a task, or of its rows in memory.

  Args:
    source: the path of the file, or the rows.
    file_format: its layout.
    spec: the task. Its labels are not needed.
  Raises:
    UserError: the file belongs to another task; or see tables.read_table. The message names the file and the line.
  """
  _check_task_of_header(source, file_format, spec)
  names = [*file_format.texts, *filter(None, (file_format.label, file_format.id))]
  header = None if file_format.has_header else file_format.columns
  list_columns = {file_format.label: spec.label_separator} if spec.label_separator else {}
  return tables.read_table(
    source, names, header=header, tolerated_damage=file_format.tolerated_damage, list_columns=list_columns
  )


def _check_task_of_header(source: DataSource, file_format: FileFormat, spec: TaskSpec) -> None:
  """Raises UserError if the first line is the header of another task's file."""
  if not file_format.columns:
    return
  header = tables.read_header(source)
  if file_format.has_header and header == list(file_format.columns):
    return
  matching_tasks = tasks_of_header(header)
  if matching_tasks and (spec.name not in matching_tasks or not file_format.has_header):
    expected_header = (
      ", ".join(file_format.columns) if file_format.has_header else f"none, but {len(file_format.columns)} columns"
    )
    raise UserError(
      f"{source}, line 1: this is the header of a file of {' or '.join(matching_tasks)}, not of {spec.name}'s "
      f"{file_format.name} (which has {expected_header}): check --task_name and --data_dir"
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
  if separator:
    labels = set(itertools.chain.from_iterable(rows_of_labels(table, column, separator)))
  else:
    labels = {value.strip() for value in table.non_empty_texts(column)}
  for row, value in enumerate(table.columns[column]):
    tables.check_name(table.location(row), column, value.strip())
  if len(labels) < 2:
    raise UserError(
      f"{table.name}: column {column!r} holds {len(labels)} label(s), {sorted(labels)}: a task needs two or more"
    )
  if len(labels) > max(100, len(table) // 10):
    raise UserError(
      f"{table.name}: column {column!r} holds {len(labels)} different labels in {len(table)} rows: give --regression "
      "if they are numbers, another --label_column if this is not the label, or all labels as --labels"
    )
  are_numbers = all(map(_is_whole_number, labels))
  return sorted(labels, key=lambda label: (int(label) if are_numbers else 0, label))  # 1 and 01 in the order of texts


def _is_whole_number(label: str) -> bool:
  return label.removeprefix("-").isdecimal() and label.isascii()


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
  return TextRows(ids, texts[0], texts[1] if len(texts) > 1 else None, _labels_of_table(table, file_format, spec))


def _labels_of_table(table: Table, file_format: FileFormat, spec: TaskSpec) -> np.ndarray:
  """The labels of a table: classes, int32 [N], several labels, int32 [N, C], or numbers, float32 [N]."""
  if not file_format.label:
    shape = [len(table), len(spec.labels)] if spec.label_separator else [len(table)]
    return np.zeros(shape, np.float32 if spec.is_regression else np.int32)
  if spec.label_separator:
    return label_matrix(table, file_format.label, spec.labels, spec.label_separator)
  if spec.is_regression:
    return table.numbers(file_format.label, spec.low, spec.high)
  # A first label of another task with the same columns is an error that names that task.
  first_label = table.columns[file_format.label][0].strip() if len(table) else ""
  if first_label not in spec.labels and file_format.columns:
    other_tasks = [name for name in tasks_of_header(file_format.columns) if name != spec.name]
    matching_tasks = [name for name in other_tasks if first_label in SPECS[name].labels]
    if matching_tasks:
      raise UserError(
        f"{table.location(0)}: {file_format.label} {first_label!r} is one of {' or '.join(matching_tasks)}, not of "
        f"{spec.name} ({', '.join(spec.labels)}): check --task_name and --data_dir"
      )
  return table.label_indices(file_format.label, spec.labels)


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
    assert rows_of_file.second is not None
    for question, sentence in zip(rows_of_file.first, rows_of_file.second, strict=True):
      sentences.setdefault(question, {})[sentence] = None
  assert rows.second is not None
  candidates = [
    [candidate for candidate in sentences[question] if candidate != sentence][:_MAX_OTHER_CANDIDATES]
    for question, sentence in zip(rows.first, rows.second, strict=True)
  ]
  return dataclasses.replace(rows, candidates=candidates)


def text_keys(rows: TextRows) -> list[str]:
  """Returns a key for each row. Rows with the same texts have the same key; case and whitespace do not matter."""
  columns = [rows.first] if rows.second is None else [rows.first, rows.second]
  return ["\0".join(" ".join(text.casefold().split()) for text in texts) for texts in zip(*columns, strict=True)]


def divide(rows: TextRows, table: Table, spec: TaskSpec, share: float, seed: int) -> dict[str, SplitRows]:
  """Divides labeled rows into a training and a development set.

  Args:
    rows: the rows of the training file.
    table: the table that they were made of.
    spec: the task.
    share: the share of the rows to evaluate on, between 0 and 1. It is a share of the rows of each class, or of the
      quantiles of the numbers of a regression.
    seed: seed of the choice.
  Returns: split -> its rows and its table, in the order of the file. They keep their line numbers and ids.
  Raises:
    UserError: a class has fewer than two different texts, or there are fewer than two texts.
  """
  groups = TextGroups(text_keys(rows), seed)
  remedy = "add one, or give --eval_file, or --eval_share=0 to train on all rows"
  if len(groups.groups) < 2:
    raise UserError(f"{table.name}: too few different texts ({len(groups.groups)}) to hold some out: {remedy}")
  if spec.is_regression:
    held_out = groups.choose_of_numbers(rows.labels, share)
  else:
    # A row may have several labels, [N, C]; then the rows are not stratified.
    classes = rows.labels if rows.labels.ndim == 1 else np.zeros(len(rows), np.int32)
    single_texts = [of_class[0][0] for of_class in groups.by_class(classes).values() if len(of_class) < 2]
    if single_texts and rows.labels.ndim == 1:
      row = min(single_texts)
      raise UserError(
        f"{table.location(row)}: too few texts of the label {spec.labels[rows.labels[row]]!r} to hold one out for "
        f"evaluation: this is the only one: {remedy}"
      )
    held_out = groups.choose_of_classes(classes, share)
  is_held_out = np.zeros(len(rows), bool)
  is_held_out[held_out] = True
  indices = {TRAIN: np.flatnonzero(~is_held_out).tolist(), DEV: held_out}
  return {split: SplitRows(rows.select(selected), table.select(selected)) for split, selected in indices.items()}


def split_record(source: DataSource, dev_table: Table, config: ClassifierConfig) -> str:
  """Returns the content of eval_split.json: which rows of the training data are evaluated on, as JSON.

  Args:
    source: the training data.
    dev_table: the table of the development set.
    config: the flags.
  """
  record: dict[str, Any] = {
    "source": str(source),
    "sha256": source_sha256(source),
    "eval_share": config.eval_share,
    "eval_seed": config.eval_seed,
    f"{dev_table.unit}s": list(dev_table.row_numbers),
  }
  return json.dumps(record, ensure_ascii=False) + "\n"


def _warnings_of(rows: TextRows, table: Table, file_format: FileFormat, spec: TaskSpec) -> Iterator[str]:
  """Yields a warning if damaged lines were skipped, and if labeled rows of a custom task have empty texts."""
  if table.damaged_lines:
    yield (
      f"{table.name}: skipped {counted(len(table.damaged_lines), 'line')} with another number of columns; the first "
      f"one is line {table.damaged_lines[0]}"
    )
  if file_format.label and spec.name == CUSTOM:
    yield from empty_text_warnings(rows, table)


def empty_text_warnings(rows: TextRows, table: Table) -> Iterator[str]:
  """Yields a warning if rows have empty texts."""
  columns = [rows.first] if rows.second is None else [rows.first, rows.second]
  empty_rows = [row for row, texts in enumerate(zip(*columns, strict=True)) if not all(map(str.strip, texts))]
  if empty_rows:
    is_single = len(empty_rows) == 1
    number = f"{counted(len(empty_rows), 'row')} of {len(rows)} {'has' if is_single else 'have'} an empty text"
    place = table.location(empty_rows[0])
    yield f"{place}: {number}{'' if is_single else ', this is the first'}: only the label of such a row is learned"


def duplicates(train: TextRows, dev: TextRows) -> list[tuple[int, int]]:
  """Finds the rows of the development set whose texts are in the training set, too. Empty texts do not count.

  Returns: the index of each such row in `dev`, and of the first row of `train` with its texts.
  """
  row_of_key: dict[str, int] = {}
  for row, key in enumerate(text_keys(train)):
    row_of_key.setdefault(key, row)
  found = ((row, row_of_key.get(key)) for row, key in enumerate(text_keys(dev)) if key.strip("\0"))
  return [(row, train_row) for row, train_row in found if train_row is not None]


def duplicate_warnings(train_table: Table, dev_table: Table, pairs: list[tuple[int, int]]) -> Iterator[str]:
  """Yields a warning if texts are in both sets. It names the first rows.

  Args:
    train_table, dev_table: the tables of both sets.
    pairs: the result of `duplicates`.
  """
  if not pairs:
    return
  unit, train_unit = dev_table.unit, train_table.unit
  shown = [
    f"{unit} {dev_table.row_numbers[row]} ({train_unit} {train_table.row_numbers[train_row]})"
    for row, train_row in pairs[:_MAX_SHOWN_PAIRS]
  ]
  more = ", ..." if len(pairs) > _MAX_SHOWN_PAIRS else ""
  have = "has a text that is" if len(pairs) == 1 else "have texts that are"
  yield (
    f"{dev_table.name}: {counted(len(pairs), 'row')} of {len(dev_table)} {have} in {train_table.name}, too: "
    f"{', '.join(shown)}{more}: the results will be better than on new texts"
  )


def summary(rows: TextRows, table: Table, spec: TaskSpec) -> dict[str, Any]:
  """Describes labeled rows, as JSON values: their number, and the rows of each label or the range of the numbers."""
  description: dict[str, Any] = {"source": table.name, "rows": len(rows)}
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


def combined_label_warning(labels: Sequence[str]) -> str | None:
  """Returns a warning if a label seems to consist of other labels: its rows may have several labels. None otherwise.

  A label seems so if each of its parts is a label, or a part of another label.
  """
  for separator in _USUAL_SEPARATORS:
    parts_of_labels = [list(dict.fromkeys(split_labels(label, separator))) for label in labels]
    counts = Counter(part for parts in parts_of_labels for part in parts)
    for label, parts in zip(labels, parts_of_labels, strict=True):
      if len(parts) > 1 and all(counts[part] > 1 for part in parts):
        flag = "" if separator == "," else f" --label_separator='{separator}'"
        return (
          f"the label {label!r} consists of the labels {', '.join(map(repr, parts))}, and is learned as a class of its "
          f"own: give --multi_label{flag} if a row may have several labels"
        )
  return None
