"""What becomes of predictions: metrics, the files that gluebenchmark.com takes, and ensembles of several runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.config.base import from_dict
from albert.io import files
from albert.metrics import classification
from albert.runs import output_files
from albert.tasks import predictions
from albert.tasks.glue.data import make_spec
from albert.tasks.glue.specs import ClassifierConfig, Submission, TaskSpec
from albert.tasks.predictions import Predictions


def metrics_of(spec: TaskSpec, result: Predictions) -> dict[str, float]:
  """The metrics of a task; of classes also majority_accuracy, that of always giving the most frequent label.

  Args:
    spec: of the task.
    result: predictions of at least one example, with labels.
  """
  assert result.labels is not None
  metrics = classification.compute(spec.metrics, result.labels, result.predicted)
  if not spec.is_regression:
    metrics["majority_accuracy"] = float(np.bincount(result.labels).max() / len(result.labels))
  return metrics


def write_submission(
  directory: str, spec: TaskSpec, submission: Submission, result: Predictions, path: str = ""
) -> str:
  """Writes a submission (or the file `path`), columns index and prediction, and returns its path.

  Labels are spelled as in the task's files. Numbers of a regression are kept within the task's range.
  """
  values = result.predicted
  if spec.is_regression:
    texts = [f"{value:.6f}" for value in np.clip(values.astype(np.float64), spec.low, spec.high)]
  else:
    texts = result.texts(values)
  path = path or files.join(directory, submission.name)
  predictions.write_table(path, ["index", "prediction"], zip(result.ids, texts, strict=True))
  return path


def ensemble(directories: Sequence[str], data: Mapping[str, Any], output_dir: str) -> dict[str, float]:
  """Averages the runs in `directories`: writes predictions, pictures and submissions, and returns the metrics.

  Args:
    directories: output_dirs of runs of one task.
    data: the data section of their config.json.
    output_dir: where to write.
  Raises:
    UserError: see predictions.ensemble.
  """
  names = {field.name for field in dataclasses.fields(ClassifierConfig)}
  known = {name: value for name, value in data.items() if name in names}
  spec = make_spec(from_dict(ClassifierConfig, known, source=files.join(directories[0], output_files.CONFIG)))
  splits = dict.fromkeys(spec.dev, "--do_eval")
  splits |= {split: "--do_predict" for split, submission in spec.submissions.items() if not submission.is_optional}
  results = predictions.ensemble(directories, output_dir, splits)
  with_labels = [split for split, result in results.items() if result.labels is not None]
  metrics: dict[str, float] = {}
  for split, result in results.items():
    if split in with_labels:
      predictions.draw_predictions(output_dir, split, result)
      prefix = f"{split}_" if len(with_labels) > 1 else ""
      metrics |= {prefix + name: value for name, value in metrics_of(spec, result).items()}
    elif split in spec.submissions and spec.submissions[split].name:
      write_submission(output_dir, spec, spec.submissions[split], result)
  return metrics
