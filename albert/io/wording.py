"""Wording that the messages of several modules share."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

# The largest number of names that `counted_names` shows.
_MAX_SHOWN_NAMES = 4
# The largest number of names that `join_names` shows, and the largest number of characters of each.
_MAX_JOINED_NAMES, _MAX_NAME_CHARS = 20, 40


def counted(number: int, noun: str, separator: str = "") -> str:
  """Returns a number with its noun: "1 weight", "2 weights".

  Args:
    number: the number.
    noun: the noun in the singular. Its plural ends in "s".
    separator: "," to separate thousands.
  """
  return f"{number:{separator}} {noun}{'' if number == 1 else 's'}"


def counted_names(names: Sequence[str], noun: str) -> str:
  """Returns the number of names with their noun, and the first names: "1 weight: a", "5 weights: a, b, c, d, ..."."""
  shown_names = [*names[:_MAX_SHOWN_NAMES], *(["..."] if len(names) > _MAX_SHOWN_NAMES else [])]
  return f"{counted(len(names), noun)}: {', '.join(shown_names)}"


def name_and_others(name: str, num_others: int) -> str:
  """Returns a name with the number of the others: "a", "a and 1 other", "a and 2 others"."""
  return f"{name} and {counted(num_others, 'other')}" if num_others else name


def join_names(names: Iterable[str]) -> str:
  """Returns the first 20 names, each shortened to 40 characters, separated by commas."""
  shown = list(itertools.islice(names, _MAX_JOINED_NAMES + 1))
  shortened = [name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}..." for name in shown]
  more = ", ..." if len(shown) > _MAX_JOINED_NAMES else ""
  return ", ".join(shortened[:_MAX_JOINED_NAMES]) + more
