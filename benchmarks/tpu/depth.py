"""Estimates the memory of a model that is too deep to be compiled here, from the same model with fewer layers.

  python -m benchmarks.tpu.depth --model=bert_xlarge --shard_optimizer_state --batch=8 --depths=2,4,6 --chips=v3
  python -m benchmarks.tpu.depth --model=bert_xlarge --shard_optimizer_state --batch=8 --depths=24 --chips=v3
  python -m benchmarks.tpu.depth --model=bert_xlarge --shard_optimizer_state --batch=32 \
    --gradient_accumulation_steps=4 --depths=24 --chips=v3

In a model that shares no weights between its layers, each layer adds weights, moments, gradients and activations. The
sizes of all depths but the largest give a line, which predicts the size of the largest depth: this is the check of the
line. For 24 layers of bert_xlarge, the line through 2, 4 and 6 layers was 0.4% too high. The line through all depths
gives the size of the whole model. If the whole model is among the depths, it is compiled, and nothing is estimated.

Every compilation is recorded in tpu_depth_trials.jsonl in --output_dir, so the same command does not compile it again.
The table of all recorded compilations is tpu_depth_DATE.md. It has the memory of the host that the compiler took, too.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.tpu.protocol import ENVIRONMENT, ROOT, Worker

os.environ.update(ENVIRONMENT)  # before TensorFlow loads libtpu

import numpy as np
from absl import flags

from albert import app
from albert.config.model import MODELS
from albert.errors import UserError
from albert.settings import tpu_memory
from benchmarks.tpu import search
from benchmarks.tpu.chips import CHIPS
from benchmarks.tpu.programs import Program

FLAGS = flags.FLAGS
RESULTS = ROOT / "benchmarks" / "results"
TRIALS_FILE = "tpu_depth_trials.jsonl"
_GIB = 1 << 30
_COLUMNS = (
  "model",
  "moments and gradients",
  "length",
  "batch per core",
  "micro-batches",
  "chip",
  "layers",
  "HBM GiB",
  "predicted from fewer layers",
  "variables",
  "temporaries",
  "limit",
  "fits",
  "GiB of the compiler's host",
)
_NOTES = """
The training step of pretraining with LAMB for eight cores, as in tpu_aot_DATE.md, with the number of layers in the
column "layers". No TPU was used.

- "predicted": from the line through all smaller depths, if there are two or more. A row whose depth is "estimated" was
  not compiled: its size is that of the line through all depths.
