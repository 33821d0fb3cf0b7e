"""The estimates of --dry_run --chip agree with reported speeds, and the pages have the tables of the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert.config.model import MODELS
from benchmarks import pretraining_plans
from benchmarks.tpu.chips import CHIPS, roofline_seconds

ROOT = Path(__file__).parents[2]


def test_reports_that_count_are_within_a_factor_of_2():
  counted = 0
  for report in pretraining_plans.REPORTS:
    values, is_counted = pretraining_plans.estimates(report)
    if is_counted:
      assert 0.5 < values[0] / report.sequences_per_second < 2, report.text
      counted += 1
  assert counted == 4


@pytest.mark.parametrize(("page", "chips"), [("tpu.md", "TPUs"), ("gpu.md", "GPUs")])
def test_the_page_has_the_table_of_hours(page, chips):
  assert pretraining_plans.hours_table(pretraining_plans.PRICES[chips]) in (ROOT / "docs" / page).read_text()


def test_no_estimate_is_faster_than_the_compiled_step_can_be():
  """The bound is that of the compiler's operations and bytes. Models narrower than 768 units are not estimated well."""
  bounds: dict[tuple[str, int, str], float] = {}
  for line in (ROOT / "benchmarks" / "results" / "tpu_aot_trials.jsonl").read_text().splitlines():
    record = json.loads(line)
    program, chip, trial = record["program"], record["chip"], record["trial"]
    is_plain = program["step"] == "pretraining" and not (program["recompute_grad"] or program.get("num_hidden_layers"))
    if is_plain and trial.get("flops") and MODELS[program["model"]].hidden_size >= 768:
      key = program["model"], program["length"], chip
      seconds = roofline_seconds(CHIPS[chip], trial["flops"], trial["bytes_accessed"])
      bounds[key] = max(bounds.get(key, 0.0), record["batch_size"] / seconds)
  assert len(bounds) > 50
  for (model, length, chip), bound in bounds.items():
    cores = 8 // CHIPS[chip].units_per_core
    assert pretraining_plans.estimate(model, length, f"{chip}-8", "bfloat16") < cores * bound, (model, length, chip)
