"""Compares the records that the input pipeline reads per second with those that eight TPU chips can train on.

  python benchmarks/bench_input.py --input_file='shards/*.tfrecord' --spm_model_file=30k.model

It measures the pipeline of pretraining with static and with dynamic masks, in records per second of processor time,
which is the speed of one core. The chips' speed is the upper bound of the compiler's counts (tpu_aot.py): a real run
trains on fewer sequences.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from absl import flags  # noqa: E402

import albert  # noqa: E402 - sets what TensorFlow reads when it is imported
from albert import app  # noqa: E402
from albert.data.dataset import InputContext  # noqa: E402
from albert.data.pipeline import WINDOW_SIZE  # noqa: E402
from albert.io.files import stat_globs  # noqa: E402
from albert.tasks.pretraining.flags import PretrainingConfig  # noqa: E402
from albert.tasks.pretraining.model import PretrainingTask  # noqa: E402
from albert.tokenization.tokenizer import load_tokenizer  # noqa: E402
from albert.tokenization.vocabulary import TokenizerConfig  # noqa: E402
from benchmarks import machine  # noqa: E402
from benchmarks.tpu import search  # noqa: E402
from benchmarks.tpu.chips import CHIPS, roofline_seconds  # noqa: E402
from benchmarks.tpu.programs import Program  # noqa: E402

FLAGS = flags.FLAGS
TRIALS_FILE = ROOT / "benchmarks" / "results" / "tpu_aot_trials.jsonl"
MODELS = ("albert_base", "albert_large", "albert_xxlarge")
NUM_CHIPS = 8
CORES_PER_CHIP = {"v2": 2, "v3": 2}  # of the other chips, one
CHIPS_PER_HOST = {"v2": 4, "v3": 4, "v4": 4, "v5p": 4, "v5e": 8, "v6e": 8}


def records_per_second(task: PretrainingTask, batch_size: int, num_windows: int) -> float:
  """Measures the records that the pipeline of a task reads per second of processor time.

  Args:
    task: pretraining.
    batch_size: records in a batch.
    num_windows: number of windows, of WINDOW_SIZE records each, to measure; one more is read before.
  """
  context = InputContext(host_index=0, num_hosts=1, num_replicas=1)
  batches = iter(task.training_data().training_batches(batch_size=batch_size, first_step=0, seed=1, context=context))
  batches_per_window = WINDOW_SIZE // batch_size
  for _ in range(batches_per_window):
    next(batches)
  start = time.process_time()
  for _ in range(num_windows * batches_per_window):
    next(batches)
  return num_windows * batches_per_window * batch_size / (time.process_time() - start)


def sequences_per_second(model: str, chip: str, length: int) -> float | None:
  """Returns the upper bound of the sequences that a core trains on; None if nothing was compiled for the model.

  A chip that the model was not compiled for is taken to need the operations and transfers of another chip.
  """
  searches = search.read_searches(TRIALS_FILE)
  for other_chip in (chip, "v5e", "v3"):
    found = searches.get((Program(step="pretraining", model=model, length=length), other_chip))
    fitting = [batch for batch, trial in found.trials.items() if search.fits(trial)] if found else []
    if found and fitting:
      trial = found.trials[max(fitting)]
      return max(fitting) / roofline_seconds(CHIPS[chip], trial["flops"], trial["bytes_accessed"])
  return None


def main() -> None:
  """Prints two Markdown tables."""
  vocab_size = load_tokenizer(TokenizerConfig(FLAGS.spm_model_file)).vocab_size
  model = dataclasses.replace(albert.MODELS["albert_base"], vocab_size=vocab_size)
  stats = stat_globs(FLAGS.input_file, flag="--input_file")
  num_bytes = sum(stat.num_bytes for stat in stats.values())
  speeds: dict[str, float] = {}
  for masking in ("static", "dynamic"):
    config = PretrainingConfig(input_file=FLAGS.input_file, masking=masking, spm_model_file=FLAGS.spm_model_file)
    task = PretrainingTask(model, config)
    speeds[masking] = max(records_per_second(task, FLAGS.batch_size, FLAGS.windows) for _ in range(FLAGS.rounds))
  length = task.data.max_seq_length
  bytes_per_record = num_bytes / task.training_data().shards.num_examples
  print(f"Machine: {machine.describe()}. {length} tokens, batches of {FLAGS.batch_size}.\n")
  print("| masks | records/s per core | MB/s |\n|---|---|---|")
  for masking, speed in speeds.items():
    print(f"| {masking} | {speed:,.0f} | {speed * bytes_per_record / 1e6:.1f} |")
  print(f"\n| {NUM_CHIPS} chips | hosts | model | sequences/s, at most | cores per host, static | dynamic |")
  print("|---|---|---|---|---|---|")
  for chip in CHIPS:
    hosts = NUM_CHIPS // CHIPS_PER_HOST[chip]
    for model in MODELS:
      of_core = sequences_per_second(model, chip, length)
      if of_core is None:
        continue
      needed = of_core * NUM_CHIPS * CORES_PER_CHIP.get(chip, 1)
      cells = [f"{needed / hosts / speed:.2f}" for speed in speeds.values()]
      print(f"| {chip} | {hosts} | {model} | {needed:,.0f} | {' | '.join(cells)} |")


if __name__ == "__main__":
  flags.DEFINE_string("input_file", None, "comma-separated globs of shards", required=True)
  flags.DEFINE_string("spm_model_file", None, "the vocabulary of the shards", required=True)
  flags.DEFINE_integer("batch_size", 64, "records in a batch of a replica; it divides 4096", lower_bound=1)
  flags.DEFINE_integer("windows", 3, "number of windows of 4096 records to measure in a round", lower_bound=1)
  flags.DEFINE_integer("rounds", 2, "number of rounds", lower_bound=1)
  app.run(main)
