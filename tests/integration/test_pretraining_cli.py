"""Tests of run_pretraining.py from its flags: the files of a run, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from albert.errors import UserError
from tests.integration.conftest import script_fixture
from tests.run_outputs import read_json, read_json_lines
from tests.script_flags import run_script
from tests.synthetic import TINY_MODEL_FLAGS, write_manifest, write_shards

_defined_flags = script_fixture("pretraining")

TRAIN_FLAGS = ["--train_batch_size=8", "--num_train_steps=4", "--num_warmup_steps=1", "--log_every_steps=2"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
  """A folder with shards of 12 and 9 examples."""
  write_shards(tmp_path / "shards", [12, 9])
  return tmp_path / "shards"


def run(*argv: str) -> None:
  run_script("pretraining", *argv)


def write_shards_manifest(shards: Path, **manifest_fields: object) -> None:
  paths = sorted(map(str, shards.iterdir()))
  write_manifest(shards, paths, [12, 9], settings={"sentence_prediction": "sop"}, **manifest_fields)


def write_longer_shards(shards: Path) -> None:
  (path,) = write_shards(shards.parent / "longer", [9])
  write_manifest(shards.parent / "longer", [path], [9], settings={"max_seq_length": 32})


@pytest.mark.usefixtures("rendered_pictures")
def test_a_run_leaves_the_documented_files(shards, tmp_path, capsys):
  output_dir = tmp_path / "run"
  files = [f"--input_file={shards}/*.tfrecord", f"--eval_input_file={shards}/*.tfrecord", f"--output_dir={output_dir}"]
  run("--do_train", "--do_eval", *files, *TINY_MODEL_FLAGS, *TRAIN_FLAGS, "--eval_batch_size=8")
  assert {path.name for path in output_dir.iterdir()} >= {
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "tensorboard",
    "checkpoints",
    "eval_results.json",
    "curves.png",
  }
  lines = read_json_lines(output_dir / "metrics.jsonl")
  assert [line["step"] for line in lines] == [2, 4]
  assert set(lines[0]) == {
    "step",
    "loss",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "sentence_order_loss",
    "sentence_order_accuracy",
    "learning_rate",
    "examples_per_second",
    "grad_norm",
  }
  # From the default 1.76e-3 the rate falls linearly to 0 at step 4. The last update is made after 3 steps.
  assert lines[1]["learning_rate"] == pytest.approx(1.76e-3 * (1 - 3 / 4))
  results = read_json(output_dir / "eval_results.json")
  assert results["step"] == 4
  for metrics in (*lines, results):  # the loss is the sum of its two terms
    assert metrics["loss"] == pytest.approx(metrics["masked_lm_loss"] + metrics["sentence_order_loss"], rel=1e-6)
  printed = capsys.readouterr().out
  assert {"masked_lm_perplexity", "masked_lm_baseline_accuracy", "sentence_order_baseline_accuracy"} < set(results)
  for name, of_guessing in (("loss", "guessing_loss"), ("accuracy", "baseline_accuracy")):
    value, guess = results[f"masked_lm_{name}"], results[f"masked_lm_{of_guessing}"]
    assert f", masked_lm_{name} {value:.4g} (guessing {guess:.4g}), " in printed
  assert printed.startswith(f"evaluation: loss {results['loss']:.4g} (guessing {results['guessing_loss']:.4g}), ")
  assert printed.count("\n") == 1
  config = read_json(output_dir / "config.json")
  assert config["model"]["hidden_size"] == 24
  assert config["data"]["max_seq_length"] == 16
  # A later evaluation has the model of the run.
  (output_dir / "eval_results.json").unlink()
  evaluation = ["--do_eval", f"--eval_input_file={shards}/*.tfrecord", "--eval_batch_size=8"]
  run(*evaluation, f"--output_dir={output_dir}")
  assert read_json(output_dir / "eval_results.json") == results


def flip_a_bit(shards: Path) -> None:
  path = shards / "part-01.tfrecord"
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 4
  path.write_bytes(bytes(content))


def truncate(shards: Path) -> None:
  path = shards / "part-01.tfrecord"
  path.write_bytes(path.read_bytes()[:-5])


class BadInput(NamedTuple):
  """Flags with a part of their error; {shards} stands for the folder of the shards, which `prepare` gets, too."""

  flags: list[str]
  message: str
  prepare: Callable[[Path], object] = lambda shards: None  # for errors that are only in the flags


TRAIN_ON_SHARDS = ["--do_train", "--input_file={shards}/*"]
BAD_INPUT = {
  "empty file": BadInput(
    TRAIN_ON_SHARDS, "empty.tfrecord is empty", lambda shards: (shards / "empty.tfrecord").write_bytes(b"")
  ),
  "flipped bit": BadInput(TRAIN_ON_SHARDS, r"part-01\.tfrecord.*record \d", flip_a_bit),
  "cut off": BadInput(TRAIN_ON_SHARDS, r"part-01\.tfrecord.*record 8", truncate),  # the last of 9, counted from 0
  "other length": BadInput(
    [*TRAIN_ON_SHARDS, "--max_seq_length=32"], "was written with max_seq_length=16, not 32: leave"
  ),
  "too many predictions": BadInput(
    [*TRAIN_ON_SHARDS, "--max_predictions_per_seq=20"], "was written with max_predictions_per_seq=3, not 20"
  ),
  "too long for the model": BadInput(
    [*TRAIN_ON_SHARDS, "--max_position_embeddings=8"], "sequences of 16 tokens, the model has 8 positions"
  ),
  "other vocabulary": BadInput(
    ["--do_train", "--input_file={shards}/*.tfrecord"],
    "the vocabulary has 99 pieces, the model 61: give shards made with the vocabulary of the weights",
    lambda shards: write_shards_manifest(shards, vocab_size=99),
  ),
  "two lengths": BadInput(
    ["--do_train", "--input_file={shards}/*,{shards}/../longer/*.tfrecord"],
    r"longer/manifest\.json: the shards have max_seq_length 32, the other ones 16: give",
    write_longer_shards,
  ),
  "two lengths without a manifest": BadInput(
    ["--do_train", "--input_file={shards}/*.tfrecord,{shards}/wide/*.tfrecord"],
    r"wide/part-00\.tfrecord: the shards have max_seq_length 32, the other ones 16: give",
    lambda shards: write_shards(shards / "wide", [5], length=32),
  ),
  "held-out shards of another length": BadInput(
    [*TRAIN_ON_SHARDS, "--do_eval", "--eval_input_file={shards}/../longer/*.tfrecord"],
    "have max_seq_length 32, the other ones 16: give",
    write_longer_shards,
  ),
  "other sentence loss": BadInput(
    ["--do_train", "--input_file={shards}/*.tfrecord", "--sentence_prediction=nsp"],
    "says the shards hold sop",
    write_shards_manifest,
  ),
  "no TPU named": BadInput([*TRAIN_ON_SHARDS, "--distribution_strategy=tpu"], "needs --tpu=NAME"),
  "not a recipe": BadInput(
    ["--recipe={shards}/r.json"],
    "unknown key 'modle'",
    lambda shards: (shards / "r.json").write_text('{"modle": 1}'),
  ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_an_error_of_one_line(case, shards, tmp_path):
  bad_input = BAD_INPUT[case]
  bad_input.prepare(shards)
  flags = [flag.format(shards=shards) for flag in bad_input.flags]
  with pytest.raises(UserError, match=bad_input.message) as caught:
    run(*TINY_MODEL_FLAGS, *TRAIN_FLAGS, f"--output_dir={tmp_path / 'run'}", *flags)
  assert "\n" not in str(caught.value)
  assert not list(tmp_path.glob("run/checkpoints/step-*"))
