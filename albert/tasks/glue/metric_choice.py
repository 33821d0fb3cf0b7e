"""Decides which metrics a task reports, and by which one checkpoints and runs are compared: --best_metric."""

from __future__ import annotations

import dataclasses

from albert.errors import UserError
from albert.tasks.glue.config import ClassifierConfig
from albert.tasks.glue.specs import CUSTOM, POSITIVE_METRICS, TaskSpec

LOSS = "loss"
# The metrics by what is predicted. The first one is the default of --best_metric. albert.metrics.classification
# computes them; it is not imported here, because the flags are checked before slow imports.
_METRICS_OF_NUMBERS = ("pearson", "spearman", "rmse", "mae")
_METRICS_OF_SEVERAL_LABELS = (
  *("micro_f1", "macro_f1", "accuracy"),
  *("micro_precision", "micro_recall", "macro_precision", "macro_recall"),
)
_AVERAGES_OVER_LABELS = ("macro_f1", "micro_f1", "macro_precision", "macro_recall")


def _possible_metrics(spec: TaskSpec, *, has_positive_label: bool) -> tuple[str, ...]:
  """The metrics that can be computed for a task, the most usual ones first."""
  if spec.is_regression:
    return _METRICS_OF_NUMBERS
  if spec.label_separator:
    return _METRICS_OF_SEVERAL_LABELS
  positive_metrics = POSITIVE_METRICS if has_positive_label else ()
  return ("accuracy", *positive_metrics[:1], "matthews_corrcoef", *_AVERAGES_OVER_LABELS, *positive_metrics[1:])


def choose_metrics(spec: TaskSpec, config: ClassifierConfig) -> TaskSpec:
  """Returns the spec with the metrics and the positive class that the flags choose.

  A custom task reports all metrics that its labels allow. A task of GLUE reports those of GLUE, and --best_metric.

  Args:
    spec: the task. Without labels and without --regression, nothing can be checked, and it is returned unchanged.
    config: the flags.
  Raises:
    UserError: --positive_label is no label of the task, or --best_metric is no metric of it.
  """
  positive_class = _find_positive_class(spec, config)
  possible_metrics = _possible_metrics(spec, has_positive_label=positive_class is not None)
  metrics = possible_metrics if spec.name == CUSTOM else spec.metrics
  best_metric = config.best_metric
  if best_metric and best_metric not in (*possible_metrics, LOSS):
    needs_positive_label = best_metric in POSITIVE_METRICS and not spec.is_regression
    remedy = "give --positive_label, the label that it is computed for" if needs_positive_label else "give one of these"
    raise UserError(
      f"--best_metric={best_metric}: {spec.name} has {', '.join((*possible_metrics, LOSS))}: {remedy}, or leave the "
      "flag out"
    )
  if best_metric and best_metric != LOSS:
    metrics = (best_metric, *(name for name in metrics if name != best_metric))
  return dataclasses.replace(spec, metrics=metrics, positive_class=1 if positive_class is None else positive_class)


def _find_positive_class(spec: TaskSpec, config: ClassifierConfig) -> int | None:
  """The class that F1, precision and recall are computed for; None if there are more than two and none is named."""
  label = config.positive_label.strip()
  if not label:
    return 1 if len(spec.labels) == 2 and not spec.label_separator else None
  if spec.is_regression:
    raise UserError(f"--positive_label={label}: a regression has no labels: leave the flag out")
  if spec.label_separator:
    raise UserError(f"--positive_label={label}: with --multi_label, classes_dev.tsv has the F1 of each label")
  if label not in spec.labels:
    raise UserError(f"--positive_label={label}: not a label of {spec.name}: give one of {', '.join(spec.labels)}")
  return spec.labels.index(label)
