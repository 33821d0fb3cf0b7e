"""Compares an exported SavedModel with Hugging Face's transformers: latency, throughput, loading and memory.

  python benchmarks/bench_serving.py --output=benchmarks/results/serving.md

Needs the extra `parity` (torch and transformers). Both models are classifiers of two classes with the same random
weights, and get the same ids. Each model runs in a process of its own. The processes work in alternating rounds, and
the numbers are medians over the rounds. Texts are batched in two ways: in the order of arrival, with mixed lengths, and
sorted by length, as in `python -m albert.predict`. Each batch is padded to its longest sequence.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
from benchmarks import machine  # noqa: E402

KERNELS_WERE_SET = machine.KERNELS_VARIABLE in os.environ

import numpy as np  # noqa: E402
from absl import flags  # noqa: E402

from albert import app  # noqa: E402

# Importing albert sets this variable. A program that serves a SavedModel does not import albert, so it is removed.
if not KERNELS_WERE_SET:
  del os.environ[machine.KERNELS_VARIABLE]

FLAGS = flags.FLAGS
OURS, THEIRS = "ours", "transformers"
LATENCY, ARRIVAL, SORTED = "one request", "batches as they arrive", "batches sorted by length"
SHORTEST, LONGEST, LATENCY_LENGTH = 8, 512, 128
CLS_ID, SEP_ID, FIRST_WORD_ID = 2, 3, 5

Batch = dict[str, np.ndarray]


def random_sequences(count: int, vocab_size: int) -> list[np.ndarray]:
  """Returns random ids of mixed lengths (log-normal, median 64). They are the same in every call."""
  rng = np.random.default_rng(1)
  lengths = np.clip(np.exp(rng.normal(np.log(64), 0.8, count)), SHORTEST, LONGEST).astype(int)
  return [
    np.array([CLS_ID, *rng.integers(FIRST_WORD_ID, vocab_size, length - 2), SEP_ID], np.int32) for length in lengths
  ]


def make_batches(rows: list[np.ndarray], batch_size: int) -> list[Batch]:
  """Cuts rows into batches, each padded to its longest row."""
  batches = []
  for start in range(0, len(rows), batch_size):
    batch_rows = rows[start : start + batch_size]
    ids = np.zeros([len(batch_rows), max(map(len, batch_rows))], np.int32)
    for index, row in enumerate(batch_rows):
      ids[index, : len(row)] = row
    batches.append({"input_ids": ids, "input_mask": (ids > 0).astype(np.int32), "segment_ids": np.zeros_like(ids)})
  return batches


class SavedModelRunner:
  """Runs a SavedModel. Its process imports little of this project: this file, and the modules that read flags."""

  def __init__(self, directory: str, threads: int):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    if threads:
      tf.config.threading.set_intra_op_parallelism_threads(threads)
      tf.config.threading.set_inter_op_parallelism_threads(1)
    self.imported = time.perf_counter()
    self._constant = tf.constant
    self._model = tf.saved_model.load(directory)
    self._call = self._model.signatures["tokens"]

  def __call__(self, batch: Batch) -> np.ndarray:
    outputs = self._call(**{name: self._constant(values) for name, values in batch.items()})
    return np.asarray(outputs["probabilities"])


class TransformersRunner:
  """Runs AlbertForSequenceClassification in evaluation mode, with torch's fused attention (its default)."""

  def __init__(self, directory: str, threads: int, dtype: str):
    import torch
    import transformers

    if threads:
      torch.set_num_threads(threads)
    self.imported = time.perf_counter()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    self._torch = torch
    model = transformers.AlbertForSequenceClassification.from_pretrained(directory, dtype=getattr(torch, dtype))
    self._model = model.eval()

  def __call__(self, batch: Batch) -> np.ndarray:
    torch = self._torch
    tensors = {name: torch.from_numpy(values.astype(np.int64)) for name, values in batch.items()}
    with torch.inference_mode():
      logits = self._model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["input_mask"],
        token_type_ids=tensors["segment_ids"],
      ).logits
      return np.asarray(logits.float().softmax(-1))


def serve_requests() -> None:
  """The main function of a model's process.

  It loads the model. Each line of standard input then names a kind of work; the process does it, and prints a line of
  JSON with the measurements and the results.
  """
  start = time.perf_counter()
  model: SavedModelRunner | TransformersRunner
  if FLAGS.side == OURS:
    model = SavedModelRunner(FLAGS.directory, FLAGS.threads)
  else:
    model = TransformersRunner(FLAGS.directory, FLAGS.threads, FLAGS.precision)
  rows = random_sequences(FLAGS.num_texts, FLAGS.vocab_size)
  rng = np.random.default_rng(2)
  single = np.array([CLS_ID, *rng.integers(FIRST_WORD_ID, FLAGS.vocab_size, LATENCY_LENGTH - 2), SEP_ID], np.int32)
  batches_by_kind = {
    LATENCY: make_batches([single], 1),
    ARRIVAL: make_batches(rows, FLAGS.batch_size),
    SORTED: make_batches(sorted(rows, key=len, reverse=True), FLAGS.batch_size),
  }
  model(batches_by_kind[LATENCY][0])
  loaded = time.perf_counter()
  print(json.dumps({"import": model.imported - start, "load": loaded - model.imported}), flush=True)
  for line in sys.stdin:
    kind = line.strip()
    start = time.perf_counter()
    probabilities = [model(batch) for batch in batches_by_kind[kind]]
    seconds = time.perf_counter() - start
    answer = {"seconds": seconds, "memory": machine.memory(), "probabilities": np.concatenate(probabilities).tolist()}
    print(json.dumps(answer), flush=True)


