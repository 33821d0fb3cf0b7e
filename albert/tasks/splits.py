"""The splits of a task's data, and rows that are held out of the training data. Needs no TensorFlow."""

from __future__ import annotations

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
  rows: Rows, share: float, seed: int, *, order: Sequence[Any] = (), groups: Sequence[Any] = ()
) -> tuple[Rows, Rows]:
  """Divides rows into rows to train on and rows to evaluate on. The result is a function of the arguments.

  Args:
    rows: two or more rows.
    share: the share of the rows to evaluate on, between 0 and 1.
    seed: seed of the random choice.
    order: a label or a number for each row. The held-out rows have about the same shares of labels, or the same
      distribution of numbers, as all rows.
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
    names = list(dict.fromkeys(groups))
    shuffled = [names[i] for i in rng.permutation(len(names))]
    sizes = dict.fromkeys(names, 0)
    for name in groups:
      sizes[name] += 1
    # Number of rows in the groups before each group. Groups are held out until there are num_held_out rows.
    rows_before = np.cumsum([0, *(sizes[name] for name in shuffled)])
    # The last group is not held out, so that at least one group is trained on.
    held_out_groups = {name for name, start in zip(shuffled[:-1], rows_before, strict=False) if start < num_held_out}
    held_out = {i for i, name in enumerate(groups) if name in held_out_groups}
  else:
    permutation = rng.permutation(len(rows))
    if len(order):
      permutation = np.array(sorted(permutation, key=lambda i: order[i]))
    # With `order`, rows at equal distances in this order have about the same distribution as all rows.
    positions = ((np.arange(num_held_out) + 0.5) * len(rows) / num_held_out).astype(int)
    held_out = {int(i) for i in permutation[positions]}
  if not held_out or len(held_out) == len(rows):
    raise UserError(f"{rows}: too few rows ({len(rows)}) to hold some out for evaluation: give eval, or eval_share=0")
  print(
    f"{rows}: {len(held_out)} of {len(rows)} rows are held out for evaluation (eval_share={share:g}, eval_seed={seed})",
    file=sys.stderr,
  )
  train = rows.select(i for i in range(len(rows)) if i not in held_out)
  return train, rows.select(sorted(held_out))
