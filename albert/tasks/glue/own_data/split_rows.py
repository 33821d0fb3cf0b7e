"""Reads the rows of the splits of a classification or regression task. Needs no TensorFlow."""

from __future__ import annotations

from typing import Any

from albert.data.rows import DataSource
from albert.data.tables import Table
from albert.io import files
from albert.tasks.glue.config import ClassifierConfig
from albert.tasks.glue.data import TextRows, make_spec, read_rows
from albert.tasks.glue.own_data.eval_share import divide
from albert.tasks.glue.specs import CUSTOM
from albert.tasks.glue.split_files import TaskFiles, splits_of_command, task_files
from albert.tasks.splits import DEV, TRAIN

# The rows of a split, and the table that they were made of, which has their line numbers.
SplitRows = tuple[TextRows, Table]

# What `check_files` has read: everything that the result depends on, and split -> its rows. `read_splits` takes an
# entry out, so a file is parsed only once.
_checked: list[tuple[Any, dict[str, SplitRows]]] = []


def read_splits(files_of_task: TaskFiles, split: str, source: DataSource) -> dict[str, SplitRows]:
  """Reads a split; with --eval_share the training and the development set at once.

  Args:
    files_of_task: the layouts of the files, and the flags.
    split: the split.
    source: its file, or its rows in memory; with --eval_share the training data.
  Returns: split -> its rows.
  Raises:
    UserError: see albert.tasks.glue.data.read_rows and albert.tasks.glue.own_data.eval_share.divide.
  """
  key = _key(files_of_task, split, source)
  for index, (checked_key, splits) in enumerate(_checked):
    if checked_key == key:
      del _checked[index]
      return splits
  return _read_splits(files_of_task, split, source)


def check_files(config: ClassifierConfig, *, train: bool, evaluate: bool, predict: bool) -> None:
  """Checks the files that a command reads, before TensorFlow is imported, so that a mistake is reported at once.

  The files of a custom task are read. Those of GLUE are large and published, so it is only checked that they exist.

  Args:
    config: the flags.
    train, evaluate, predict: what the command does.
  Raises:
    UserError: see splits_of_command, make_spec and read_splits.
  """
  splits = splits_of_command(config, train=train, evaluate=evaluate, predict=predict)
  _checked.clear()
  spec = make_spec(config, reads_labels=False)
  if spec.name != CUSTOM:
    return
  files_of_task = task_files(make_spec(config), config)
  read: set[str] = set()
  for split in splits:
    if split not in read:
      source = files_of_task.find(split)
      rows_of_splits = _read_splits(files_of_task, split, source)
      read.update(rows_of_splits)
      _checked.append((_key(files_of_task, split, source), rows_of_splits))


def is_divided(files_of_task: TaskFiles, split: str) -> bool:
  """Whether the split is a part of the training data, because of --eval_share."""
  return bool(files_of_task.config.eval_share) and split in (TRAIN, DEV)


def _read_splits(files_of_task: TaskFiles, split: str, source: DataSource) -> dict[str, SplitRows]:
  spec, config, divides = files_of_task.spec, files_of_task.config, is_divided(files_of_task, split)
  rows, table = read_rows(source, files_of_task.formats[TRAIN if divides else split], spec)
  if divides:
    return divide(rows, table, spec, config.eval_share, config.eval_seed)
  return {split: (rows, table)}


def _key(files_of_task: TaskFiles, split: str, source: DataSource) -> Any:
  """Everything that the rows of a file depend on; None for rows in memory."""
  if not isinstance(source, str):
    return None
  config, divides = files_of_task.config, is_divided(files_of_task, split)
  part = ("parts", config.eval_share, config.eval_seed) if divides else split
  return source, files.stat(source), part, files_of_task.formats[TRAIN if divides else split], files_of_task.spec
