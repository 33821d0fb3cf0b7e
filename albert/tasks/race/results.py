"""The predictions of multiple-choice questions, their metrics, and averages of several runs. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.tasks import predictions
from albert.tasks.predictions import Predictions
from albert.tasks.race.files import LEVELS, UNKNOWN_ANSWER, ChoiceQuestion, level_of, option_name


def make_predictions(questions: Sequence[ChoiceQuestion], logits: np.ndarray, has_option: np.ndarray) -> Predictions:
  """Makes predictions, with labels if all answers are known.

  Args:
    questions: N questions.
    logits: float32 [N, K].
    has_option: whether a question has this option, bool [N, K]. Its probability is NaN if not.
  """
  scores = np.where(has_option, predictions.softmax(np.where(has_option, logits, -np.inf)), np.nan)
  names = tuple(option_name(index) for index in range(logits.shape[1]))
  answers = np.array([question.answer for question in questions])
  labels = None if UNKNOWN_ANSWER in answers else answers
  return Predictions([question.id for question in questions], names, scores, labels)


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
