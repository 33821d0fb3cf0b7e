"""The result of Estimator.train()."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from albert.io import files
from albert.runs import log_lines, output_files
from albert.runs.metrics_log import read_metrics


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """The state of a run after train().

  Attributes:
    step: the number of updates done so far, in all calls of train() with this output_dir.
    metrics: the last logged training metrics by name, such as loss, learning_rate and examples_per_second.
    history: the training metrics of each logged step, with the key "step", in order.
    evaluations: the metrics of each evaluation during training (eval_every_steps), with the key "step", in order.
    output_dir: the directory with the checkpoints and the logs.
  """

  step: int
  metrics: Mapping[str, float]
  history: Sequence[Mapping[str, float]]
  evaluations: Sequence[Mapping[str, float]]
  output_dir: str


def read_training_result(step: int, output_dir: str, results_dir: str) -> TrainingResult:
  """Reads the logs of a run.

  Args:
    step: the number of updates done so far.
    output_dir: the directory of the run.
    results_dir: the directory of the logs: output_dir, or a temporary directory in a process that is not the chief.
  Raises:
    UserError: a log is damaged.
  """
  history = [line for line in read_metrics(results_dir) if line["step"] <= step]
  evaluations = log_lines.read(files.join(results_dir, output_files.EVALUATIONS))
  last_line = history[-1] if history else {}
  metrics = {name: value for name, value in last_line.items() if name != "step"}
  return TrainingResult(step, metrics, history, evaluations, output_dir)
