"""The names of the splits of a task's data, and the choice of training rows that are held out for evaluation.

Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert.data.rows import Rows
from albert.errors import UserError

TRAIN, DEV, TEST = "train", "dev", "test"
# The field of a fine-tuning task's config that names the file of a split.
FILE_FIELDS = {TRAIN: "train_file", DEV: "eval_file", TEST: "predict_file"}


def hold_out(
  rows: Rows, share: float, seed: int, *, stratify_by: Sequence[Any] = (), groups: Sequence[Any] = ()
) -> tuple[Rows, Rows]:
  """Divides rows into rows to train on and rows to evaluate on. The same arguments give the same rows.

  Args:
    rows: two or more rows.
    share: the share of the rows to evaluate on, between 0 and 1.
    seed: seed of the random choice.
    stratify_by: a label or a number for each row. The held-out rows have about the same shares of labels, or the same
      distribution of numbers, as all rows. Not used with `groups`.
    groups: the group of each row. Rows of one group stay together, such as questions about one paragraph.
  Returns: the rows to train on and those to evaluate on, both in the order of `rows`.
  Raises:
    UserError: the share is not between 0 and 1, or there are too few rows or groups.
  """
  if not 0 < share < 1:
    raise UserError(f"eval_share={share}: give a share between 0 and 1, or 0 to train on all rows")
  num_held_out = max(1, round(share * len(rows)))
  rng = np.random.default_rng(seed)
  if len(groups):
    held_out = _choose_groups(groups, num_held_out, rng)
  else:
    held_out = _choose_rows(len(rows), num_held_out, stratify_by, rng)
  if not held_out or len(held_out) == len(rows):
    raise UserError(f"{rows}: too few rows ({len(rows)}) to hold some out for evaluation: give eval, or eval_share=0")
  print(
    f"{rows}: {len(held_out)} of {len(rows)} rows are held out for evaluation (eval_share={share:g}, eval_seed={seed})",
    file=sys.stderr,
  )
  train = rows.select(i for i in range(len(rows)) if i not in held_out)
  return train, rows.select(sorted(held_out))


def _choose_groups(groups: Sequence[Any], num_rows: int, rng: np.random.Generator) -> set[int]:
  """Chooses random groups until they have at least `num_rows` rows, but never all groups. Returns their rows."""
  sizes = collections.Counter(groups)
  names = list(sizes)
  shuffled_names = [names[i] for i in rng.permutation(len(names))]
  chosen_groups = set()
  num_chosen_rows = 0
  for name in shuffled_names[:-1]:  # at least one group remains for training
    if num_chosen_rows >= num_rows:
      break
    chosen_groups.add(name)
    num_chosen_rows += sizes[name]
  return {row for row, name in enumerate(groups) if name in chosen_groups}


def _choose_rows(num_all_rows: int, num_rows: int, stratify_by: Sequence[Any], rng: np.random.Generator) -> set[int]:
  """Chooses `num_rows` random rows, spread evenly over the values of `stratify_by` (see hold_out)."""
  rows = rng.permutation(num_all_rows)
  if len(stratify_by):
    rows = np.array(sorted(rows, key=lambda row: stratify_by[row]))
  # The list of rows is cut into `num_rows` equal parts, and the middle row of each part is chosen.
  positions = ((np.arange(num_rows) + 0.5) * num_all_rows / num_rows).astype(int)
  return {int(row) for row in rows[positions]}
