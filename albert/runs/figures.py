"""Figures as PNG and SVG, drawn by matplotlib without a display: the curves of runs, and panels of other curves."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from albert.io import files
from albert.runs import logs, output_files

if TYPE_CHECKING:
  from matplotlib.figure import Figure

CURVES_FILE = "curves.png"
# The colors of runs or variants, which repeat after ten.
COLORS = (
  *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
  *("#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
)
_GRAY = "0.35"
_PANELS_PER_ROW, _PANEL_WIDTH, _PANEL_HEIGHT = 3, 4.4, 3.2  # sizes in inches
# With more curves in a panel, their names are left out, because they would not fit beside it.
_MAX_NAMES, _MAX_NAME_CHARACTERS = 12, 28
# Larger values are not drawn: the range of their axis could overflow a float.
_LARGEST_VALUE = 1e300
_LAST_METRICS = ("grad_norm", "examples_per_second")
# The ends of the names of metrics that curves.png does not show.
_NOT_IN_PICTURE = ("_precision", "_recall", "calibration_error", "examples_per_second")


def new_figure(width: float, height: float) -> Figure:
  """Makes an empty figure.

  Args:
    width: in inches.
    height: in inches.
  """
  # Imported here because importing matplotlib is slow.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), layout="constrained")
  FigureCanvasAgg(figure)
  return figure


def png(figure: Figure) -> bytes:
  """Renders a figure as the bytes of a PNG file."""
  return _render(figure, format="png", dpi=110)


def svg(figure: Figure) -> bytes:
  """Renders a figure as the bytes of an SVG file. Equal figures give equal bytes."""
  import matplotlib

  with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "albert"}):
    return _render(figure, format="svg", metadata={"Date": None})


def _render(figure: Figure, **options: Any) -> bytes:
  image = io.BytesIO()
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Glyph")  # a name may have characters that the font lacks
    figure.savefig(image, **options)
  return image.getvalue()


class Curve(NamedTuple):
  """A curve of a panel.

  Attributes:
    name: written beside the panel; "" for no name.
    points: (x, y) in the order of x; a NaN leaves a gap. A horizontal line has one point.
    color: a color of matplotlib.
    style: "line"; "dots", a line with a dot for each point; or "guess", a dashed horizontal line.
  """

  name: str
  points: Sequence[tuple[float, float]]
  color: str = COLORS[0]
  style: str = "line"


class RunLogs(NamedTuple):
  """The logs of a run.

  Attributes:
    name: its name in the panels; "" if there is only one run.
    metrics: the lines of metrics.jsonl.
    evaluations: the lines of eval_metrics.jsonl.
  """

  name: str
  metrics: Sequence[Mapping[str, Any]]
  evaluations: Sequence[Mapping[str, Any]]


def are_outdated(output_dir: str) -> bool:
  """Whether curves.png is missing or older than metrics.jsonl, for example after a run that was killed."""
  metrics_file, curves_file = files.join(output_dir, output_files.METRICS), files.join(output_dir, CURVES_FILE)
  if not files.exists(metrics_file):
    return False
  return not files.exists(curves_file) or files.stat(curves_file).mtime_ns < files.stat(metrics_file).mtime_ns


def draw_curves(output_dir: str) -> str | None:
  """Draws the metrics in metrics.jsonl and eval_metrics.jsonl over the steps, and writes the figure to curves.png.

  Args:
    output_dir: the directory of the run.
  Returns:
    The path of curves.png, or None if there is nothing to draw.
  Raises:
    UserError: a line of metrics.jsonl or eval_metrics.jsonl is damaged.
  """
  lines = logs.read_metrics(output_dir)
  main, others = collect_panels([RunLogs("", lines, logs.read(files.join(output_dir, output_files.EVALUATIONS)))])
  panels = {name: curves for name, curves in (main | others).items() if not name.endswith(_NOT_IN_PICTURE)}
  # A panel with a single evaluation and nothing else would show one dot.
  panels = {name: c for name, c in panels.items() if [(curve.style, len(curve.points)) for curve in c] != [("dots", 1)]}
  if not panels:
    return None
  path = files.join(output_dir, CURVES_FILE)
  files.write_atomically(path, png(draw_panels(panels, logs.find_marks(lines))))
  return path


def is_drawable(value: Any) -> TypeGuard[float]:
  """Whether a value is a number that can be drawn: finite, and small enough for the range of an axis."""
  return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_VALUE


def collect_panels(runs: Sequence[RunLogs]) -> tuple[dict[str, list[Curve]], dict[str, list[Curve]]]:
  """Collects the curves of runs by metric. The results of guessing are lines in the panel of the metric they belong to.

  Args:
    runs: the logs of one or more runs.
  Returns: metric -> its curves, for the losses, the metrics of the task and the learning rate; and for all others.
  """
  panels: dict[str, list[Curve]] = {}
  guesses: dict[str, list[Curve]] = {}
  for index, run in enumerate(runs):
    for kind, lines in (("training", run.metrics), ("evaluation", run.evaluations)):
      is_evaluation = kind == "evaluation"
      for name in dict.fromkeys(name for line in lines for name in line):
        values = {line["step"]: line[name] for line in lines if name in line}
        points = sorted((step, float(value) if is_drawable(value) else math.nan) for step, value in values.items())
        if name in ("step", logs.STAGE_KEY) or all(math.isnan(value) for _, value in points):
          continue
        metric, guess = logs.guessed_metric(name)
        if guess:
          guesses.setdefault(metric, []).append(Curve(guess, (points[-1],), _GRAY, "guess"))
          continue
        label = f"{run.name} (evaluation)" if run.name and is_evaluation else run.name or kind
        color = COLORS[index % len(COLORS)] if run.name else COLORS[is_evaluation]
        panels.setdefault(name, []).append(Curve(label, points, color, "dots" if is_evaluation else "line"))
  ranks = {name: _rank(name, has_guess=name in guesses) for name in panels}
  if 1 not in ranks.values():  # the first metric of an evaluation is the one that the task names
    of_evaluations = [name for name, curves in panels.items() if curves[-1].style == "dots" and ranks[name] > 1]
    ranks |= dict.fromkeys(of_evaluations[:1], 1)
  main: dict[str, list[Curve]] = {}
  others: dict[str, list[Curve]] = {}
  for name in sorted(panels, key=lambda name: ranks[name]):
    (main if ranks[name] <= 2 else others)[name] = [*panels[name], *dict.fromkeys(guesses.get(name, ()))]
  return main, others


def _rank(name: str, *, has_guess: bool) -> int:
  """Returns the place of a metric's panel: losses, metrics of the task, the learning rate, other metrics, the rest."""
  if name.endswith("loss"):
    return 0
  if has_guess or name.endswith("accuracy"):
    return 1
  return 2 if name == "learning_rate" else 4 if name in _LAST_METRICS else 3


