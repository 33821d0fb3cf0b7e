"""Compiles the training steps for Cloud TPU v3 to v6e without a TPU, to find what fits into the memory of a core.

  python benchmarks/tpu_aot.py                       # every model and head; `make tpu-aot` sets up the profile first
  python benchmarks/tpu_aot.py --steps=pretraining --models=albert_base --lengths=512 --chips=v3
  python benchmarks/tpu_aot.py --since=2026-11-23    # after the step was changed on that day

For each program it searches the largest batch per core that fits. Every compilation is recorded as a line of
tpu_aot_trials.jsonl in --output_dir, so if the command was stopped, the same command continues there. The table is
tpu_aot_DATE.md. The table that `--dry_run --chip` of the training scripts reads is made, too: in albert/settings/ if
--output_dir has its default, else in --output_dir.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import itertools
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
from albert.settings import tpu_memory  # noqa: E402
from benchmarks.tpu import report, search  # noqa: E402
from benchmarks.tpu.chips import CHIPS, NUM_CORES  # noqa: E402
from benchmarks.tpu.programs import STEPS, Program  # noqa: E402

FLAGS = flags.FLAGS
RESULTS = ROOT / "benchmarks" / "results"
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
  yield Program(step="pretraining", model="albert_xxlarge", length=512, num_cores=512)  # the paper's largest run
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
  filters = {
    "step": FLAGS.steps,
    "model": FLAGS.models,
    "length": [int(length) for length in FLAGS.lengths],
    "num_cores": [int(number) for number in FLAGS.cores],
  }
  programs = list(dict.fromkeys(all_programs()))
  for name, values in filters.items():
    if values:
      programs = [program for program in programs if getattr(program, name) in values]
  if not programs:
    raise UserError("no program has all of these steps, models, lengths and cores: give other values (see --help)")
  return programs


def estimate_batch(program: Program, hbm: int) -> int:
  """Estimates the largest batch size that fits into `hbm` bytes, to begin the search with it.

  Three quarters of the memory are counted for the activations, the rest for weights, gradients and moments.
  """
  bytes_per_sequence = tpu_memory.activation_bytes(
    MODELS[program.model], program.length, recompute_grad=program.recompute_grad
  )
  return max(1, hbm * 3 // 4 // bytes_per_sequence)


class TrialRecorder:
  """Compiles programs, and records every trial in a file.

  Args:
    path: the file of trials, in JSON lines.
    since: a date, such as "2026-11-23". Searches that began before it are made again, others are continued.

  Attributes:
    searches: (program, name of the chip) -> the newest search.
  """

  def __init__(self, path: Path, since: str = ""):
    self.path = path
    self.since = since
    self.searches = search.read_searches(path)
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
      if program.num_cores not in CHIPS[chip].topologies:
        continue
      first_batch = self._first_batch(program, chip)
      found = self.searches.get((program, chip))
      if found is None or found.began < self.since:
        found = search.Search(datetime.date.today().isoformat())
      sizes = search.batch_sizes(program)
      while (batch := search.next_batch(found.trials, CHIPS[chip].hbm, first_batch, sizes)) is not None:
        trial = self._compile(program, chip, batch, directory)
        found.trials[batch] = trial
        self.searches[program, chip] = found
        search.record_trial(self.path, program, chip, found.began, batch, trial)
        print(report.format_trial(program, chip, batch, trial), flush=True)

  def _first_batch(self, program: Program, chip: str) -> int:
    """Chooses the batch size to begin with.

    It is the largest one that fits for a similar program. Similar programs are first the same program before the step
    was changed, then on another number of cores, on another chip (its batch is scaled by the memory), those of other
    fine-tuning tasks, then the program with version 2 of the model, which has no dropout. Without trials of such
    programs, the batch size is estimated.
    """
    other_steps = FINETUNING_STEPS if program.step in FINETUNING_STEPS else ()
    similar_programs = [
      [(program, chip)],
      [(dataclasses.replace(program, num_cores=NUM_CORES), chip)],
      [(program, other_chip) for other_chip in CHIPS if other_chip != chip],
      [(dataclasses.replace(program, step=step), chip) for step in other_steps],
      [(dataclasses.replace(program, model=program.model.removesuffix("_v1")), chip)],
    ]
    for programs_and_chips in similar_programs:
      tried, fitting = [], []
      for key in programs_and_chips:
        scale = CHIPS[chip].hbm / CHIPS[key[1]].hbm
        for batch, trial in self.searches[key].trials.items() if key in self.searches else ():
          tried.append(int(batch * scale))
          if search.fits(trial):
            fitting.append(int(batch * scale))
      if tried:
        return max(1, max(fitting) if fitting else min(tried))
    return estimate_batch(program, CHIPS[chip].hbm)

  def _compile(self, program: Program, chip: str, batch: int, directory: Path) -> dict[str, Any]:
    """Compiles a program for a batch size. It is lowered once for all chips."""
    path = str(self._program_file(directory, batch))
    if batch not in self._lowered:
      request = {"program": dataclasses.asdict(program), "batch_size": batch, "path": path}
      self._lowered[batch] = self._lowering.ask(request)
    return self._lowered[batch] | self._compiler.ask({"path": path, "chip": chip, "num_cores": program.num_cores})

  @staticmethod
  def _program_file(directory: Path, batch: int) -> Path:
    return directory / f"batch-{batch}.mlir"


def main() -> None:
  programs = selected_programs()
  output = Path(FLAGS.output_dir)
  output.mkdir(parents=True, exist_ok=True)
  recorder = TrialRecorder(output / TRIALS_FILE, FLAGS.since)
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
  print(f"written to {report.write(recorder.searches, output)}")
  is_default = output.resolve() == RESULTS
  memory_table = Path(tpu_memory.TABLE_FILE) if is_default else output / Path(tpu_memory.TABLE_FILE).name
  report.write_memory_table(recorder.searches, memory_table)
  if failures:
    raise RunError(f"{len(failures)} of {len(programs)} programs failed, the first is {failures[0]}")


if __name__ == "__main__":
  flags.DEFINE_multi_enum("steps", [], list(STEPS), "a step to compile, instead of all; may be repeated")
  flags.DEFINE_multi_enum("models", [], distinct_models(), "a model, instead of all; may be repeated")
  flags.DEFINE_multi_enum("lengths", [], [str(length) for length in LENGTHS], "a length, instead of both")
  flags.DEFINE_multi_enum("chips", list(CHIPS), list(CHIPS), "a chip, instead of all; may be repeated")
  flags.DEFINE_multi_enum("cores", [], ["8", "512"], "number of cores that train together, instead of all programs")
  flags.DEFINE_string(
    "since", "", "YYYY-MM-DD: search anew where the last search began earlier, since the step changed"
  )
  flags.DEFINE_bool("report_only", False, "only write the table of the recorded trials")
  flags.DEFINE_string("output_dir", str(RESULTS), "directory of the trials and the table")
  app.run(main)
