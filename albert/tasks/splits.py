"""The names of the splits of a task's data, and the choice of training rows that are held out for evaluation.

Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert.data.rows import Rows
from albert.errors import UserError

TRAIN, DEV, TEST = "train", "dev", "test"
# The field of a fine-tuning task's config that names the file of a split.
FILE_FIELDS = {TRAIN: "train_file", DEV: "eval_file", TEST: "predict_file"}
# The share of the training data that the Python API holds out if no data to evaluate on is given, and the default seed
# of the choice.
EVAL_SHARE, EVAL_SEED = 0.1, 12345


def hold_out(rows: Rows, share: float, seed: int, *, groups: Sequence[Any]) -> tuple[Rows, Rows]:
  """Divides rows into rows to train on and rows to evaluate on. The same arguments give the same rows.

  Args:
    rows: two or more rows.
    share: the share of the rows to evaluate on, between 0 and 1.
    seed: seed of the random choice.
    groups: the group of each row. Rows of one group stay together, such as questions about one paragraph.
  Returns: the rows to train on and those to evaluate on, both in the order of `rows`.
  Raises:
    UserError: the share is not between 0 and 1, or there are too few rows or groups.
  """
  if not 0 < share < 1:
    raise UserError(f"eval_share={share}: give a share between 0 and 1, or 0 to train on all rows")
  sizes = collections.Counter(groups)
  names = list(sizes)
  shuffled_names = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
  num_wanted, num_chosen = max(1, round(share * len(rows))), 0
  chosen_groups = set()
  for name in shuffled_names[:-1]:  # at least one group remains for training
    if num_chosen < num_wanted:
      chosen_groups.add(name)
      num_chosen += sizes[name]
  held_out = {row for row, name in enumerate(groups) if name in chosen_groups}
  if not held_out or len(held_out) == len(rows):
    raise UserError(f"{rows}: too few rows ({len(rows)}) to hold some out for evaluation: give eval, or eval_share=0")
  from albert.io.progress import log  # imported here, because --help, which needs this module, must be fast

  log(
    f"{rows}: {len(held_out)} of {len(rows)} rows are held out for evaluation (eval_share={share:g}, eval_seed={seed})"
  )
  train = rows.select(i for i in range(len(rows)) if i not in held_out)
  return train, rows.select(sorted(held_out))


class TextGroups:
  """The rows of each text: rows with the same text are one group, and stay together when some are held out.

  Whether a group is held out depends on its text and the seed. So the choice is the same for rows in another order.

  Args:
    keys: N texts, or other values that are the same for the rows that must stay together.
    seed: seed of the choice.

  Attributes:
    groups: the rows of each text, in the order of hashes of the seed and the text.
  """

  def __init__(self, keys: Sequence[str], seed: int):
    rows_of_key: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
      rows_of_key.setdefault(key, []).append(row)
    hashes = {key: hashlib.sha256(f"{seed}\0{key}".encode("utf-8", "surrogatepass")).digest() for key in rows_of_key}
    self.groups = [rows_of_key[key] for key in sorted(rows_of_key, key=lambda key: hashes[key])]

  def by_class(self, classes: Sequence[int] | np.ndarray) -> dict[int, list[list[int]]]:
    """Returns class -> its groups. A group belongs to the class of its first row."""
    groups_of_class: dict[int, list[list[int]]] = {}
    for group in self.groups:
      groups_of_class.setdefault(int(classes[group[0]]), []).append(group)
    return groups_of_class

  def choose_of_classes(self, classes: Sequence[int] | np.ndarray, share: float) -> list[int]:
    """Chooses about a share of the rows of each class, at least one text of each and never all.

    Args:
      classes: the class of each row. Each class has two or more texts.
      share: between 0 and 1.
    Returns: the chosen rows, sorted.
    """
    chosen: list[int] = []
    for groups in self.by_class(classes).values():
      num_rows = sum(map(len, groups))
      num_wanted = min(max(1, round(share * num_rows)), num_rows - 1)
      of_class: list[int] = []
      for group in groups:
        if len(of_class) + len(group) <= num_wanted:
          of_class += group
      smallest = min(groups, key=len)
      chosen += of_class or smallest
    return sorted(chosen)

  def folds(self, classes: Sequence[int] | np.ndarray, num_folds: int) -> np.ndarray:
    """Divides the rows into folds of about the same size, which have about the same share of each class.

    Args:
      classes: the class of each row.
      num_folds: the number of folds.
    Returns: the fold of each row, from 1, int [N].
    """
    folds, sizes = np.zeros(len(classes), np.int32), [0] * num_folds
    for groups in self.by_class(classes).values():
      sizes_of_class = [0] * num_folds
      for group in groups:
        fold = min(range(num_folds), key=lambda fold: (sizes_of_class[fold], sizes[fold]))
        folds[group] = fold + 1
        sizes_of_class[fold] += len(group)
        sizes[fold] += len(group)
    return folds

  def choose_of_numbers(self, numbers: np.ndarray, share: float) -> list[int]:
    """Chooses about a share of the texts, spread evenly over their numbers: one text of each quantile.

    Args:
      numbers: the number of each row, [N]. There are two or more texts.
      share: between 0 and 1.
    Returns: the chosen rows, sorted.
    """
    by_number = sorted(range(len(self.groups)), key=lambda index: float(numbers[self.groups[index][0]]))
    num_chosen = min(max(1, round(share * len(by_number))), len(by_number) - 1)
    chosen: list[int] = []
    bounds = np.linspace(0, len(by_number), num_chosen + 1).round().astype(int)
    for start, end in itertools.pairwise(bounds):
      chosen += self.groups[min(by_number[start:end])]
    return sorted(chosen)
