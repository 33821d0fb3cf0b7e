"""Draws the curves of several runs in one SVG chart. The colors come from the style sheet of the page."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from albert.report.markup import cleaned, escaped
from albert.report.records import RunRecord
from albert.runs import logs

# Size of the SVG in its own units, and the margins around the curves. The page scales it to the available width.
_WIDTH, _HEIGHT = 360, 220
_LEFT_MARGIN, _RIGHT_MARGIN, _TOP_MARGIN, _BOTTOM_MARGIN = 46, 10, 10, 26
_MAX_POINTS, _MIN_POINTS = 400, 20
# Maximum number of points of a page, over all curves. Browsers need seconds to show millions of points.
_MAX_POINTS_ON_PAGE = 400_000
# Maximum number of curves in the text description of a chart.
_MAX_DESCRIBED_CURVES = 8
# Larger values are not drawn: the range of their axis could overflow a float.
_LARGEST_VALUE = 1e300
_NUM_COLORS = 8

Point = tuple[int, float]


@dataclasses.dataclass(frozen=True)
class Curve:
  """One curve of a metric.

  Attributes:
    run: index of the run.
    is_evaluation: True if the points come from evaluations, False if they come from the training log.
    points: (step, value) pairs in the order of the steps.
  """

  run: int
  is_evaluation: bool
  points: Sequence[Point]


def collect_curves(runs: Sequence[RunRecord]) -> dict[str, list[Curve]]:
  """Collects the curves of all runs by the name of their metric.

  Metrics that never change, such as the accuracy of the most frequent class, and values that are not finite are left
  out. If a step was logged twice, its last value is used.

  Args:
    runs: the runs.
  Returns: metric -> its curves. Losses come first, then accuracies and other scores.
  """
  curves: dict[str, list[Curve]] = {}
  for run_index, run in enumerate(runs):
    for is_evaluation, lines in ((False, run.metrics), (True, run.evaluations)):
      for name in dict.fromkeys(name for line in lines for name in line):
        points = {line["step"]: float(line[name]) for line in lines if is_drawable(line.get(name))}
        if name not in ("step", logs.STAGE_KEY) and points:
          curves.setdefault(name, []).append(Curve(run_index, is_evaluation, sorted(points.items())))
  changing_curves = {
    name: metric_curves for name, metric_curves in curves.items() if any(map(_is_changing, metric_curves))
  }
  return dict(sorted(changing_curves.items(), key=lambda item: _chart_order(item[0])))


def _is_changing(curve: Curve) -> bool:
  return len({value for _, value in curve.points}) > 1


def is_drawable(value: Any) -> TypeGuard[float]:
  """Whether a value is a number that can be drawn: finite, and small enough for the range of an axis."""
  return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_VALUE


def max_points_per_curve(num_curves: int) -> int:
  """Returns the maximum number of points of each curve on a page with `num_curves` curves."""
  return min(_MAX_POINTS, max(_MIN_POINTS, _MAX_POINTS_ON_PAGE // max(num_curves, 1)))


def _chart_order(name: str) -> int:
  """Sort key of the charts: losses, then scores, then learning rate, gradient norm and speed."""
  if name.endswith("loss"):
    return 0
  return 2 if name in ("learning_rate", "grad_norm", "examples_per_second") else 1


def thin_out(points: Sequence[Point], max_points: int = _MAX_POINTS) -> list[Point]:
  """Reduces a curve to at most `max_points` points.

  The first and the last point are kept. Between them, the curve is divided into intervals with equally many points, and
  the lowest and the highest point of each interval are kept, so that every spike stays visible.

  Args:
    points: (step, value) pairs in the order of the steps.
    max_points: at least 2.
  """
  if len(points) <= max_points:
    return list(points)
  num_intervals = (max_points - 2) // 2
  inner_points = points[1:-1]
  kept_points = [points[0]]
  for index in range(num_intervals):
    interval_start = index * len(inner_points) // num_intervals
    interval_end = (index + 1) * len(inner_points) // num_intervals
    interval = inner_points[interval_start:interval_end]
    lowest, highest = min(interval, key=lambda point: point[1]), max(interval, key=lambda point: point[1])
    kept_points += sorted({lowest, highest})  # in the order of the steps, and only one if they are the same
  return [*kept_points, points[-1]]


def axis_ticks(low: float, high: float, max_ticks: int = 5) -> list[float]:
  """Returns the positions of the ticks on an axis. Their distance is 1, 2 or 5 times a power of ten.

  Args:
    low, high: the range of the axis.
    max_ticks: maximum number of ticks.
  Returns: values from low to high, in order.
  """
  if not low < high:
    return [low]
  if high - low < 1 / _LARGEST_VALUE:  # a power of ten below the smallest float
    return [low, high]
  exponent = math.floor(math.log10((high - low) / max_ticks))
  distances = [factor * 10.0**power for power in (exponent, exponent + 1) for factor in (1, 2, 5)]
  for distance in distances:
    # The ticks are first_number * distance, ..., last_number * distance. 1e-9 allows for rounding.
    first_number, last_number = math.ceil(low / distance - 1e-9), math.floor(high / distance + 1e-9)
    if last_number - first_number < max_ticks:
      ticks = [number * distance for number in range(first_number, last_number + 1)]
      # The products have rounding errors, such as 0.30000000000000004. Twelve digits after the distance's first digit
      # are kept, which removes these errors.
      return [round(tick, 12 - exponent) for tick in ticks] if exponent < 12 else ticks
  return [low, high]


def draw_chart(name: str, curves: Sequence[Curve], runs: Sequence[RunRecord], max_points: int = _MAX_POINTS) -> str:
  """Draws the chart of one metric as HTML: an SVG, and its points as JSON for the tooltip. Dots are evaluations.

  The ends of a run's stages are vertical lines with the name of the stage to the left.

  Args:
    name: name of the metric.
    curves: the curves of the metric.
    runs: all runs of the page.
    max_points: maximum number of points of each curve, see max_points_per_curve.
  """
  drawn_curves = [dataclasses.replace(curve, points=thin_out(curve.points, max_points)) for curve in curves]
  values = [value for curve in drawn_curves for _, value in curve.points]
  last_step = max(step for curve in drawn_curves for step, _ in curve.points) or 1
  plot = _PlotArea((0, last_step), _add_margin(min(values), max(values)))
  elements = _draw_ticks(plot)
  for run_index in dict.fromkeys(curve.run for curve in drawn_curves):
    elements += _draw_stage_ends(plot, run_index, runs[run_index])
  for curve in drawn_curves:
    elements += _draw_curve(plot, curve)
  svg = (
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escaped(_describe_chart(name, curves, runs))}">'
    f"{''.join(elements)}"
    f'<line class="cursor" y1="{_TOP_MARGIN}" y2="{_HEIGHT - _BOTTOM_MARGIN}" visibility="hidden"/></svg>'
  )
  tooltip_values = {
    "left": _LEFT_MARGIN,
    "right": _WIDTH - _RIGHT_MARGIN,
    "steps": plot.x_range,
    "series": [{"run": curve.run, "name": _curve_label(curve, runs), "points": curve.points} for curve in drawn_curves],
  }
  # Without "<", no text in the JSON can end the script element.
  tooltip_json = json.dumps(tooltip_values, separators=(",", ":")).replace("<", "\\u003c")
  title = escaped(name.replace("_", " "))
  return (
    f'<figure class="chart"><figcaption>{title}</figcaption>{svg}'
    f'<script type="application/json">{tooltip_json}</script></figure>'
  )


@dataclasses.dataclass(frozen=True)
class _PlotArea:
  """The ranges of the two axes, from which the positions in the SVG follow.

  Attributes:
    x_range: the first and the last step.
    y_range: the lowest and the highest value.
  """

  x_range: tuple[float, float]
  y_range: tuple[float, float]

  def x(self, step: float) -> float:
    """The x coordinate of a step."""
    low, high = self.x_range
    return round(_LEFT_MARGIN + (step - low) / (high - low) * (_WIDTH - _LEFT_MARGIN - _RIGHT_MARGIN), 1)

  def y(self, value: float) -> float:
    """The y coordinate of a value."""
    low, high = self.y_range
    return round(_HEIGHT - _BOTTOM_MARGIN - (value - low) / (high - low) * (_HEIGHT - _TOP_MARGIN - _BOTTOM_MARGIN), 1)


def _draw_ticks(plot: _PlotArea) -> list[str]:
  """Returns the SVG elements of the horizontal grid lines and of the labels on both axes."""
  elements = []
  for value in axis_ticks(*plot.y_range):
    y = plot.y(value)
    elements.append(f'<line class="grid" x1="{_LEFT_MARGIN}" x2="{_WIDTH - _RIGHT_MARGIN}" y1="{y}" y2="{y}"/>')
    elements.append(f'<text class="y" x="{_LEFT_MARGIN - 5}" y="{y + 3.5}">{_format_tick(value)}</text>')
  for step in axis_ticks(*plot.x_range, max_ticks=6):
    elements.append(f'<text class="x" x="{plot.x(step)}" y="{_HEIGHT - 8}">{_format_tick(step)}</text>')
  return elements


def _draw_stage_ends(plot: _PlotArea, run_index: int, run: RunRecord) -> list[str]:
  """Returns the SVG elements of the lines and names at the ends of a run's stages."""
  _, last_step = plot.x_range
  marks = []
  for step, stage in logs.stage_ends(run.metrics):
    if step <= last_step:
      x = plot.x(step)
      marks.append(f'<line x1="{x}" x2="{x}" y1="{_TOP_MARGIN}" y2="{_HEIGHT - _BOTTOM_MARGIN}"/>')
      marks.append(f'<text x="{x - 3}" y="{_TOP_MARGIN + 8}">{stage}</text>')
  if not marks:
    return []
  return [f'<g data-run="{run_index}" class="stage" {color_style(run_index)}>', *marks, "</g>"]


