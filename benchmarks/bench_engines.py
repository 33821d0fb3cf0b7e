r"""Compares the engines that serve an exported model: latency, throughput, loading, memory and size.

The engines are the SavedModel without and with TensorFlow's oneDNN kernels (also with frozen weights), ONNX Runtime and
OpenVINO (float32 and int8), and transformers' AlbertForSequenceClassification on torch, also with torch.compile.
Install them in an environment of their own:

  python3.11 -m venv .venv-engines
  .venv-engines/bin/pip install -c constraints/parity.txt -e '.[parity,onnx,engines,dev]' onnxruntime==1.32.0 \
    onnx==1.23.2 tf2onnx==1.17.0 openvino==2026.4.1 nncf==3.4.0
  .venv-engines/bin/python benchmarks/bench_engines.py --guide=docs/serving.md

Engines whose packages are missing are named and left out. torch.compile also needs a C++ compiler.

All engines get the same classifier of two classes with random weights, and the same ids. Each engine runs in a process
of its own, which waits while the others are measured; in each round every engine has one turn with each batch. The
table shows medians over the rounds. An engine that fails has a row with the reason, and the others go on. The command
ends with exit code 1 if a float32 engine's probabilities differ by more than 1e-3 from the SavedModel's.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.config.model import ModelConfig, named_model  # noqa: E402
from albert.errors import RunError, UserError  # noqa: E402
from benchmarks import machine  # noqa: E402
from benchmarks.engines import models, registry, report  # noqa: E402
from benchmarks.engines.client import EngineProcess  # noqa: E402
from benchmarks.engines.registry import CALLS, DEFAULT_ENGINES, ENGINES, MIXED, REFERENCE, Engine  # noqa: E402

FLAGS = flags.FLAGS


def selected_engines() -> dict[str, Engine]:
  """The engines of --engines whose packages are installed. Prints a line about those that are left out."""
  unknown = [name for name in FLAGS.engines if name not in ENGINES]
  if unknown:
    raise UserError(f"--engines: {unknown[0]!r} is unknown, the engines are {', '.join(ENGINES)}")
  names = [REFERENCE, *(name for name in FLAGS.engines if name != REFERENCE)]
  engines, left_out = {}, []
  for name in names:
    missing = ENGINES[name].missing_packages()
    if missing:
      left_out.append(f"{ENGINES[name].title} ({', '.join(missing)})")
    else:
      engines[name] = ENGINES[name]
  if left_out:
    print(f"Left out, since packages are missing: {'; '.join(left_out)}", file=sys.stderr)
  return engines


def start_processes(engines: Mapping[str, Engine], directory: Path, config: ModelConfig) -> dict[str, EngineProcess]:
  """Writes the models to `directory`, and starts the processes of the engines one after the other."""
  batches_file = directory / "batches.npz"
  registry.save_batches(str(batches_file), registry.make_batches(config.vocab_size))
  failures = models.write_models(directory, config, list(engines.values()), batches_file, FLAGS.time_limit)
  processes = {}
  for name, engine in engines.items():
    processes[name] = EngineProcess(engine, directory, batches_file, FLAGS.threads, FLAGS.time_limit)
    processes[name].failure = failures.get(engine.model, processes[name].failure)
    print(f"{engine.title}: {processes[name].failure or 'loaded'}", file=sys.stderr)
  return processes


def measure(processes: Sequence[EngineProcess], deadline: float) -> int:
  """Measures all engines in alternating rounds, after one round that warms up.

  Args:
    processes: the engines.
    deadline: no round begins if it would end after this time (time.monotonic()). One round is always measured.
  Returns: the number of measured rounds.
  """
  order = list(processes)
  for round_number in range(FLAGS.rounds + 1):
    start = time.monotonic()
    for batch_name in CALLS:
      for process in order:
        process.measure(batch_name, is_counted=round_number > 0)
        time.sleep(0.02)  # threads of some engines wait actively for a moment after their work
    order = order[1:] + order[:1]
    seconds = time.monotonic() - start
    print(f"round {round_number} of {FLAGS.rounds}: {seconds:.0f} s", file=sys.stderr)
    if round_number > 0 and time.monotonic() + seconds > deadline:
      break
  return round_number


def main() -> None:
  """Writes the models, measures the engines, and writes the tables."""
  deadline = time.monotonic() + 60 * FLAGS.max_minutes
  load_average = os.getloadavg()[0]
  engines = selected_engines()
  guide = Path(FLAGS.guide).read_text(encoding="utf-8") if FLAGS.guide else ""
  if FLAGS.guide:
    report.replace_table(guide, [], FLAGS.guide)  # fails before the measurement if the guide has no table
  config = named_model(FLAGS.model)
  with tempfile.TemporaryDirectory() as directory:
    processes = start_processes(engines, Path(directory), config)
    try:
      num_rounds = measure(list(processes.values()), deadline)
    finally:
      for process in processes.values():
        process.close()
    sizes = {
      name: 0 if process.failure else models.size_on_disk(Path(directory, engines[name].model))
      for name, process in processes.items()
    }
  packages = sorted({package for engine in engines.values() for package in engine.packages})
  setup = (
    f"Machine: {machine.describe()}; load average before the start {load_average:.1f}. {FLAGS.model}, a classifier of "
    "two classes with random weights; inputs are ids, outputs are probabilities. The tables show medians; measured "
    f"rounds: {num_rounds}. {report.library_versions(packages)}."
  )
  text = report.format_report(
    processes,
    sizes,
    title=f"Engines that serve {FLAGS.model}, {time.strftime('%Y-%m-%d')}",
    setup=setup,
    command=shlex.join(["python", "benchmarks/bench_engines.py", *sys.argv[1:]]),
    mixed_lengths=registry.make_batches(config.vocab_size)[MIXED]["input_mask"].sum(axis=1).tolist(),
  )
  print(text)
  output = FLAGS.output or str(ROOT / "benchmarks" / "results" / f"engines_{time.strftime('%Y-%m-%d')}.md")
  Path(output).write_text(text, encoding="utf-8")
  if FLAGS.guide:
    link = os.path.relpath(output, Path(FLAGS.guide).parent)
    lines = [
      *report.format_table(processes, sizes),
      "",
      f"From [the results]({link}) of one run, with the range of each number.",
    ]
    Path(FLAGS.guide).write_text(report.replace_table(guide, lines, FLAGS.guide), encoding="utf-8")
  problems = report.wrong_answers(processes)
  if problems:
    raise RunError("; ".join(problems))


if __name__ == "__main__":
  flags.DEFINE_string("model", "albert_base", "named model")
  flags.DEFINE_list("engines", DEFAULT_ENGINES, f"engines besides the SavedModel; all: {', '.join(ENGINES)}")
  flags.DEFINE_integer("rounds", 6, "number of measured rounds; one round before them warms up", lower_bound=1)
  flags.DEFINE_float(
    "max_minutes", 15, "no round begins that would end later than so many minutes after the start", lower_bound=0
  )
  flags.DEFINE_float(
    "time_limit", 300, "seconds for each answer of an engine (torch.compile is slow), and for OpenVINO's int8 model"
  )
  flags.DEFINE_integer("threads", 0, "number of threads of each engine; 0: the library's default", lower_bound=0)
  flags.DEFINE_string("output", "", "Markdown file to write; default: engines_DATE.md in benchmarks/results")
  flags.DEFINE_string("guide", "", "Markdown file whose table of engines is replaced, such as docs/serving.md")
  app.run(main)
