"""Makes the HTML page: runs, curves, results, settings, environments and examples. The page loads no other files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from albert.report import charts
from albert.report.assets import SCRIPT, STYLE
from albert.report.markup import escaped
from albert.report.records import ExampleTable, RunRecord, SeedGroup
from albert.runs import output_files

# Content security policy: with it, the browser refuses to load anything from elsewhere.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_PROBABILITY_DIGITS = 6
_MAX_NUMBER_CHARACTERS = 40
# Maximum number of rows in a table. It keeps a damaged file from making a page too large for a browser.
_MAX_ROWS = 5000

# Every page begins with this. A file that begins otherwise is never overwritten.
PAGE_START = b"<!DOCTYPE html>"

Row = Sequence[str]


def make_page(title: str, runs: Sequence[RunRecord], seeds: Sequence[SeedGroup]) -> str:
  """Makes the HTML of the page.

  Args:
    title: the heading.
    runs: one or more runs.
    seeds: summaries of directories with runs of several seeds.
  """
  sections = [
    ("Runs", _runs(runs)),
    ("Curves", _curves(runs)),
    ("Results", _results(runs)),
    ("Over the seeds", "".join(map(_seeds, seeds))),
    ("Settings", _settings(runs, "config", lambda run: run.config)),
    ("Environment", _settings(runs, "environment", lambda run: run.environment)),
    ("Examples", _examples(runs)),
  ]
  body = "".join(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections if content)
  return (
    f'{PAGE_START.decode()}<html lang="en"><head><meta charset="utf-8">'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<title>{escaped(title)}</title><style>{STYLE}</style></head>"
    f"<body><h1>{escaped(title)}</h1>{body}<script>{SCRIPT}</script></body></html>\n"
  )


def _table(header: Row, rows: Sequence[tuple[str, Row]]) -> str:
  """An HTML table that scrolls horizontally. Rows are (CSS class, cells); the first cell of a row is its heading."""
  head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
  lines = []
  for kind, (first, *rest) in rows[:_MAX_ROWS]:
    cells = "".join(f'<td class="number">{cell}</td>' if _is_number(cell) else f"<td>{cell}</td>" for cell in rest)
    lines.append(f'<tr class="{kind}"><th scope="row">{first}</th>{cells}</tr>')
  if len(rows) > _MAX_ROWS:
    lines.append(f'<tr class=""><th scope="row">… and {len(rows) - _MAX_ROWS:,} more</th></tr>')
  return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _number(value: Any) -> str:
  return f"{value:.6g}" if isinstance(value, float) else escaped(value)


def _named(number: int, run: RunRecord) -> str:
  return f'<span class="swatch" {charts.color_of(number)}></span>{escaped(run.name)}'


def _runs(runs: Sequence[RunRecord]) -> str:
  rows = []
  for number, run in enumerate(runs):
    last_step, num_train_steps = run.steps
    logged = (line.get("examples_per_second") for line in run.metrics)
    speeds = sorted(float(speed) for speed in logged if charts.is_drawable(speed))
    rows.append(
      (
        "",
        [
          _named(number, run),
          escaped(run.config.get("task", "")),
          f'<span class="short">{last_step:,} of {num_train_steps:,}</span>' if num_train_steps else f"{last_step:,}",
          f"{speeds[len(speeds) // 2]:.4g}" if speeds else "",
          f"<code>{escaped(run.path)}</code>",
        ],
      )
    )
  return _table(["run", "task", "steps", "examples/s (median)", "directory"], rows)


def _curves(runs: Sequence[RunRecord]) -> str:
  curves = charts.curves_of(runs)
  if not curves:
    return ""
  buttons = "".join(
    f'<button type="button" data-run="{number}" aria-pressed="true">{_named(number, run)}</button>'
    for number, run in enumerate(runs)
  )
  most = charts.points_of_each(sum(map(len, curves.values())))
  drawn = "".join(charts.draw(name, series, runs, most) for name, series in curves.items())
  has_evaluations = any(run.evaluations for run in runs)
  note = "<p>Over steps. Lines: training" + ("; dots: evaluations" if has_evaluations else "") + ".</p>"
  return f'{note}<div class="legend">{buttons}</div><div class="charts">{drawn}</div>'


def _results(runs: Sequence[RunRecord]) -> str:
  results = [flattened(run.results) for run in runs]
  names = list(dict.fromkeys(name for values in results for name in values))
  if not names:
    return ""
  rows = [("", [escaped(name), *(_number(values.get(name, "")) for values in results)]) for name in names]
  return _table([output_files.EVAL_RESULTS, *(_named(number, run) for number, run in enumerate(runs))], rows)


def _seeds(seeds: SeedGroup) -> str:
  columns = ("median", "mean", "standard_deviation", "minimum", "maximum")
  rows = [
    ("", [escaped(name), *(_number(getattr(numbers, column)) for column in columns)])
    for name, numbers in seeds.summary.metrics.items()
  ]
  count = len(seeds.summary.seeds)
  heading = f"<h3>{escaped(seeds.name)}: {count} runs, the best {escaped(seeds.summary.best_run)}</h3>"
  return heading + _table(["metric", *(column.replace("_", " ") for column in columns)], rows)


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Nested settings as one dict with dotted names, such as train.seed. A list becomes one text."""
  flat: dict[str, Any] = {}
  for name, value in values.items():
    if isinstance(value, Mapping):
      flat |= flattened(value, f"{prefix}{name}.")
    else:
      flat[f"{prefix}{name}"] = " ".join(map(str, value)) if isinstance(value, list) else value
  return flat