class ModelProcess:
  """A process that runs `serve_requests` with one of the two models.

  Args:
    side: OURS or THEIRS.
    directory: the directory of the model.
    precision: the compute dtype.
    vocab_size: the size of the vocabulary.

  Attributes:
    start: seconds of the import ("import"), and of loading with the first answer ("load").
    seconds: seconds of each counted round, for each kind of work.
    memory: peak memory of the process in MiB.
    probabilities: the last result of each kind of work.
  """

  def __init__(self, side: str, directory: str, precision: str, vocab_size: int):
    flag_values = {"side": side, "directory": directory, "precision": precision, "vocab_size": vocab_size}
    flag_values |= {name: FLAGS[name].value for name in ("threads", "num_texts", "batch_size")}
    command = [sys.executable, __file__, *(f"--{name}={value}" for name, value in flag_values.items())]
    self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    self.start = self._read_answer()
    self.seconds: dict[str, list[float]] = {LATENCY: [], ARRIVAL: [], SORTED: []}
    self.memory = 0.0
    self.probabilities: dict[str, np.ndarray] = {}

  def _read_answer(self) -> dict[str, Any]:
    assert self._process.stdout
    line = self._process.stdout.readline()
    if not line:
      sys.exit(f"error: a model's process ended with exit code {self._process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer

  def run(self, kind: str, *, is_counted: bool) -> None:
    """Runs a kind of work once. `is_counted`: False for the round that warms up."""
    assert self._process.stdin
    print(kind, file=self._process.stdin, flush=True)
    answer = self._read_answer()
    self.probabilities[kind] = np.array(answer["probabilities"])
    self.memory = answer["memory"]
    if is_counted:
      self.seconds[kind].append(answer["seconds"])

  def close(self) -> None:
    """Ends the process."""
    assert self._process.stdin
    self._process.stdin.close()
    self._process.wait()

  def median(self, kind: str) -> float:
    """Returns the median of the seconds of the counted rounds."""
    return statistics.median(self.seconds[kind])


def write_models(directory: Path) -> int:
  """Writes a checkpoint of random weights, its SavedModels and a directory for transformers.

  Returns:
    The size of the vocabulary.
  """
  import sentencepiece

  from albert.config.model import named_model
  from albert.convert.convert_checkpoint import convert
  from albert.export.export_model import export_model
  from albert.weights.checkpoint_files import write_bundle
  from tests.conftest import english_like_documents, train_small_model
  from tests.golden.make_tiny_albert import random_weights

  checkpoint = directory / "checkpoint"
  checkpoint.mkdir()
  lines = [line.lower() for document in english_like_documents(300) for line in document]
  vocabulary = FLAGS.spm_model_file or train_small_model(checkpoint / "spiece.model", lines, hard_vocab_limit=False)
  size = sentencepiece.SentencePieceProcessor(model_file=vocabulary).get_piece_size()
  config = dataclasses.replace(named_model(FLAGS.model), vocab_size=size)
  weights = random_weights(config, 1, with_heads=("classifier",), num_classes=2)
  scaled_weights = {name: value * (0.2 if name.endswith("kernel") else 1.0) for name, value in weights.items()}
  write_bundle(str(checkpoint / "weights"), scaled_weights)
  (checkpoint / "albert_config.json").write_text(json.dumps(config.to_dict()))
  prefix = str(checkpoint / "weights")
  convert(prefix, str(directory / "huggingface"), "huggingface", spm_model_file=vocabulary)
  for precision in FLAGS.precisions:
    settings = {"task_name": "SST-2", "max_seq_length": LONGEST}
    options = {"task": "classifier", "name": precision, "precision": precision, "settings": settings}
    export_model(prefix, str(directory / "models"), spm_model_file=vocabulary, **options)
  return int(size)


def measure(directory: Path, precision: str, vocab_size: int) -> dict[str, ModelProcess]:
  """Measures both models in alternating rounds."""
  sides = {
    OURS: ModelProcess(OURS, str(directory / "models" / precision / "1"), precision, vocab_size),
    THEIRS: ModelProcess(THEIRS, str(directory / "huggingface"), precision, vocab_size),
  }
  for kind, num_repeats in ((LATENCY, 10), (ARRIVAL, 1), (SORTED, 1)):
    for round_number in range(FLAGS.rounds + 1):  # the first round warms up
      order = list(sides) if round_number % 2 else list(sides)[::-1]
      for name in order:
        for _ in range(num_repeats):
          sides[name].run(kind, is_counted=round_number > 0)
  for side in sides.values():
    side.close()
  return sides


def format_rows(precision: str, sides: dict[str, ModelProcess]) -> list[str]:
  """Formats the rows of the table for one precision."""
  ours, theirs = sides[OURS], sides[THEIRS]
  rows = []

  def add_row(
    quantity: str, our_value: float, their_value: float, unit: str, digits: int, *, more_is_better: bool
  ) -> None:
    ratio = our_value / their_value if more_is_better else their_value / our_value
    values = f"{our_value:,.{digits}f} {unit} | {their_value:,.{digits}f} {unit}"
    rows.append(f"| {precision} | {quantity} | {values} | {ratio:.2f} |")

  latency = f"latency, one request of {LATENCY_LENGTH} tokens"
  add_row(latency, 1e3 * ours.median(LATENCY), 1e3 * theirs.median(LATENCY), "ms", 1, more_is_better=False)
  for kind in (ARRIVAL, SORTED):
    rates = [FLAGS.num_texts / side.median(kind) for side in (ours, theirs)]
    add_row(f"throughput, {kind}", *rates, "texts/s", 2, more_is_better=True)
  fastest = [min(side.seconds[ARRIVAL] + side.seconds[SORTED]) for side in (ours, theirs)]
  best_rates = [FLAGS.num_texts / seconds for seconds in fastest]
  add_row("throughput, best round", *best_rates, "texts/s", 2, more_is_better=True)
  add_row("import of the library", ours.start["import"], theirs.start["import"], "s", 1, more_is_better=False)
  add_row("loading and first answer", ours.start["load"], theirs.start["load"], "s", 2, more_is_better=False)
  add_row("peak memory of the process", ours.memory, theirs.memory, "MiB", 0, more_is_better=False)
  difference = max(
    float(np.abs(ours.probabilities[kind] - theirs.probabilities[kind]).max()) for kind in ours.probabilities
  )
  rows.append(f"| {precision} | largest difference of a probability | {difference:.1e} | | |")
  return rows


def main() -> None:
  """Measures both models, prints the table and writes it."""
  if FLAGS.side:
    serve_requests()
    return
  import tensorflow as tf
  import torch
  import transformers

  lengths = [len(row) for row in random_sequences(FLAGS.num_texts, 100)]
  with tempfile.TemporaryDirectory() as name:
    vocab_size = write_models(Path(name))
    rows = [
      line
      for precision in FLAGS.precisions
      for line in format_rows(precision, measure(Path(name), precision, vocab_size))
    ]
  command = " ".join(["python benchmarks/bench_serving.py", *sys.argv[1:]])
  text = "\n".join(
    [
      f"# Serving beside transformers, {time.strftime('%Y-%m-%d')}",
      "",
      f"Machine: {machine.describe()}. {FLAGS.model}, a classifier of two classes, random weights. "
      f"{FLAGS.num_texts} texts of {min(lengths)} to {max(lengths)} tokens (median {statistics.median(lengths):.0f}), "
      f"in batches of {FLAGS.batch_size}; inputs are ids, outputs are probabilities. Medians of {FLAGS.rounds} rounds. "
      f"TensorFlow {tf.__version__}; torch {torch.__version__}, transformers {transformers.__version__}.",
      "",
      "```",
      command,
      "```",
      "",
      "| precision | measurement | ours | transformers | ours is better by |",
      "|---|---|---|---|---|",
      *rows,
      "",
    ]
  )
  print(text)
  if FLAGS.output:
    Path(FLAGS.output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
  flags.DEFINE_string("model", "albert_base", "named model")
  flags.DEFINE_string(
    "spm_model_file", "", "SentencePiece model (default: a small one); its size is the size of the embedding table"
  )
  flags.DEFINE_integer("num_texts", 48, "number of texts, of mixed lengths", lower_bound=1)
  flags.DEFINE_integer("batch_size", 16, "number of texts in a batch", lower_bound=1)
  flags.DEFINE_integer("rounds", 5, "number of counted rounds; one round before them warms up", lower_bound=1)
  flags.DEFINE_integer("threads", 0, "number of threads of each process; 0: the library's default", lower_bound=0)
  flags.DEFINE_list("precisions", ["float32", "bfloat16"], "precisions to measure")
  flags.DEFINE_string("output", "", "Markdown file to write")
  flags.DEFINE_string("side", "", "(internal, for the processes that this program starts)")
  flags.DEFINE_string("directory", "", "(internal)")
  flags.DEFINE_string("precision", "float32", "(internal)")
  flags.DEFINE_integer("vocab_size", 0, "(internal)")
  app.run(main)
