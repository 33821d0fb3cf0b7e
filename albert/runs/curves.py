"""Draws the learning curves of a run: losses, accuracies, learning rate and gradient norm over the steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from albert.io import figures, files
from albert.runs import logs, output_files
from albert.runs.logs import read_metrics

FILE_NAME = "curves.png"
# The ends of the names of metrics that are the results of guessing, and of those that are no scores.
_GUESSES = ("guessing_loss", "guessing_accuracy", "majority_accuracy", "baseline_accuracy")
_NO_SCORES = ("_precision", "_recall", "calibration_error")


def are_outdated(output_dir: str) -> bool:
  """Whether curves.png is missing or older than metrics.jsonl, for example after a run that was killed."""
  metrics_file, curves_file = files.join(output_dir, output_files.METRICS), files.join(output_dir, FILE_NAME)
  if not files.exists(metrics_file):
    return False
  return not files.exists(curves_file) or files.stat(curves_file).mtime_ns < files.stat(metrics_file).mtime_ns


def draw_curves(output_dir: str) -> str | None:
  """Draws the metrics in metrics.jsonl and eval_metrics.jsonl over the steps, and writes the figure to curves.png.

  Dashed lines are the results of guessing.

  Args:
    output_dir: the directory of the run.
  Returns:
    The path of curves.png, or None if metrics.jsonl has no lines.
  Raises:
    UserError: a line of metrics.jsonl or eval_metrics.jsonl is damaged.
  """
  lines = read_metrics(output_dir)
  if not lines:
    return None
  panels = collect_panels(lines, logs.read(files.join(output_dir, output_files.EVALUATIONS)))
  figure = figures.new_figure(4.5 * len(panels), 3.5)
  stage_ends = logs.stage_ends(lines)
  all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for axes, (title, curves) in zip(all_axes, panels.items(), strict=True):
    _draw_panel(axes, title, curves, stage_ends)
  path = files.join(output_dir, FILE_NAME)
  files.write_atomically(path, figures.png(figure))
  return path


@dataclasses.dataclass(frozen=True)
class Curve:
  """One curve of a panel.

  Attributes:
    label: its name in the legend.
    style: Matplotlib's format of the line.
    steps: the steps of its points; () for a horizontal line.
    values: the values of its points; NaN leaves a gap.
  """

  label: str
  style: str
  steps: Sequence[int]
  values: Sequence[float]


def collect_panels(
  lines: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
) -> dict[str, list[Curve]]:
  """Sorts the metrics into the panels of the figure. Panels without curves are left out.

  Args:
    lines: the lines of metrics.jsonl.
    evaluations: the lines of eval_metrics.jsonl.
  Returns: title -> its curves: those of training, those of the evaluations with dots, and guessing as horizontal lines.
  """
  titles = {"learning_rate": "learning rate", "grad_norm": "gradient norm"}
  all_titles = ("loss", "perplexity", "accuracy", "scores", *titles.values())
  panels: dict[str, list[Curve]] = {title: [] for title in all_titles}
  for is_evaluation, logged in ((False, lines), (True, evaluations)):
    for name in dict.fromkeys(name for line in logged for name in line):
      title = _title(name, titles, is_evaluation=is_evaluation)
      if not title:
        continue
      points = [(line["step"], _as_float(line[name])) for line in logged if name in line]
      steps, values = zip(*points, strict=True)
      if name.endswith(_GUESSES):
        panels[title].append(Curve(name.replace("_", " "), "--", (), values[-1:]))
      elif is_evaluation:
        panels[title].append(Curve(f"{name} (evaluation)", ".-", steps, values))
      else:
        panels[title].append(Curve(name, "-", steps, values))
  return {title: curves for title, curves in panels.items() if curves}


def _title(name: str, titles: Mapping[str, str], *, is_evaluation: bool) -> str:
  """Returns the title of the panel of a metric; "" if it is not drawn."""
  if name.endswith("loss"):
    return "loss"
  if name.endswith(("accuracy", "perplexity")):
    return name.rsplit("_", 1)[-1]
  if not is_evaluation:
    return titles.get(name, "")
  return "" if name == "step" or name.endswith(_NO_SCORES) else "scores"


def _draw_panel(axes: Any, title: str, curves: Sequence[Curve], stage_ends: Sequence[tuple[int, str]]) -> None:
  """Draws curves, and a vertical line with a name at the end of each stage."""
  for number, curve in enumerate(curves):
    color = f"C{number % 10}"
    if curve.steps:
      axes.plot(curve.steps, curve.values, curve.style, color=color, label=curve.label, linewidth=1.5)
    else:
      axes.axhline(curve.values[0], linestyle=curve.style, color=color, linewidth=1, label=curve.label)
  for step, stage in stage_ends:
    axes.axvline(step, color="gray", linewidth=0.6)
    axes.text(
      step, 1, f"{stage} ", fontsize=7, color="gray", ha="right", va="top", transform=axes.get_xaxis_transform()
    )
  axes.set_xlabel("step")
  axes.set_title(title)
  axes.grid(alpha=0.3)
  if len(curves) > 1:
    axes.legend(fontsize=8)


def _as_float(value: Any) -> float:
  """Converts a value to float. Anything but a number becomes NaN, which leaves a gap in the curve."""
  return float(value) if isinstance(value, int | float) else math.nan
