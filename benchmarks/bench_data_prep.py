"""How quick data preparation is, and whether its masks are what the paper says.

  python benchmarks/bench_data_prep.py --input_file='text/*.txt' --spm_model_file=spiece.model
  python benchmarks/bench_data_prep.py --input_file='text/*.txt' --spm_model_file=spiece.model --statistics
  python benchmarks/bench_data_prep.py --input_file='text/*.txt' --spm_model_file=spiece.model --profile

The first runs data_prep.create_pretraining_data with 1 and 2 processes and prints examples per second and
core, the speed-up and the peak memory of a process, and compares the shards. The second counts n-grams,
masked tokens, replacements and labels over many examples and prints the closed form beside each. The third says
what one process spends its time on, under Python's profiler, which itself takes some.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from absl import flags  # noqa: E402

from albert import app, files  # noqa: E402
from albert.data import masking  # noqa: E402
from albert.data.manifest import Manifest  # noqa: E402
from albert.tokenization import MASK_ID  # noqa: E402
from data_prep import create_pretraining_data, preparation  # noqa: E402
from data_prep.corpus import plan_units  # noqa: E402
from data_prep.job import Job  # noqa: E402

FLAGS = flags.FLAGS
# Stages of the work, each with the functions whose time it is, and those that they call for another stage.
WHOLE = ("create_pretraining_data.py", "run_here")
STAGES = {
  "SentencePiece": ([("sentencepiece/__init__.py", "Encode")], []),
  "reading, normalizing, words": ([("corpus.py", "load_documents")], [("sentencepiece/__init__.py", "Encode")]),
  "instances": ([("segments.py", "make_instances"), ("segments.py", "assemble")], []),
  "masking": ([("masking.py", "mask_tokens")], []),
  "spilling": ([("shards.py", "pack"), ("shards.py", "add"), ("shards.py", "close")], []),
  "serialization": ([("records.py", "encode_batch")], []),
  "sorting, checksums, writing": ([("shards.py", "write_shard")], [("records.py", "encode_batch")]),
}


def _run(output_dir: str, num_processes: int) -> tuple[float, float, Manifest]:
  """Prepares the text once: seconds, the largest process's peak memory in MB, the manifest."""
  command = [
    sys.executable,
    "-m",
    "data_prep.create_pretraining_data",
    f"--input_file={FLAGS.input_file}",
    f"--spm_model_file={FLAGS.spm_model_file}",
    f"--output_dir={output_dir}",
    f"--max_seq_length={FLAGS.max_seq_length}",
    f"--dupe_factor={FLAGS.dupe_factor}",
    f"--sentence_prediction={FLAGS.sentence_prediction}",
    f"--num_processes={num_processes}",
  ]
  environment = {**os.environ, "PYTHONPATH": str(ROOT)}
  start = time.monotonic()
  process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  # wait4 gives the peak of the largest process among the child and those it waited for.
  _, status, usage = os.wait4(process.pid, 0)
  seconds = time.monotonic() - start
  process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode != 0:
    sys.exit(f"failed with exit code {process.returncode}: {' '.join(command)}")
  manifest = Manifest.load(output_dir)
  assert manifest is not None
  scale = 1 if sys.platform == "darwin" else 1024
  return seconds, usage.ru_maxrss * scale / 1e6, manifest


def throughput() -> None:
  results = []
  with tempfile.TemporaryDirectory() as directory:
    for num_processes in (1, 2):
      seconds, peak, manifest = _run(f"{directory}/{num_processes}", num_processes)
      rate = manifest.num_examples / seconds / num_processes
      print(
        f"{num_processes} process{'es' if num_processes > 1 else ''}: {manifest.num_examples} examples in "
        f"{seconds:.1f} s, {rate:.0f} examples/s per core, {manifest.num_tokens / manifest.num_documents:.0f} "
        f"tokens per document, peak memory of a process {peak:.0f} MB"
      )
      results.append((seconds, manifest))
  (one, manifest_1), (two, manifest_2) = results
  same = manifest_1.shards == manifest_2.shards
  print(f"speed-up with 2 processes: {one / two:.2f}")
  print(f"SHA-256 of all {len(manifest_1.shards)} shards equal for 1 and 2 processes: {'yes' if same else 'NO'}")


def _settings() -> preparation.Settings:
  return preparation.Settings(
    max_seq_length=FLAGS.max_seq_length,
    dupe_factor=FLAGS.dupe_factor,
    sentence_prediction=FLAGS.sentence_prediction,
  )


