"""eval_metrics.jsonl: the evaluations during a run, from which early stopping is told."""

from __future__ import annotations

import math
from typing import Any

from albert.io import files, json_values
from albert.runs import log_lines, output_files


class EvaluationLog:
  """A line per evaluation. Resuming at a step drops the lines after it.

  Args:
    output_dir: of the run.
    first_step: the step it starts or resumes at.
    metric: the one to compare by, better when higher or lower.
  """

  def __init__(self, output_dir: str, *, first_step: int, metric: str, higher_is_better: bool):
    self._path = files.join(output_dir, output_files.EVALUATIONS)
    self._metric = metric
    self._sign = 1.0 if higher_is_better else -1.0
    self._lines = [line for line in log_lines.read(self._path) if line["step"] <= first_step]
    files.write_atomically(self._path, "".join(json_values.dumps(line) + "\n" for line in self._lines))

  def has(self, step: int) -> bool:
    """True if `step` has been evaluated."""
    return any(line["step"] == step for line in self._lines)

  def add(self, step: int, metrics: dict[str, float]) -> None:
    """Writes a line."""
    line = {"step": step, **metrics}
    self._lines.append(line)
    with files.open_file(self._path, "ab") as f:
      f.write((json_values.dumps(line) + "\n").encode("utf-8"))

  @property
  def evaluations_since_best(self) -> int:
    """How many evaluations came after the best one (the first of equals)."""
    values = [self._value(line) for line in self._lines]
    return len(values) - 1 - values.index(max(values)) if values else 0

  def _value(self, line: dict[str, Any]) -> float:
    """The metric of a line, higher for better; a line without a number is worse than any other."""
    value = line.get(self._metric)
    if not isinstance(value, int | float) or math.isnan(value):
      return -math.inf
    return self._sign * value
