"""Compiles the training steps for Cloud TPU v3 and v5e without a TPU, to find what fits into the memory of a core.

  python benchmarks/tpu_aot.py                       # every model and head; `make tpu-aot` sets up the profile first
  python benchmarks/tpu_aot.py --steps=pretraining --models=albert_base --lengths=512 --chips=v3

For each program it searches the largest batch per core that fits. Every compilation is recorded as a line of
tpu_aot_trials.jsonl in --output_dir, so if the command was stopped, the same command continues there. The table is
tpu_aot_DATE.md.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.tpu.protocol import ENVIRONMENT, RequestFailed, Worker  # noqa: E402

os.environ.update(ENVIRONMENT)  # before TensorFlow loads libtpu

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.config.model import MODELS  # noqa: E402
from albert.errors import RunError, UserError  # noqa: E402
from benchmarks.tpu import report, search  # noqa: E402
from benchmarks.tpu.chips import CHIPS, NUM_CORES  # noqa: E402
from benchmarks.tpu.programs import STEPS, Program  # noqa: E402

FLAGS = flags.FLAGS
TRIALS_FILE = "tpu_aot_trials.jsonl"
# The packages that `check_profile` looks for.
PROFILE_PACKAGES = ("tensorflow-tpu", "libtpu", "jax", "jaxlib")
LENGTHS = (512, 128)
# The models of the paper, in the order of compilation.
PAPER_MODELS = ("albert_xxlarge", "albert_base", "albert_xlarge", "albert_large")
FINETUNING_STEPS = tuple(step for step in STEPS if step != "pretraining")


def check_profile() -> None:
  """Raises a UserError if packages of the tpu profile are missing."""
  missing = []
  for name in PROFILE_PACKAGES:
    try:
      importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      missing.append(name)
  if missing:
    raise UserError(
      f"{', '.join(missing)} not installed: programs for a TPU can only be compiled in the tpu profile; "
      "`make setup-tpu` makes it in .venv-tpu, then run .venv-tpu/bin/python benchmarks/tpu_aot.py"
    )


def distinct_models() -> list[str]:
  """Returns the names of MODELS, those in PAPER_MODELS first. Of several names of one model, one is included."""
  names: dict[Any, str] = {}
  for name in (*PAPER_MODELS, *MODELS):
    names.setdefault(MODELS[name], name)
  return list(names.values())


def all_programs() -> Iterator[Program]:
  """Yields all programs of the table, the most informative ones first."""
  for length, model in itertools.product(LENGTHS, PAPER_MODELS):
    yield Program(step="pretraining", model=model, length=length)
  for model in PAPER_MODELS:
    yield Program(step="pretraining", model=model, length=512, recompute_grad=True)
  yield Program(step="pretraining", model="albert_base", length=512, one_hot=True)
  yield Program(step="pretraining", model="albert_xxlarge", length=512, gradient_accumulation_steps=4)
  for model, length in (("albert_base", 512), ("albert_xxlarge", 512), ("albert_base", 128)):
    for step in FINETUNING_STEPS:
      yield Program(step=step, model=model, length=length)
  for model, length in itertools.product(distinct_models(), LENGTHS):
    yield Program(step="pretraining", model=model, length=length)


def selected_programs() -> list[Program]:
  """Returns the programs that the flags select, without repetitions."""
  filters = {"step": FLAGS.steps, "model": FLAGS.models, "length": [int(length) for length in FLAGS.lengths]}
  programs = list(dict.fromkeys(all_programs()))
  for name, values in filters.items():
    if values:
      programs = [program for program in programs if getattr(program, name) in values]
  if not programs:
    raise UserError("no program has all of --steps, --models and --lengths: give other values (--help lists them)")
  return programs


def estimate_batch(program: Program) -> int:
  """Estimates the largest batch size that fits, to begin the search with it.

  It assumes that for each token and layer, a core stores about 20 bytes for each hidden unit and 2.5 bytes for each
  attention probability, and a sixth of this with gradient checkpointing; and that 12 GiB are free for them.
  """
  config = MODELS[program.model]
  bytes_per_token = 20 * config.hidden_size + 5 * config.num_attention_heads * program.length // 2  # of one layer
  bytes_per_sequence = program.length * bytes_per_token * config.num_hidden_layers
  if program.recompute_grad:
    bytes_per_sequence //= 6
  return max(1, (12 << 30) // bytes_per_sequence)


class TrialRecorder:
  """Compiles programs, and records every trial in a file.

  Args:
    path: the file of trials, in JSON lines. Its trials are not repeated.

  Attributes:
    trials: (program, name of the chip) -> batch size -> result of the compilation.
  """

  def __init__(self, path: Path):
    self.path = path
    self.trials: dict[tuple[Program, str], dict[int, search.Trial]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
      recorded = json.loads(line)
      key = Program(**recorded["program"]), recorded["chip"]
      self.trials.setdefault(key, {})[recorded["batch_size"]] = recorded["trial"]
    self._lowering = Worker("benchmarks.tpu.lowering")
    self._compiler = Worker("benchmarks.tpu.compiler")
    self._lowered: dict[int, dict[str, Any]] = {}  # batch size -> result of lowering the present program

  def run(self, program: Program, chips: list[str], directory: Path) -> None:
    """Searches the largest batch of `program` on each chip. `directory` is for temporary files.

    Raises:
      RequestFailed: the program cannot be lowered or compiled.
    """
    try:
      self._search(program, chips, directory)
    finally:
      self._lowering.close()  # also frees the memory that TensorFlow holds for the program
      self._compiler.close()
      for batch in self._lowered:
        self._program_file(directory, batch).unlink(missing_ok=True)
      self._lowered.clear()

  def _search(self, program: Program, chips: list[str], directory: Path) -> None:
    for chip in chips:
      trials = self.trials.setdefault((program, chip), {})
      while (batch := self._next_batch(program, chip)) is not None:
        trial = self._compile(program, chip, batch, directory)
        trials[batch] = trial
        record = {"program": dataclasses.asdict(program), "chip": chip, "batch_size": batch, "trial": trial}
        with self.path.open("a", encoding="utf-8") as file:
          file.write(json.dumps(record) + "\n")
        print(report.format_trial(program, chip, batch, trial), flush=True)

  def _next_batch(self, program: Program, chip: str) -> int | None:
    trials, first_batch = self.trials[program, chip], self._first_batch(program, chip)
    return search.next_batch(trials, CHIPS[chip].hbm, first_batch, multiple=program.gradient_accumulation_steps)

  def _first_batch(self, program: Program, chip: str) -> int:
    """Chooses the batch size to begin with.

    It is the largest one that fits for a similar program. Similar programs are first the same program on another chip,
    then those of other fine-tuning tasks, then the program with version 2 of the model, which has no dropout. Without
    trials of such programs, the batch size is estimated.
    """
    on_other_chips = [(program, other_chip) for other_chip in CHIPS if other_chip != chip]
    other_steps = FINETUNING_STEPS if program.step in FINETUNING_STEPS else ()
    of_other_tasks = [(dataclasses.replace(program, step=step), chip) for step in other_steps]
    with_version_2 = [(dataclasses.replace(program, model=program.model.removesuffix("_v1")), chip)]
    for similar_programs in (on_other_chips, of_other_tasks, with_version_2):
      tried, fitting = [], []
      for program_and_chip in similar_programs:
        for batch, trial in self.trials.get(program_and_chip, {}).items():
          tried.append(batch)
          if search.fits(trial):
            fitting.append(batch)
      if tried:
        return max(fitting) if fitting else min(tried)
    return estimate_batch(program)

  def _compile(self, program: Program, chip: str, batch: int, directory: Path) -> dict[str, Any]:
    """Compiles a program for a batch size. It is lowered once for all chips."""
    path = str(self._program_file(directory, batch))
    if batch not in self._lowered:
      request = {"program": dataclasses.asdict(program), "batch_size": batch, "num_replicas": NUM_CORES, "path": path}
      self._lowered[batch] = self._lowering.ask(request)
    return self._lowered[batch] | self._compiler.ask({"path": path, "chip": chip})

  @staticmethod
  def _program_file(directory: Path, batch: int) -> Path:
    return directory / f"batch-{batch}.mlir"


def main() -> None:
  programs = selected_programs()
  output = Path(FLAGS.output_dir)
  output.mkdir(parents=True, exist_ok=True)
  recorder = TrialRecorder(output / TRIALS_FILE)
  failures: list[str] = []
  if not FLAGS.report_only:
    check_profile()
    with tempfile.TemporaryDirectory() as directory:
      for program in programs:
        try:
          recorder.run(program, FLAGS.chips, Path(directory))
        except (RequestFailed, RunError) as error:  # the other programs may succeed
          failures.append(f"{report.describe(program)} {program.model} {program.length}: {str(error)[:500]}")
          print(f"FAILED: {failures[-1]}", file=sys.stderr, flush=True)
  print(f"written to {report.write(recorder.trials, output)}")
  if failures:
    raise RunError(f"{len(failures)} of {len(programs)} programs failed, the first is {failures[0]}")


if __name__ == "__main__":
  flags.DEFINE_multi_enum("steps", [], list(STEPS), "a step to compile, instead of all; may be repeated")
  flags.DEFINE_multi_enum("models", [], distinct_models(), "a model, instead of all; may be repeated")
  flags.DEFINE_multi_enum("lengths", [], [str(length) for length in LENGTHS], "a length, instead of both")
  flags.DEFINE_multi_enum("chips", list(CHIPS), list(CHIPS), "a chip, instead of both")
  flags.DEFINE_bool("report_only", False, "only write the table of the recorded trials")
  flags.DEFINE_string("output_dir", str(ROOT / "benchmarks" / "results"), "directory of the trials and the table")
  app.run(main)
