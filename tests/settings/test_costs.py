"""The cost of pretraining: operations, speeds of chips, and the plan that --dry_run --chip prints."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from albert.config.model import MODELS
from albert.errors import UserError
from albert.settings import costs
from albert.settings.dry_run import print_plan
from albert.settings.resolve import resolve_settings
from albert.settings.tpu_memory import read_table
from benchmarks.tpu.chips import CHIPS
from tests.synthetic import write_manifest, write_shards

TRIALS = Path(__file__).parents[2] / "benchmarks" / "results" / "tpu_aot_trials.jsonl"
PLAIN = {"step": "pretraining", "recompute_grad": False, "gradient_accumulation_steps": 1, "one_hot": False}


def test_operations_of_a_sequence_equal_the_compilers_count():
  """XLA's cost analysis counts the last layer for the masked tokens only, and the optimizer."""
  counts: dict[tuple[str, int], float] = {}
  for line in TRIALS.read_text().splitlines():
    record = json.loads(line)
    program, flops = record["program"], record["trial"].get("flops")
    if PLAIN.items() <= program.items() and not program.get("num_hidden_layers") and flops:
      key = program["model"], program["length"]
      # Near the limit of the memory the compiler recomputes parts of the step.
      counts[key] = min(counts.get(key, math.inf), flops / record["batch_size"])
  for (name, length), counted in counts.items():
    flops = costs.step_flops(MODELS[name], batch_size=1, seq_length=length, predictions=math.ceil(0.15 * length))
    assert 1 - 0.75 / MODELS[name].num_hidden_layers < counted / flops < 1.04, (name, length)
  assert len(counts) > 20


def test_every_tpu_of_the_memory_table_has_the_peak_of_its_specification():
  for name, chip in CHIPS.items():
    assert costs.SPEEDS[name]["bfloat16"].peak == chip.flops
  assert costs.SPEEDS.keys() == CHIPS.keys() | costs.GPU_GIB.keys() == read_table().chips.keys() | costs.GPU_GIB.keys()


def plan_lines(capsys: pytest.CaptureFixture[str], **flags: object) -> dict[str, str]:
  """Returns the lines of a plan, by their first words."""
  print_plan(resolve_settings("pretraining", {"dry_run": True, **flags}))
  return dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)


BASE: dict[str, object] = {"max_seq_length": 512, "train_batch_size": 512, "num_train_steps": 1000}


def test_the_plan_has_sequences_work_time_cost_steps_and_rate(capsys):
  lines = plan_lines(capsys, chip="v3-8", hours=0.5, price_per_hour=10.0, **BASE)
  assert lines["data"] == (
    "512 sequences of 512 tokens per step (262,144 tokens), 512,000 in 1,000 steps (262,144,000 tokens)"
  )
  flops = costs.step_flops(MODELS["albert_base"], batch_size=512, seq_length=512, predictions=77)
  assert lines["work"] == f"{flops / 1e12:.3g} TFLOP per step, {1000 * flops:.3g} FLOP in total"
  # 28% of the peak of 8 cores
  seconds = flops / (0.28 * 8 * 61.5e12)
  hours = 1000 * seconds / 3600
  assert lines["time on v3-8 in bfloat16"].startswith(
    f"{hours:.2g} ({hours / 1.6:.2g} to {hours * 1.6:.2g}) hours, {512 / seconds:.0f} sequences/s, at 28% of the peak "
    "of 61.5 TFLOP/s per core (BERT-large "
  )
  assert lines["cost"].startswith(f"{10 * hours:.2g} (")
  assert lines["cost"].endswith(" dollars, at 10 per hour")
  assert lines["in 0.5 hours"].startswith(f"{0.5 / hours * 1000:,.0f} (")
  assert lines["learning rate"].endswith("0.00176 x sqrt(512 / 4096) = 0.000622: give --learning_rate=0.000622")
  # Gradient checkpointing takes a third more time.
  lines = plan_lines(capsys, chip="v3-8", recompute_grad=True, hours=0.5, **BASE)
  assert lines["in 0.5 hours"].startswith(f"{0.5 / hours * 750:,.0f} (")
  assert "cost" not in lines


