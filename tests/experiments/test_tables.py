"""Tests of the tables and figures of experiments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from albert.experiments import runner, tables
from albert.runs import figures
from tests.experiments.plans import TOY_EXPERIMENT, TOY_VARIANTS, ToyPlan


def test_the_table_has_our_numbers_beside_the_papers(tmp_path: Path):
  plan = ToyPlan(tmp_path)
  text = tables.write(plan, runner.run_plan(plan), scale="smoke")
  # The mean of 50 and 51 percent, and of 75 and 76 percent. The standard deviation of both is sqrt(0.5) = 0.7.
  assert text.splitlines()[-2:] == [
    "| one | 0.297M | 50.5 ± 0.7 | 86.5 |",
    "| two | 0.297M | 75.5 ± 0.7 | 86.5 |",
  ]
  assert "Scale smoke; 2 seeds, mean ± standard deviation" in text
  directory = Path(plan.directory)
  assert (directory / tables.TABLE_FILE).read_text() == text
  assert (directory / tables.CSV_FILE).read_text().splitlines()[1].startswith("one,12345,")
  assert (directory / tables.FIGURE_FILE).read_bytes().startswith(b"\x89PNG")


def test_bars_start_at_guessing():
  experiment = msgspec.structs.replace(
    TOY_EXPERIMENT, x="", variants=[msgspec.structs.replace(variant, x=None) for variant in TOY_VARIANTS]
  )
  axes = figures.new_figure(4.0, 3.0).subplots()
  tables.draw_panel(axes, experiment, {"one": [47.0, 49.0], "two": [60.0, 70.0]}, guessing=50.0)
  # The bars end at the means, 48 and 65.
  bars: list[Any] = list(axes.patches)
  assert [(bar.get_y(), bar.get_height()) for bar in bars] == [(50.0, -2.0), (50.0, 15.0)]
  lowest, highest = axes.get_ylim()
  assert lowest < 47.0
  assert highest > 70.0


def _row(variant: str, seed: int, perplexity: float) -> dict[str, Any]:
  scores = {"mlm": perplexity / 2, "ppl": perplexity}
  return {"variant": variant, "seed": seed, "parameters": 1e6, "examples_per_second": 1.0, "scores": scores}


def test_a_row_of_the_table_shows_the_candidate_with_the_lowest_perplexity():
  candidates = {"a": "small", "b": "small", "c": "large", "d": ""}
  variants = [
    msgspec.structs.replace(TOY_VARIANTS[0], name=name, candidate_for=row, paper={"ppl": 3.99})
    for name, row in candidates.items()
  ]
  experiment = msgspec.structs.replace(TOY_EXPERIMENT, variants=variants, intrinsic=["mlm", "ppl"])
  perplexities = {"a": (8.0, 12.0), "b": (9.0, 9.2), "c": (math.nan, 3.0), "d": (20.0, 22.0)}
  rows = [_row(name, seed, value) for name, values in perplexities.items() for seed, value in enumerate(values)]
  lines = tables.format_table(experiment, rows, scale="smoke").splitlines()
  assert [line.split(" | ")[0] for line in lines[-3:]] == ["| b", "| c", "| d"]
  assert lines[-3].split(" | ")[3:] == ["9.1 ± 0.1", "3.99 |"]
  assert "percent, except for perplexity" in lines[2]
  # Without the good run of c, another candidate for the same row would be chosen.
  other = msgspec.structs.replace(variants[0], name="e", candidate_for="large")
  experiment = msgspec.structs.replace(experiment, variants=[*variants, other])
  chosen = tables.select_candidates(experiment, [*rows, _row("e", 0, 1000.0)])
  assert [variant.name for variant in chosen.variants] == ["b", "e", "d"]


def test_the_curves_of_a_figure_are_those_of_the_logs(tmp_path: Path):
  run = tmp_path / "run"
  run.mkdir()
  (run / "eval_metrics.jsonl").write_text('{"step": 5, "masked_lm_accuracy": 0.25, "loss": 3}\n')
  (run / "metrics.jsonl").write_text('{"step": 2, "loss": 9.5}\n{"step": 4, "loss": null}\n')
  assert tables.curves_of_run(str(run)) == [[(2, 9.5)], [(5, 25.0)]]
