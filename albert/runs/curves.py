"""Draws the learning curves of a run: losses, accuracies, learning rate and gradient norm over the steps."""

from __future__ import annotations

import math
from typing import Any

from albert.io import figures, files
from albert.runs import output_files
from albert.runs.metrics_log import read_metrics

FILE_NAME = "curves.png"


def are_outdated(output_dir: str) -> bool:
  """Whether curves.png is missing or older than metrics.jsonl. This is so if the run was killed before drawing it."""
  metrics, curves = files.join(output_dir, output_files.METRICS), files.join(output_dir, FILE_NAME)
  return files.exists(metrics) and (
    not files.exists(curves) or files.stat(curves).mtime_ns < files.stat(metrics).mtime_ns
  )


def draw_curves(output_dir: str) -> str | None:
  """Draws metrics.jsonl into curves.png.

  Args:
    output_dir: the directory of the run.
  Returns: the path of curves.png, or None if metrics.jsonl has no lines.
  Raises:
    UserError: a line of metrics.jsonl is damaged.
  """
  lines = read_metrics(output_dir)
  if not lines:
    return None
  names = [name for name in dict.fromkeys(name for line in lines for name in line) if name != "step"]
  panels = {
    "loss": [n for n in names if n.endswith("loss")],
    "accuracy": [n for n in names if n.endswith("accuracy")],
    "learning rate": [n for n in names if n == "learning_rate"],
    "gradient norm": [n for n in names if n == "grad_norm"],
  }
  panels = {title: members for title, members in panels.items() if members}
  figure = figures.new_figure(4.5 * len(panels), 3.5)
  for axes, (title, members) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
    for name in members:
      points = [(line["step"], _number(line[name])) for line in lines if name in line]
      axes.plot(*zip(*points, strict=True), label=name, linewidth=1.5)
    axes.set_xlabel("step")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if len(members) > 1:
      axes.legend(fontsize=8)
  path = files.join(output_dir, FILE_NAME)
  files.write_atomically(path, figures.png(figure))
  return path


def _number(value: Any) -> float:
  """The value as a float. Anything but a number becomes NaN, which leaves a gap in the curve."""
  return float(value) if isinstance(value, int | float) else math.nan
