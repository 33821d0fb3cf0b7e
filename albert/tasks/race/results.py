"""The metrics of multiple-choice questions, and averages of several runs. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.tasks import predictions
from albert.tasks.predictions import Predictions
from albert.tasks.race.files import LEVELS, ChoiceQuestion, level_of


def guessing_loss(questions: Sequence[ChoiceQuestion]) -> float:
  """Returns the loss of giving all options of a question the same probability."""
  return float(np.mean([np.log(len(question.options)) for question in questions]))


def compute_metrics(split_predictions: Predictions) -> dict[str, float]:
  """Computes accuracies.

  Args:
    split_predictions: predictions of at least one question, with labels.
  Returns: accuracy; middle_accuracy and high_accuracy, if there are questions of these levels of RACE; and
    guessing_accuracy, the expected accuracy of choosing an option at random.
  """
  assert split_predictions.labels is not None
  is_right = split_predictions.predicted == split_predictions.labels
  metrics = {"accuracy": float(is_right.mean())}
  levels = np.array([level_of(question_id) for question_id in split_predictions.ids])
  for level in LEVELS:
    if (levels == level).any():
      metrics[f"{level}_accuracy"] = float(is_right[levels == level].mean())
  num_options = (~np.isnan(split_predictions.scores)).sum(axis=1)
  return metrics | {"guessing_accuracy": float((1 / num_options).mean())}


def average_runs(
  run_dirs: Sequence[str], settings_of_runs: Sequence[Mapping[str, Any]], output_dir: str
) -> dict[str, float]:
  """Averages the predictions of several runs, writes the averages, and computes the metrics of the development set.

  Args, Returns, Raises: see albert.tasks.registry.RunAverager.
  """
  del settings_of_runs
  averages = predictions.average_predictions_files(run_dirs, output_dir, {"dev": "--do_eval", "test": "--do_predict"})
  labeled_averages = [average for average in averages.values() if average.labels is not None]
  return compute_metrics(labeled_averages[0]) if labeled_averages else {}
