"""Scores of multiple choice, and ensembles of runs. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.tasks import predictions
from albert.tasks.predictions import Predictions
from albert.tasks.race.data import LEVELS, level_of


def metrics_of(result: Predictions) -> dict[str, float]:
  """accuracy; of RACE's questions also middle_accuracy and high_accuracy; guessing_accuracy, that of chance."""
  assert result.labels is not None
  is_right = result.predicted == result.labels
  metrics = {"accuracy": float(is_right.mean())}
  levels = np.array([level_of(identity) for identity in result.ids])
  for level in LEVELS:
    if (levels == level).any():
      metrics[f"{level}_accuracy"] = float(is_right[levels == level].mean())
  num_options = (~np.isnan(result.scores)).sum(axis=1)
  return metrics | {"guessing_accuracy": float((1 / num_options).mean())}


def ensemble(directories: Sequence[str], data: Mapping[str, Any], output_dir: str) -> dict[str, float]:
  """Averages the runs in `directories`: writes predictions, and returns the metrics of those with answers.

  Args:
    directories: output_dirs of runs.
    data: the data section of their config.json.
    output_dir: where to write.
  Raises:
    UserError: see predictions.ensemble.
  """
  del data
  results = predictions.ensemble(directories, output_dir, {"dev": "--do_eval", "test": "--do_predict"})
  evaluated = [result for result in results.values() if result.labels is not None]
  return metrics_of(evaluated[0]) if evaluated else {}
