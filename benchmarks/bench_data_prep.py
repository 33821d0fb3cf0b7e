"""Measures the speed of data preparation, and compares its masks with the paper's probabilities.

  python benchmarks/bench_data_prep.py --input_file='text/*.txt' --spm_model_file=spiece.model
  python benchmarks/bench_data_prep.py --input_file='text/*.txt' --spm_model_file=spiece.model --statistics
  python benchmarks/bench_data_prep.py --input_file='text/*.txt' --spm_model_file=spiece.model --profile
  python benchmarks/bench_data_prep.py --sorting=235,470,940
  python benchmarks/bench_data_prep.py --sorting=898 --num_shards=4096 --max_tasks=32

The first command runs data_prep.create_pretraining_data with 1 and with 2 processes. It prints the seconds of the
fastest of --repeats runs, the greatest memory of a process and the greatest size of output_dir, and compares the
shards. --megabytes=16,30,60 does so for texts of these sizes, made from the input, and --baseline=DIR also for the code
in another directory. The second counts n-grams, masked tokens,
replacements and labels over many examples, and prints the expected value beside each count. The third prints the time
that one process spends in each stage. Python's profiler measures it, which makes the process slower. The fourth writes
the shards of random instances in the given numbers of block files. The blocks and the steps of the sort are small, so
that there are as many of them as for a large corpus. It prints microseconds of processor time per example, how often
a task opens and reads block files, how many are open at a time, the memory, and, for blocks of real size, the mean
size of a slice and the largest step, which is sorted in memory. 160 GB of text have 898 blocks with --dupe_factor=1,
and 38,147 with 40. --max_tasks writes the shards of some tasks only.
"""

from __future__ import annotations

import contextlib
import cProfile
import itertools
import os
import pstats
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.data import masks  # noqa: E402
from albert.data.manifest import Manifest  # noqa: E402
from albert.errors import UserError  # noqa: E402
from albert.io import files  # noqa: E402
from albert.io.files import expand_globs  # noqa: E402
from albert.tokenization.vocabulary import MASK_ID  # noqa: E402
from data_prep import block_files, create_pretraining_data, shards  # noqa: E402
from data_prep.examples.instances import InstanceBatch, InstanceMaker  # noqa: E402
from data_prep.examples.settings import PreparationSettings  # noqa: E402
from data_prep.job import Job  # noqa: E402
from data_prep.units import plan_units  # noqa: E402

FLAGS = flags.FLAGS
# The function whose time counts as 100%: its file and name.
WHOLE_FUNCTION = ("prepare.py", "prepare")
# Stage -> (its functions, functions that these call and whose time counts for another stage).
STAGES = {
  "SentencePiece": ([("sentencepiece/__init__.py", "Encode")], []),
  "reading, normalizing, words": ([("documents.py", "load_documents")], [("sentencepiece/__init__.py", "Encode")]),
  "instances": ([("segments.py", "make_instances"), ("packing.py", "assemble")], []),
  "masking": ([("masks.py", "mask_tokens")], []),
  "packing, sorting blocks": ([("packing.py", "pack"), ("block_files.py", "add"), ("block_files.py", "close")], []),
  "serialization": ([("records.py", "encode_batch")], []),
  "sorting, checksums, writing": ([("shards.py", "write_shards")], [("records.py", "encode_batch")]),
}


class _Run(NamedTuple):
  """A finished command: its seconds, its peaks of memory of a process and of disk in MB, and the manifest."""

  seconds: float
  memory: float
  disk: float
  manifest: Manifest


def _directory_megabytes(directory: str) -> float:
  """Returns the size of the files in a directory. Files that are removed meanwhile do not count."""
  num_bytes = 0
  for folder, _, names in os.walk(directory):
    for name in names:
      with contextlib.suppress(OSError):
        num_bytes += os.path.getsize(os.path.join(folder, name))
  return num_bytes / 1e6


