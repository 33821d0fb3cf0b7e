"""Tests of QNLI as a ranking task: the candidate sentences of each question."""

from __future__ import annotations

import numpy as np

from albert.tasks.glue.files import TextRows, with_candidates


def make_rows(labelled_pairs: list[tuple[str, str, int]]) -> TextRows:
  """Makes the rows of a file from (question, sentence, class)."""
  return TextRows(
    ids=[str(i) for i in range(len(labelled_pairs))],
    first=[question for question, _, _ in labelled_pairs],
    second=[sentence for _, sentence, _ in labelled_pairs],
    labels=np.array([label for _, _, label in labelled_pairs], np.int32),
  )


def test_sentences_of_the_same_question_are_candidates() -> None:
  rows = make_rows([("Who?", "Nobody.", 0), ("Who?", "The captain.", 1), ("When?", "At noon.", 0), ("Why?", "So.", 1)])
  with_others = with_candidates(rows)
  assert list(with_others.candidates) == [["The captain."], ["Nobody."], [], []]
  assert with_others[1:3].candidates == [["Nobody."], []]
  assert with_others[1:3].ids == ["1", "2"]


def test_sentences_of_another_file_are_candidates_too() -> None:
  rows = make_rows([("When?", "At noon.", 0), ("Why?", "So.", 1)])
  more_rows = make_rows([("When?", "In March.", 1), ("Where?", "Here.", 1), ("Why?", "So.", 0)])
  assert list(with_candidates(rows, more_rows).candidates) == [["In March."], []]


def test_at_most_seven_other_candidates_are_kept() -> None:
  rows = make_rows([("Who?", f"Number {i}.", 1) for i in range(10)])
  assert with_candidates(rows).candidates[9] == [f"Number {i}." for i in range(7)]