def _draw_curve(plot: _PlotArea, curve: Curve) -> list[str]:
  """Returns the SVG elements of a curve: a line, and dots for evaluations or for a single point."""
  kind = "evaluation" if curve.is_evaluation else "training"
  coordinates = [(plot.x(step), plot.y(value)) for step, value in curve.points]
  elements = [f'<g data-run="{curve.run}" class="{kind}" {color_style(curve.run)}>']
  if len(coordinates) > 1:
    elements.append(f'<polyline points="{" ".join(f"{x},{y}" for x, y in coordinates)}"/>')
  if curve.is_evaluation or len(coordinates) == 1:
    elements += [f'<circle cx="{x}" cy="{y}" r="2.6"/>' for x, y in coordinates]
  return [*elements, "</g>"]


def color_style(run: int) -> str:
  """Returns the style attribute with the color of a run. From the ninth run on, colors repeat with dashed lines."""
  dashes = f"; --dashes: {3 * (run // _NUM_COLORS)} 3" if run >= _NUM_COLORS else ""
  return f'style="--color: var(--run-{run % _NUM_COLORS}){dashes}"'


def _curve_label(curve: Curve, runs: Sequence[RunRecord]) -> str:
  return cleaned(runs[curve.run].name) + (" (evaluation)" if curve.is_evaluation else "")


def _describe_chart(name: str, curves: Sequence[Curve], runs: Sequence[RunRecord]) -> str:
  """A description of the chart for screen readers: the first and the last value of each curve."""
  described_curves = curves[:_MAX_DESCRIBED_CURVES]
  descriptions = [
    f"{_curve_label(curve, runs)} from {curve.points[0][1]:.4g} to {curve.points[-1][1]:.4g}"
    for curve in described_curves
  ]
  if len(curves) > len(described_curves):
    descriptions.append(f"and {len(curves) - len(described_curves)} more")
  return f"{name} over steps: {'; '.join(descriptions)}"


def _add_margin(low: float, high: float) -> tuple[float, float]:
  """The range of an axis, with some space beyond the lowest and the highest value."""
  margin = (high - low) * 0.05 or abs(low) * 0.1 or 1.0
  return low - margin, high + margin


_UNITS: Mapping[str, float] = {"M": 1e6, "k": 1e3}


def _format_tick(value: float) -> str:
  """Formats a number in few characters, for the label of a tick."""
  for unit, size in _UNITS.items():
    if abs(value) >= 10 * size or (abs(value) >= size and value % size == 0):
      return f"{value / size:g}{unit}"
  return f"{value:.4g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.0e}".replace("e-0", "e-")
