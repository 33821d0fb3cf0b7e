"""Divides the training rows of a custom task: a share of them becomes the development set (--eval_share).

Rows with the same texts stay together, so that no text of the development set is trained on.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from albert.data.rows import DataSource, source_sha256
from albert.data.tables import Table
from albert.errors import UserError
from albert.tasks.glue.config import ClassifierConfig
from albert.tasks.glue.data import TextRows
from albert.tasks.glue.specs import TaskSpec
from albert.tasks.splits import DEV, TRAIN, TextGroups


def text_keys(rows: TextRows) -> list[str]:
  """Returns a key for each row. Rows with the same texts have the same key; case and whitespace do not matter."""
  columns = [rows.first] if rows.second is None else [rows.first, rows.second]
  return ["\0".join(" ".join(text.casefold().split()) for text in texts) for texts in zip(*columns, strict=True)]


def divide(rows: TextRows, table: Table, spec: TaskSpec, share: float, seed: int) -> dict[str, tuple[TextRows, Table]]:
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
    raise UserError(f"{table.path}: too few different texts ({len(groups.groups)}) to hold some out: {remedy}")
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
  return {split: (rows.select(selected), table.select(selected)) for split, selected in indices.items()}


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
    f"{dev_table.unit}s": list(dev_table.line_numbers),
  }
  return json.dumps(record, ensure_ascii=False) + "\n"
