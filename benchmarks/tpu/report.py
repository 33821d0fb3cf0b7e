"""The table of trials, as Markdown."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

from benchmarks.tpu.chips import CHIPS, NUM_CORES, roofline_seconds
from benchmarks.tpu.programs import Program
from benchmarks.tpu.search import GRID, Trial, bytes_used, fits, next_batch

_GIB = 1 << 30
_COLUMNS = (
  "step",
  "model",
  "length",
  "chip",
  "largest batch a core",
  "does not fit",
  "HBM GiB",
  "variables",
  "temporaries",
  "TFLOP a step",
  "GFLOP a sequence",
  "GB a step",
  "roofline ms a step",
  "sequences/s a core",
  "bound by",
)


def describe(program: Program) -> str:
  """The step with what is unusual about it."""
  notes = [program.step]
  if program.recompute_grad:
    notes.append("recompute_grad")
  if program.gradient_accumulation_steps > 1:
    notes.append(f"{program.gradient_accumulation_steps} accumulation steps")
  if program.one_hot:
    notes.append("one-hot words")
  return ", ".join(notes)


def trial_line(program: Program, chip: str, batch: int, trial: Trial) -> str:
  """One compilation, for the terminal."""
  what = f"{describe(program)} {program.model} {program.length} {chip} batch {batch}"
  verdict = "fits" if fits(trial) else "does not fit"
  return f"{what}: {verdict}, {bytes_used(trial) / _GIB:.2f} GiB ({trial['seconds']:.0f} s of the compiler)"


def _row(program: Program, chip: str, trials: Mapping[int, Trial]) -> list[str]:
  largest = max((batch for batch in trials if fits(trials[batch])), default=None)
  smallest = min((batch for batch in trials if not fits(trials[batch])), default=None)
  refused = "" if smallest is None else f"{smallest} ({bytes_used(trials[smallest]) / _GIB:.1f} GiB)"
  row = [describe(program), program.model, str(program.length), chip]
  parts = program.gradient_accumulation_steps
  finished = next_batch(trials, CHIPS[chip].hbm, largest or parts, parts) is None
  if largest is None:
    return [*row, "none" if finished else "not known yet", refused, *[""] * (len(_COLUMNS) - len(row) - 2)]
  trial = trials[largest]
  row += [
    f"{largest}" + ("" if finished else " or more"),
    refused,
    f"{bytes_used(trial) / _GIB:.2f}",
    f"{trial['alias'] / _GIB:.2f}",
    f"{trial['temporary'] / _GIB:.2f}",
  ]
  if parts > 1:  # a loop, whose body the compiler counts once
    return [*row, *[""] * (len(_COLUMNS) - len(row))]
  flops, num_bytes = trial["flops"], trial["bytes_accessed"]
  seconds = roofline_seconds(CHIPS[chip], flops, num_bytes)
  return [
    *row,
    f"{flops / 1e12:.2f}",
    f"{flops / largest / 1e9:.0f}",
    f"{num_bytes / 1e9:.1f}",
    f"{seconds * 1e3:.0f}",
    f"{largest / seconds:.0f}",
    "matrices" if flops / CHIPS[chip].flops >= num_bytes / CHIPS[chip].bandwidth else "memory",
  ]


def table(trials: Mapping[tuple[Program, str], Mapping[int, Trial]]) -> str:
  """A row for each program and chip, in the order they were compiled."""
  lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
  lines += [
    "| " + " | ".join(_row(program, chip, of_one)) + " |" for (program, chip), of_one in trials.items() if of_one
  ]
  return "\n".join(lines) + "\n"


def _versions() -> str:
  found = []
  for name in ("tensorflow-tpu", "tf-keras", "libtpu", "jax"):
    try:
      found.append(f"{name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
      found.append(f"{name} not installed here")
  return ", ".join(found)


_NOTES = f"""
`albert.training.loop.Trainer.replica_step` (forward, backward, sum over {NUM_CORES} cores, clip, LAMB or AdamW,
metrics) in bfloat16 with float32 variables, lowered by TensorFlow against the op registry of the TPU and compiled by
libtpu for a v3-8 and a v5litepod-8. No TPU was there: the table says what compiles and what fits, not how fast it is.

- HBM: variables (weights, moments, counters; each new value takes the old one's place) + batch + temporaries + code.
  The compiler refused the batch under "does not fit", and said how much it would take. Near the limit it computes
  parts of the forward pass again by itself; GFLOP a sequence show where.
- Batches are looked for on a grid: powers of two and what lies halfway between them, to {GRID[-1]}.
- The compiler was told to make little effort to find a fast program, which makes it three times as quick here. For
  albert_base at 512, batch 8, on v3 it gave the same temporaries, flops and bytes as with its usual effort, but 32 MiB
  of code instead of 136: where less than 0.2 GiB is free, take the next smaller batch.
- The roofline is max(flops / peak, bytes / bandwidth), with {CHIPS["v3"].flops / 1e12:g} TFLOP/s and \
{CHIPS["v3"].bandwidth / 1e9:g} GB/s for a core of v3 and {CHIPS["v5e"].flops / 1e12:g} TFLOP/s and \
{CHIPS["v5e"].bandwidth / 1e9:g} GB/s
  for v5e (cloud.google.com/tpu/docs): a bound that no run reaches. Flops and bytes are the compiler's own count;
  its bytes count what moves between fused operations, wherever that is. Accumulation is a loop, and the compiler counts
  the body of a loop once, so these rows have neither.
"""


def write(trials: Mapping[tuple[Program, str], Mapping[int, Trial]], directory: Path) -> Path:
  """Writes tpu_aot_DATE.md and returns its path."""
  today = datetime.date.today().isoformat()
  path = directory / f"tpu_aot_{today}.md"
  heading = (
    f"# Training steps compiled for Cloud TPU, {today}\n\n{_versions()}. Made by `python benchmarks/tpu_aot.py`.\n"
  )
  path.write_text(heading + _NOTES + "\n" + table(trials), encoding="utf-8")
  return path
