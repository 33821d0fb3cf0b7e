"""Makes the HTML page: runs, curves, results, settings, environments and examples. The page loads and runs nothing."""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from albert.report.records import MISTAKES_PREFIX, ExampleTable, RunRecord
from albert.runs import figures, logs, output_files

# With this content security policy, the browser loads nothing from elsewhere and runs no scripts.
_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SIGNIFICANT_DIGITS = 6
# What the fourth column of a file of mistakes has -> how its rows are sorted.
_ORDERS_OF_MISTAKES = {
  "loss": "the highest loss first (cross entropy of the correct label); these are likely errors of the labels",
  "error": "the largest error first",
}
_MAX_FOLDED_CHARTS = 60
# Maximum number of characters that are shown of a text, such as a cell, a name, a path or a setting.
_MAX_CHARACTERS = 1000
# Lone surrogates, which UTF-8 cannot encode, and characters that HTML does not allow even as a character reference.
_INVALID_CHARACTERS = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\x80-\x9f\x7f]")
# Control characters other than tab and line feed are replaced by the symbols for them (U+2400 and following).
_CONTROL_SYMBOLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}

# Every page begins with these bytes. A file that begins otherwise is never overwritten.
PAGE_START = b"<!DOCTYPE html>"

Row = Sequence[str]

_STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1d1d1b; --faint: #65645f; --line: #deddd7; --panel: #f7f6f3; --mark: #fff1c9; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #171716; --ink: #ecebe6; --faint: #a3a29b; --line: #383835; --panel: #20201e; --mark: #40371a; }
  img { filter: invert(.88) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1280px; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: .5rem 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
p { color: var(--faint); margin: .25rem 0; } code { font-size: .85em; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; max-width: 32rem; }
td.number { text-align: right; white-space: nowrap; } .short { white-space: nowrap; }
thead th, tbody th { color: var(--faint); font-weight: 500; }
tr.differs td { background: var(--mark); }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
.charts img { width: 100%; }
figure { margin: 0; background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .6rem;
  min-width: 0; }
figcaption { font-weight: 600; font-size: 14px; }
details { margin: .5rem 0; } summary { cursor: pointer; }
img { display: block; max-width: 100%; border-radius: 4px; background: #fff; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; } .pictures figure { max-width: min(100%, 420px); }
"""


def cleaned(text: str) -> str:
  """Replaces characters that are not allowed in HTML by U+FFFD, and cuts a long text. It does not escape the text."""
  shown_text = _INVALID_CHARACTERS.sub("\ufffd", text[:_MAX_CHARACTERS]).translate(_CONTROL_SYMBOLS)
  return shown_text if len(text) <= _MAX_CHARACTERS else f"{shown_text}… ({len(text):,} characters)"


def escaped(value: Any) -> str:
  """Converts a value to HTML text that is also safe inside a quoted attribute. None becomes "null"."""
  return html.escape(cleaned("null" if value is None else str(value)))


def make_page(title: str, runs: Sequence[RunRecord], summaries: Mapping[str, Mapping[str, Any]]) -> str:
  """Makes the HTML of the page.

  Args:
    title: the heading.
    runs: one or more runs.
    summaries: name -> runs.json of each directory with runs of several seeds.
  """
  sections = [
    ("Runs", _format_runs(runs)),
    ("Curves", _format_curves(runs)),
    ("Data", _format_files(runs, output_files.DATA_SUMMARY, [run.data for run in runs])),
    ("Results", _format_files(runs, output_files.EVAL_RESULTS, [run.results for run in runs])),
    ("Over the seeds", "".join(_format_summary(*summary) for summary in summaries.items())),
    ("Settings", _format_settings(runs, "config")),
    ("Environment", _format_settings(runs, "environment")),
    ("Examples", _format_examples(runs)),
  ]
  body = "".join(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections if content)
  return (
    f'{PAGE_START.decode()}<html lang="en"><head><meta charset="utf-8">'
    f'<meta http-equiv="Content-Security-Policy" content="{_SECURITY_POLICY}">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<title>{escaped(title)}</title><style>{_STYLE}</style></head>"
    f"<body><h1>{escaped(title)}</h1>{body}</body></html>\n"
  )


def _format_table(header: Row, rows: Sequence[Row], marked: Collection[str] = ()) -> str:
  """Formats an HTML table that scrolls horizontally. The rows whose first cells are in `marked` have a background."""
  head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
  lines = []
  for heading, *row in rows:
    cells = "".join(f'<td class="number">{cell}</td>' if _is_number(cell) else f"<td>{cell}</td>" for cell in row)
    css_class = ' class="differs"' if heading in marked else ""
    lines.append(f'<tr{css_class}><th scope="row">{heading}</th>{cells}</tr>')
  return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _format_number(value: Any) -> str:
  return f"{value:.{_SIGNIFICANT_DIGITS}g}" if isinstance(value, float) else escaped(value)


def _format_run_name(index: int, run: RunRecord) -> str:
  """The name of a run after a dot in the color of its curves."""
  color = figures.COLORS[index % len(figures.COLORS)]
  return f'<span class="swatch" style="background: {color}"></span>{escaped(run.name)}'


def _format_runs(runs: Sequence[RunRecord]) -> str:
  rows, notes = [], ""
  for index, run in enumerate(runs):
    last_step = max((line["step"] for line in (*run.metrics, *run.evaluations)), default=0)
    num_train_steps = run.config.get("train", {}).get("num_train_steps", 0)
    lines_with_speed = [line for line in run.metrics if figures.is_drawable(line.get("examples_per_second"))]
    row = [
      _format_run_name(index, run),
      escaped(run.config.get("task", "")),
      f'<span class="short">{last_step:,} of {num_train_steps:,}</span>' if num_train_steps else f"{last_step:,}",
      f"{logs.median_speed(lines_with_speed):.4g}" if lines_with_speed else "",
      f"<code>{escaped(run.path)}</code>",
    ]
    rows.append(row)
    states = [line[logs.STATUS_KEY] for line in run.metrics if logs.STATUS_KEY in line]
    texts = [*states[-1:], *(line[logs.EVENT_KEY] for line in run.metrics if logs.EVENT_KEY in line)]
    notes += "".join(f"<p>{_format_run_name(index, run)}: {escaped(text)}</p>" for text in texts)
  return _format_table(["run", "task", "steps", "examples/s (median)", "directory"], rows) + notes


def _format_curves(runs: Sequence[RunRecord]) -> str:
  """Formats a chart for each loss, metric of the task and learning rate, and folded charts of all other metrics."""
  names = [cleaned(run.name) for run in runs] if len(runs) > 1 else [""]
  main, others = figures.collect_panels(
    [figures.RunLogs(name, run.metrics, run.evaluations) for name, run in zip(names, runs, strict=True)]
  )
  if not main | others:
    return ""
  marks = list(dict.fromkeys(mark for run in runs for mark in logs.find_marks(run.metrics)))

  def draw(panels: Mapping[str, Sequence[figures.Curve]]) -> str:
    return f'<div class="charts">{"".join(_draw_chart(*panel, marks) for panel in panels.items())}</div>'

  has_guesses = any(curve.style == "guess" for curves in (main | others).values() for curve in curves)
  note = (
    f"<p>Over steps. Lines: training{'; dots: evaluations' if any(run.evaluations for run in runs) else ''}"
    f"{'; dashed: guessing' if has_guesses else ''}"
    f"{'; vertical lines: ends of stages, and events' if marks else ''}.</p>"
  )
  shown = dict(list(others.items())[:_MAX_FOLDED_CHARTS])
  number = f"{len(others)}" if len(shown) == len(others) else f"{len(shown)} of {len(others):,}"
  folded = f"<details><summary>All other metrics ({number})</summary>{draw(shown)}</details>" if others else ""
  return note + draw(main) + folded


def _draw_chart(name: str, curves: Sequence[figures.Curve], marks: Sequence[tuple[int, str]]) -> str:
  """Draws a chart as an image. Its description for screen readers has the first and the last value of each curve."""
  described = []
  for curve in curves:
    values = [value for _, value in curve.points if not math.isnan(value)]
    described.append(f"{curve.name} from {values[0]:.4g} to {values[-1]:.4g}")
  svg = figures.svg(figures.draw_panels({cleaned(name): curves}, marks))
  description = escaped(f"{name} over steps: {'; '.join(described)}")
  return f'<figure><img alt="{description}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"></figure>'


def _format_files(runs: Sequence[RunRecord], name: str, contents: Sequence[Mapping[str, Any]]) -> str:
  """Formats a table of the values in a file of each run."""
  header = [name, *(_format_run_name(index, run) for index, run in enumerate(runs))]
  rows = _format_values(list(map(flatten, contents)))
  return _format_table(header, rows) if rows else ""


def _format_values(columns: Sequence[Mapping[str, Any]]) -> list[Row]:
  """Formats a row for each name: the name, and its value in each column, empty where a column lacks it."""
  names = dict.fromkeys(name for values in columns for name in values)
  return [[escaped(name), *(_format_number(values.get(name, "")) for values in columns)] for name in names]


def _format_summary(name: str, summary: Mapping[str, Any]) -> str:
  columns = ("median", "mean", "standard_deviation", "minimum", "maximum")
  rows = [
    [escaped(metric), *(_format_number(values.get(column)) for column in columns)]
    for metric, values in summary["metrics"].items()
  ]
  num_failed = len(summary.get("failed_seeds", ()))
  failed = f", {num_failed} no better than guessing" if num_failed else ""
  heading = f"{escaped(name)}: {len(summary['seeds'])} runs{failed}, the best {escaped(summary['best_run'])}"
  return f"<h3>{heading}</h3>" + _format_table(["metric", *(column.replace("_", " ") for column in columns)], rows)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Converts nested settings to one dict with dotted names, such as train.seed or stages.1.train_batch_size.

  A list of other values becomes one text.

  Args:
    values: the nested settings.
    prefix: put before each name.
  """
  flat: dict[str, Any] = {}
  for name, value in values.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f"{prefix}{name}.")
    elif isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
      flat |= flatten({str(number): entry for number, entry in enumerate(value, start=1)}, f"{prefix}{name}.")
    else:
      flat[f"{prefix}{name}"] = " ".join(map(str, value)) if isinstance(value, list) else value
  return flat


def _format_settings(runs: Sequence[RunRecord], name: str) -> str:
  """Formats a table of the settings that differ between the runs and a folded one of all, from `name`.json."""
  rows = _format_values([flatten(getattr(run, name)) for run in runs])
  if not rows:
    return ""
  header = ["", *(_format_run_name(index, run) for index, run in enumerate(runs))]
  differing_rows = [row for row in rows if len(set(row[1:])) > 1]
  marked = {row[0] for row in differing_rows}
  differences = ""
  if len(runs) > 1:
    differences = _format_table(header, differing_rows, marked) if differing_rows else "<p>The same in all runs.</p>"
  return f"{differences}<details><summary>All of {name}.json</summary>{_format_table(header, rows, marked)}</details>"


def _format_examples(runs: Sequence[RunRecord]) -> str:
  sections = []
  for index, run in enumerate(runs):
    pictures = "".join(
      f'<figure><figcaption>{escaped(name)}</figcaption><img alt="{escaped(name)} of {escaped(run.name)}" '
      f'src="data:image/png;base64,{base64.b64encode(png).decode()}"></figure>'
      for name, png in run.pictures.items()
    )
    tables = "".join(_format_example_table(table, is_open=table is run.examples[0]) for table in run.examples)
    if pictures or tables:
      sections.append(f'<h3>{_format_run_name(index, run)}</h3>{tables}<div class="pictures">{pictures}</div>')
  return "".join(sections)


def _format_example_table(table: ExampleTable, *, is_open: bool) -> str:
  header = [escaped(name) for name in table.header]
  content = _format_table(header, [[_format_cell(cell) for cell in row] for row in table.rows])
  order = _ORDERS_OF_MISTAKES.get(table.header[3], "") if len(table.header) > 3 else ""
  is_of_mistakes = table.name.startswith(MISTAKES_PREFIX)
  summary = f"{escaped(table.name)}, the first {len(table.rows)}{f': {order}' if order and is_of_mistakes else ''}"
  return f"<details{' open' if is_open else ''}><summary>{summary}</summary>{content}</details>"


def _format_cell(text: str) -> str:
  """Formats a cell as HTML: rounds a number that has a decimal point, and escapes all other text."""
  if "." in text and _is_number(text):
    return f"{float(text):.{_SIGNIFICANT_DIGITS}g}"
  return escaped(text)
