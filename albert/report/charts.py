"""Draws the curves of several runs in one SVG chart. The colors come from the style sheet of the page."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from albert.report.markup import cleaned, escaped
from albert.report.records import RunRecord

# Size of the SVG in its own units. The page scales it to the available width.
_WIDTH, _HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 26
_MAX_POINTS, _MIN_POINTS = 400, 20
# Maximum number of points in all curves of a page. Browsers need seconds to show millions of points.
_MAX_POINTS_ON_PAGE = 400_000
# Maximum number of curves in the text description of a chart.
_MAX_DESCRIBED_CURVES = 8
# With larger values the range of an axis could overflow a float.
_LARGEST_VALUE = 1e300
_NUM_COLORS = 8
_NO_CURVES = ("step",)

Point = tuple[int, float]


@dataclasses.dataclass(frozen=True)
class Series:
  """One curve of a metric.

  Attributes:
    run: index of the run.
    is_evaluation: whether the points come from evaluations or from the training log.
    points: (step, value) pairs in the order of the steps.
  """

  run: int
  is_evaluation: bool
  points: Sequence[Point]


def curves_of(runs: Sequence[RunRecord]) -> dict[str, list[Series]]:
  """The curves of each metric in all runs that have it, by the name of the metric; losses and accuracies first.

  Metrics that never change, such as the accuracy of guessing, and values that are not finite are left out. The points
  are in the order of their steps. If a step was logged twice, its last value is used.
  """
  curves: dict[str, list[Series]] = {}
  for number, run in enumerate(runs):
    for is_evaluation, lines in ((False, run.metrics), (True, run.evaluations)):
      for name in dict.fromkeys(name for line in lines for name in line):
        points = {line["step"]: float(line[name]) for line in lines if is_drawable(line.get(name))}
        if name not in _NO_CURVES and points:
          curves.setdefault(name, []).append(Series(number, is_evaluation, sorted(points.items())))
  shown = {
    name: series for name, series in curves.items() if any(len({value for _, value in s.points}) > 1 for s in series)
  }
  return dict(sorted(shown.items(), key=lambda item: _rank(item[0])))


def is_drawable(value: Any) -> TypeGuard[float]:
  """Whether a value is a number that can be drawn: finite, and small enough for the range of an axis."""
  return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_VALUE


def points_of_each(num_series: int) -> int:
  """Maximum number of points of each curve on a page with `num_series` curves."""
  return min(_MAX_POINTS, max(_MIN_POINTS, _MAX_POINTS_ON_PAGE // max(num_series, 1)))


def _rank(name: str) -> int:
  """Order of the charts: losses, then scores, then learning rate, gradient norm and speed."""
  if name.endswith("loss"):
    return 0
  return 2 if name in ("learning_rate", "grad_norm", "examples_per_second") else 1


def thinned(points: Sequence[Point], most: int = _MAX_POINTS) -> list[Point]:
  """Reduces a curve to at most `most` points.

  It keeps the first and the last point, and the lowest and the highest point of stretches of equal length, so that no
  spike is lost.
  """
  if len(points) <= most:
    return list(points)
  num_stretches = (most - 2) // 2
  inner = points[1:-1]
  kept = [points[0]]
  for stretch in range(num_stretches):
    part = inner[stretch * len(inner) // num_stretches : (stretch + 1) * len(inner) // num_stretches]
    kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
  return [*kept, points[-1]]


def ticks(low: float, high: float, most: int = 5) -> list[float]:
  """Positions of the ticks on an axis: at most `most` multiples of 1, 2 or 5 times a power of ten, from low to high."""
  if not low < high:
    return [low]
  if high - low < 1 / _LARGEST_VALUE:  # a power of ten below the smallest float
    return [low, high]
  exponent = math.floor(math.log10((high - low) / most))
  for step in (factor * 10.0**power for power in (exponent, exponent + 1) for factor in (1, 2, 5)):
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if last - first < most:
      return [round(n * step, 12 - exponent) if exponent < 12 else n * step for n in range(first, last + 1)]
  return [low, high]


def draw(name: str, series: Sequence[Series], runs: Sequence[RunRecord], most: int = _MAX_POINTS) -> str:
  """Draws the chart of one metric as HTML: an SVG, and its points as JSON for the tooltip. Dots are evaluations.

  Args:
    name: of the metric.
    series: its curves.
    runs: all runs of the page.
    most: maximum number of points of each curve, see points_of_each.
  """
  thin = [dataclasses.replace(s, points=thinned(s.points, most)) for s in series]
  values = [value for s in thin for _, value in s.points]
  x_range = (0, max(step for s in thin for step, _ in s.points) or 1)
  y_range = _padded(min(values), max(values))

  def x_of(step: float) -> float:
    return round(_LEFT + (step - x_range[0]) / (x_range[1] - x_range[0]) * (_WIDTH - _LEFT - _RIGHT), 1)

  def y_of(value: float) -> float:
    return round(_HEIGHT - _BOTTOM - (value - y_range[0]) / (y_range[1] - y_range[0]) * (_HEIGHT - _TOP - _BOTTOM), 1)

  parts = [
    f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y_of(v)}" y2="{y_of(v)}"/>'
    f'<text class="y" x="{_LEFT - 5}" y="{y_of(v) + 3.5}">{_short(v)}</text>'
    for v in ticks(*y_range)
  ]
  parts += [
    f'<text class="x" x="{x_of(step)}" y="{_HEIGHT - 8}">{_short(step)}</text>' for step in ticks(*x_range, most=6)
  ]
  for s in thin:
    places = [(x_of(step), y_of(value)) for step, value in s.points]
    parts.append(f'<g data-run="{s.run}" class="{"evaluation" if s.is_evaluation else "training"}" {color_of(s.run)}>')
    if len(places) > 1:
      parts.append(f'<polyline points="{" ".join(f"{x},{y}" for x, y in places)}"/>')
    if s.is_evaluation or len(places) == 1:
      parts += [f'<circle cx="{x}" cy="{y}" r="2.6"/>' for x, y in places]
    parts.append("</g>")
  data = {
    "left": _LEFT,
    "right": _WIDTH - _RIGHT,
    "steps": x_range,
    "series": [{"run": s.run, "name": _label(s, runs), "points": s.points} for s in thin],
  }
  svg = (
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escaped(_description(name, series, runs))}">'
    f'{"".join(parts)}<line class="cursor" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" visibility="hidden"/></svg>'
  )
  # "<" could end the script's element.
  points = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
  title = escaped(name.replace("_", " "))
  return (
    f'<figure class="chart"><figcaption>{title}</figcaption>{svg}'
    f'<script type="application/json">{points}</script></figure>'
  )


def color_of(run: int) -> str:
  """The style attribute with the color of a run. From the ninth run on, colors repeat with dashed lines."""
  dashes = f"; --dashes: {3 * (run // _NUM_COLORS)} 3" if run >= _NUM_COLORS else ""
  return f'style="--color: var(--run-{run % _NUM_COLORS}){dashes}"'


def _label(series: Series, runs: Sequence[RunRecord]) -> str:
  return cleaned(runs[series.run].name) + (" (evaluation)" if series.is_evaluation else "")


def _description(name: str, series: Sequence[Series], runs: Sequence[RunRecord]) -> str:
  shown = series[:_MAX_DESCRIBED_CURVES]
  ends = [f"{_label(s, runs)} from {s.points[0][1]:.4g} to {s.points[-1][1]:.4g}" for s in shown]
  ends += [f"and {len(series) - len(shown)} more"] if len(series) > len(shown) else []
  return f"{name} over steps: {'; '.join(ends)}"


def _padded(low: float, high: float) -> tuple[float, float]:
  space = (high - low) * 0.05 or abs(low) * 0.1 or 1.0
  return low - space, high + space


_UNITS: Mapping[str, float] = {"M": 1e6, "k": 1e3}


def _short(value: float) -> str:
  """A number in few characters, for the labels of an axis."""
  for unit, size in _UNITS.items():
    if abs(value) >= 10 * size or (abs(value) >= size and value % size == 0):
      return f"{value / size:g}{unit}"
  return f"{value:.4g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.0e}".replace("e-0", "e-")
