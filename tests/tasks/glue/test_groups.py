"""Candidates of WNLI found in its text, and rivals of QNLI's sentences."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from albert.tasks.glue import wnli_spans
from albert.tasks.glue.data import Rows, read_rows
from albert.tasks.glue.groups import Group, group_candidates, group_questions
from albert.tasks.glue.specs import SPECS

# Premise, hypothesis, the candidate in it, what else the pronoun could stand for.
MENTIONS = [
  (
    "The ladder leaned against the barn because it is broken.",
    "The barn is broken.",
    "The barn",
    ["The ladder is broken."],
  ),
  (
    "Nora thanked Clara's aunt, and Clara gave her a book.",
    "Clara gave Nora a book.",
    "Nora",
    ["Clara gave Clara a book.", "Clara gave Clara's aunt a book.", "Clara gave the book a book."],
  ),
  (
    "The waiter served the young guest although he was in a hurry.",
    "The young guest was in a hurry.",
    "The young guest",
    ["The waiter was in a hurry.", "The hurry was in a hurry."],
  ),
  (
    "The clerk handed the tall visitor his coat.",
    "The clerk handed the tall visitor the clerk's coat.",
    "the clerk",
    [
      "The clerk handed the tall visitor the tall visitor's coat.",
      "The clerk handed the tall visitor the coat's coat.",
    ],
  ),
  (
    "Dr. Moreau asked Mrs. Lind whether she slept.",
    "Dr. Moreau asked Mrs. Lind whether Mrs. Lind slept.",
    "Mrs. Lind",
    ["Dr. Moreau asked Mrs. Lind whether Dr. Moreau slept."],
  ),
  (
    "The British army left the harbour before the storm reached it.",
    "The storm reached the harbour.",
    "the harbour",
    ["The storm reached the British army.", "The storm reached the storm."],
  ),
]


@pytest.mark.parametrize(("premise", "hypothesis", "candidate", "others"), MENTIONS)
def test_the_candidate_and_its_rivals(premise: str, hypothesis: str, candidate: str, others: list[str]) -> None:
  mention = wnli_spans.find_mention(premise, hypothesis)
  assert mention is not None
  assert mention.candidate == candidate
  owner = "'s" if mention.is_possessive else ""
  assert mention.before + candidate + owner + mention.after == hypothesis
  assert [mention.with_candidate(span) for span in wnli_spans.rivals(premise, mention)] == others


@pytest.mark.parametrize(
  ("premise", "hypothesis"),
  [
    ("The ladder leaned against the barn.", "The barn is broken."),  # no pronoun
    ("The ladder leaned against the barn because it is broken.", "Somebody repaired the old house."),
    ("The ladder leaned against the barn because it is broken.", "The house is broken."),  # none of the premise
  ],
)
def test_no_candidate_where_nothing_agrees(premise: str, hypothesis: str) -> None:
  assert wnli_spans.find_mention(premise, hypothesis) is None


def make_rows(pairs: list[tuple[str, str, int]]) -> Rows:
  first, second, labels = zip(*pairs, strict=True)
  return Rows([str(i) for i in range(len(pairs))], list(first), list(second), np.array(labels, np.int32))


def test_candidates_of_the_same_pronoun_compete() -> None:
  premise = "Peter met Paul and the old neighbours on the stairs when he came home."
  rows = make_rows(
    [
      (premise, "The old neighbours met Paul when Peter came home.", 1),  # says more than the premise: stands alone
      (premise, "Paul came home.", 0),
      (premise, "Peter came home.", 1),
      ("It rained.", "The sun shone.", 0),
    ]
  )
  groups = group_candidates(rows, right=1)
  alone, paul, peter, other = groups
  assert alone == Group(premise, ("The old neighbours met Paul when Peter came home.",), True)
  assert paul.seconds == (
    "Paul came home.",
    "Peter came home.",
    "The old neighbours came home.",
    "The stairs came home.",
  )
  assert peter.seconds[:2] == ("Peter came home.", "Paul came home.")
  assert other.seconds == ("The sun shone.",)
  assert [group.is_right for group in groups] == [True, False, True, False]
  assert groups[1:].rows.ids == ["1", "2", "3"]


def test_sentences_of_the_same_question_compete() -> None:
  rows = make_rows([("Who?", "Nobody.", 0), ("Who?", "The captain.", 1), ("When?", "At noon.", 0), ("Why?", "So.", 1)])
  groups = group_questions(rows, right=0)
  assert [group.seconds for group in groups] == [
    ("Nobody.", "The captain."),
    ("The captain.", "Nobody."),
    ("At noon.",),
    ("So.",),
  ]
  assert [group.is_right for group in groups] == [True, False, True, False]
  others = make_rows([("When?", "In March.", 1), ("Where?", "Here.", 1), ("Why?", "So.", 0)])
  assert [group.seconds for group in group_questions(rows, 0, others)][2:] == [("At noon.", "In March."), ("So.",)]


@pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="no ALBERT_DATA_DIR")
def test_most_rows_of_wnli_compete() -> None:
  spec = SPECS["WNLI"]
  assert spec.train is not None
  path = str(Path(os.environ["ALBERT_DATA_DIR"], "glue", "WNLI", "train.tsv"))
  groups = group_candidates(read_rows(path, spec.train, spec)[0], right=1)
  assert np.mean([len(group.seconds) > 1 for group in groups]) > 0.96
