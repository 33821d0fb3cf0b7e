"""Tests that the page shows what the runs have written."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from albert.errors import UserError
from albert.report import charts
from albert.report.page import flatten, make_page
from albert.report.records import read_runs
from tests.fresh_interpreter import command_code, run_fresh
from tests.report.run_files import make_run, make_seeds, write_lines


class _Page(HTMLParser):
  """A parsed page.

  Attributes:
    rows: the cells of each row of all tables.
    open_elements: elements that have no end tag so far.
    addresses: values of attributes that load something.
    scripts: the texts of script elements.
  """

  def __init__(self, text: str):
    super().__init__()
    self.rows: list[list[str]] = []
    self.open_elements: list[str] = []
    self.addresses: list[str] = []
    self.scripts: list[str] = []
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attrs):
    self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]
    if tag == "tr":
      self.rows.append([])
    elif tag in ("td", "th"):
      self.rows[-1].append("")
    if tag not in ("meta", "img", "line", "circle", "polyline"):
      self.open_elements.append(tag)

  handle_startendtag = handle_starttag

  def handle_endtag(self, tag):
    assert self.open_elements.pop() == tag

  def handle_data(self, data):
    if self.open_elements and self.open_elements[-1] == "script":
      self.scripts.append(data)
    elif self.rows and {"td", "th"} & set(self.open_elements):
      self.rows[-1][-1] += data


def _parse_page(*paths: Path, num_examples: int = 3) -> _Page:
  """Makes the page of some runs and parses it."""
  return _Page(make_page("a < b", *read_runs([str(path) for path in paths], num_examples=num_examples)))


def test_the_page_shows_progress_results_settings_examples_and_pictures_of_a_run(tmp_path: Path):
  page = _parse_page(make_run(tmp_path / "first"))
  assert page.open_elements == []
  # make_run logs 200 to 206 examples per second.
  assert ["first", "classifier", "1,000 of 1,000", "203", str(tmp_path / "first")] in page.rows
  assert ["accuracy", "0.8"] in page.rows
  assert ["model.hidden_size", "128"] in page.rows
  assert ["command", "run_classifier.py --do_train"] in page.rows
  assert ["7", "0", "1", "3.0555", "0.9529", 'A <script>alert(1)</script> & "b".'] in page.rows
  assert page.rows.count(["0", "1", "1", "0.171702", "0.828298"]) == 1
  assert not [row for row in page.rows if len(row) == 5 and row[0] == "3"]  # only three examples: ids 0, 1, 2
  # The scores of all classes are shown, however many examples are.
  assert [row[0] for row in page.rows if row[1:] == ["0.5", "0.25", "0.333333", "4", "2"]] == [
    f"label-{n}" for n in range(12)
  ]
  assert len(page.addresses) == 2
  assert all(address.startswith("data:image/png;base64,") for address in page.addresses)


def test_the_heading_of_mistakes_says_how_they_are_sorted(tmp_path: Path):
  run = make_run(tmp_path / "run")
  orders = []
  for column in ("loss", "error", "f1"):
    (run / "mistakes_dev.tsv").write_text(f"id\tlabel\tprediction\t{column}\n1\ta\tb\t2.5\n")
    page = make_page("Runs", *read_runs([str(run)], num_examples=3))
    orders += re.findall(r"<summary>mistakes_dev\.tsv, the first 1(.*?)</summary>", page)
  assert orders == [": the highest loss first (cross entropy of the correct label)", ": the largest error first", ""]


def test_a_name_cannot_add_a_script(tmp_path: Path):
  run = make_run(tmp_path / "<!--<script>")
  page = _parse_page(run)
  assert page.open_elements == []
  *chart_data, own_script = page.scripts
  assert all(json.loads(text)["series"][0]["name"].startswith("<!--<script>") for text in chart_data)
  assert "querySelector" in own_script


def test_settings_that_differ_between_runs_come_first(tmp_path: Path):
  page = _parse_page(make_run(tmp_path / "a"), make_run(tmp_path / "b", learning_rate=2e-3))
  header = page.rows.index(["", "a", "b"])
  assert page.rows[header + 1] == ["optimizer.learning_rate", "0.001", "0.002"]
  assert page.rows[header + 2] == ["", "a", "b"]  # the header of the next table, which has all settings
  assert ["train.seed", "1", "1"] in page.rows


def test_a_directory_of_seeds_shows_all_its_runs(tmp_path: Path):
  page = _parse_page(make_seeds(tmp_path / "task"))
  assert [row[0] for row in page.rows[1:3]] == ["run-1", "run-2"]
  assert ["accuracy", "0.8", "0.81", "0.0125", "0.79", "0.83"] in page.rows


def test_names_are_as_long_as_needed_to_differ(tmp_path: Path):
  runs, _ = read_runs([str(make_run(tmp_path / name / "run")) for name in ("x", "y")], num_examples=0)
  assert [run.name for run in runs] == ["x/run", "y/run"]


def test_unfinished_runs_and_weights_that_were_only_evaluated_are_shown(tmp_path: Path):
  unfinished, evaluated = tmp_path / "unfinished", tmp_path / "evaluated"
  unfinished.mkdir()
  evaluated.mkdir()
  (unfinished / "metrics.jsonl").write_text('{"step": 5, "loss": NaN}\n{"step": 10, "loss": 2.0}\n{"step": 15, "lo')
  (evaluated / "eval_results.json").write_text('{"step": 0, "accuracy": 0.25}')
  page = _parse_page(unfinished, evaluated)
  assert ["unfinished", "", "10", "", str(unfinished)] in page.rows
  assert ["accuracy", "", "0.25"] in page.rows


def test_filled_masks_and_answers_are_shown(tmp_path: Path):
  run = make_run(tmp_path / "run")
  (run / "predictions.tsv").write_text('line\ttext\n1\t"He said ""[MASK]""."\n', encoding="utf-8")
  (run / "predictions_test.json").write_text('{"q1": "in 1990", "q2": ""}', encoding="utf-8")
  rows = _parse_page(run).rows
  assert ["1", 'He said "[MASK]".'] in rows
  assert ["q1", "in 1990"] in rows
  assert ["q2", ""] in rows


def test_curves_hold_every_logged_value(tmp_path: Path):
  run = make_run(tmp_path / "run")
  logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
  training, evaluation = json.loads(_parse_page(run).scripts[0])["series"]
  assert training["points"] == [[line["step"], line["loss"]] for line in logged]
  assert evaluation["points"] == [[500, 0.7], [1000, 0.6]]


def test_metrics_that_never_change_have_no_curve(tmp_path: Path):
  runs, _ = read_runs([str(make_run(tmp_path / "run"))], num_examples=0)
  assert list(charts.collect_curves(runs)) == ["loss", "accuracy", "examples_per_second"]  # no majority_accuracy


def test_points_and_ticks_are_drawn_in_proportion_to_their_values(tmp_path: Path):
  runs, _ = read_runs([str(make_run(tmp_path / "run"))], num_examples=0)
  svg = charts.draw_chart("loss", [charts.Curve(0, False, [(0, 2.0), (50, 1.0), (200, 4.0)])], runs)
  match = re.search(r'polyline points="([^"]+)"', svg)
  assert match
  (x0, y0), (x1, y1), (x2, y2) = ([float(number) for number in pair.split(",")] for pair in match[1].split())
  assert (x1 - x0) / (x2 - x0) == pytest.approx(50 / 200, abs=2e-3)
  assert (y1 - y0) / (y1 - y2) == pytest.approx((2 - 1) / (4 - 1), abs=2e-3)
  ticks = re.findall(r'y1="([\d.]+)" y2="\1"/><text class="y" [^>]*>([^<]+)<', svg)
  assert len(ticks) >= 3
  for y, label in ticks:
    assert float(y) == pytest.approx(y0 + (float(label) - 2) * (y2 - y0) / 2, abs=0.2)


@pytest.mark.parametrize(
  ("low", "high", "expected"),
  [
    (0, 1000, [0, 200, 400, 600, 800, 1000]),
    (0.58, 0.72, [0.6, 0.65, 0.7]),
    (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    (1e-5, 9.9e-5, [2e-5, 4e-5, 6e-5, 8e-5]),
    (3, 3, [3]),
  ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]):
  assert charts.axis_ticks(low, high, max_ticks=6) == pytest.approx(expected)


def test_thinning_keeps_ends_and_spikes():
  points = [(n, float(n % 5)) for n in range(10_000)]
  points[4321] = (4321, 99.0)
  points[8000] = (8000, -99.0)
  thinned = charts.thin_out(points, 100)
  assert len(thinned) <= 100
  assert (thinned[0], thinned[-1]) == (points[0], points[-1])
  assert {points[4321], points[8000]} <= set(thinned)
  assert thinned == sorted(thinned)
  assert charts.thin_out(points[:100], 100) == points[:100]


def test_nested_settings_become_rows_with_dotted_names():
  assert flatten({"a": {"b": {"c": 1}}, "d": ["x", 2]}) == {"a.b.c": 1, "d": "x 2"}


def test_bad_directories_give_one_line(tmp_path: Path):
  run = make_run(tmp_path / "run")
  empty = tmp_path / "empty"
  empty.mkdir()
  damaged = tmp_path / "damaged"
  damaged.mkdir()
  write_lines(damaged / "metrics.jsonl", [{"step": 1}])
  with open(damaged / "metrics.jsonl", "a", encoding="utf-8") as file:
    file.write('oops\n{"step": 2}\n')
  incomplete = tmp_path / "incomplete"
  incomplete.mkdir()
  (incomplete / "runs.json").write_text('{"seeds": [1]}')
  for paths, message in [
    ([], "give the directories of one or more runs"),
    ([tmp_path / "nowhere"], "nowhere: no such directory"),
    ([run, empty], "empty: holds no run"),
    ([run, run], "run is given twice"),
    ([damaged], "metrics.jsonl, line 2: not JSON (Expecting value, column 1): delete the line"),
    ([incomplete], "runs.json: Object missing required field `best_run`: make it again"),
  ]:
    with pytest.raises(UserError, match=re.escape(message)):
      read_runs([str(path) for path in paths], num_examples=1)


def test_the_command_takes_flags_and_directories_in_any_order(tmp_path: Path):
  runs = [str(make_run(tmp_path / name)) for name in ("a", "b")]
  output = tmp_path / "page.html"
  command = ["-m", "albert.report", "--title=Two", runs[0], f"--output_file={output}", runs[1]]
  process, modules = run_fresh(command_code(command), tmp_path)
  assert (process.returncode, process.stdout) == (0, f"wrote {output} (2 runs)\n"), process.stderr
  assert "<title>Two</title>" in output.read_text(encoding="utf-8")
  assert "tensorflow" not in modules
  process, modules = run_fresh(command_code(["-m", "albert.report", str(tmp_path / "nowhere")]), tmp_path)
  assert process.returncode == 2
  assert process.stderr == f"error: {tmp_path / 'nowhere'}: no such directory: give the --output_dir of a run\n"
  assert "tensorflow" not in modules


def test_charts_mark_the_ends_of_stages(tmp_path):
  run = make_run(tmp_path / "run", steps=500)
  # Stage 1 ends after step 150, stage 2 after step 400.
  stages = {1: range(50, 151, 50), 2: range(200, 401, 50), 3: range(450, 501, 50)}
  lines = [{"step": step, "stage": stage, "loss": 1 / step} for stage, steps in stages.items() for step in steps]
  write_lines(run / "metrics.jsonl", lines)
  runs, _ = read_runs([str(run)], num_examples=0)
  curves = charts.collect_curves(runs)
  assert "stage" not in curves
  chart = charts.draw_chart("loss", curves["loss"], runs)
  marks = re.findall(r'<g data-run="0" class="stage".*?</g>', chart)
  assert len(marks) == 1
  # Steps 0 to 500 are drawn from x = 46 to x = 46 + 304. So step 150 is at 46 + 0.3 * 304 = 137.2.
  assert re.findall(r'<line x1="([\d.]+)".*?<text [^>]*>(stage \d)</text>', marks[0]) == [
    ("137.2", "stage 1"),
    ("289.2", "stage 2"),
  ]
  page = make_page("runs", runs, [])
  assert "vertical lines: ends of stages" in page
  write_lines(run / "metrics.jsonl", [{"step": step, "loss": 1 / step} for step in range(50, 501, 50)])
  runs, _ = read_runs([str(run)], num_examples=0)
  assert "ends of stages" not in make_page("runs", runs, [])


def test_settings_of_stages_are_rows():
  assert flatten({"stages": [{"last_step": 3}, {"last_step": 8}], "words": ["a", "b"], "none": []}) == {
    "stages.1.last_step": 3,
    "stages.2.last_step": 8,
    "words": "a b",
    "none": "",
  }
