"""The log of the evaluations during training, eval_metrics.jsonl. Early stopping depends on this log alone."""

from __future__ import annotations

import math
from typing import Any

from albert.io import files, json_values
from albert.runs import log_lines, output_files


def rank_evaluation(value: float | None, loss: float | None, *, higher_is_better: bool) -> tuple[float, float]:
  """Returns a key by which evaluations are compared: the larger key is better. Equal metrics: the lower loss is better.

  Args:
    value: the metric. None and NaN are worse than any number.
    loss: the loss. None and NaN are worse than any number.
    higher_is_better: whether the metric is a score, and not a loss or an error.
  """
  sign = 1.0 if higher_is_better else -1.0
  return _negative_infinity_if_nan(value, sign), _negative_infinity_if_nan(loss, -1.0)


def _negative_infinity_if_nan(value: Any, sign: float) -> float:
  is_number = isinstance(value, int | float) and not math.isnan(value)
  return sign * value if is_number else -math.inf


class EvaluationLog:
  """Appends a line for each evaluation. A run that resumes at a step removes the later lines.

  Args:
    output_dir: the directory of the run.
    first_step: the step that training starts or resumes at.
    metric: the metric that evaluations are compared by.
    higher_is_better: whether a higher value of the metric is better.
  Raises:
    UserError: a line of the log is damaged.
  """

  def __init__(self, output_dir: str, *, first_step: int, metric: str, higher_is_better: bool):
    self._path = files.join(output_dir, output_files.EVALUATIONS)
    self._metric = metric
    self._higher_is_better = higher_is_better
    self._lines = [line for line in log_lines.read(self._path) if line["step"] <= first_step]
    files.write_atomically(self._path, "".join(json_values.dumps(line) + "\n" for line in self._lines))

  def has_step(self, step: int) -> bool:
    """Whether the log has the evaluation of a step."""
    return any(line["step"] == step for line in self._lines)

  def add(self, step: int, metrics: dict[str, float]) -> None:
    """Appends the metrics of an evaluation after `step` updates."""
    line = {"step": step, **metrics}
    self._lines.append(line)
    with files.open_file(self._path, "ab") as file:
      file.write((json_values.dumps(line) + "\n").encode("utf-8"))

  @property
  def evaluations_since_best(self) -> int:
    """Number of evaluations after the first one with the best metric. Losses do not count here."""
    scores = [
      rank_evaluation(line.get(self._metric), None, higher_is_better=self._higher_is_better) for line in self._lines
    ]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0