def _prepare_once(root: str, input_file: str, output_dir: str, num_processes: int) -> _Run:
  """Prepares a text once, with the code in directory `root`."""
  command = [
    sys.executable,
    "-m",
    "data_prep.create_pretraining_data",
    f"--input_file={input_file}",
    f"--spm_model_file={os.path.abspath(FLAGS.spm_model_file)}",
    f"--output_dir={output_dir}",
    f"--max_seq_length={FLAGS.max_seq_length}",
    f"--dupe_factor={FLAGS.dupe_factor}",
    f"--sentence_prediction={FLAGS.sentence_prediction}",
    f"--num_processes={num_processes}",
  ]
  environment = {**os.environ, "PYTHONPATH": root}
  start = time.monotonic()
  process = subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  disk = 0.0
  # wait4 returns the peak memory of the largest process among the child and its own children.
  while (waited := os.wait4(process.pid, os.WNOHANG))[0] == 0:
    disk = max(disk, _directory_megabytes(output_dir))
    time.sleep(0.2)
  _, status, usage = waited
  seconds = time.monotonic() - start
  process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode != 0:
    sys.exit(f"failed with exit code {process.returncode}: {' '.join(command)}")
  manifest = Manifest.load(output_dir)
  assert manifest is not None
  bytes_per_unit = 1 if sys.platform == "darwin" else 1024
  return _Run(seconds, usage.ru_maxrss * bytes_per_unit / 1e6, disk, manifest)


def _write_text(path: str, megabytes: float) -> None:
  """Writes the input files, one after the other and repeated, until the text has a size."""
  num_bytes = int(megabytes * 1e6)
  with open(path, "wb") as file:
    for source in itertools.cycle(expand_globs(FLAGS.input_file)):
      file.write(Path(source).read_bytes()[: num_bytes - file.tell()] + b"\n\n")
      if file.tell() >= num_bytes:
        return


def measure_throughput() -> None:
  """Measures 1 and 2 processes, and other code if --baseline names it, and compares their shards."""
  roots = {"": str(ROOT)} | ({"baseline": os.path.abspath(FLAGS.baseline)} if FLAGS.baseline else {})
  print(f"{'MB':>6} {'code':>10} {'processes':>10}{'seconds':>10}{'examples/s':>12}{'memory MB':>11}{'disk MB':>9}")
  for megabytes in map(float, FLAGS.megabytes or [0]):
    runs: dict[tuple[str, int], list[_Run]] = {}
    with tempfile.TemporaryDirectory(dir=FLAGS.directory) as directory:
      input_file = ",".join(map(os.path.abspath, expand_globs(FLAGS.input_file)))
      if megabytes:
        input_file = f"{directory}/text.txt"
        _write_text(input_file, megabytes)
      # The codes and numbers of processes take turns, so that a change of the machine's speed concerns all of them.
      for repeat, num_processes, name in itertools.product(range(FLAGS.repeats), (1, 2), roots):
        output_dir = f"{directory}/{repeat}-{num_processes}-{name}"
        run = _prepare_once(roots[name], input_file, output_dir, num_processes)
        runs.setdefault((name, num_processes), []).append(run)
        shutil.rmtree(output_dir)
    for (name, num_processes), repeated in runs.items():
      fastest = min(repeated, key=lambda run: run.seconds)
      rate = fastest.manifest.num_examples / fastest.seconds
      print(
        f"{megabytes or 'all':>6} {name or 'this':>10} {num_processes:>10}{fastest.seconds:>10.1f}{rate:>12.0f}"
        f"{max(run.memory for run in repeated):>11.0f}{max(run.disk for run in repeated):>9.0f}",
        flush=True,
      )
    shards_of_runs = [run.manifest.shards for repeated in runs.values() for run in repeated]
    are_equal = all(infos == shards_of_runs[0] for infos in shards_of_runs)
    print(f"SHA-256 of all {len(shards_of_runs[0])} shards equal in all runs: {'yes' if are_equal else 'NO'}")


def _settings_from_flags() -> PreparationSettings:
  return PreparationSettings(
    max_seq_length=FLAGS.max_seq_length,
    dupe_factor=FLAGS.dupe_factor,
    sentence_prediction=FLAGS.sentence_prediction,
  )


