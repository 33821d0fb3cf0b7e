"""Wording that the messages of several modules share."""

from __future__ import annotations

from collections.abc import Sequence

# The largest number of names that `counted_names` shows.
_MAX_SHOWN_NAMES = 4


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
