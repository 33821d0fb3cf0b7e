"""Tests of RACE's accuracies, compared with values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from albert.tasks.predictions import Predictions
from albert.tasks.race.results import compute_metrics

NAN = np.nan


def make_predictions(ids: list[str]) -> Predictions:
  """Makes predictions for four questions with three or two options. Only the second prediction is wrong."""
  scores = np.array([[0.7, 0.2, 0.1], [0.4, 0.6, NAN], [0.1, 0.2, 0.7], [0.5, 0.5, NAN]])
  return Predictions(ids, ("A", "B", "C"), scores, np.array([0, 0, 2, 0]))


def test_accuracies_overall_of_each_level_and_of_guessing() -> None:
  metrics = compute_metrics(make_predictions(["middle1.txt-0", "high1.txt-0", "high/asc00001.txt-1", "high2.txt-0"]))
  expected = {"accuracy": 3 / 4, "middle_accuracy": 1.0, "high_accuracy": 2 / 3}
  assert metrics == pytest.approx(expected | {"guessing_accuracy": (1 / 3 + 1 / 2 + 1 / 3 + 1 / 2) / 4})


def test_custom_questions_have_no_levels() -> None:
  assert set(compute_metrics(make_predictions(["a", "b", "c", "high"]))) == {"accuracy", "guessing_accuracy"}
