"""Measures the CPU seconds from a command to its first result: the first step, the first answer, or an error.

  python benchmarks/bench_startup.py --baseline=../earlier --rounds=5

It makes small data, starts each command several times, and prints the medians as a table. With --baseline, the commands
of another checkout are measured, too, in turns with those of this one. CPU seconds are user and system time of the
process and of the processes that it has started and waited for. They depend less than the elapsed time on what else the
machine does.
"""

from __future__ import annotations

import compileall
import dataclasses
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.errors import RunError  # noqa: E402
from benchmarks import machine  # noqa: E402

FLAGS = flags.FLAGS
STEP, ANSWER, REFUSAL = "first step", "first answer", "refusal"
TARGETS = {STEP: 9.0, ANSWER: 4.0, REFUSAL: 0.7}
# How the line of output begins that shows the first result. A refused command has none: it is measured until it ends.
_RESULT_LINE_START = {STEP: "step 1:", ANSWER: "{"}
_VOCAB_SIZE = 200
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class StartupCase:
  """A command that is measured.

  Attributes:
    name: its name in the table.
    kind: STEP, ANSWER or REFUSAL.
    argv: the arguments of Python. NEW stands for a directory that does not exist.
  """

  name: str
  kind: str
  argv: Sequence[str]


def write_data(directory: Path) -> None:
  """Writes small files for all commands: a vocabulary, shards, texts with labels, and an exported model."""
  import numpy as np

  from albert.export.checkpoint import find_checkpoint
  from albert.export.export_model import export_model
  from albert.weights.checkpoints import CheckpointManager
  from tests.conftest import english_like_documents, train_small_model
  from tests.golden.make_tiny_albert import random_weights
  from tests.synthetic import TINY_MODEL, write_shards

  write_shards(directory / "shards", [64])
  lines = [line.lower() for document in english_like_documents(300) for line in document]
  train_small_model(directory / "spiece.model", lines, vocab_size=_VOCAB_SIZE)
  model = dataclasses.replace(TINY_MODEL, vocab_size=_VOCAB_SIZE)
  rows = [f"{line}\t{number % 2}" for number, line in enumerate(lines[:64])]
  (directory / "texts.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
  weights = random_weights(model, 1, with_heads=("classifier",), num_classes=2)
  checkpoint = CheckpointManager(str(directory / "checkpoints"), keep=1, model_config=model)
  checkpoint.save(1, {name: np.asarray(value) for name, value in weights.items()})
  export_model(
    find_checkpoint(checkpoint.path(1), spm_model_file=str(directory / "spiece.model")),
    str(directory / "models"),
    task="classifier",
    settings={"task_name": "SST-2", "max_seq_length": 32},
  )


def make_cases(directory: Path) -> list[StartupCase]:
  """Returns the commands that are measured. `directory`: that of write_data."""
  from tests.synthetic import TINY_MODEL_FLAGS

  training = [*TINY_MODEL_FLAGS, "--do_train", "--verbose", "--train_batch_size=8", "--log_every_steps=1"]
  training += ["--num_train_steps=1000", "--num_warmup_steps=10", "--save_checkpoints_steps=1000"]
  shards = f"--input_file={directory}/shards/*"
  vocabulary, texts = f"--spm_model_file={directory}/spiece.model", f"--train_file={directory}/texts.tsv"
  custom_task = [
    "--task_name=custom",
    "--text_columns=text",
    "--max_seq_length=32",
    "--from_scratch",
    f"--vocab_size={_VOCAB_SIZE}",
  ]
  pretraining = ["run_pretraining.py", *training]
  classifier = ["run_classifier.py", *training, *custom_task]
  export = ["-m", "albert.export", "--output_dir=NEW"]
  predict = ["-m", "albert.predict", f"--input_file={directory}/texts.tsv", "--format=lines"]
  convert = ["-m", "albert.convert", "--output_dir=NEW", "--format=tf1"]
  prepare = ["-m", "data_prep.create_pretraining_data", "--output_dir=NEW", "--max_seq_length=32"]
  new = "--output_dir=NEW"
  return [
    StartupCase("run_pretraining.py", STEP, [*pretraining, shards, new]),
    StartupCase("run_classifier.py", STEP, [*classifier, vocabulary, texts, new]),
    StartupCase("albert.predict", ANSWER, [*predict, f"--model={directory}/models/classifier"]),
    StartupCase("run_pretraining.py, wrong value", REFUSAL, [*pretraining, shards, new, "--learning_rate=0"]),
    StartupCase("run_pretraining.py, unknown flag", REFUSAL, [*pretraining, shards, new, "--lerning_rate=1"]),
    StartupCase("run_pretraining.py, no output_dir", REFUSAL, [*pretraining, shards]),
    StartupCase("run_pretraining.py, input_file", REFUSAL, [*pretraining, "--input_file=absent*", new]),
    StartupCase(
      "run_pretraining.py, init_checkpoint", REFUSAL, [*pretraining, shards, new, "--init_checkpoint=absent"]
    ),
    StartupCase("run_pretraining.py, recipe", REFUSAL, [*pretraining, shards, new, "--recipe=absent"]),
    StartupCase("run_classifier.py, train_file", REFUSAL, [*classifier, vocabulary, "--train_file=absent", new]),
    StartupCase("run_classifier.py, spm_model_file", REFUSAL, [*classifier, texts, "--spm_model_file=absent", new]),
    StartupCase(
      "run_squad.py, train_file", REFUSAL, ["run_squad.py", *training, "--from_scratch", "--train_file=absent", new]
    ),
    StartupCase(
      "run_race.py, data_dir", REFUSAL, ["run_race.py", *training, "--from_scratch", "--data_dir=absent", new]
    ),
    StartupCase("albert.export, checkpoint", REFUSAL, [*export, "--checkpoint=absent"]),
    StartupCase("albert.convert, init_checkpoint", REFUSAL, [*convert, "--init_checkpoint=absent"]),
    StartupCase("albert.predict, model", REFUSAL, [*predict, "--model=absent"]),
    StartupCase("create_pretraining_data, input_file", REFUSAL, [*prepare, vocabulary, "--input_file=absent*"]),
    StartupCase(
      "create_pretraining_data, spm_model_file",
      REFUSAL,
      [*prepare, f"--input_file={directory}/texts.tsv", "--spm_model_file=x"],
    ),
  ]


def measure(case: StartupCase, checkout: Path) -> float:
  """Runs a command once, and returns its CPU seconds until its first result.

  Raises:
    RunError: the command has another result.
  """
  with tempfile.TemporaryDirectory() as directory:
    command = [sys.executable, *(word.replace("NEW", f"{directory}/new") for word in case.argv)]
    # Answers are printed to stdout; steps and errors are printed to stderr.
    stdout, stderr = (subprocess.PIPE, subprocess.DEVNULL) if case.kind == ANSWER else (None, subprocess.PIPE)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    last_line = ""
    with subprocess.Popen(command, cwd=checkout, env=environment, text=True, stdout=stdout, stderr=stderr) as process:
      for line in process.stdout or process.stderr or ():
        last_line = line.strip()
        if case.kind != REFUSAL and line.startswith(_RESULT_LINE_START[case.kind]):
          seconds = _seconds_so_far(process.pid)
          process.kill()
          return seconds
      process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if case.kind != REFUSAL or process.returncode != 2:
      raise RunError(f"{case.name} in {checkout}: exit code {process.returncode}: {last_line}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _seconds_so_far(pid: int) -> float:
  """The CPU seconds that a process and its children that have ended have used so far."""
  fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
  return sum(map(int, fields[11:15])) / _TICKS_PER_SECOND  # utime, stime, cutime, cstime


def main() -> None:
  """Measures all cases, and prints the table."""
  checkouts = {"now": ROOT}
  if FLAGS.baseline:
    checkouts = {"before": Path(FLAGS.baseline).resolve(), **checkouts}
  with tempfile.TemporaryDirectory() as directory:
    write_data(Path(directory))
    cases = [case for case in make_cases(Path(directory)) if any(text in case.name for text in FLAGS.only)]
    for checkout in checkouts.values():  # so that no start compiles modules
      for package in ("albert", "data_prep"):
        compileall.compile_dir(checkout / package, quiet=1)
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(FLAGS.rounds):
      for case in cases:
        for label, checkout in checkouts.items():
          seconds.setdefault((case.name, label), []).append(measure(case, checkout))
  print(f"Machine: {machine.describe()}. Median CPU seconds of {FLAGS.rounds} starts (smallest to largest).\n")
  print(f"| command | until | target | {' | '.join(checkouts)} |")
  print(f"|---|---|---|{'---|' * len(checkouts)}")
  for case in cases:
    cells = [_format_cell(seconds[case.name, label]) for label in checkouts]
    print(f"| {case.name} | {case.kind} | {TARGETS[case.kind]:g} | {' | '.join(cells)} |")


def _format_cell(seconds: Sequence[float]) -> str:
  return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
  flags.DEFINE_string("baseline", "", "another checkout of this project, to compare with")
  flags.DEFINE_integer("rounds", 5, "number of counted starts of each command", lower_bound=1)
  flags.DEFINE_list("only", [""], "measure only the cases whose names contain one of these texts")
  app.run(main)
