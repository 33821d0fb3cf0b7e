"""The cost of pretraining: operations, speeds of chips, and the plan that --dry_run --chip prints."""

from __future__ import annotations

import json
import math
from pathlib import Path

from albert.config.model import MODELS
from albert.settings import costs
from albert.settings.tpu_memory import read_table
from benchmarks.tpu.chips import CHIPS

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
  assert costs.SPEEDS.keys() >= read_table().chips.keys()
  for name, chip in CHIPS.items():
    assert costs.SPEEDS[name]["bfloat16"].peak == chip.flops
  assert costs.SPEEDS.keys() == CHIPS.keys() | costs.GPU_GIGABYTES.keys() | {"v2"}