def _settings(runs: Sequence[RunRecord], name: str, of: Callable[[RunRecord], Mapping[str, Any]]) -> str:
  """A table of the settings that differ between the runs, and all settings in a section that can be opened."""
  settings = [flattened(of(run)) for run in runs]
  names = list(dict.fromkeys(name for values in settings for name in values))
  if not names:
    return ""
  header = ["", *(_named(number, run) for number, run in enumerate(runs))]

  def row(setting: str, kind: str = "") -> tuple[str, Row]:
    return kind, [escaped(setting), *(_number(values.get(setting, "")) for values in settings)]

  different = [setting for setting in names if len({str(values.get(setting)) for values in settings}) > 1]
  parts = []
  if len(runs) > 1:
    differing = [row(setting, "differs") for setting in different]
    parts.append(_table(header, differing) if different else "<p>The same in all runs.</p>")
  everything = _table(header, [row(setting, "differs" if setting in different else "") for setting in names])
  parts.append(f"<details><summary>All of {name}.json</summary>{everything}</details>")
  return "".join(parts)


def _examples(runs: Sequence[RunRecord]) -> str:
  parts = []
  for number, run in enumerate(runs):
    pictures = "".join(
      f'<figure><figcaption>{escaped(name)}</figcaption><img alt="{escaped(name)} of {escaped(run.name)}" '
      f'src="data:image/png;base64,{base64.b64encode(png).decode()}"></figure>'
      for name, png in run.pictures.items()
    )
    tables = "".join(_example_table(table, is_open=table is run.examples[0]) for table in run.examples)
    if pictures or tables:
      parts.append(f'<h3>{_named(number, run)}</h3>{tables}<div class="pictures">{pictures}</div>')
  return "".join(parts)


def _example_table(table: ExampleTable, *, is_open: bool) -> str:
  content = _table([*map(escaped, table.header)], [("", [_cell(cell) for cell in row]) for row in table.rows])
  summary = f"{escaped(table.name)}, the first {len(table.rows)}"
  return f"<details{' open' if is_open else ''}><summary>{summary}</summary>{content}</details>"


def _cell(text: str) -> str:
  """The HTML of a cell: numbers with a decimal point are rounded, all other text is escaped."""
  if "." in text and len(text) <= _MAX_NUMBER_CHARACTERS and _is_number(text):
    return f"{float(text):.{_PROBABILITY_DIGITS}g}"
  return escaped(text)
