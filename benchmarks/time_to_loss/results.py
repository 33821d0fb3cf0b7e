"""Reads the curves of runs over the time of training, and makes a table and a figure of them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from albert.experiments.runner import Trial
from albert.io import files
from albert.runs import figures, logs, output_files

# Panels of the figure: name of a metric of evaluations -> label of the axis.
_PANELS = {
  "masked_lm_loss": "held-out masked LM loss",
  "masked_lm_accuracy": "held-out masked LM accuracy",
  "sentence_order_accuracy": "held-out sentence-order accuracy",
}
# The accuracy that a metric is compared to: that of guessing.
_BASELINES = {
  "masked_lm_accuracy": "masked_lm_baseline_accuracy",
  "sentence_order_accuracy": "sentence_order_baseline_accuracy",
}


@dataclasses.dataclass(frozen=True)
class Curve:
  """The evaluations of a run over its time.

  Attributes:
    seconds: seconds of training before each evaluation.
    evaluations: the metrics of each evaluation.
  """

  seconds: Sequence[float]
  evaluations: Sequence[Mapping[str, Any]]

  def seconds_to(self, loss: float) -> float | None:
    """Returns the seconds after which the masked LM loss is at most `loss` for the first time; None: never.

    Between two evaluations the loss is interpolated linearly.
    """
    previous: tuple[float, float] | None = None
    for seconds, evaluation in zip(self.seconds, self.evaluations, strict=True):
      value = evaluation["masked_lm_loss"]
      if value <= loss:
        if previous is None:
          return seconds
        share = (previous[1] - loss) / (previous[1] - value)
        return previous[0] + share * (seconds - previous[0])
      previous = seconds, value
    return None


def read_curve(run: str) -> Curve:
  """Reads the evaluations of a run.

  The time of a step is the median over the log lines of its stage. So neither start-up nor evaluations nor the tracing
  of the steps count, and a pause of the machine changes no result.

  Args:
    run: the run's output_dir.
  """
  lines = logs.read(files.join(run, output_files.METRICS))
  evaluations = logs.read(files.join(run, output_files.EVALUATIONS))
  batch_sizes = _batch_sizes(run)
  speeds: dict[int, list[float]] = {}
  for line in lines:
    speeds.setdefault(line.get(logs.STAGE_KEY, 1), []).append(line["examples_per_second"])
  seconds_per_step = {stage: batch_sizes[stage] / statistics.median(values) for stage, values in speeds.items()}
  total, last_step, seconds_at = 0.0, 0, {0: 0.0}
  for line in lines:
    total += (line["step"] - last_step) * seconds_per_step[line.get(logs.STAGE_KEY, 1)]
    last_step = line["step"]
    seconds_at[last_step] = total
  return Curve([_interpolate(seconds_at, line["step"]) for line in evaluations], evaluations)


def _batch_sizes(run: str) -> dict[int, int]:
  """Returns number of a stage -> its batch size. A run without stages has stage 1 only."""
  config = files.read_json(files.join(run, output_files.CONFIG))
  batch_size = config["train"]["train_batch_size"]
  stages = config.get("stages") or [{}]
  return {number: stage.get("train_batch_size") or batch_size for number, stage in enumerate(stages, start=1)}


def _interpolate(seconds_at: Mapping[int, float], step: int) -> float:
  """Returns the seconds at a step between two log lines."""
  before = max(logged for logged in seconds_at if logged <= step)
  after = min((logged for logged in seconds_at if logged >= step), default=before)
  if before == after:
    return seconds_at[before]
  share = (step - before) / (after - before)
  return seconds_at[before] + share * (seconds_at[after] - seconds_at[before])


def make_table(
  trials: Sequence[Trial], curves: Sequence[Curve], changes: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> str:
  """Makes a Markdown table with a row for each recipe.

  Args:
    trials: the finished trials. The first one is the reference.
    curves: their evaluations.
    changes: name of a recipe -> how it differs from the reference.
    rows: the rows of results.jsonl, in the order of the trials.
  """
  names = list(dict.fromkeys(trial.variant for trial in trials))
  scores = list(dict.fromkeys(score for row in rows for score in row["scores"]))
  reference = [curve for trial, curve in zip(trials, curves, strict=True) if trial.variant == names[0]]
  target = statistics.fmean(curve.evaluations[-1]["masked_lm_loss"] for curve in reference)
  reference_seconds = statistics.fmean(curve.seconds[-1] for curve in reference)
  columns = ["recipe", "change", "seeds", "seconds", f"seconds to loss {target:.3f}", "share of the reference's"]
  lines = ["| " + " | ".join(columns + scores) + " |", "|---" * (len(columns) + len(scores)) + "|"]
  for name in names:
    indices = [index for index, trial in enumerate(trials) if trial.variant == name]
    times = [curves[index].seconds_to(target) for index in indices]
    reached = [seconds for seconds in times if seconds is not None]
    mean_time = f"{statistics.fmean(reached):,.0f}" if reached else "not reached"
    if reached and len(reached) < len(times):
      mean_time += f" ({len(reached)} of {len(times)})"
    share = f"{statistics.fmean(reached) / reference_seconds:.2f}" if reached else ""
    cells = [name, changes[name], str(len(indices))]
    cells += [f"{statistics.fmean(curves[index].seconds[-1] for index in indices):,.0f}", mean_time, share]
    cells += [_mean_and_spread([rows[index]["scores"].get(score) for index in indices]) for score in scores]
    lines.append("| " + " | ".join(cells) + " |")
  return "\n".join(lines) + "\n"


def _mean_and_spread(values: Sequence[float | None]) -> str:
  numbers = [value for value in values if value is not None]
  if not numbers:
    return ""
  spread = f" ± {statistics.stdev(numbers):.2f}" if len(numbers) > 1 else ""
  return f"{statistics.fmean(numbers):.2f}{spread}"


def draw(trials: Sequence[Trial], curves: Sequence[Curve]) -> bytes:
  """Draws the evaluations of all trials over the time of training, and returns a PNG. Guessing is dashed."""
  figure = figures.new_figure(15, 4.5)
  names = list(dict.fromkeys(trial.variant for trial in trials))
  for axes, (metric, label) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
    labelled: set[str] = set()
    for trial, curve in zip(trials, curves, strict=True):
      name = trial.variant
      axes.plot(
        [seconds / 60 for seconds in curve.seconds],
        [evaluation[metric] for evaluation in curve.evaluations],
        color=f"C{names.index(name) % 10}",
        linewidth=2 if name == names[0] else 1.2,
        label=None if name in labelled else name,
      )
      labelled.add(name)
    if metric in _BASELINES:
      guessing = curves[0].evaluations[-1].get(_BASELINES[metric])
      if guessing is not None:
        axes.axhline(guessing, color="gray", linestyle="--", linewidth=1)
    axes.set_xlabel("minutes of training")
    axes.set_title(label)
    axes.grid(alpha=0.3)
  figure.axes[0].legend(fontsize=8)
  return figures.png(figure)