def statistics() -> None:
  settings = _settings()
  maker = preparation.UnitMaker(settings, FLAGS.spm_model_file)
  ngram = settings.ngram
  drawn, taken, labels, actions = (np.zeros(size, np.int64) for size in (ngram + 1, ngram + 1, 2, 3))
  examples = tokens = masked = wanted = 0
  for unit in plan_units(files.expand_globs(FLAGS.input_file), with_donors=True):
    documents, num_own, _ = maker.load(unit)
    for batch in preparation.make_batches(documents, num_own, settings, maker.random_ids):
      spans, hidden = batch.masked.spans, batch.masked
      drawn += np.bincount(spans.drawn_words, minlength=ngram + 1)
      taken += np.bincount(spans.num_words, minlength=ngram + 1)
      labels += np.bincount(batch.instances.labels, minlength=2)
      shown = hidden.ids[hidden.positions]
      is_mask, is_kept = shown == MASK_ID, shown == hidden.labels
      actions += (is_mask.sum(), (~is_mask & ~is_kept).sum(), is_kept.sum())
      lengths = np.diff(batch.tokens.row_splits)
      wanted += int(masking.num_predictions(lengths, settings.masked_lm_prob, settings.max_predictions_per_seq).sum())
      examples, tokens, masked = examples + lengths.size, tokens + int(lengths.sum()), masked + shown.size
    if examples >= FLAGS.num_examples:
      break
  print(f"{examples} examples, {tokens} tokens, {masked} predictions in {drawn.sum()} n-grams")
  print(f"{'':38}{'measured':>10}{'expected':>10}{'ratio':>8}")
  for n, p in enumerate(masking.ngram_probabilities(ngram).tolist(), start=1):
    _line(f"n = {n}: share of n-grams as drawn", drawn[n] / drawn.sum(), p)
  for n, p in enumerate(masking.ngram_probabilities(ngram).tolist(), start=1):
    _line(f"n = {n}: after limits of length", taken[n] / taken.sum(), p)
  _line("masked tokens / all tokens", masked / tokens, wanted / tokens)
  _line("  (masked_lm_prob itself)", masked / tokens, settings.masked_lm_prob)
  # A random token is the original one now and then.
  same = 0.1 / maker.random_ids.size
  for name, count, p in zip(("[MASK]", "random", "kept"), actions.tolist(), (0.8, 0.1 - same, 0.1 + same), strict=True):
    _line(f"predictions shown as: {name}", count / masked, p)
  _line("examples with label 1", labels[1] / labels.sum(), 0.0 if settings.sentence_prediction == "none" else 0.5)


def profile() -> None:
  with tempfile.TemporaryDirectory() as directory:
    settings = _settings()
    inputs = tuple(files.expand_globs(FLAGS.input_file))
    job = Job(inputs=inputs, output_dir=directory, spm_model_file=FLAGS.spm_model_file, settings=settings)
    profiler = cProfile.Profile()
    manifest = profiler.runcall(create_pretraining_data.prepare, job)
  cumulative: dict[tuple[str, str], float] = {}
  for (path, _, function), (*_, seconds, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
    for ending in {path.rpartition("/")[2], "/".join(path.split("/")[-2:])}:
      cumulative[ending, function] = cumulative.get((ending, function), 0.0) + seconds
  whole = cumulative[WHOLE]
  seconds = {
    name: sum(cumulative[function] for function in functions) - sum(cumulative[function] for function in others)
    for name, (functions, others) in STAGES.items()
  }
  print(f"{manifest.num_examples} examples, {whole:.1f} s under the profiler in one process")
  for name, value in (seconds | {"the rest": whole - sum(seconds.values())}).items():
    print(f"{name:38}{value:10.2f} s{value / whole:10.1%}")


def _line(name: str, measured: float, expected: float) -> None:
  ratio = f"{measured / expected:8.4f}" if expected else f"{'':8}"
  print(f"{name:38}{measured:10.5f}{expected:10.5f}{ratio}")


def main() -> None:
  if FLAGS.statistics:
    statistics()
  elif FLAGS.profile:
    profile()
  else:
    throughput()


if __name__ == "__main__":
  flags.DEFINE_string("input_file", None, "comma-separated globs of text files", required=True)
  flags.DEFINE_string("spm_model_file", None, "SentencePiece model", required=True)
  flags.DEFINE_integer("max_seq_length", 512, "tokens in an example")
  flags.DEFINE_integer("dupe_factor", 4, "times each document is used")
  flags.DEFINE_string("sentence_prediction", "sop", "sop, nsp or none")
  flags.DEFINE_boolean("statistics", False, "print the statistics of the masks instead")
  flags.DEFINE_boolean("profile", False, "print the share of each stage instead")
  flags.DEFINE_integer("num_examples", 100_000, "examples to count at least, for --statistics")
  app.run(main)
