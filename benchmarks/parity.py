"""Compares this project's numbers with those of the original ALBERT and of Hugging Face.

It writes a table, and ends with exit code 1 if a difference exceeds its tolerance.

  python benchmarks/parity.py
  python benchmarks/parity.py --tf1_dir=recorded --huggingface_weights=model.safetensors \
    --tokenization_file=tokenization.json --spm_model_file=30k-clean.model

Comparisons that need missing data or a missing library are listed as skipped, with the reason. The comparisons are in
tests/parity, whose tests check the same rows.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.errors import RunError, UserError  # noqa: E402
from albert.io import files  # noqa: E402
from tests.parity.rows import Row, Unavailable  # noqa: E402

FLAGS = flags.FLAGS
LIBRARIES = ("tensorflow", "tf-keras", "tensorflow-text", "numpy", "sentencepiece", "torch", "transformers")

# A comparison: it takes an empty directory for its files, and yields its rows.
Comparison = Callable[[Path], Iterable[Row]]


def _compare_with_reference(directory: Path) -> Iterator[Row]:
  del directory
  from tests.parity import golden, original

  compared_with = "NumPy float64"
  yield from original.output_rows(golden.read_shipped(), compared_with)
  for optimizer in ("lamb", "adamw"):
    yield from original.training_rows(golden.read_shipped(), optimizer, compared_with)


def _compare_with_original(directory: Path) -> Iterator[Row]:
  del directory
  if not FLAGS.tf1_dir:
    raise Unavailable("--tf1_dir is not given")
  from tests.parity import golden, original

  recorded, compared_with = golden.read_original(Path(FLAGS.tf1_dir)), "the original code (TensorFlow 1), recorded"
  yield from original.output_rows(recorded, compared_with)
  for optimizer in ("lamb", "adamw"):
    yield from original.training_rows(recorded, optimizer, compared_with)


def _compare_optimizers(directory: Path) -> Iterator[Row]:
  del directory
  from tests.parity import optimizers

  yield from optimizers.numpy_rows()


def _compare_with_addons(directory: Path) -> Iterator[Row]:
  """Compares with tensorflow-addons in this environment, or in the one that --tfa_python gives."""
  del directory
  from tests.parity import optimizers

  if not FLAGS.tfa_python:
    yield from optimizers.addons_rows()
    return
  command = [FLAGS.tfa_python, "-m", "tests.parity.optimizers"]
  environment = {**os.environ, "PYTHONPATH": str(ROOT)}
  finished = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
  if finished.returncode:
    raise Unavailable(f"--tfa_python: {(finished.stderr.strip().splitlines() or ['failed without a message'])[-1]}")
  for values in json.loads(finished.stdout.splitlines()[-1]):
    yield Row(*values)


def _compare_with_transformers(directory: Path) -> Iterator[Row]:
  from tests.parity import huggingface

  huggingface.import_libraries()
  for name in huggingface.VARIANTS:
    yield from huggingface.pretraining_model_rows(directory / name.replace(" ", "_"), name)
  for attention in ("eager", "sdpa"):
    yield from huggingface.hidden_state_rows(directory / attention, attention)
  for index, head in enumerate(huggingface.LINEAR_HEADS):
    yield from huggingface.linear_head_rows(directory / f"head_{index}", *head)
  yield from huggingface.masked_lm_rows(directory / "masked_lm")
  yield from huggingface.squad_v2_rows(directory / "squad_v2")
  for activation, _ in huggingface.ACTIVATIONS:
    for with_prefix in (True, False):
      model_directory = directory / f"saved_{activation}_{with_prefix}"
      yield from huggingface.saved_model_rows(model_directory, activation, with_prefix=with_prefix)


def _compare_trained_encoder(directory: Path) -> Iterator[Row]:
  if not FLAGS.huggingface_weights:
    raise Unavailable("--huggingface_weights is not given")
  from tests.parity import huggingface

  yield from huggingface.trained_rows(directory, FLAGS.huggingface_weights, FLAGS.huggingface_outputs)


def _compare_conversion(directory: Path) -> Iterator[Row]:
  from tests.parity import round_trip

  yield from round_trip.round_trip_rows(directory / "random")
  if FLAGS.tf1_dir:
    yield from round_trip.round_trip_rows(directory / "original", files.join(FLAGS.tf1_dir, "model.ckpt"))


def _compare_tokens(directory: Path) -> Iterator[Row]:
  del directory
  if not FLAGS.tokenization_file or not FLAGS.spm_model_file:
    raise Unavailable("--tokenization_file and --spm_model_file are not given")
  from tests.parity import tokens

  yield from tokens.recorded_rows(FLAGS.tokenization_file, FLAGS.spm_model_file)


def _compare_tokens_in_graph(directory: Path) -> Iterator[Row]:
  del directory
  if not FLAGS.spm_model_file:
    raise Unavailable("--spm_model_file is not given")
  from tests.parity import tokens

  yield from tokens.graph_rows(FLAGS.spm_model_file)


def _compare_bfloat16(directory: Path) -> Iterator[Row]:
  del directory
  from tests.parity import bfloat16

  for optimizer in bfloat16.PEAK_RATES:
    yield from bfloat16.precision_rows(optimizer)


# Name for --only -> title and comparison.
COMPARISONS: dict[str, tuple[str, Comparison]] = {
  "reference": (
    "Model, losses and training, against the reference in NumPy float64 (tests/golden)",
    _compare_with_reference,
  ),
  "original": ("Model, losses and training, against the original", _compare_with_original),
  "optimizers": ("Optimizers", _compare_optimizers),
  "addons": ("LAMB, against tensorflow-addons", _compare_with_addons),
  "huggingface": (
    "Random weights, padding and all heads, against Hugging Face's transformers",
    _compare_with_transformers,
  ),
  "trained": ("A trained encoder, against Hugging Face's transformers", _compare_trained_encoder),
  "conversion": ("Conversion", _compare_conversion),
  "tokens": ("Tokenization, against the original", _compare_tokens),
  "graph": ("Tokenization in the graph", _compare_tokens_in_graph),
  "bfloat16": ("bfloat16", _compare_bfloat16),
}


def compare(comparisons: Iterable[tuple[str, Comparison]]) -> tuple[str, int]:
  """Runs comparisons, and prints their rows.

  Args:
    comparisons: the title and the function of each comparison.

  Returns:
    The table as Markdown, and the number of rows that exceed their tolerance.
  """
  lines: list[str] = []
  num_failed = 0

  def log(line: str) -> None:
    """Prints a line, and adds it to the table."""
    lines.append(line)
    print(line, flush=True)

  skipped = []
  log("| quantity | compared with | max difference | tolerance | ok |")
  log("|---|---|---|---|---|")
  for title, comparison in comparisons:
    with tempfile.TemporaryDirectory() as directory:
      rows = iter(comparison(Path(directory)))
      try:
        first_row = next(rows)
      except Unavailable as reason:
        skipped.append(f"- {title}: {reason}")
        continue
      log(f"| **{title}** | | | | |")
      for row in itertools.chain([first_row], rows):
        if not row.ok:
          num_failed += 1
        numbers = f"{_format_number(row.difference)} | {_format_number(row.tolerance)}"
        log(f"| {row.quantity} | {row.compared_with} | {numbers} | {'yes' if row.ok else 'NO'} |")
  if skipped:
    log("\nSkipped:\n")
    for line in skipped:
      log(line)
  return "\n".join(lines) + "\n", num_failed


def _format_number(number: float) -> str:
  if number == 0:
    return "0"
  return f"{number:.1e}" if abs(number) < 1 else f"{number:g}"


def _describe_versions() -> str:
  versions = []
  for name in LIBRARIES:
    try:
      versions.append(f"{name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
      continue
  return f"Python {platform.python_version()}, {', '.join(versions)}"


def main() -> None:
  for name in ("tf1_dir", "huggingface_weights", "huggingface_outputs", "tokenization_file", "spm_model_file"):
    path = getattr(FLAGS, name)
    if path and not files.exists(path):
      raise UserError(f"--{name}={path}: no such file or directory")
  table, num_failed = compare([COMPARISONS[name] for name in FLAGS.only or COMPARISONS])
  today = datetime.date.today().isoformat()
  path = files.join(FLAGS.output_dir, "_".join(["parity", today, *(FLAGS.only or [])]) + ".md")
  files.makedirs(FLAGS.output_dir)
  heading = (
    f"# Parity, {today}\n\n{_describe_versions()}, {platform.machine()}. Made by `benchmarks/parity.py`. Each "
    "difference is the largest absolute\none in float32, unless its row says that it is relative or a number.\n\n"
  )
  files.write_atomically(path, heading + table)
  print(f"\nwritten to {path}", flush=True)
  if num_failed:
    raise RunError(f"{num_failed} rows of {path} exceed their tolerance (ok: NO)")


if __name__ == "__main__":
  flags.DEFINE_string(
    "tf1_dir",
    "",
    "directory of the original's recorded run: model.ckpt.*, albert_config.json, batch.npz, outputs.npz, "
    "train_{lamb,adamw}.npz (tests/parity/golden.py describes them)",
  )
  flags.DEFINE_string(
    "huggingface_weights",
    "",
    "weights of a trained ALBERT, as for --init_checkpoint: such as a directory with model.safetensors and config.json",
  )
  flags.DEFINE_string(
    "huggingface_outputs",
    "",
    "its recorded hidden states: an .npz file with input_ids, attention_mask, token_type_ids, h0, h1, ...",
  )
  flags.DEFINE_string(
    "tokenization_file",
    "",
    "results of the original's tokenizer: a JSON list of {text, do_lower_case, normalized, ids}",
  )
  flags.DEFINE_string("spm_model_file", "", "the SentencePiece model of the recorded results")
  flags.DEFINE_string(
    "tfa_python", "", "Python interpreter of an environment with tensorflow-addons (see make test-tfa)"
  )
  flags.DEFINE_multi_enum("only", None, list(COMPARISONS), "a comparison to make, instead of all; may be repeated")
  flags.DEFINE_string(
    "output_dir",
    str(ROOT / "benchmarks" / "results"),
    "directory to write parity_DATE.md to (with --only, the names are added to the file name)",
  )
  app.run(main)