class _Counts:
  """Counts of masks and labels over many examples.

  Attributes:
    drawn_ngrams: [ngram + 1], number of n-grams for which n was drawn.
    ngrams: [ngram + 1], number of n-grams of n words.
    labels: [2], number of examples with each label.
    actions: [3], number of predictions whose token became [MASK], a random token, or stayed.
    examples, tokens, predictions: their numbers.
    expected_predictions: the number of tokens to mask that masked_lm_prob and max_predictions_per_seq give.
  """

  def __init__(self, ngram: int):
    self.drawn_ngrams, self.ngrams = np.zeros(ngram + 1, np.int64), np.zeros(ngram + 1, np.int64)
    self.labels, self.actions = np.zeros(2, np.int64), np.zeros(3, np.int64)
    self.examples = self.tokens = self.predictions = self.expected_predictions = 0

  def add(self, batch: InstanceBatch, settings: PreparationSettings) -> None:
    """Adds the counts of a batch."""
    masked, spans = batch.masked, batch.masked.spans
    self.drawn_ngrams += np.bincount(spans.drawn_words, minlength=self.ngrams.size)
    self.ngrams += np.bincount(spans.num_words, minlength=self.ngrams.size)
    self.labels += np.bincount(batch.instances.labels, minlength=2)
    shown_ids = masked.ids[masked.positions]
    is_mask, is_kept = shown_ids == MASK_ID, shown_ids == masked.labels
    self.actions += (is_mask.sum(), (~is_mask & ~is_kept).sum(), is_kept.sum())
    lengths = np.diff(batch.tokens.row_splits)
    budgets = masks.num_predictions(lengths, settings.masked_lm_prob, settings.max_predictions_per_seq)
    self.expected_predictions += int(budgets.sum())
    self.examples += lengths.size
    self.tokens += int(lengths.sum())
    self.predictions += shown_ids.size


def print_statistics() -> None:
  """Prints statistics of masks and labels beside their expected values."""
  settings = _settings_from_flags()
  maker = InstanceMaker(settings, FLAGS.spm_model_file)
  counts = _Counts(settings.ngram)
  for unit in plan_units(expand_globs(FLAGS.input_file), with_donors=True):
    documents, num_used, _ = maker.load(unit)
    for batch in maker.make_batches(documents, num_used):
      counts.add(batch, settings)
    if counts.examples >= FLAGS.num_examples:
      break
  num_ngrams = counts.ngrams.sum()
  print(f"{counts.examples} examples, {counts.tokens} tokens, {counts.predictions} predictions in {num_ngrams} n-grams")
  print(f"{'':38}{'measured':>10}{'expected':>10}{'ratio':>8}")
  probabilities = masks.ngram_probabilities(settings.ngram).tolist()
  for n, probability in enumerate(probabilities, start=1):
    _print_row(f"n = {n}: share of n-grams as drawn", counts.drawn_ngrams[n] / num_ngrams, probability)
  for n, probability in enumerate(probabilities, start=1):
    _print_row(f"n = {n}: after limits of length", counts.ngrams[n] / num_ngrams, probability)
  masked_share = counts.predictions / counts.tokens
  _print_row("masked tokens / all tokens", masked_share, counts.expected_predictions / counts.tokens)
  _print_row("  (masked_lm_prob itself)", masked_share, settings.masked_lm_prob)
  num_mask, num_random, num_kept = counts.actions.tolist()
  random_is_original = 0.1 / maker.random_ids.size  # probability that the random token is the original one
  _print_row("predictions shown as: [MASK]", num_mask / counts.predictions, 0.8)
  _print_row("predictions shown as: random", num_random / counts.predictions, 0.1 - random_is_original)
  _print_row("predictions shown as: kept", num_kept / counts.predictions, 0.1 + random_is_original)
  expected_label_1 = 0.0 if settings.sentence_prediction == "none" else 0.5
  _print_row("examples with label 1", counts.labels[1] / counts.labels.sum(), expected_label_1)


