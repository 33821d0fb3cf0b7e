"""Messages have the singular for one thing, and the plural for none and for several."""

from __future__ import annotations

from albert.io.text import counted, counted_names, name_and_others


def test_a_number_has_the_singular_or_the_plural_of_its_noun() -> None:
  assert [counted(number, "weight") for number in (0, 1, 2)] == ["0 weights", "1 weight", "2 weights"]
  assert counted(12345, "line", ",") == "12,345 lines"


def test_at_most_four_names_are_shown() -> None:
  assert counted_names(["a"], "weight") == "1 weight: a"
  assert counted_names(["a", "b", "c", "d"], "weight") == "4 weights: a, b, c, d"
  assert counted_names(["a", "b", "c", "d", "e"], "weight") == "5 weights: a, b, c, d, ..."


def test_the_other_names_are_counted_if_there_are_any() -> None:
  assert [name_and_others("q7", number) for number in (0, 1, 2)] == ["q7", "q7 and 1 other", "q7 and 2 others"]
