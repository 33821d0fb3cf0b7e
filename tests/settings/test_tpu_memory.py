"""--dry_run --chip: which batches fit a TPU, by a small table, and by the committed one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from albert.config.model import MODELS
from albert.config.run import TrainConfig
from albert.errors import UserError
from albert.settings import tpu_memory
from albert.settings.tpu_memory import MemoryCheck, Trial, parse_slice
from albert.tasks.registry import TrainingStep
from albert.weights.names import encoder_shapes, num_parameters

GIB = 1 << 30
TABLE_NAME = "albert_base"


def compiled_step(fits: dict[int, float], too_large: dict[int, float], **fields: object) -> tpu_memory.CompiledStep:
  """Makes a row of the table from batch -> GiB."""
  values: dict[str, object] = {
    "step": "pretraining",
    "model": TABLE_NAME,
    "length": 512,
    "chip": "v3",
    "recompute_grad": False,
    "gradient_accumulation_steps": 1,
    "compiled": "2026-11-23",
    "fits": [Trial(batch, int(gib * GIB)) for batch, gib in fits.items()],
    "too_large": [Trial(batch, int(gib * GIB)) for batch, gib in too_large.items()],
  }
  return tpu_memory.CompiledStep(**(values | fields))  # type: ignore[arg-type]


CHIPS = {"v3": tpu_memory.ChipMemory(16 * GIB, 1), "v4": tpu_memory.ChipMemory(32 * GIB, 2)}
TABLE = tpu_memory.MemoryTable(
  CHIPS,
  [
    compiled_step({4: 5.0, 12: 14.0}, {16: 18.0}),
    compiled_step({48: 13.0}, {64: 17.0}, length=128),
    compiled_step({64: 15.0}, {96: 20.0}, recompute_grad=True),
    compiled_step({}, {1: 16.5}, model="bert_base"),
  ],
)


def describe(chip: str = "v3", table: tpu_memory.MemoryTable = TABLE, **settings: object) -> str:
  values: dict[str, Any] = {"model": MODELS[TABLE_NAME], "length": 512, "sequences_per_example": 1} | settings
  model, length, sequences = (values.pop(name) for name in ("model", "length", "sequences_per_example"))
  step = TrainingStep("pretraining", length, sequences)
  train = TrainConfig(**({"train_batch_size": 96} | values))
  return MemoryCheck(table, parse_slice(chip, table), step, model).describe(train)


def test_a_batch_of_the_table_fits_with_its_bytes():
  line = describe()  # 96 / 8 cores = 12
  assert line == (
    "albert_base on v3-8: 12 examples of 512 tokens on each of 8 cores fit; they take 14.0 of 16.0 GiB "
    "(compiled 2026-11-23, not run)\nof this length, 12 fit, 16 do not"
  )


@pytest.mark.parametrize(
  ("settings", "gib"),
  [
    ({"train_batch_size": 40}, 14.0),  # 5 examples take at most what 12 take
    ({"train_batch_size": 24}, 5.0),
    ({"length": 384}, 14.0),  # no more than 512 tokens take
    ({"length": 100, "train_batch_size": 320}, 13.0),
    ({"chip": "v3-2048", "train_batch_size": 4096}, 5.0),
  ],
)
def test_a_smaller_batch_or_shorter_sequences_take_at_most_as_much(settings, gib):
  assert f" fit; they take at most {gib} of 16.0 GiB" in describe(**settings)


def test_a_compiled_step_fits_even_if_its_parts_add_up_to_more_than_the_limit():
  table = tpu_memory.MemoryTable(CHIPS, [compiled_step({12: 16.2}, {16: 18.0})])
  assert " fit; they take all of 16.0 GiB" in describe(table=table)
  assert "not known whether they fit" in describe(table=table, train_batch_size=192, gradient_accumulation_steps=2)


def test_accumulation_adds_the_sums_of_the_gradients():
  parameters = num_parameters(encoder_shapes(MODELS[TABLE_NAME]))
  expected = (14.0 * GIB + 4 * parameters) / GIB
  line = describe(train_batch_size=480, gradient_accumulation_steps=5)
  assert (
    f"12 examples of 512 tokens on each of 8 cores (5 times per step) fit; they take at most {expected:.1f} of" in line
  )
  # The sums do not fit beside 12 sequences. Fewer of them take less memory in proportion, so 8 fit.
  almost_full = tpu_memory.MemoryTable(CHIPS, [compiled_step({6: 9.0, 12: 15.99}, {16: 18.0})])
  assert "12 examples" in describe(table=almost_full)
  with_sums = describe(table=almost_full, train_batch_size=192, gradient_accumulation_steps=2)
  assert with_sums.endswith("give --gradient_accumulation_steps=3 (8 at a time), with which the same batch should fit")
  assert "not known whether they fit" in with_sums


def test_a_batch_that_does_not_fit_gets_the_fewest_accumulation_steps_that_do():
  with pytest.raises(UserError) as error:
    describe(train_batch_size=4096)
  # 4096 / 8 = 512 = 64 x 8; 32 x 16 does not fit; with gradient checkpointing 8 x 64.
  assert str(error.value) == (
    "albert_base on v3-8: 512 examples of 512 tokens on each of 8 cores do not fit into 16.0 GiB (12 fit, 16 do not): "
    "give --gradient_accumulation_steps=64 (8 at a time) or --gradient_accumulation_steps=8 --recompute_grad (64 at a "
    "time), with which the same batch should fit"
  )


def test_the_table_need_not_know_the_answer():
  assert describe(train_batch_size=112) == (
    "albert_base on v3-8: 14 examples of 512 tokens on each of 8 cores: not known whether they fit into 16.0 GiB "
    "(12 fit, 16 do not); give --gradient_accumulation_steps=2 (7 at a time) or --recompute_grad (14 at a time), with "
    "which the same batch should fit"
  )


def test_a_model_of_which_not_even_one_example_fits():
  with pytest.raises(
    UserError, match=r"not even one does: give --shard_optimizer_state or a smaller model, or another TPU"
  ):
    describe(model=MODELS["bert_base"])


def test_the_vocabulary_and_the_initializer_need_not_be_those_of_the_table():
  model = dataclasses.replace(MODELS[TABLE_NAME], vocab_size=21128, initializer_range=0.1)
  assert "12 examples of 512 tokens" in describe(model=model)
  larger = dataclasses.replace(MODELS[TABLE_NAME], vocab_size=30001)
  assert "estimated" in describe(model=larger)


def test_of_a_model_outside_the_table_the_parameters_and_an_estimate_are_known():
  model = dataclasses.replace(MODELS[TABLE_NAME], num_hidden_layers=6)
  parameters = num_parameters(encoder_shapes(model))
  line = describe(model=model)
  # 6 layers x 512 tokens x (20 x 768 units + 2.5 x 12 heads x 512 keys) bytes
  sequences = int((16 * GIB - 16 * parameters) // (6 * 512 * (20 * 768 + 2.5 * 12 * 512)))
  assert line == (
    "memory of v3-8, estimated within a factor of 2: weights, gradients and moments take 0.2 of 16.0 GiB, and "
    f"{sequences} examples of 512 tokens fit\nthis batch has 12 at a time for each core"
  )
  assert f"{sequences // 4} examples of 512 tokens fit" in describe(model=model, sequences_per_example=4)
  huge = dataclasses.replace(model, hidden_size=12 * 2048, intermediate_size=65536)
  with pytest.raises(UserError, match=r"so no batch fits: give --shard_optimizer_state or a smaller model"):
    describe(model=huge)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("v9", r"--chip=v9: unknown; known: v3, v4, v5litepod, t4, v100, .*, cpu, also with a number, as v3-32 or v100-8"),
    ("v100-", r"--chip=v100-: unknown; known: "),
    ("v3-", r"--chip=v3-: unknown; known: "),
    ("v3-0", r"--chip=v3-0: unknown; known: "),
    ("v3-9", r"--chip=v3-9: no TPU has this size: give a multiple of 8 \(v5litepod and v6e: also 1 or 4\)$"),
    ("v4-4", r"--chip=v4-4: no TPU has this size"),
  ],
)
def test_a_wrong_chip_is_one_line(name, message):
  with pytest.raises(UserError, match=message):
    parse_slice(name, TABLE)


# albert_base without dropout stores 189 MB per sequence of 512 tokens on a TPU, twice as much on a GPU.
@pytest.mark.parametrize(
  ("chip", "precision", "largest", "advice"),
  [
    ("v100-8", "float16", 42, ", too many: give --gradient_accumulation_steps=16 (32 at a time)"),
    ("v100-8", "auto", 21, ", too many: give --gradient_accumulation_steps=32 (16 at a time)"),
    ("h100-32", "auto", 224, ""),
    ("a100-80gb-32", "auto", 224, ""),
  ],
)
def test_the_memory_of_gpus_is_estimated(chip, precision, largest, advice):
  line = describe(chip, train_batch_size=4096, precision=precision)
  batch = f"this batch has {4096 // int(chip.rpartition('-')[2])} at a time for each GPU{advice}"
  assert line.endswith(f", and {largest} examples of 512 tokens fit\n{'warning: ' if advice else ''}{batch}")


# GiB of the exported step with dropout, from benchmarks/results/gpu_step_2026-11-26.md.
@pytest.mark.parametrize(
  ("name", "length", "batch", "gib"), [("albert_base_v1", 128, 512, 23.9), ("albert_large_v1", 512, 64, 47.6)]
)
def test_the_estimate_for_gpus_is_above_what_an_h100_took_but_near_it(name, length, batch, gib):
  line = describe("h100", model=MODELS[name], length=length, train_batch_size=batch)
  largest = int(line.partition(" examples of ")[0].rpartition(" ")[2])
  weights = 16 * num_parameters(encoder_shapes(MODELS[name])) / GIB
  assert gib < weights + batch * (79 - weights) / largest < 1.45 * gib


def test_a_batch_that_the_cores_cannot_share_is_refused():
  message = r"--train_batch_size=96 .* 16 cores x 4 accumulation steps: give a multiple of 64"
  with pytest.raises(UserError, match=message):
    describe(chip="v3-16", gradient_accumulation_steps=4)


def test_the_committed_table_says_what_its_page_says():
  """Of BERT-xlarge no batch fits a v3 (docs/tpu.md); the paper's batch of 4096 fits 512 cores without accumulation."""
  table = tpu_memory.read_table()
  paper = {"model": MODELS["albert_xxlarge"], "train_batch_size": 4096}
  assert "8 examples of 512 tokens on each of 512 cores fit" in describe("v3-512", table, **paper)
  with pytest.raises(UserError, match=r"do not fit .* give --gradient_accumulation_steps="):
    describe("v3", table, **paper)
  with pytest.raises(UserError, match=r"not even one does"):
    describe("v3", table, model=MODELS["bert_xlarge"])
  # Of 1.27 billion parameters, weights and gradients take 8 bytes each; the moments, divided among 8 cores, 1 more.
  divided = describe("v3", table, model=MODELS["bert_xlarge"], length=128, shard_optimizer_state=True)
  assert "gradients and moments take 10.7 of 15.5 GiB, and 31 examples of 128 tokens fit" in divided
  line = describe("v3", table, model=MODELS["bert_large"], train_batch_size=4096, gradient_accumulation_steps=32)
  assert "16 examples of 512 tokens on each of 8 cores (32 times per step) fit; they take about 12.6 of" in line


def test_the_estimate_is_within_a_factor_of_2_of_every_compiled_step():
  table = tpu_memory.read_table()
  compared = 0
  for step in table.steps:
    if step.step != "pretraining" or not step.fits or step.gradient_accumulation_steps > 1:
      continue
    if not step.too_large:  # the limit was not found
      continue
    model = MODELS[step.model]
    weights = 16 * num_parameters(encoder_shapes(model))
    per_sequence = tpu_memory.activation_bytes(model, step.length, recompute_grad=step.recompute_grad)
    estimate = (table.chips[step.chip].limit - weights) / per_sequence
    largest, smallest_too_large = max(trial.batch for trial in step.fits), min(trial.batch for trial in step.too_large)
    assert largest / 2 <= estimate <= 2 * smallest_too_large, (step.model, step.length, step.chip, estimate, largest)
    compared += 1
  assert compared > 20