@pytest.mark.parametrize("chip", [*read_table().chips, *costs.GPU_GIB, "v5litepod-8", "cpu"])
def test_every_chip_has_a_plan(chip, capsys):
  lines = plan_lines(capsys, chip=chip, **{**BASE, "train_batch_size": 8})
  (time,) = (key for key in lines if key.startswith(("time on " + chip, f"time on 1 x {chip} in")))
  assert time.endswith(next(iter(costs.chip_speeds("v5e" if chip == "v5litepod-8" else chip))))
  assert ("time with --precision=float16" in lines) == (chip in ("t4", "v100"))


@pytest.mark.parametrize(
  ("steps", "passes", "warning"),
  [
    (250, "40", None),  # 250 steps of 4 are 40 passes over 25 examples
    (251, "40", "more than 40 passes: prepare more text, or give --num_train_steps=250"),
    (5, "0.8", "a part of the text is not used: --num_train_steps=7 sees all of it once"),
  ],
)
def test_passes_over_the_text_are_counted_from_the_manifest(tmp_path: Path, capsys, steps, passes, warning):
  # Two of three shards, in which each text stands four times: 100 examples are 25 of one pass.
  shards = write_shards(tmp_path, [60, 40, 7])
  write_manifest(tmp_path, shards, [60, 40, 7], settings={"dupe_factor": 4})
  flags = {"chip": "v5e-1", "input_file": ",".join(shards[:2]), "model": "albert_tiny", "train_batch_size": 4}
  lines = plan_lines(capsys, **flags, num_train_steps=steps)
  assert lines["passes"] == f"{steps * 4 / 100:.2g} over the 100 examples, {passes} over their text"
  assert lines.get("warning") == warning
  lines = plan_lines(capsys, **flags, num_train_epochs=0.3, do_train=True, output_dir="run")
  assert lines["train"].startswith("0.3 epochs, 8 steps, with 4 examples per step")  # 7.5, rounded up
  assert " in 8 steps" in lines["data"]


UNSCALED = "0.004 x sqrt(512 / 16) = 0.0226: give --learning_rate=0.0226"
SCALED = "0.004 x sqrt(512 / 4096) = 0.00141"


@pytest.mark.parametrize(("is_scaled", "rate", "rule"), [(False, "0.004", UNSCALED), (True, "0.00141", SCALED)])
def test_the_rate_of_the_recipe_is_scaled_for_the_batch(is_scaled, rate, rule, tmp_path: Path, capsys):
  path, optimizer = tmp_path / "mine.json", {"learning_rate": 0.004, "scale_learning_rate": is_scaled}
  path.write_text(json.dumps({"task": "pretraining", "optimizer": optimizer, "train": {"train_batch_size": 16}}))
  line = plan_lines(capsys, chip="v3-8", recipe=str(path), **BASE)["learning rate"]
  assert line == f"{rate}; that of the recipe, scaled by the square root of the batch, is {rule}"


@pytest.mark.parametrize(
  ("recipe", "chip"), [("pretraining_v3_8", "v3-8"), ("pretraining_8_v100", "v100-8"), ("pretraining_24gb", "a10g-1")]
)
def test_the_recipes_for_a_chip_fit_it_with_their_rate(recipe, chip, capsys):
  print_plan(resolve_settings("pretraining", {"dry_run": True, "chip": chip, "recipe": recipe, "max_seq_length": 512}))
  lines = capsys.readouterr().out.splitlines()
  assert "give --" not in "".join(lines)
  assert " fit; they take " in lines[-2] or lines[-1].startswith("this batch has ")


@pytest.mark.parametrize(("name", "value"), [("hours", 3.0), ("price_per_hour", 0.0), ("chip", "cpu")])
def test_time_and_price_are_for_pretraining_only(name, value):
  flags = {"dry_run": True, "chip": "v3-8", "model": "albert_base", name: value}
  with pytest.raises(UserError, match=f"^--{name}.* is for pretraining: leave it out"):
    print_plan(resolve_settings("squad", flags))
