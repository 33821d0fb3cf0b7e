"""Writes the table of all compilations as Markdown, and as JSON for --dry_run."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from albert.settings import tpu_memory
from albert.tasks.pretraining.model import MAX_LOGITS
from benchmarks.tpu.chips import CHIPS, NUM_CORES, roofline_seconds
from benchmarks.tpu.programs import Program
from benchmarks.tpu.search import GRID, Search, Trial, batch_sizes, bytes_used, fits, next_batch

_GIB = 1 << 30
_COLUMNS = (
  "step",
  "model",
  "length",
  "chip",
  "largest batch per core",
  "does not fit",
  "HBM GiB",
  "variables",
  "temporaries",
  "TFLOP per step",
  "GFLOP per sequence",
  "GB per step",
  "roofline ms per step",
  "sequences/s per core",
  "bound by",
  "compiled",
)


def describe(program: Program) -> str:
  """Returns the name of a program's step, with those of its settings that are not the default."""
  notes = [program.step]
  if program.recompute_grad:
    notes.append("recompute_grad")
  if program.gradient_accumulation_steps > 1:
    notes.append(f"{program.gradient_accumulation_steps} accumulation steps")
  if program.one_hot:
    notes.append("one-hot words")
  if program.num_cores != NUM_CORES:
    notes.append(f"{program.num_cores} cores")
  if program.shard_optimizer_state:
    notes.append("sharded moments")
  if program.num_hidden_layers:
    notes.append(f"{program.num_hidden_layers} layers")
  return ", ".join(notes)


def format_trial(program: Program, chip: str, batch: int, trial: Trial) -> str:
  """Formats a line about one compilation, for the terminal."""
  name = f"{describe(program)} {program.model} {program.length} {chip} batch {batch}"
  verdict = "fits" if fits(trial) else "does not fit"
  return f"{name}: {verdict}, {bytes_used(trial) / _GIB:.2f} GiB ({trial['seconds']:.0f} s of the compiler)"


def _make_row(program: Program, chip: str, search: Search) -> list[str]:
  """Makes the cells of the row for a program on a chip, whose name is a key of CHIPS."""
  cells = _make_cells(program, chip, search.trials)
  return [*cells, *[""] * (len(_COLUMNS) - 1 - len(cells)), search.began]


def _make_cells(program: Program, chip: str, trials: Mapping[int, Trial]) -> list[str]:
  """Makes the first cells of a row, as many as are known. `trials` are those of its search."""
  largest_fitting = max((batch for batch in trials if fits(trials[batch])), default=None)
  smallest_too_large = min((batch for batch in trials if not fits(trials[batch])), default=None)
  too_large_cell = ""
  if smallest_too_large is not None:
    too_large_cell = f"{smallest_too_large} ({bytes_used(trials[smallest_too_large]) / _GIB:.1f} GiB)"
  row = [describe(program), program.model, str(program.length), chip]
  sizes = batch_sizes(program)
  is_search_finished = next_batch(trials, CHIPS[chip].hbm, largest_fitting or sizes[0], sizes) is None
  if largest_fitting is None:
    largest_cell = "none" if is_search_finished else "not known yet"
    return [*row, largest_cell, too_large_cell]
  trial = trials[largest_fitting]
  row += [
    f"{largest_fitting}" + ("" if is_search_finished else " or more"),
    too_large_cell,
    f"{bytes_used(trial) / _GIB:.2f}",
    f"{trial['alias'] / _GIB:.2f}",  # the variables, whose new values overwrite the old ones
    f"{trial['temporary'] / _GIB:.2f}",
  ]
  if program.gradient_accumulation_steps > 1:  # a loop: the compiler counts the operations of its body only once
    return row
  flops, num_bytes = trial["flops"], trial["bytes_accessed"]
  seconds = roofline_seconds(CHIPS[chip], flops, num_bytes)
  return [
    *row,
    f"{flops / 1e12:.2f}",
    f"{flops / largest_fitting / 1e9:.0f}",
    f"{num_bytes / 1e9:.1f}",
    f"{seconds * 1e3:.0f}",
    f"{largest_fitting / seconds:.0f}",
    "matrices" if flops / CHIPS[chip].flops >= num_bytes / CHIPS[chip].bandwidth else "memory",
  ]


def format_table(searches: Mapping[tuple[Program, str], Search]) -> str:
  """Formats the table, with a row for each program and chip in the order of their first compilation."""
  lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
  lines += ["| " + " | ".join(_make_row(program, chip, search)) + " |" for (program, chip), search in searches.items()]
  return "\n".join(lines) + "\n"


