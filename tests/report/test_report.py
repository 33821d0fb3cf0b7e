"""Tests that the page shows what the runs have written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from albert.errors import UserError
from albert.report import page as page_module
from albert.report.page import flatten, make_page
from albert.report.records import read_runs
from albert.runs import figures
from tests.fresh_interpreter import command_code, run_fresh
from tests.report.parsed_page import ParsedPage
from tests.report.run_files import make_run, make_seeds, write_lines


def _parse_page(*paths: Path, num_examples: int = 3) -> ParsedPage:
  return ParsedPage(make_page("a < b", *read_runs([str(path) for path in paths], num_examples=num_examples)))


def test_the_page_shows_progress_results_settings_examples_and_pictures_of_a_run(tmp_path: Path):
  page = _parse_page(make_run(tmp_path / "first"))
  assert page.open_elements == []
  # make_run logs 200 to 206 examples per second.
  assert ["first", "classifier", "1,000 of 1,000", "203", str(tmp_path / "first")] in page.rows
  assert ["accuracy", "0.8"] in page.rows
  assert [row for row in page.rows if row[0].startswith("dev.")] == [["dev.rows", "40"], ["dev.labels.praise", "9"]]
  assert ["7", "One,\ntwo", "praise", "0.0125"] in page.rows
  assert ["model.hidden_size", "128"] in page.rows
  assert ["command", "run_classifier.py --do_train"] in page.rows
  assert ["7", "0", "1", "3.0555", "0.9529", 'A <script>alert(1)</script> & "b".'] in page.rows
  assert page.rows.count(["0", "1", "1", "0.171702", "0.828298"]) == 1
  assert not [row for row in page.rows if len(row) == 5 and row[0] == "3"]  # only three examples: ids 0, 1, 2
  # The scores of all classes are shown, however many examples are.
  assert [row[0] for row in page.rows if row[1:] == ["0.5", "0.25", "0.333333", "4", "2"]] == [
    f"label-{n}" for n in range(12)
  ]
  kinds = [address.partition(";base64,")[0] for address in page.addresses]
  assert kinds == ["data:image/svg+xml"] * 3 + ["data:image/png"] * 2  # loss, accuracy and speed; two pictures


def test_the_heading_of_mistakes_says_how_they_are_sorted(tmp_path: Path):
  run = make_run(tmp_path / "run")
  orders = []
  for column in ("loss", "error", "f1"):
    (run / "mistakes_dev.tsv").write_text(f"id\tlabel\tprediction\t{column}\n1\ta\tb\t2.5\n")
    page = make_page("Runs", *read_runs([str(run)], num_examples=3))
    orders += re.findall(r"<summary>mistakes_dev\.tsv, the first 1(.*?)</summary>", page)
  assert orders == [
    ": the highest loss first (cross entropy of the correct label); these are likely errors of the labels",
    ": the largest error first",
    "",
  ]


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
  lines = [
    f'{{"step": {5 * n}, "loss": {loss}, "examples_per_second": {n}}}\n' for n, loss in ((1, "NaN"), (2, 2), (3, 2))
  ]
  (unfinished / "metrics.jsonl").write_text("".join(lines) + '{"step": 20, "lo')
  (evaluated / "eval_results.json").write_text('{"step": 0, "accuracy": 0.25}')
  page = _parse_page(unfinished, evaluated)
  assert ["unfinished", "", "15", "2.5", str(unfinished)] in page.rows  # the first speed includes the compilation
  assert ["accuracy", "", "0.25"] in page.rows


def test_filled_masks_and_answers_are_shown(tmp_path: Path):
  run = make_run(tmp_path / "run")
  (run / "predictions.tsv").write_text('line\ttext\n1\tHe said "[MASK]".\n', encoding="utf-8")
  (run / "predictions_test.json").write_text('{"q1": "in 1990", "q2": ""}', encoding="utf-8")
  rows = _parse_page(run).rows
  assert ["1", 'He said "[MASK]".'] in rows
  assert ["q1", "in 1990"] in rows
  assert ["q2", ""] in rows


def test_the_loss_and_the_metric_are_shown_and_other_metrics_are_folded(tmp_path: Path):
  run = make_run(tmp_path / "run")
  page = make_page("Runs", *read_runs([str(run)], num_examples=0))
  match = re.search(r'class="charts">(.*?)<details><summary>All other metrics \(1\)(.*?)</details>', page)
  assert match
  charts, folded = match.groups()
  assert [text.partition(" over")[0] for text in re.findall('alt="(.*?)"', charts)] == ["loss", "accuracy"]
  assert [text.partition(" over")[0] for text in re.findall('alt="(.*?)"', folded)] == ["examples_per_second"]


def test_the_description_of_a_chart_has_the_first_and_last_value_of_each_curve(tmp_path: Path):
  run = make_run(tmp_path / "run")
  write_lines(run / "metrics.jsonl", [{"step": 1, "loss": None}, {"step": 2, "loss": 3.5}, {"step": 3, "loss": 2.25}])
  write_lines(run / "eval_metrics.jsonl", [{"step": 3, "loss": 2.5, "guessing_loss": 2.0}])
  assert _parse_page(run, num_examples=0).descriptions[0] == (
    "loss over steps: training from 3.5 to 2.25; evaluation from 2.5 to 2.5; guessing from 2 to 2"
  )


def test_at_most_sixty_folded_charts_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(figures, "svg", lambda figure: b"<svg/>")
  monkeypatch.setattr(figures, "draw_panels", lambda panels, marks: None)
  run = make_run(tmp_path / "run")
  write_lines(run / "metrics.jsonl", [{"step": 1, **{f"metric-{number}": 1.0 for number in range(70)}}])
  page = make_page("Runs", *read_runs([str(run)], num_examples=0))
  assert "All other metrics (60 of 70)" in page
  assert page.count("data:image/svg") == 2 + 60


def test_bad_directories_give_one_line(tmp_path: Path):
  run = make_run(tmp_path / "run")
  empty = tmp_path / "empty"
  empty.mkdir()
  for paths, message in [
    ([], "give the directories of one or more runs"),
    ([tmp_path / "nowhere"], "nowhere: no such directory"),
    ([run, empty], "empty: holds no run"),
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
  process, _ = run_fresh(command_code(["-m", "albert.report", runs[0]]), tmp_path)
  assert process.stdout == f"wrote {runs[0]}/report.html (1 run)\n"
  process, modules = run_fresh(command_code(["-m", "albert.report", str(tmp_path / "nowhere")]), tmp_path)
  assert process.returncode == 2
  assert process.stderr == f"error: {tmp_path / 'nowhere'}: no such directory: give the --output_dir of a run\n"
  assert "tensorflow" not in modules


def test_a_run_shows_its_progress_and_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  drawn = []
  monkeypatch.setattr(figures, "svg", lambda figure: b"<svg/>")
  monkeypatch.setattr(figures, "draw_panels", lambda panels, marks: drawn.append(marks))
  run = make_run(tmp_path / "run")
  shown = {"status": "step 20 of 1,000 (2.0%), 1:00:00 left", "event": "spike: <b>at</b> step 20"}
  write_lines(
    run / "metrics.jsonl",
    [
      {"step": 10, "loss": 3.0, "status": "step 10"},
      {"step": 20, "loss": 2.0, **shown},
      {"step": 30, "loss": 6.0, "event": "collapse: at step 30"},
    ],
  )
  page = make_page("Run", *read_runs([str(run)], num_examples=0))
  texts = re.findall(r"<p><span[^>]*></span>run: (.*?)</p>", page)
  assert texts == [shown["status"], "spike: &lt;b&gt;at&lt;/b&gt; step 20", "collapse: at step 30"]
  assert drawn[0] == [(20, "spike"), (30, "collapse")]
  assert "vertical lines: ends of stages, and events" in page


def test_charts_mark_the_ends_of_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  drawn = []
  draw_panels = figures.draw_panels
  monkeypatch.setattr(figures, "draw_panels", lambda panels, ends: drawn.append(ends) or draw_panels(panels, ends))
  run = make_run(tmp_path / "run", steps=500)
  # Stage 1 ends after step 150, stage 2 after step 400.
  stages = {1: range(50, 151, 50), 2: range(200, 401, 50), 3: range(450, 501, 50)}
  lines = [{"step": step, "stage": stage, "loss": 1 / step} for stage, steps in stages.items() for step in steps]
  write_lines(run / "metrics.jsonl", lines)
  assert "vertical lines: ends of stages" in make_page("runs", *read_runs([str(run)], num_examples=0))
  assert drawn[0] == [(150, "end of stage 1"), (400, "end of stage 2")]
  write_lines(run / "metrics.jsonl", [{"step": step, "loss": 1 / step} for step in range(50, 501, 50)])
  assert "ends of stages" not in make_page("runs", *read_runs([str(run)], num_examples=0))


def test_nested_settings_and_stages_become_rows_with_dotted_names():
  settings = {"a": {"b": {"c": 1}}, "stages": [{"last_step": 3}, {"last_step": 8}], "d": ["x", 2], "none": []}
  assert flatten(settings) == {"a.b.c": 1, "stages.1.last_step": 3, "stages.2.last_step": 8, "d": "x 2", "none": ""}


def luminance(color: str) -> float:
  """The relative luminance (WCAG 2.1) of a color such as #1d1d1b."""
  channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]  # red, green and blue in sRGB
  linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
  return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_text_has_enough_contrast_in_the_light_and_in_the_dark_scheme():
  light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", colors)) for colors in page_module._STYLE.split("@media")[:2])
  for scheme in (light, dark):
    darker, lighter = sorted((luminance(scheme["paper"]), luminance(scheme["ink"])))
    assert (lighter + 0.05) / (darker + 0.05) > 7  # the contrast ratio of WCAG 2.1
  assert luminance(light["paper"]) > 0.9
  assert luminance(dark["paper"]) < 0.05
