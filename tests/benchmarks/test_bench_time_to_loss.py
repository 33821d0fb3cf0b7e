"""bench_time_to_loss.py compares recipes by the time to a loss. Its times are checked with logs made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.time_to_loss.plan import RECIPES_FILE, RecipePlan, read_recipes
from benchmarks.time_to_loss.results import Curve, make_table, read_curve


def write_run(run: Path, speeds: list[tuple[int, int, float]], losses: dict[int, float]) -> None:
  """Writes the logs of a run. speeds: (step, stage, examples per second); losses: step -> held-out loss."""
  run.mkdir()
  stages = [{"train_batch_size": 8}, {"train_batch_size": 16}]
  (run / "config.json").write_text(json.dumps({"train": {"train_batch_size": 16}, "stages": stages}))
  lines = [{"step": step, "stage": stage, "examples_per_second": speed} for step, stage, speed in speeds]
  (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  evaluations = [
    {"step": step, "masked_lm_loss": loss, "masked_lm_accuracy": 0.1, "sentence_order_accuracy": 0.5}
    for step, loss in losses.items()
  ]
  (run / "eval_metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluations))


def test_the_time_of_a_step_is_the_median_of_its_stage(tmp_path: Path) -> None:
  """Stage 1: 8 examples at 4 per second; the line of 0.1 per second has the tracing. Stage 2: 16 at 2 per second."""
  speeds = [(10, 1, 0.1), (20, 1, 4.0), (30, 1, 4.0), (40, 2, 2.0), (50, 2, 2.0)]
  write_run(tmp_path / "run", speeds, {20: 7.0, 35: 6.0, 50: 5.0})
  curve = read_curve(str(tmp_path / "run"))
  assert curve.seconds == pytest.approx([40.0, 60.0 + 40.0, 60.0 + 160.0])
  assert curve.seconds_to(6.5) == pytest.approx(70.0)  # halfway between the first two evaluations
  assert curve.seconds_to(7.5) == pytest.approx(40.0)  # before the first evaluation
  assert curve.seconds_to(4.9) is None


def test_the_first_time_at_which_a_loss_is_reached_counts() -> None:
  losses = [7.0, 6.0, 6.5, 5.0]
  curve = Curve([1.0, 2.0, 3.0, 4.0], [{"masked_lm_loss": loss} for loss in losses])
  assert curve.seconds_to(6.0) == pytest.approx(2.0)
  assert curve.seconds_to(5.5) == pytest.approx(3.0 + 1.0 / 1.5)


def plan(tmp_path: Path, recipes: list[dict[str, Any]], glue_dir: str = "") -> RecipePlan:
  """A plan of recipes, with the committed file's other settings."""
  values = json.loads(RECIPES_FILE.read_text()) | {"recipes": recipes}
  path = tmp_path / "recipes.json"
  path.write_text(json.dumps(values))
  content = read_recipes(str(path))
  return RecipePlan(
    output_dir=str(tmp_path), corpus="a.txt", heldout_corpus="b.txt", glue_dir=glue_dir, content=content
  )


def test_the_names_of_shards_become_globs_and_seeds_come_in_turn(tmp_path: Path) -> None:
  stages = [{"until": 0.5, "input_file": "shards:64"}, {"until": 1}]
  recipes: list[dict[str, Any]] = [
    {"name": "reference", "changes": "", "seeds": 2, "finetuned": True},
    {"name": "short", "changes": "64 tokens first", "flags": {"stages": stages}},
  ]
  trials = plan(tmp_path, recipes, glue_dir="glue").trials()
  assert [(trial.variant, trial.seed) for trial in trials] == [
    ("reference", 12345),
    ("short", 12345),
    ("reference", 12346),
  ]
  assert [command.name for command in trials[1].commands] == [
    "shards: 128",
    "shards: 64",
    "short, seed 12345: pretraining",
  ]
  words = trials[1].commands[-1].words
  assert f"--input_file={tmp_path}/shards/128/*.tfrecord" in words
  (stages_flag,) = [word for word in words if word.startswith("--stages=")]
  assert json.loads(stages_flag.removeprefix("--stages="))[0]["input_file"] == f"{tmp_path}/shards/64/*.tfrecord"
  assert [command.name.split(": ")[1] for command in trials[0].commands] == ["128", "pretraining", "SST-2", "CoLA"]
  assert len({trial.digest for trial in trials}) == 3


def test_the_table_compares_with_the_reference_s_time(tmp_path: Path) -> None:
  recipes: list[dict[str, Any]] = [{"name": "reference", "changes": ""}, {"name": "fast", "changes": "x"}]
  trials = plan(tmp_path, recipes).trials()
  (tmp_path / "runs").mkdir()
  for trial, speed in zip(trials, (2.0, 8.0), strict=True):
    write_run(Path(trial.run), [(10, 2, speed), (20, 2, speed)], {10: 6.0, 20: 5.0})
  rows = [{"scores": {"mlm": 20.0}}, {"scores": {"mlm": 21.0}}]
  curves = [read_curve(trial.run) for trial in trials]
  table = make_table(trials, curves, {"reference": "", "fast": "x"}, rows).splitlines()
  assert table[0] == "| recipe | change | seeds | seconds | seconds to loss 5.000 | share of the reference's | mlm |"
  assert table[2:] == ["| reference |  | 1 | 160 | 160 | 1.00 | 20.00 |", "| fast | x | 1 | 40 | 40 | 0.25 | 21.00 |"]
