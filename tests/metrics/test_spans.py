"""Scores of spans, against scores that are counted from sets of spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from albert.metrics.classification import span_scores
from albert.tasks.tagging.schemes import SCHEMES, Span

TYPES = ("LOC", "a-b", "ORG")


def random_spans(rng: np.random.Generator, num_words: int, types: tuple[str, ...]) -> list[Span]:
  spans = []
  start = 0
  while start < num_words:
    length = min(int(rng.integers(1, 4)), num_words - start)
    if rng.random() < 0.5:
      spans.append(Span(start, start + length, str(rng.choice(types))))
    start += length
  return spans


def count_scores(gold: set[Any], predicted: set[Any]) -> tuple[float, float, float]:
  num_right = len(gold & predicted)
  precision = num_right / len(predicted) if predicted else 0.0
  recall = num_right / len(gold) if gold else 0.0
  return precision, recall, 2 * precision * recall / (precision + recall) if num_right else 0.0


@pytest.mark.parametrize("name", ["BIO", "BILOU", "BIOES"])
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_sets_of_spans(name: str, seed: int) -> None:
  rng = np.random.default_rng(seed)
  scheme = SCHEMES[name]
  labels, predictions = [], []
  gold, predicted = set(), set()
  for text in range(20):
    num_words = int(rng.integers(1, 12))
    gold_spans = random_spans(rng, num_words, TYPES[:2])
    # Half of the predictions are right. ORG is predicted, but never right.
    predicted_spans = gold_spans if rng.random() < 0.5 else random_spans(rng, num_words, TYPES)
    gold |= {(text, span) for span in gold_spans}
    predicted |= {(text, span) for span in predicted_spans}
    labels.append(scheme.tags_of_spans(gold_spans, num_words))
    predictions.append(scheme.tags_of_spans(predicted_spans, num_words))
  scores = span_scores(labels, predictions, TYPES, name)
  assert tuple(scores[key] for key in ("precision", "recall", "f1")) == pytest.approx(count_scores(gold, predicted))
  for span_type in TYPES:
    of_type = [{item for item in spans if item[1].type == span_type} for spans in (gold, predicted)]
    assert scores[f"f1_{span_type}"] == pytest.approx(count_scores(*of_type)[2])
  assert scores["f1_ORG"] == 0 < scores["f1_LOC"] < 1


def test_plain_tags_are_spans_of_one_word() -> None:
  scores = span_scores([["NN", "NN", ","], ["DT"]], [["NN", "DT", ","], ["DT"]], ["NN", "DT", ","], "plain")
  assert scores == {"precision": 0.75, "recall": 0.75, "f1": 0.75, "f1_NN": 2 / 3, "f1_DT": 2 / 3, "f1_,": 1.0}


@pytest.mark.parametrize(("labels", "predictions"), [("O O", "O O"), ("O B-LOC", "O O"), ("O O", "B-LOC O")])
def test_scores_without_spans_are_zero(labels: str, predictions: str) -> None:
  scores = span_scores([labels.split()], [predictions.split()], TYPES, "BIO")
  assert scores == {"precision": 0, "recall": 0, "f1": 0, "f1_LOC": 0, "f1_a-b": 0, "f1_ORG": 0}
