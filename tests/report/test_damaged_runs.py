"""Damaged or hostile files in a run give a correct page, or an error of one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from albert.errors import UserError
from albert.report.__main__ import _check_output_file
from albert.report.page import cleaned, make_page
from albert.report.records import read_runs
from tests.report.parsed_page import ParsedPage
from tests.report.run_files import make_run, make_seeds

HOSTILE_TEXT = (
  '</script><script>alert(1)</script><!--\u2028"\'><img src=x onerror=alert(1)> onload="x" &lt; \ud800 \x00\x1b'
)


def make_runs_page(*paths: Path, num_examples: int = 3) -> str:
  page = make_page("Runs", *read_runs([str(path) for path in paths], num_examples=num_examples))
  page.encode("utf-8")  # fails if the page has a lone surrogate
  return page


def format_json_lines(*lines: Any) -> str:
  return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize("step", ["-1", "1.5", '"1"', "null", "true", "[]", "9" * 400, "9" * 5000, "1e999", "NaN"])
def test_a_step_that_is_no_whole_number_is_refused(tmp_path: Path, step: str):
  run = make_run(tmp_path / "run")
  for name in ("metrics.jsonl", "eval_metrics.jsonl"):
    original = (run / name).read_text()
    (run / name).write_text(f'{{"step": {step}, "loss": 1.0}}\n{{"step": 2, "loss": 2.0}}\n')
    with pytest.raises(UserError, match=rf"{name}, line 1: .*: delete the line"):
      make_runs_page(run)
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
    (
      "metrics.jsonl",
      '{"step": 1, "loss": 1e999}\n',
      "metrics.jsonl, line 1: holds 1e999, which is not a finite number",
    ),
    ("environment.json", "null", "environment.json"),
    ("eval_results.json", '{"accuracy": 0.5', "eval_results.json: not JSON"),
    ("predictions_dev.json", '["a"]', "predictions_dev.json"),
    ("metrics.jsonl", '{"step": 1}\noops\n', r"metrics.jsonl, line 2: not JSON \(Expecting value, column 1\): delete"),
    ("metrics.jsonl", b'{"step": 1, "loss": "\xff"}\n', "metrics.jsonl, line 1"),
    ("metrics.jsonl", '{"a":' * 3000 + "1" + "}" * 3000 + "\n", "metrics.jsonl, line 1"),
  ],
)
def test_a_damaged_file_gives_one_line(tmp_path: Path, file: str, content: str | bytes, message: str):
  run = make_run(tmp_path / "run")
  (run / file).write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(UserError, match=message):
    make_runs_page(run)


@pytest.mark.parametrize(
  "summary",
  [
    "[]",
    '{"seeds": [1]}',
    '{"seeds": 5, "best_run": "run-1", "metrics": {}}',
    '{"seeds": ["../outside"], "best_run": "run-1", "metrics": {}}',
    '{"seeds": [1, 2], "best_run": 7, "metrics": {}}',
    '{"seeds": [1, 2], "best_run": "run-1", "metrics": {"accuracy": 1}}',
    '{"seeds": [1, 1], "best_run": "run-1", "metrics": {}}',
    '{"seeds": [1, 99999999999999999999999], "best_run": "run-1", "metrics": {}}',
  ],
)
def test_a_damaged_summary_of_seeds_gives_one_line(tmp_path: Path, summary: str):
  directory = make_seeds(tmp_path / "seeds")
  (directory / "runs.json").write_text(summary)
  with pytest.raises(UserError, match=r"runs\.json|run-1 is given twice|run-9+: holds no run"):
    make_runs_page(directory)


def test_special_files_are_named_in_the_error(tmp_path: Path):
  for name in ("config.json", "predictions_dev.tsv", "confusion_matrix_dev.png"):
    run = make_run(tmp_path / name / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(UserError, match=f"{name} is a pipe, not a regular file"):
      make_runs_page(run)
    (run / name).unlink()
    (run / name).mkdir()
    with pytest.raises(UserError, match=f"{name}"):
      make_runs_page(run)


def test_huge_texts_are_cut(tmp_path: Path):
  """The run has long cells, names and settings, and cells with quotes, which are literal."""
  run = make_run(tmp_path / "run")
  huge = "<i>" + "x" * 300_000
  (run / "metrics.jsonl").write_text(format_json_lines({"step": 1, huge: 1.0}, {"step": 2, huge: 2.0}))
  (run / "predictions.tsv").write_text(f'text\tlabel\n{huge}\t"a\nlast\t1\n')
  (run / "predictions_dev.json").write_text(json.dumps({huge: {"nested": [huge, None]}}))
  (run / "eval_results.json").write_text(json.dumps({"a": None, "b": {"c": 10**18}, huge: huge}))
  config = {"task": huge, "list": list(range(100_000))}
  (run / "config.json").write_text(json.dumps(config))
  (run / "environment.json").write_text("{}")
  page = make_runs_page(run)
  assert len(page) < 2_000_000
  texts = ParsedPage(page).text
  assert {"a", "null", "b.c", "last", '"a'} <= set(texts)
  assert any(text.startswith("<i>xxx") and text.endswith("… (300,003 characters)") for text in texts)


def make_seeds_with_text(directory: Path, text: str) -> Path:
  """Writes runs of two seeds in which a text is every name and value, also of the directory and of a file."""
  file_name = text.replace("/", "\\").replace("\x00", "").replace("\ud800", "\udcff")
  text_for_table = text.replace("\ud800", "")
  seeds = make_seeds(directory / file_name)
  for run in seeds.glob("run-*"):
    (run / "config.json").write_text(json.dumps({"task": text, text: {text: [text]}, "train": {"x": text}}))
    (run / "environment.json").write_text(json.dumps({text: text}))
    (run / "eval_results.json").write_text(json.dumps({text: text}))
    for name in ("metrics.jsonl", "eval_metrics.jsonl"):
      (run / name).write_text(format_json_lines({"step": 1, text: 1.0, "b": text}, {"step": 2, text: 2.0}))
    (run / "mistakes_dev.tsv").write_text(f"id\t{text_for_table}\n1\t{text_for_table}\n")
    (run / "confusion_matrix_dev.png").rename(run / f"confusion_matrix_{file_name}.png")
    (run / "predictions_dev.json").write_text(json.dumps({text: text, "x": [text]}))
  statistics = {"median": 0.8, "mean": 0.8, "standard_deviation": 0.0, "minimum": 0.8, "maximum": None}
  summary = {"seeds": [1, 2], "best_run": "run-1", "metrics": {text: statistics | {"mean": text}}}
  (seeds / "runs.json").write_text(json.dumps(summary))
  return seeds


def test_nothing_in_a_file_becomes_markup(tmp_path: Path):
  """With hostile names and values, the page has the same elements and attributes as with harmless ones."""

  def parse_page(directory: Path, text: str) -> ParsedPage:
    seeds = make_seeds_with_text(directory, text)
    page = make_page(text, *read_runs([str(seeds)], num_examples=3))
    page.encode("utf-8")  # fails if the page has a lone surrogate
    assert "default-src 'none'" in page
    assert "script-src" not in page
    return ParsedPage(page)

  harmless = parse_page(tmp_path / "harmless", "harmless")
  hostile = parse_page(tmp_path / "hostile", HOSTILE_TEXT)
  assert hostile.elements == harmless.elements
  assert sum(cleaned(HOSTILE_TEXT) in text for text in hostile.text) > 20
  assert not any("<img" in element or "onerror" in element for element in hostile.elements)
  assert "script" not in {name for name, *_ in hostile.elements}


def test_a_run_that_is_given_under_two_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  make_run(tmp_path / "run")
  (tmp_path / "link").symlink_to("run")
  monkeypatch.chdir(tmp_path)
  for other_name in ("./run/", "link", str(tmp_path / "run")):
    with pytest.raises(UserError, match="given twice"):
      read_runs(["run", other_name], num_examples=0)
  monkeypatch.chdir(tmp_path / "run")
  assert [run.name for run in read_runs(["."], num_examples=0)[0]] == ["run"]


def test_the_page_does_not_replace_other_files(tmp_path: Path):
  run = make_run(tmp_path / "run")
  page = tmp_path / "page.html"
  page.write_text(make_runs_page(run))
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
  ]:
    with pytest.raises(UserError, match=message):
      _check_output_file(str(path))
