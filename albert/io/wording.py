"""Wording that the messages of several modules share."""

from __future__ import annotations


def counted(number: int, noun: str, separator: str = "") -> str:
  """Returns a number with its noun: "1 weight", "2 weights".

  Args:
    number: the number.
    noun: the noun in the singular. Its plural ends in "s".
    separator: "," to separate thousands.
  """
  return f"{number:{separator}} {noun}{'' if number == 1 else 's'}"


def name_and_others(name: str, num_others: int) -> str:
  """Returns a name with the number of the others: "a", "a and 1 other", "a and 2 others"."""
  return f"{name} and {counted(num_others, 'other')}" if num_others else name