- "sharded": `--shard_optimizer_state`, which divides the moments and the gradients among the cores.
- "micro-batches": `--gradient_accumulation_steps`, into which the batch of a core is divided.
"""


def extrapolate(sizes: Mapping[int, float], depth: int) -> float:
  """Returns the size at a depth, on the line with the least squared distances to the sizes of at least two depths."""
  slope, intercept = np.polyfit(list(sizes), list(sizes.values()), deg=1)
  return float(slope * depth + intercept)


def compile_depth(program: Program, chip: str, batch: int) -> search.Trial:
  """Lowers and compiles a step, each in a process of its own that ends before the next begins, to save memory.

  Raises:
    RequestFailed: the step cannot be lowered or compiled.
    RunError: a process ended, for example because memory was short.
  """
  lowering, compiler = Worker("benchmarks.tpu.lowering"), Worker("benchmarks.tpu.compiler")
  with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "step.mlir")
    try:
      lowered = lowering.ask({"program": dataclasses.asdict(program), "batch_size": batch, "path": path})
      lowering.close()
      return lowered | compiler.ask({"path": path, "chip": chip, "num_cores": program.num_cores})
    finally:
      lowering.close()
      compiler.close()


def compile_depths(program: Program, chip: str, batch: int, depths: Sequence[int], path: Path) -> None:
  """Compiles a step with each number of layers, from the smallest, unless `path` has it. Adds the results to `path`."""
  for depth in sorted(depths):
    at_depth = dataclasses.replace(program, num_hidden_layers=depth)
    found = search.read_searches(path).get((at_depth, chip))
    if found is None or batch not in found.trials:
      began = found.began if found else datetime.date.today().isoformat()
      trial = compile_depth(at_depth, chip, batch)
      search.record_trial(path, at_depth, chip, began, batch, trial)
      used, host = search.bytes_used(trial) / _GIB, trial["host_peak"] / _GIB
      print(f"{program.model} {chip} batch {batch}, {depth} layers: {used:.2f} GiB (compiler: {host:.1f})", flush=True)


def format_table(path: Path) -> str:
  """Formats the table of the recorded compilations."""
  groups: dict[tuple[Program, str, int], dict[int, search.Trial]] = {}
  for (program, chip), found in search.read_searches(path).items():
    for batch, trial in found.trials.items():
      whole = dataclasses.replace(program, num_hidden_layers=0)
      groups.setdefault((whole, chip, batch), {})[program.num_hidden_layers] = trial
  lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
  for (program, chip, batch), trials in groups.items():
    moments = "sharded" if program.shard_optimizer_state else "whole"
    micro_batches = str(program.gradient_accumulation_steps)
    first_cells = [program.model, moments, str(program.length), str(batch), micro_batches, chip]
    limit = tpu_memory.read_table().chips[chip].limit
    lines += ["| " + " | ".join([*first_cells, *cells]) + " |" for cells in _rows(program, trials, limit)]
  return "\n".join(lines) + "\n"


def _rows(program: Program, trials: Mapping[int, search.Trial], limit: int) -> list[list[str]]:
  """Makes the cells from "layers" on, for the depths of a program and for its whole model."""
  rows = []
  sizes: dict[int, float] = {}  # of the depths so far that fit
  for depth, trial in sorted(trials.items()):
    used, is_fitting = search.bytes_used(trial), search.fits(trial)
    predicted = f"{extrapolate(sizes, depth) / _GIB:.2f}" if len(sizes) > 1 else ""
    parts = [f"{trial[part] / _GIB:.2f}" for part in ("alias", "temporary")] if is_fitting else ["", ""]
    verdict, host = "yes" if is_fitting else "no", f"{trial['host_peak'] / _GIB:.1f}"
    rows.append([str(depth), f"{used / _GIB:.2f}", predicted, *parts, f"{limit / _GIB:.2f}", verdict, host])
    if is_fitting:
      sizes[depth] = used
  whole = MODELS[program.model].num_hidden_layers
  if whole not in trials and len(sizes) > 1:
    estimated = extrapolate(sizes, whole)
    verdict = "yes" if estimated <= limit else "no"
    rows.append([f"{whole}, estimated", f"{estimated / _GIB:.2f}", "", "", "", f"{limit / _GIB:.2f}", verdict, ""])
  return rows


def main() -> None:
  from benchmarks.tpu_aot import check_profile

  path = Path(FLAGS.output_dir) / TRIALS_FILE
  if not FLAGS.report_only:
    check_profile()
    layers = MODELS[FLAGS.model].num_hidden_layers
    depths = [int(depth) for depth in FLAGS.depths if depth.isdecimal()]
    if len(depths) < len(FLAGS.depths) or not all(1 <= depth <= layers for depth in depths):
      raise UserError(
        f"--depths={','.join(FLAGS.depths)}: give numbers from 1 to {layers}, the layers of {FLAGS.model}"
      )
    program = Program(
      step="pretraining",
      model=FLAGS.model,
      length=FLAGS.length,
      gradient_accumulation_steps=FLAGS.gradient_accumulation_steps,
      shard_optimizer_state=FLAGS.shard_optimizer_state,
    )
    if FLAGS.batch % FLAGS.gradient_accumulation_steps:
      raise UserError(
        f"--batch={FLAGS.batch} cannot be divided into {FLAGS.gradient_accumulation_steps} micro-batches: give a "
        "multiple of --gradient_accumulation_steps"
      )
    path.parent.mkdir(parents=True, exist_ok=True)
    for chip in FLAGS.chips:
      compile_depths(program, chip, FLAGS.batch, depths, path)
  today = datetime.date.today().isoformat()
  table_file = path.with_name(f"tpu_depth_{today}.md")
  heading = f"# Steps with fewer layers compiled for Cloud TPU, {today}\n\n"
  heading += "Made by `python -m benchmarks.tpu.depth`; its source begins with the flags.\n"
  table_file.write_text(heading + _NOTES + "\n" + format_table(path), encoding="utf-8")
  print(f"written to {table_file}")


if __name__ == "__main__":
  flags.DEFINE_enum("model", "bert_xlarge", [name for name in MODELS if name.startswith("bert_")], "the model")
  flags.DEFINE_list("depths", ["2", "4", "6"], "numbers of layers to compile")
  flags.DEFINE_integer("length", 128, "tokens in a sequence", lower_bound=8, upper_bound=512)
  flags.DEFINE_integer("batch", 8, "sequences on each core", lower_bound=1)
  flags.DEFINE_integer("gradient_accumulation_steps", 1, "micro-batches in the batch of a core", lower_bound=1)
  flags.DEFINE_bool("shard_optimizer_state", False, "whether the moments and the gradients are divided among the cores")
  flags.DEFINE_multi_enum("chips", ["v3", "v5e"], list(CHIPS), "a chip, instead of v3 and v5e; may be repeated")
  flags.DEFINE_bool("report_only", False, "only write the table of the recorded compilations")
  flags.DEFINE_string("output_dir", str(RESULTS), "directory of the trials and the table")
  app.run(main)
