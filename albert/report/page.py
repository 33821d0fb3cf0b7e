"""Makes the HTML page: runs, curves, results, settings, environments and examples. The page loads no other files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from albert.report import charts
from albert.report.assets import SCRIPT, STYLE
from albert.report.markup import escaped
from albert.report.records import MISTAKES_PREFIX, ExampleTable, RunRecord, SeedGroup
from albert.runs import logs, output_files

# With this content security policy, the browser loads nothing from elsewhere.
_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_SIGNIFICANT_DIGITS = 6
# Longer cells are text, even if they can be read as a number.
_MAX_NUMBER_CHARACTERS = 40
# What the fourth column of a file of mistakes has -> how its rows are sorted.
_ORDERS_OF_MISTAKES = {
  "loss": "the highest loss first (cross entropy of the correct label)",
  "error": "the largest error first",
}
# Maximum number of rows in a table, so that a damaged file does not make a page that is too large for a browser.
_MAX_ROWS = 5000

# Every page begins with these bytes. A file that begins otherwise is never overwritten.
PAGE_START = b"<!DOCTYPE html>"

Row = Sequence[str]


def make_page(title: str, runs: Sequence[RunRecord], seed_groups: Sequence[SeedGroup]) -> str:
  """Makes the HTML of the page.

  Args:
    title: the heading.
    runs: one or more runs.
    seed_groups: summaries of directories with runs of several seeds.
  """
  sections = [
    ("Runs", _format_runs(runs)),
    ("Curves", _format_curves(runs)),
    ("Results", _format_results(runs)),
    ("Over the seeds", "".join(map(_format_seed_group, seed_groups))),
    ("Settings", _format_settings(runs, "config", lambda run: run.config)),
    ("Environment", _format_settings(runs, "environment", lambda run: run.environment)),
    ("Examples", _format_examples(runs)),
  ]
  body = "".join(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections if content)
  return (
    f'{PAGE_START.decode()}<html lang="en"><head><meta charset="utf-8">'
    f'<meta http-equiv="Content-Security-Policy" content="{_SECURITY_POLICY}">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<title>{escaped(title)}</title><style>{STYLE}</style></head>"
    f"<body><h1>{escaped(title)}</h1>{body}<script>{SCRIPT}</script></body></html>\n"
  )


def _format_table(header: Row, rows: Sequence[tuple[str, Row]]) -> str:
  """Formats an HTML table that scrolls horizontally."""
  head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
  lines = []
  for css_class, (heading, *row) in rows[:_MAX_ROWS]:
    cells = "".join(f'<td class="number">{cell}</td>' if _is_number(cell) else f"<td>{cell}</td>" for cell in row)
    lines.append(f'<tr class="{css_class}"><th scope="row">{heading}</th>{cells}</tr>')
  if len(rows) > _MAX_ROWS:
    lines.append(f'<tr class=""><th scope="row">… and {len(rows) - _MAX_ROWS:,} more</th></tr>')
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
  return f'<span class="swatch" {charts.color_style(index)}></span>{escaped(run.name)}'


def _format_runs(runs: Sequence[RunRecord]) -> str:
  rows = []
  for index, run in enumerate(runs):
    last_step, num_train_steps = run.steps
    logged_speeds = [line.get("examples_per_second") for line in run.metrics]
    speeds = sorted(float(speed) for speed in logged_speeds if charts.is_drawable(speed))
    rows.append(
      (
        "",
        [
          _format_run_name(index, run),
          escaped(run.config.get("task", "")),
          f'<span class="short">{last_step:,} of {num_train_steps:,}</span>' if num_train_steps else f"{last_step:,}",
          f"{speeds[len(speeds) // 2]:.4g}" if speeds else "",
          f"<code>{escaped(run.path)}</code>",
        ],
      )
    )
  return _format_table(["run", "task", "steps", "examples/s (median)", "directory"], rows)


def _format_curves(runs: Sequence[RunRecord]) -> str:
  curves = charts.collect_curves(runs)
  if not curves:
    return ""
  buttons = "".join(
    f'<button type="button" data-run="{index}" aria-pressed="true">{_format_run_name(index, run)}</button>'
    for index, run in enumerate(runs)
  )
  max_points = charts.max_points_per_curve(sum(map(len, curves.values())))
  figures = "".join(charts.draw_chart(name, metric_curves, runs, max_points) for name, metric_curves in curves.items())
  has_evaluations = any(run.evaluations for run in runs)
  has_stages = any(logs.stage_ends(run.metrics) for run in runs)
  note = (
    f"<p>Over steps. Lines: training{'; dots: evaluations' if has_evaluations else ''}"
    f"{'; vertical lines: ends of stages' if has_stages else ''}.</p>"
  )
  return f'{note}<div class="legend">{buttons}</div><div class="charts">{figures}</div>'


def _format_results(runs: Sequence[RunRecord]) -> str:
  results = [flatten(run.results) for run in runs]
  names = list(dict.fromkeys(name for values in results for name in values))
  if not names:
    return ""
  rows = [("", [escaped(name), *(_format_number(values.get(name, "")) for values in results)]) for name in names]
  header = [output_files.EVAL_RESULTS, *(_format_run_name(index, run) for index, run in enumerate(runs))]
  return _format_table(header, rows)


def _format_seed_group(group: SeedGroup) -> str:
  columns = ("median", "mean", "standard_deviation", "minimum", "maximum")
  rows = [
    ("", [escaped(name), *(_format_number(getattr(statistics, column)) for column in columns)])
    for name, statistics in group.summary.metrics.items()
  ]
  num_runs = len(group.summary.seeds)
  num_failed = len(group.summary.failed_seeds)
  failed = f", {num_failed} no better than guessing" if num_failed else ""
  heading = f"<h3>{escaped(group.name)}: {num_runs} runs{failed}, the best {escaped(group.summary.best_run)}</h3>"
  return heading + _format_table(["metric", *(column.replace("_", " ") for column in columns)], rows)


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


def _format_settings(runs: Sequence[RunRecord], name: str, read: Callable[[RunRecord], Mapping[str, Any]]) -> str:
  """Formats a table of the settings that differ between the runs, and a folded table of all settings."""
  settings = [flatten(read(run)) for run in runs]
  names = list(dict.fromkeys(name for values in settings for name in values))
  if not names:
    return ""
  header = ["", *(_format_run_name(index, run) for index, run in enumerate(runs))]

  def make_row(setting: str, css_class: str = "") -> tuple[str, Row]:
    return css_class, [escaped(setting), *(_format_number(values.get(setting, "")) for values in settings)]

  differing_settings = [setting for setting in names if len({str(values.get(setting)) for values in settings}) > 1]
  table_of_differences = ""
  if len(runs) > 1:
    rows = [make_row(setting, "differs") for setting in differing_settings]
    table_of_differences = _format_table(header, rows) if rows else "<p>The same in all runs.</p>"
  all_rows = [make_row(setting, "differs" if setting in differing_settings else "") for setting in names]
  all_settings = f"<details><summary>All of {name}.json</summary>{_format_table(header, all_rows)}</details>"
  return table_of_differences + all_settings


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
  content = _format_table(header, [("", [_format_cell(cell) for cell in row]) for row in table.rows])
  order = _ORDERS_OF_MISTAKES.get(table.header[3], "") if len(table.header) > 3 else ""
  is_of_mistakes = table.name.startswith(MISTAKES_PREFIX)
  summary = f"{escaped(table.name)}, the first {len(table.rows)}{f': {order}' if order and is_of_mistakes else ''}"
  return f"<details{' open' if is_open else ''}><summary>{summary}</summary>{content}</details>"


def _format_cell(text: str) -> str:
  """Formats a cell as HTML: rounds a number that has a decimal point, and escapes all other text."""
  if "." in text and len(text) <= _MAX_NUMBER_CHARACTERS and _is_number(text):
    return f"{float(text):.{_SIGNIFICANT_DIGITS}g}"
  return escaped(text)