def _seconds_by_function(profiler: cProfile.Profile) -> dict[tuple[str, str], float]:
  """Returns the seconds of each function, with the functions that it calls.

  A function is identified by its file and its name. The file is given both as "file.py" and as "folder/file.py".
  """
  seconds_by_function: dict[tuple[str, str], float] = {}
  # The profiler's statistics of a function are its calls (two counts), own seconds, cumulative seconds, and callers.
  for (path, _, function), (*_, seconds, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
    for file_name in {path.rpartition("/")[2], "/".join(path.split("/")[-2:])}:
      key = (file_name, function)
      seconds_by_function[key] = seconds_by_function.get(key, 0.0) + seconds
  return seconds_by_function


def print_profile() -> None:
  """Prints the time that one process spends in each stage."""
  with tempfile.TemporaryDirectory() as directory:
    settings = _settings_from_flags()
    inputs = tuple(expand_globs(FLAGS.input_file))
    job = Job(inputs=inputs, output_dir=directory, spm_model_file=FLAGS.spm_model_file, settings=settings)
    # Python 3.12 and 3.13 count some calls of C functions wrongly, such as those of SentencePiece.
    profiler = cProfile.Profile(builtins=False)
    manifest = profiler.runcall(create_pretraining_data.prepare, job)
  seconds_by_function = _seconds_by_function(profiler)
  total = seconds_by_function[WHOLE_FUNCTION]
  stage_seconds = {}
  for name, (functions, functions_of_other_stages) in STAGES.items():
    own_seconds = sum(seconds_by_function[function] for function in functions)
    stage_seconds[name] = own_seconds - sum(seconds_by_function[function] for function in functions_of_other_stages)
  print(f"{manifest.num_examples} examples, {total:.1f} s under the profiler in one process")
  for name, seconds in (stage_seconds | {"the rest": total - sum(stage_seconds.values())}).items():
    print(f"{name:38}{seconds:10.2f} s{seconds / total:10.1%}")


# Of each random instance: tokens, predictions, and packed words (see data_prep.examples.packing: a header, the ids of
# the tokens, and the positions and original ids of the predictions).
_TOKENS, _PREDICTIONS, _HEADER_WORDS = 64, 10, 4
_NUM_WORDS = _HEADER_WORDS + _TOKENS + 2 * _PREDICTIONS
_POSITIONS_START = _HEADER_WORDS + _TOKENS


def _write_random_blocks(directory: str, num_blocks: int) -> list[block_files.Block]:
  """Writes blocks of random instances with random keys."""
  rng = np.random.default_rng(0)
  num_examples = FLAGS.block_examples
  sizes = np.full(num_examples, _NUM_WORDS)
  blocks = []
  for number in range(num_blocks):
    words = rng.integers(5, 30_000, (num_examples, _NUM_WORDS), dtype=np.uint16)  # ids 0 to 4 are special tokens
    words[:, :_HEADER_WORDS] = (_TOKENS, _PREDICTIONS, _TOKENS // 2, 0)
    words[:, _POSITIONS_START : _POSITIONS_START + _PREDICTIONS] = np.arange(1, 1 + _PREDICTIONS)
    path = f"{directory}/block-00000000-{number:015d}.block"
    with open(path, "wb") as file:
      writer = block_files.BlockWriter(file)
      writer.add(rng.integers(0, 2**64 - 1, num_examples, np.uint64, endpoint=True), words.ravel(), sizes)
      writer.close({"counts": {}, "labels": [num_examples, 0]})
    block = block_files.Block.load(path)
    assert block is not None
    blocks.append(block)
  return blocks


@contextlib.contextmanager
def _counted_files() -> Iterator[Counter[str]]:
  """Counts, within the `with` statement, how often block files are opened and read, and the most open files."""
  counts: Counter[str] = Counter()
  open_file = files.open_file

  class CountedFile:
    def __init__(self, path: str):
      self._file = open_file(path)
      self.seek = self._file.seek
      counts["opens"] += 1
      counts["open"] += 1
      counts["most open"] = max(counts["most open"], counts["open"])

    def read(self, size: int = -1) -> bytes:
      counts["reads"] += 1
      return self._file.read(size)

    def __enter__(self) -> CountedFile:
      return self

    def __exit__(self, *arguments: object) -> None:
      counts["open"] -= 1
      self._file.close()

  files.open_file = lambda path, mode="rb": CountedFile(path) if path.endswith(".block") else open_file(path, mode)  # type: ignore
  try:
    yield counts
  finally:
    files.open_file = open_file


def measure_sorting() -> None:
  """Writes the shards of random instances, from each number of blocks that --sorting gives."""
  # Real blocks have up to 128 MB of instances, and these about this fraction of it. So the steps are as much smaller.
  fraction = FLAGS.block_examples * (2 * _NUM_WORDS + block_files.INDEX_BYTES) / (128 << 20)
  shards._MIN_STEP_BYTES = shards._MAX_STEP_BYTES = int(shards._MAX_STEP_BYTES * fraction)
  columns = ("us/example", "opens/task", "reads/task", "open", "memory_MB", "KB/slice", "MB/step")
  print("".join(f"{column:>12}" for column in ("blocks", "tasks", "examples", *columns)))
  settings = PreparationSettings(max_seq_length=_TOKENS, max_predictions_per_seq=_PREDICTIONS)
  for num_blocks in map(int, FLAGS.sorting):
    with tempfile.TemporaryDirectory(dir=FLAGS.directory) as directory:
      blocks = _write_random_blocks(directory, num_blocks)
      job = Job(inputs=(), output_dir=directory, spm_model_file="", settings=settings, num_shards=FLAGS.num_shards)
      plan = shards.ShardPlan(blocks, job.num_shards)
      plan.save_runs(directory)
      groups = list(plan.group_shards(range(job.num_shards)))
      chosen = groups[:: max(1, len(groups) // FLAGS.max_tasks)] if FLAGS.max_tasks else groups
      with _counted_files() as counts:
        start = time.process_time()
        tasks = [plan.make_task(group, job, directory, "<u2", "") for group in chosen]
        num_examples = sum(info.examples for task in tasks for info in shards.write_shards(task))
        seconds = time.process_time() - start
    steps = [step.num_bytes / fraction for task in tasks for step in task.steps]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    values = (
      str(num_blocks),
      str(len(groups)),
      str(num_examples),
      f"{1e6 * seconds / num_examples:.1f}",
      f"{counts['opens'] / len(tasks):.0f}",
      f"{counts['reads'] / len(tasks):.0f}",
      str(counts["most open"]),
      f"{memory:.0f}",
      f"{sum(steps) / len(steps) / num_blocks / 1e3:.0f}",
      f"{max(steps) / 1e6:.0f}",
    )
    print("".join(f"{value:>12}" for value in values), flush=True)


def _print_row(name: str, measured: float, expected: float) -> None:
  ratio = f"{measured / expected:8.4f}" if expected else f"{'':8}"
  print(f"{name:38}{measured:10.5f}{expected:10.5f}{ratio}")


def main() -> None:
  if FLAGS.sorting:
    measure_sorting()
  elif not FLAGS.input_file or not FLAGS.spm_model_file:
    raise UserError("give --input_file and --spm_model_file, or --sorting")
  elif FLAGS.statistics:
    print_statistics()
  elif FLAGS.profile:
    print_profile()
  else:
    measure_throughput()


if __name__ == "__main__":
  flags.DEFINE_string("input_file", None, "comma-separated globs of text files")
  flags.DEFINE_string("spm_model_file", None, "SentencePiece model")
  flags.DEFINE_integer("max_seq_length", 512, "number of tokens in an example")
  flags.DEFINE_integer("dupe_factor", 4, "number of times that each document is used")
  flags.DEFINE_string("sentence_prediction", "sop", "sop, nsp or none")
  flags.DEFINE_boolean("statistics", False, "instead, print statistics of the masks")
  flags.DEFINE_boolean("profile", False, "instead, print the time of each stage")
  flags.DEFINE_integer("num_examples", 100_000, "for --statistics: smallest number of examples to count")
  flags.DEFINE_list("sorting", None, "instead, write the shards of these numbers of random blocks, separated by commas")
  flags.DEFINE_integer("num_shards", 64, "for --sorting: number of shards")
  flags.DEFINE_integer("max_tasks", 0, "for --sorting: number of tasks that are run, evenly spaced (default: all)")
  flags.DEFINE_integer("block_examples", 2048, "for --sorting: number of examples in a block")
  flags.DEFINE_list("megabytes", None, "sizes of texts that are made from the input, separated by commas")
  flags.DEFINE_string("baseline", None, "directory of another checkout, whose code is measured, too")
  flags.DEFINE_integer("repeats", 1, "number of runs, of which the fastest counts")
  flags.DEFINE_string("directory", None, "directory for temporary files (default: the system's)")
  app.run(main)
