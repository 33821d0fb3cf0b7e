"""How quick data preparation is, and whether its masks are what the paper says.

  python benchmarks/bench_data_prep.py --input_file='text/*.txt' --spm_model_file=spiece.model
  python benchmarks/bench_data_prep.py --input_file='text/*.txt' --spm_model_file=spiece.model --statistics

The first runs data_prep.create_pretraining_data with 1 and 2 processes and prints examples per second and
core, the speed-up and the peak memory of a process, and compares the shards. The second counts n-grams,
masked tokens, replacements and labels over many examples and prints the closed form beside each.
"""

from __future__ import annotations

import os
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
from data_prep import preparation  # noqa: E402
from data_prep.corpus import plan_units  # noqa: E402

FLAGS = flags.FLAGS


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


def statistics() -> None:
  settings = preparation.Settings(
    max_seq_length=FLAGS.max_seq_length,
    dupe_factor=FLAGS.dupe_factor,
    sentence_prediction=FLAGS.sentence_prediction,
  )
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


def _line(name: str, measured: float, expected: float) -> None:
  ratio = f"{measured / expected:8.4f}" if expected else f"{'':8}"
  print(f"{name:38}{measured:10.5f}{expected:10.5f}{ratio}")


def main() -> None:
  if FLAGS.statistics:
    statistics()
  else:
    throughput()


if __name__ == "__main__":
  flags.DEFINE_string("input_file", None, "comma-separated globs of text files", required=True)
  flags.DEFINE_string("spm_model_file", None, "SentencePiece model", required=True)
  flags.DEFINE_integer("max_seq_length", 512, "tokens in an example")
  flags.DEFINE_integer("dupe_factor", 4, "times each document is used")
  flags.DEFINE_string("sentence_prediction", "sop", "sop, nsp or none")
  flags.DEFINE_boolean("statistics", False, "print the statistics of the masks instead")
  flags.DEFINE_integer("num_examples", 100_000, "examples to count at least, for --statistics")
  app.run(main)
