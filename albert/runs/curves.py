"""Draws the learning curves of a run: losses, accuracies, learning rate and gradient norm over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from albert.io import figures, files
from albert.runs import log_lines, output_files
from albert.runs.metrics_log import read_metrics

FILE_NAME = "curves.png"


def are_outdated(output_dir: str) -> bool:
  """Whether curves.png is missing or older than metrics.jsonl, for example after a run that was killed."""
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
  panels = _metrics_of_panels(lines)
  figure = figures.new_figure(4.5 * len(panels), 3.5)
  stage_ends = log_lines.stage_ends(lines)
  all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for axes, (title, metrics) in zip(all_axes, panels.items(), strict=True):
    _draw_panel(axes, title, metrics, lines, stage_ends)
  path = files.join(output_dir, FILE_NAME)
  files.write_atomically(path, figures.png(figure))
  return path


def _metrics_of_panels(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
  """Returns title -> names of its metrics, for each panel of the figure. Panels without metrics are left out."""
  names = dict.fromkeys(name for line in lines for name in line)
  panels = {
    "loss": [name for name in names if name.endswith("loss")],
    "accuracy": [name for name in names if name.endswith("accuracy")],
    "learning rate": [name for name in names if name == "learning_rate"],
    "gradient norm": [name for name in names if name == "grad_norm"],
  }
  return {title: metrics for title, metrics in panels.items() if metrics}


def _draw_panel(
  axes: Any,
  title: str,
  metrics: Sequence[str],
  lines: Sequence[Mapping[str, Any]],
  stage_ends: Sequence[tuple[int, str]],
) -> None:
  """Draws the curves of some metrics, and a vertical line with a name at the end of each stage."""
  for name in metrics:
    lines_of_metric = [line for line in lines if name in line]
    steps = [line["step"] for line in lines_of_metric]
    axes.plot(steps, [_as_float(line[name]) for line in lines_of_metric], label=name, linewidth=1.5)
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


def _as_float(value: Any) -> float:
  """Converts a value to float. Anything but a number becomes NaN, which leaves a gap in the curve."""
  return float(value) if isinstance(value, int | float) else math.nan
