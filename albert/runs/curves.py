"""Draws the learning curves of a run: losses, accuracies, learning rate and gradient norm over the steps."""

from __future__ import annotations

import math
from typing import Any

from albert.io import figures, files
from albert.runs import log_lines, output_files
from albert.runs.metrics_log import read_metrics

FILE_NAME = "curves.png"


def are_outdated(output_dir: str) -> bool:
  """Whether curves.png is missing or older than metrics.jsonl, as after a run that was killed before it drew them."""
  metrics_file, curves_file = files.join(output_dir, output_files.METRICS), files.join(output_dir, FILE_NAME)
  if not files.exists(metrics_file):
    return False
  return not files.exists(curves_file) or files.stat(curves_file).mtime_ns < files.stat(metrics_file).mtime_ns


def draw_curves(output_dir: str) -> str | None:
  """Draws the metrics in metrics.jsonl over the steps, and writes the figure to curves.png.

  Args:
    output_dir: the directory of the run.
  Returns:
    The path of curves.png, or None if metrics.jsonl has no lines.
  Raises:
    UserError: a line of metrics.jsonl is damaged.
  """
  lines = read_metrics(output_dir)
  if not lines:
    return None
  names = [name for name in dict.fromkeys(name for line in lines for name in line) if name != "step"]
  panels = {
    "loss": [name for name in names if name.endswith("loss")],
    "accuracy": [name for name in names if name.endswith("accuracy")],
    "learning rate": [name for name in names if name == "learning_rate"],
    "gradient norm": [name for name in names if name == "grad_norm"],
  }
  panels = {title: metrics for title, metrics in panels.items() if metrics}
  stage_ends = log_lines.stage_ends(lines)
  figure = figures.new_figure(4.5 * len(panels), 3.5)
  for axes, (title, metrics) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
    for name in metrics:
      points = [(line["step"], _as_float(line[name])) for line in lines if name in line]
      axes.plot(*zip(*points, strict=True), label=name, linewidth=1.5)
    for step, stage in stage_ends:
      axes.axvline(step, color="gray", linewidth=0.6)
      axes.text(
        step, 1, f"{stage} ", fontsize=7, color="gray", ha="right", va="top", transform=axes.get_xaxis_transform()
      )
    axes.set_xlabel("step")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if len(metrics) > 1:
      axes.legend(fontsize=8)
  path = files.join(output_dir, FILE_NAME)
  files.write_atomically(path, figures.png(figure))
  return path


def _as_float(value: Any) -> float:
  """Converts a value to float. Anything but a number becomes NaN, which leaves a gap in the curve."""
  return float(value) if isinstance(value, int | float) else math.nan
