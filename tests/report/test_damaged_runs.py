"""Tests with damaged or hostile files in a run: the page is right, or the error is one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from albert.errors import UserError
from albert.report import charts
from albert.report.__main__ import _check_output_file
from albert.report.markup import cleaned
from albert.report.page import make_page
from albert.report.records import read_runs
from tests.report.run_files import make_run, make_seeds
from tests.report.skeleton import Skeleton

HOSTILE_TEXT = (
  '</script><script>alert(1)</script><!--\u2028"\'><img src=x onerror=alert(1)> onload="x" &lt; \ud800 \x00\x1b'
)


def make_page_of(*paths: Path, num_examples: int = 3) -> str:
  page = make_page("Runs", *read_runs([str(path) for path in paths], num_examples=num_examples))
  page.encode("utf-8")  # fails if the page has a lone surrogate
  return page


def format_json_lines(*lines: Any) -> str:
  return "".join(json.dumps(line) + "\n" for line in lines)


def read_points(page: str) -> list[Any]:
  """The points of each curve on the page."""
  scripts = [part.split("</script>")[0] for part in page.split('<script type="application/json">')[1:]]
  return [curve["points"] for script in scripts for curve in json.loads(script)["series"]]


@pytest.mark.parametrize(
  ("values", "points"),
  [
    ([None, 1.0, 2.0], [[2, 1.0], [3, 2.0]]),
    ([float("nan"), float("inf"), -1.0, 2.0], [[3, -1.0], [4, 2.0]]),
    (["<b>", {"a": [1]}, [2], True, 1.0, 2.0], [[5, 1.0], [6, 2.0]]),
    ([1e308, -1e308, 2**63, 1.0], [[3, 2.0**63], [4, 1.0]]),
    ([1e300, -1e300], [[1, 1e300], [2, -1e300]]),
    ([0.0, 5e-324], [[1, 0.0], [2, 5e-324]]),
    ([1.0, 1.0000000000000002], [[1, 1.0], [2, 1.0000000000000002]]),
    ([2**62, 2**62 + 4096], [[1, 2.0**62], [2, 2.0**62 + 4096]]),
  ],
)
def test_values_that_cannot_be_drawn_are_left_out(tmp_path: Path, values: list[Any], points: list[list[float]]):
  run = make_run(tmp_path / "run")
  lines = [{"step": n, "loss": value, "examples_per_second": value} for n, value in enumerate(values, 1)]
  (run / "metrics.jsonl").write_text(format_json_lines(*lines))
  (run / "eval_metrics.jsonl").unlink()
  assert read_points(make_page_of(run)) == [points, points]


def test_steps_in_any_order_make_one_curve(tmp_path: Path):
  run = make_run(tmp_path / "run")
  lines = [{"step": step, "loss": float(value)} for value, step in enumerate([5, 1, 2**63 - 1, 5, 2, 1])]
  (run / "metrics.jsonl").write_text(format_json_lines(*lines))
  (run / "eval_metrics.jsonl").write_text("")
  assert read_points(make_page_of(run)) == [[[1, 5.0], [2, 4.0], [5, 3.0], [2**63 - 1, 2.0]]]


@pytest.mark.parametrize("step", ["-1", "1.5", '"1"', "null", "true", "[]", "9" * 400, "9" * 5000, "1e999", "NaN"])
def test_a_step_is_a_whole_number(tmp_path: Path, step: str):
  run = make_run(tmp_path / "run")
  for name in ("metrics.jsonl", "eval_metrics.jsonl"):
    original = (run / name).read_text()
    (run / name).write_text(f'{{"step": {step}, "loss": 1.0}}\n{{"step": 2, "loss": 2.0}}\n')
    with pytest.raises(UserError, match=rf"{name}, line 1: .*: delete the line"):
      make_page_of(run)
    (run / name).write_text(original)


@pytest.mark.parametrize(
  ("file", "content", "message"),
  [
    ("config.json", "[1]", "config.json"),
    ("config.json", '{"train": 5}', "config.json.*train"),
    ("config.json", '{"train": {"num_train_steps": "many"}}', "config.json.*num_train_steps"),
    ("config.json", '{"train": {"num_train_steps": -1}}', "config.json.*num_train_steps"),
    ("config.json", '{"task": ["a"]}', "config.json.*task"),
    ("config.json", "", "config.json"),
    ("config.json", '{"a":' * 3000 + "1" + "}" * 3000, "config.json"),
    ("eval_results.json", '{"a": ' + "9" * 400 + "}", "eval_results.json.* too long"),
    ("metrics.jsonl", '{"step": 1, "loss": 1e999}\n', "metrics.jsonl, line 1.*must be a finite number"),
    ("environment.json", "null", "environment.json"),
    ("eval_results.json", '{"accuracy": 0.5', "eval_results.json: not JSON"),
    ("predictions_dev.json", '["a"]', "predictions_dev.json"),
    ("metrics.jsonl", '{"step": 1}\n[]\n', "metrics.jsonl, line 2"),
    ("metrics.jsonl", b'{"step": 1, "loss": "\xff"}\n', "metrics.jsonl, line 1"),
    ("metrics.jsonl", '{"a":' * 3000 + "1" + "}" * 3000 + "\n", "metrics.jsonl, line 1"),
    ("predictions.tsv", "a\tb\nx\ry\tz\n", r"predictions.tsv, line 2: not a row"),
    ("confusion_matrix_x.png", "<svg onload=alert(1)>", "confusion_matrix_x.png: is not a PNG picture"),
  ],
)
def test_a_damaged_file_gives_one_line(tmp_path: Path, file: str, content: str | bytes, message: str):
  run = make_run(tmp_path / "run")
  (run / file).write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(UserError, match=message):
    make_page_of(run)


@pytest.mark.parametrize(
  "summary",
  [
    "[]",
    '{"seeds": 5, "best_run": "run-1", "metrics": {}}',
    '{"seeds": ["../outside"], "best_run": "run-1", "metrics": {}}',
    '{"seeds": [1, 2], "best_run": 7, "metrics": {}}',
    '{"seeds": [1, 2], "best_run": "run-1", "metrics": {"accuracy": 1}}',
    '{"seeds": [1, 2], "best_run": "run-1", "metrics": {"accuracy": {"median": "x"}}}',
    '{"seeds": [1, 1], "best_run": "run-1", "metrics": {}}',
    '{"seeds": [1, 99999999999999999999999], "best_run": "run-1", "metrics": {}}',
  ],
)
def test_a_damaged_summary_of_seeds_gives_one_line(tmp_path: Path, summary: str):
  directory = make_seeds(tmp_path / "seeds")
  (directory / "runs.json").write_text(summary)
  with pytest.raises(UserError, match=r"runs\.json|run-1 is given twice|run-9+: holds no run"):
    make_page_of(directory)


def test_special_files_are_named_in_the_error(tmp_path: Path):
  for name in ("config.json", "predictions_dev.tsv", "confusion_matrix_dev.png"):
    run = make_run(tmp_path / name / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(UserError, match=f"{name}: is a pipe, not a file"):
      make_page_of(run)
    (run / name).unlink()
    (run / name).mkdir()
    with pytest.raises(UserError, match=f"{name}"):
      make_page_of(run)


def test_huge_texts_and_tables_are_cut(tmp_path: Path):
  """Among them: long cells, names and settings, quoted cells with line ends, a table with thousands of columns."""
  run = make_run(tmp_path / "run")
  huge = "<i>" + "x" * 300_000
  (run / "metrics.jsonl").write_text(format_json_lines({"step": 1, huge: 1.0}, {"step": 2, huge: 2.0}))
  (run / "predictions.tsv").write_text(f'text\tlabel\n"{huge}\n2"\t"a\tb"\nlast\t1\n')
  (run / "mistakes_dev.tsv").write_text("\t".join(map(str, range(20_000))) + "\n1\t2\n")
  (run / "predictions_dev.json").write_text(json.dumps({huge: {"nested": [huge, None]}}))
  (run / "eval_results.json").write_text(json.dumps({"a": None, "b": {"c": 10**18}, huge: huge}))
  config = {"task": huge, "list": list(range(100_000)), **{f"key{n}": n for n in range(6000)}}
  (run / "config.json").write_text(json.dumps(config))
  (run / "environment.json").write_text("{}")
  page = make_page_of(run)
  assert len(page) < 2_000_000
  text = Skeleton(page).text
  assert {"a", "null", "b.c", "last"} <= set(text)
  assert any(part.startswith("<i>xxx") and part.endswith("… (300,003 characters)") for part in text)
  assert any(part == "a\tb" for part in text)


def test_nothing_in_a_file_becomes_markup(tmp_path: Path):
  """With hostile names and values, the page has the same elements and attributes as with harmless ones."""
  skeletons = []
  for folder, bad in (("harmless", "harmless"), ("hostile", HOSTILE_TEXT)):
    seeds = make_seeds(tmp_path / folder / bad.replace("/", "\\").replace("\x00", "").replace("\ud800", "\udcff"))
    for run in seeds.glob("run-*"):
      (run / "config.json").write_text(json.dumps({"task": bad, bad: {bad: [bad]}, "train": {"x": bad}}))
      (run / "environment.json").write_text(json.dumps({bad: bad}))
      (run / "eval_results.json").write_text(json.dumps({bad: bad}))
      for name in ("metrics.jsonl", "eval_metrics.jsonl"):
        (run / name).write_text(format_json_lines({"step": 1, bad: 1.0, "b": bad}, {"step": 2, bad: 2.0}))
      without_surrogate = bad.replace("\ud800", "")
      (run / "mistakes_dev.tsv").write_text(f"id\t{without_surrogate}\n1\t{without_surrogate}\n")
      name = "confusion_matrix_" + bad.replace("/", "").replace("\x00", "").replace("\ud800", "\udcff") + ".png"
      (run / "confusion_matrix_dev.png").rename(run / name)
      (run / "predictions_dev.json").write_text(json.dumps({bad: bad, "x": [bad]}))
    statistics = {"median": 0.8, "mean": 0.8, "standard_deviation": 0.0, "minimum": 0.8, "maximum": None}
    summary = {"seeds": [1, 2], "best_run": bad, "metrics": {bad: statistics}}
    (seeds / "runs.json").write_text(json.dumps(summary))
    runs, groups = read_runs([str(seeds)], num_examples=3)
    page = make_page(bad, runs, groups)
    page.encode("utf-8")
    skeletons.append(Skeleton(page))
  harmless, hostile = skeletons
  assert hostile.elements == harmless.elements
  assert sum(cleaned(HOSTILE_TEXT) in part for part in hostile.text) > 20
  assert not any("<img" in element or "onerror" in element for element in hostile.elements)


def test_a_run_that_is_given_under_two_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  make_run(tmp_path / "run")
  (tmp_path / "link").symlink_to("run")
  monkeypatch.chdir(tmp_path)
  for other_name in ("./run/", "link", str(tmp_path / "run")):
    with pytest.raises(UserError, match="given twice"):
      read_runs(["run", other_name], num_examples=0)
  monkeypatch.chdir(tmp_path / "run")
  assert [run.name for run in read_runs(["."], num_examples=0)[0]] == ["run"]


def test_thousands_of_curves_have_fewer_points_each(tmp_path: Path):
  assert (charts.max_points_per_curve(1), charts.max_points_per_curve(2000), charts.max_points_per_curve(10**6)) == (
    400,
    200,
    20,
  )
  runs, _ = read_runs([str(make_run(tmp_path / "run"))], num_examples=0)
  curves = [charts.Curve(n, False, [(step, float(step % 7)) for step in range(300)]) for n in range(100)]
  svg = charts.draw_chart("loss", curves, runs * 100, charts.max_points_per_curve(20_000))
  assert len(svg) < 100 * 20 * 40
  assert "and 92 more" in svg


def test_the_page_does_not_replace_other_files(tmp_path: Path):
  run = make_run(tmp_path / "run")
  page = tmp_path / "page.html"
  page.write_text(make_page_of(run))
  _check_output_file(str(page))
  _check_output_file(str(tmp_path / "new.html"))
  (tmp_path / "empty").touch()
  _check_output_file(str(tmp_path / "empty"))
  os.mkfifo(tmp_path / "pipe")
  for path, message in [
    (run / "metrics.jsonl", "is not an HTML page"),
    (run, "is a directory"),
    (tmp_path / "pipe", "is a pipe, not a file"),
    ("/dev/null", "is a device, not a file"),
    ("", "is empty"),
  ]:
    with pytest.raises(UserError, match=message):
      _check_output_file(str(path))