def _describe_versions() -> str:
  versions = []
  for name in ("tensorflow-tpu", "tf-keras", "libtpu", "jax"):
    try:
      versions.append(f"{name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
      versions.append(f"{name} not installed here")
  return ", ".join(versions)


_SPECIFICATIONS = "; ".join(
  f"{name}: {chip.flops / 1e12:g} TFLOP/s and {chip.bandwidth / 1e9:g} GB/s" for name, chip in CHIPS.items()
)
_NOTES = f"""
`albert.training.loop.Trainer.replica_step` (forward, backward, sum over {NUM_CORES} cores, clip, LAMB or AdamW,
metrics) in bfloat16 with float32 variables, lowered by TensorFlow with the op registry of the TPU and compiled by
libtpu for {NUM_CORES} cores, or for the number in the first column. No TPU was used: the table shows which batches
compile and fit, not how fast they run.

- HBM: variables (weights, moments and counters; new values overwrite the old ones) + batch + temporaries + code. The
  compiler rejected the batch under "does not fit", and reported how much memory it needs. Near the limit the compiler
  itself recomputes parts of the forward pass; GFLOP per sequence show where.
- The largest batch is searched on a grid: powers of two and the numbers halfway between them, up to {GRID[-1]}.
  In pretraining the logits of the masked tokens on a core, batch x masked tokens x pieces, are at most {MAX_LOGITS:,},
  since TensorFlow cannot compute the gradient of more: with 77 masked tokens and 30,000 pieces a batch of 768.
- The compiler was set to make little effort to find a fast program, which makes compilation three times as fast here.
  For albert_base at length 512, batch 8, on v3 it gave the same temporaries, flops and bytes as with its usual effort,
  but 32 MiB of code instead of 136. If less than 0.2 GiB is free, use the next smaller batch.
- The roofline is max(flops / peak, bytes / bandwidth) of a core (cloud.google.com/tpu/docs), a bound that no run
  reaches. {_SPECIFICATIONS}. Flops and bytes are the compiler's counts; its
  bytes include all data that moves between fused operations, also within the chip. With gradient accumulation there are
  no counts, since it is a loop, whose body the compiler counts only once.
- "compiled" is the day on which the search of the row began.
"""


def write(searches: Mapping[tuple[Program, str], Search], directory: Path) -> Path:
  """Writes tpu_aot_DATE.md and returns its path."""
  today = datetime.date.today().isoformat()
  path = directory / f"tpu_aot_{today}.md"
  heading = (
    f"# Training steps compiled for Cloud TPU, {today}\n\n{_describe_versions()}. "
    "Made by `python benchmarks/tpu_aot.py`.\n"
  )
  path.write_text(heading + _NOTES + "\n" + format_table(searches), encoding="utf-8")
  return path


def memory_table(searches: Mapping[tuple[Program, str], Search]) -> tpu_memory.MemoryTable:
  """Returns the table that --dry_run reads: the bytes of each batch of each step that a training run can have.

  It has no steps with one-hot words, which no flag turns on, with sharded moments, or with fewer layers than the model
  has, and of each step only the one for NUM_CORES cores.
  """
  limits: dict[str, int] = {}
  steps = []
  for (program, chip), search in searches.items():
    too_large = [trial for trial in search.trials.values() if not fits(trial)]
    limits |= {chip: min(trial["limit"] for trial in too_large)} if too_large else {}
    is_special = program.one_hot or program.shard_optimizer_state or program.num_hidden_layers
    if is_special or program.num_cores != NUM_CORES:
      continue
    sizes = [tpu_memory.Trial(batch, bytes_used(search.trials[batch])) for batch in sorted(search.trials)]
    steps.append(
      tpu_memory.CompiledStep(
        step=program.step,
        model=program.model,
        length=program.length,
        chip=chip,
        recompute_grad=program.recompute_grad,
        gradient_accumulation_steps=program.gradient_accumulation_steps,
        compiled=search.began,
        fits=[size for size in sizes if fits(search.trials[size.batch])],
        too_large=[size for size in sizes if not fits(search.trials[size.batch])],
      )
    )
  # Without a limit, that of the compiler's message, a chip is left out.
  chips = {
    name: tpu_memory.ChipMemory(limits[name], chip.units_per_core) for name, chip in CHIPS.items() if name in limits
  }
  return tpu_memory.MemoryTable(chips, [step for step in steps if step.chip in chips])


def write_memory_table(searches: Mapping[tuple[Program, str], Search], path: Path) -> None:
  """Writes the table that --dry_run reads, a line for each step."""
  table = msgspec.to_builtins(memory_table(searches))
  steps = ",\n".join(json.dumps(step) for step in table["steps"])
  path.write_text(f'{{"chips": {json.dumps(table["chips"])},\n"steps": [\n{steps}\n]}}\n', encoding="utf-8")