def draw_panels(
  panels: Mapping[str, Sequence[Curve]], marks: Sequence[tuple[int, str]] = (), x_label: str = "step"
) -> Figure:
  """Draws a figure with a panel for each metric, at most three in a row.

  Args:
    panels: title -> curves.
    marks: step and label of each vertical line, see logs.find_marks.
    x_label: what the x axis shows, in whole numbers.
  """
  figure, all_axes = new_panels(len(panels))
  for axes, (title, curves) in zip(all_axes, panels.items(), strict=True):
    drawn = [curve for curve in curves if not all(math.isnan(y) for _, y in curve.points)]
    for curve in drawn:
      if curve.style == "guess":
        axes.axhline(curve.points[-1][1], linestyle="--", color=curve.color, linewidth=1)
      else:
        is_single = sum(not math.isnan(y) for _, y in curve.points) == 1
        marker = {"marker": "o" if is_single else ".", "markersize": 5} if is_single or curve.style == "dots" else {}
        axes.plot(*zip(*curve.points, strict=True), color=curve.color, linewidth=1.4, **marker)
    for step, label in marks:
      axes.axvline(step, color="gray", linewidth=0.6)
      # Vertical, so that it stays within the panel also if the axis begins near the end of the stage.
      options = {"fontsize": 7, "color": "gray", "rotation": "vertical", "ha": "right", "va": "top"}
      axes.text(step, 0.98, label, transform=axes.get_xaxis_transform(), **options)
    axes.set_title(_shortened(title.replace("_", " "), 2 * _MAX_NAME_CHARACTERS), fontsize=10, parse_math=False)
    axes.set_xlabel(x_label)
    x_values = {x for curve in curves if curve.style != "guess" for x, _ in curve.points}
    if len(x_values) == 1:
      axes.set_xticks(list(x_values))
    else:
      axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    axes.grid(alpha=0.3)
    lines = zip(axes.lines, drawn, strict=False)  # the lines of marks come after those of the curves
    named = [(line, _shortened(curve.name, _MAX_NAME_CHARACTERS)) for line, curve in lines if curve.name]
    if len(curves) > 1 and 0 < len(named) <= _MAX_NAMES:
      options = {"fontsize": 8, "frameon": False, "loc": "center left", "bbox_to_anchor": (1, 0.5)}
      for text in axes.legend(*zip(*named, strict=True), **options).get_texts():
        text.set_parse_math(False)
  return figure


def new_panels(number: int) -> tuple[Figure, list[Any]]:
  """Makes a figure with a number of empty panels, at most three in a row."""
  num_columns = min(number, _PANELS_PER_ROW)
  num_rows = -(-number // _PANELS_PER_ROW)
  figure = new_figure(_PANEL_WIDTH * num_columns, _PANEL_HEIGHT * num_rows)
  all_axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
  for axes in all_axes[number:]:
    axes.remove()
  return figure, all_axes[:number]


def _shortened(text: str, max_characters: int) -> str:
  return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"
