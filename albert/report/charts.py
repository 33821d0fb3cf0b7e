"""Curves of several runs in one picture, as SVG that takes its colors from the page's style."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from albert.report.markup import cleaned, escaped
from albert.report.records import RunRecord

# Units of the SVG; it is scaled to the width of its place.
_WIDTH, _HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 26
_MOST_POINTS, _LEAST_POINTS = 400, 20
# Of all curves of a page together; a browser takes seconds for some millions.
_POINTS_OF_PAGE = 400_000
# Runs whose ends the description of a picture tells.
_MOST_SPOKEN = 8
# Beyond it, the range of an axis could overflow a float.
_LARGEST_VALUE = 1e300
_NUM_COLORS = 8
_NO_CURVES = ("step",)

Point = tuple[int, float]


@dataclasses.dataclass(frozen=True)
class Series:
  """The curve of one run, of training or of its evaluations."""

  run: int
  is_evaluation: bool
  points: Sequence[Point]


def curves_of(runs: Sequence[RunRecord]) -> dict[str, list[Series]]:
  """Metric -> the curves of all runs that have it, losses and accuracies first.

  A metric that never changes, such as the accuracy of guessing, and values that are no finite numbers are left out.
  The points are in the order of their steps; of a step that was logged twice, the last value counts.
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
  """True for a number that an axis can hold: finite, and not so large that a range of such numbers overflows."""
  return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_VALUE


def points_of_each(num_series: int) -> int:
  """How many points of each curve are drawn on a page with so many of them."""
  return min(_MOST_POINTS, max(_LEAST_POINTS, _POINTS_OF_PAGE // max(num_series, 1)))


def _rank(name: str) -> int:
  """Losses, then scores, then what is about the run."""
  if name.endswith("loss"):
    return 0
  return 2 if name in ("learning_rate", "grad_norm", "examples_per_second") else 1


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
  """At most `most` points: the lowest and the highest of equal stretches, so that no spike is lost, and both ends."""
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
  """Round numbers (1, 2 or 5 times a power of ten) from low to high, 2 to `most` of them where low < high."""
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


def draw(name: str, series: Sequence[Series], runs: Sequence[RunRecord], most: int = _MOST_POINTS) -> str:
  """The SVG of one metric, with its points beside it for the tooltip. A dot is an evaluation.

  Args:
    name: of the metric.
    series: its curves.
    runs: all runs of the page.
    most: points of each curve; see points_of_each.
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
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escaped(_spoken(name, series, runs))}">'
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
  """The style attribute that gives a run its color, and beyond the eighth run its dashes."""
  dashes = f"; --dashes: {3 * (run // _NUM_COLORS)} 3" if run >= _NUM_COLORS else ""
  return f'style="--color: var(--run-{run % _NUM_COLORS}){dashes}"'


def _label(series: Series, runs: Sequence[RunRecord]) -> str:
  return cleaned(runs[series.run].name) + (" (evaluation)" if series.is_evaluation else "")


def _spoken(name: str, series: Sequence[Series], runs: Sequence[RunRecord]) -> str:
  shown = series[:_MOST_SPOKEN]
  ends = [f"{_label(s, runs)} from {s.points[0][1]:.4g} to {s.points[-1][1]:.4g}" for s in shown]
  ends += [f"and {len(series) - len(shown)} more"] if len(series) > len(shown) else []
  return f"{name} over steps: {'; '.join(ends)}"


def _padded(low: float, high: float) -> tuple[float, float]:
  space = (high - low) * 0.05 or abs(low) * 0.1 or 1.0
  return low - space, high + space


_UNITS: Mapping[str, float] = {"M": 1e6, "k": 1e3}


def _short(value: float) -> str:
  """A number of an axis in few characters."""
  for unit, size in _UNITS.items():
    if abs(value) >= 10 * size or (abs(value) >= size and value % size == 0):
      return f"{value / size:g}{unit}"
  return f"{value:.4g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.0e}".replace("e-0", "e-")
