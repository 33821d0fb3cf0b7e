"""Measures how fast text is turned into features: examples of GLUE, windows of SQuAD, sequences of RACE per second.

  python benchmarks/bench_features.py --spm_model_file=30k-clean.model --data_dir=glue --squad_file=train-v1.1.json \
    --race_dir=RACE

Each data set is read once, and its examples are repeated --copies times. Its features are then computed --rounds times
with one process and --rounds times with one process per core, without the cache. The time includes the start of the
processes.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.config.base import Config  # noqa: E402
from albert.config.model import named_model  # noqa: E402
from albert.data.examples import TokenizedExamples, make_examples  # noqa: E402
from albert.tasks import registry  # noqa: E402
from albert.tasks.glue.files import TextRows  # noqa: E402
from albert.tasks.glue.flags import ClassifierConfig  # noqa: E402
from albert.tasks.race.flags import RaceConfig  # noqa: E402
from albert.tasks.splits import TRAIN  # noqa: E402
from albert.tasks.squad.flags import SquadConfig  # noqa: E402

if TYPE_CHECKING:  # the workers import this module, and need no TensorFlow
  from albert.tasks.base import Task

FLAGS = flags.FLAGS


def _make_task(name: str, config: Config) -> Task:
  return registry.make_task(name, named_model("albert_base"), config)


def _repeat(raw: Any, copies: int) -> Any:
  """Repeats raw examples `copies` times."""
  if isinstance(raw, TextRows):
    import numpy as np

    texts = [list(column) * copies for column in raw.texts]
    return TextRows(list(raw.ids) * copies, texts, np.tile(raw.labels, copies))
  return list(raw) * copies


def _measure(
  title: str,
  unit: str,
  task: Task,
  count_units: Callable[[TokenizedExamples], int],
  process_numbers: Sequence[int],
) -> None:
  """Measures a data set, and prints a row of the table for each number of processes.

  Args:
    title: the name of the data set.
    unit: what `count_units` counts, such as "windows".
    task: the task of the data set.
    count_units: returns the number of units in the features.
    process_numbers: numbers of processes to measure.
  """
  rows = _repeat(task.data.rows(TRAIN), FLAGS.copies)
  rates: dict[int, list[float]] = {num_processes: [] for num_processes in process_numbers}  # units per second
  num_units = 0
  for _ in range(FLAGS.rounds):
    for num_processes in process_numbers:
      start = time.perf_counter()
      examples = make_examples(
        rows, task.sets.featurizer, name=title, key={}, cache_dir="", num_processes=num_processes
      )
      num_units = count_units(examples)
      rates[num_processes].append(num_units / (time.perf_counter() - start))
  for num_processes, measured in rates.items():
    print(
      f"| {title} | {num_units:,} {unit} | {num_processes} | {statistics.median(measured):,.0f} | "
      f"{min(measured):,.0f} | {max(measured):,.0f} |",
      flush=True,
    )


def main() -> None:
  """Prints a Markdown table."""
  process_numbers = sorted({1, os.cpu_count() or 1})
  print("| data | features | processes | per second, median | min | max |\n|---|---|---|---|---|---|", flush=True)
  common = {"spm_model_file": FLAGS.spm_model_file}
  if FLAGS.data_dir:
    for name in FLAGS.tasks:
      task = _make_task(
        "classifier", ClassifierConfig(task_name=name, data_dir=FLAGS.data_dir, max_seq_length=512, **common)
      )
      _measure(name, "examples", task, lambda examples: examples.num_examples, process_numbers)
  if FLAGS.squad_file:
    task = _make_task("squad", SquadConfig(train_file=FLAGS.squad_file, max_seq_length=384, **common))
    _measure("SQuAD", "windows", task, lambda examples: examples.num_examples, process_numbers)
  if FLAGS.race_dir:
    task = _make_task("race", RaceConfig(data_dir=FLAGS.race_dir, max_seq_length=512, **common))
    _measure("RACE", "sequences", task, lambda examples: len(examples.sequence_lengths), process_numbers)


if __name__ == "__main__":
  flags.DEFINE_string("spm_model_file", None, "SentencePiece model", required=True)
  flags.DEFINE_string("data_dir", "", "directory of GLUE; empty: not measured")
  flags.DEFINE_list("tasks", ["MRPC", "RTE", "STS-B"], "GLUE tasks to measure")
  flags.DEFINE_string("squad_file", "", "training file of SQuAD v1.1; empty: not measured")
  flags.DEFINE_string("race_dir", "", "directory of RACE; empty: not measured")
  flags.DEFINE_integer("copies", 1, "number of copies of each data set", lower_bound=1)
  flags.DEFINE_integer("rounds", 3, "number of rounds", lower_bound=1)
  app.run(main)
