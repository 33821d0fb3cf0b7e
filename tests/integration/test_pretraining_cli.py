"""Tests of run_pretraining.py from its flags: the files of a run, stages, recipes, other data, and bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from albert.errors import UserError
from tests.run_outputs import read_json, read_json_lines
from tests.script_flags import run_script, script_flags
from tests.synthetic import TINY_MODEL_FLAGS, write_manifest, write_shards

TRAIN_FLAGS = ["--train_batch_size=8", "--num_train_steps=4", "--num_warmup_steps=1", "--log_every_steps=2"]


@pytest.fixture(scope="module", autouse=True)
def _defined_flags(all_steps_eager: None):
  with script_flags("pretraining"):
    yield


@pytest.fixture
def shards(tmp_path: Path) -> Path:
  """A folder with shards of 12 and 9 examples."""
  write_shards(tmp_path / "shards", [12, 9])
  return tmp_path / "shards"


def run(*argv: str) -> None:
  run_script("pretraining", *argv)


def write_shards_manifest(shards: Path, **manifest_fields: object) -> None:
  """Writes the manifest of the fixture's shards."""
  paths = sorted(map(str, shards.iterdir()))
  write_manifest(shards, paths, [12, 9], settings={"sentence_prediction": "sop"}, **manifest_fields)


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
  assert all(f"{name} = {number:.6g}" in printed for name, number in results.items() if name != "step")
  config = read_json(output_dir / "config.json")
  assert config["model"]["hidden_size"] == 24
  assert config["data"]["max_seq_length"] == 16
  # A later evaluation has the model of the run.
  (output_dir / "eval_results.json").unlink()
  evaluation = ["--do_eval", f"--eval_input_file={shards}/*.tfrecord", "--eval_batch_size=8"]
  run(*evaluation, f"--output_dir={output_dir}")
  assert read_json(output_dir / "eval_results.json") == results


@pytest.mark.thorough
def test_a_short_first_run_needs_neither_vocab_size_nor_warm_up_and_can_be_resumed(shards, tmp_path, capsys):
  write_shards_manifest(shards)
  output_dir = tmp_path / "run"
  model = [flag for flag in TINY_MODEL_FLAGS if "vocab_size" not in flag]
  steps = ["--train_batch_size=8", "--num_train_steps=6", "--log_every_steps=2", "--save_checkpoints_steps=2"]
  flags = ["--do_train", f"--input_file={shards}/*.tfrecord", f"--output_dir={output_dir}", *model, *steps]
  run(*flags)
  log = capsys.readouterr().err.splitlines()
  assert f"vocab_size is 61, the size of the vocabulary according to {shards}/manifest.json" in log
  assert "num_warmup_steps is 1, a tenth of the 6 steps: the default, 3125, is more than half of them" in log
  config = read_json(output_dir / "config.json")
  assert (config["model"]["vocab_size"], config["optimizer"]["num_warmup_steps"]) == (61, 1)
  # Steps 2, 4 and 6 are logged. Their updates are made after 1, 3 and 5 steps.
  rates = [line["learning_rate"] for line in read_json_lines(output_dir / "metrics.jsonl")]
  assert rates == pytest.approx([1.76e-3 * (1 - step / 6) for step in (1, 3, 5)])

  # When the run is resumed, config.json has the size, and the manifest is not needed.
  shutil.rmtree(output_dir / "checkpoints" / "step-6")
  (shards / "manifest.json").unlink()
  run(*flags)
  log = capsys.readouterr().err.splitlines()
  assert f"resumed from {output_dir}/checkpoints/step-4" in log
  assert not any(line.startswith(("vocab_size is", "num_warmup_steps is")) for line in log)
  resumed_config = read_json(output_dir / "config.json")
  assert (resumed_config["model"], resumed_config["optimizer"]) == (config["model"], config["optimizer"])


@pytest.mark.thorough
def test_later_commands_have_the_stages_of_the_run(shards, tmp_path, capsys):
  output_dir, short_shards = tmp_path / "run", tmp_path / "short"
  write_shards(short_shards, [10], length=12)
  stages = [{"until": 0.5, "input_file": f"{short_shards}/*", "num_hidden_layers": 1}, {"until": 1}]
  files = [f"--input_file={shards}/*", f"--output_dir={output_dir}"]
  run("--do_train", *files, f"--stages={json.dumps(stages)}", *TINY_MODEL_FLAGS, *TRAIN_FLAGS)
  printed = capsys.readouterr().err
  assert "stage 1 of 2: steps 1 to 2, 1 layer, batches of 8, sequences of 12 tokens" in printed
  assert "stage 2 of 2: steps 3 to 4, 2 layers, batches of 8, sequences of 16 tokens" in printed
  run("--do_train", f"--output_dir={output_dir}")
  assert "has all 4 steps already" in capsys.readouterr().err
  other_stages = [{"until": 0.25, "input_file": f"{short_shards}/*"}, {"until": 1}]
  with pytest.raises(UserError, match=r"config\.json: this directory holds a run with stages = "):
    run("--do_train", f"--output_dir={output_dir}", f"--stages={json.dumps(other_stages)}")
  # An evaluation needs no training data.
  shutil.rmtree(short_shards)
  run("--do_eval", f"--eval_input_file={shards}/*", f"--output_dir={output_dir}", "--eval_batch_size=8")
  assert read_json(output_dir / "eval_results.json")["step"] == 4


def train_and_return_log(shards: Path, output_dir: Path, capsys: pytest.CaptureFixture[str]) -> str:
  """Starts or resumes a run. Returns what it wrote to stderr."""
  files = [f"--input_file={shards}/*", f"--output_dir={output_dir}"]
  run("--do_train", *files, *TINY_MODEL_FLAGS, *TRAIN_FLAGS, "--num_train_steps=2")
  return capsys.readouterr().err


@pytest.mark.thorough
def test_a_run_is_resumed_with_the_same_data_under_other_names_and_not_with_other_data(tmp_path, capsys):
  output_dir, shards, other_shards = tmp_path / "run", tmp_path / "shards", tmp_path / "other"
  write_shards(shards, [12, 9, 11])
  write_shards(other_shards, [12, 9, 11], seed=8)

  train_and_return_log(shards, output_dir, capsys)
  assert read_json(output_dir / "config.json")["training_data"]["num_examples"] == 12 + 9 + 11
  assert "resumed" in train_and_return_log(shards, output_dir, capsys)
  moved_shards = tmp_path / "moved"
  shutil.copytree(shards, moved_shards)
  for path in moved_shards.iterdir():
    path.rename(path.with_name(f"renamed-{path.name}"))
  assert "resumed" in train_and_return_log(moved_shards, output_dir, capsys)

  (moved_shards / "renamed-part-00.tfrecord").rename(moved_shards / "z.tfrecord")
  with pytest.raises(UserError, match=r"\(the same files in another order: file 1 is renamed-part-01"):
    train_and_return_log(moved_shards, output_dir, capsys)
  with pytest.raises(UserError, match=r"config\.json: this run was trained on other data .*\(3 of its 3 files changed"):
    train_and_return_log(other_shards, output_dir, capsys)
  additional_shard = shards / "part-03.tfrecord"
  shutil.copy(other_shards / "part-00.tfrecord", additional_shard)
  with pytest.raises(UserError, match=r"\(1 more than its 3 files: part-03\.tfrecord \(12 examples, SHA-256"):
    train_and_return_log(shards, output_dir, capsys)
  additional_shard.unlink()
  (shards / "part-01.tfrecord").unlink()
  with pytest.raises(UserError, match=r"\(1 of its 3 files missing: renamed-part-01\.tfrecord \(9 examples, SHA-256"):
    train_and_return_log(shards, output_dir, capsys)

  # A run of an earlier version has no hashes. It is resumed with a warning, and then records them.
  config = read_json(output_dir / "config.json")
  del config["training_data"]
  (output_dir / "config.json").write_text(json.dumps(config))
  log = train_and_return_log(other_shards, output_dir, capsys)
  assert log.count("has no hashes of the training data") == 1
  assert "resumed" in log
  assert "warning" not in train_and_return_log(other_shards, output_dir, capsys)


def flip_a_bit(shards: Path) -> None:
  path = shards / "part-01.tfrecord"
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 4
  path.write_bytes(bytes(content))


def truncate(shards: Path) -> None:
  path = shards / "part-01.tfrecord"
  path.write_bytes(path.read_bytes()[:-5])


def leave_unchanged(shards: Path) -> None:
  """For errors that are only in the flags."""


class BadInput(NamedTuple):
  """Flags that are an error.

  Attributes:
    flags: the flags, in which {shards} stands for the folder of the shards.
    message: a part of the error.
    prepare: is called with the folder of the shards before the command.
  """

  flags: list[str]
  message: str
  prepare: Callable[[Path], object] = leave_unchanged


TRAIN_ON_SHARDS = ["--do_train", "--input_file={shards}/*"]
BAD_INPUT = {
  "empty file": BadInput(
    TRAIN_ON_SHARDS, "empty.tfrecord is empty", lambda shards: (shards / "empty.tfrecord").write_bytes(b"")
  ),
  "flipped bit": BadInput(TRAIN_ON_SHARDS, r"part-01\.tfrecord.*record \d", flip_a_bit),
  "cut off": BadInput(TRAIN_ON_SHARDS, r"part-01\.tfrecord.*record 8", truncate),  # the last of 9, counted from 0
  "other length": BadInput([*TRAIN_ON_SHARDS, "--max_seq_length=32"], "--max_seq_length=32: .* was written with 16"),
  "too many predictions": BadInput(
    [*TRAIN_ON_SHARDS, "--max_predictions_per_seq=20"], "--max_predictions_per_seq=20: .* was written with 3"
  ),
  "too long for the model": BadInput(
    [*TRAIN_ON_SHARDS, "--max_position_embeddings=8"], "sequences of 16 tokens, the model has 8 positions"
  ),
  "other vocabulary": BadInput(
    ["--do_train", "--input_file={shards}/*.tfrecord"],
    "a vocabulary of 99 pieces, the model has vocab_size 61",
    lambda shards: write_shards_manifest(shards, vocab_size=99),
  ),
  "other sentence loss": BadInput(
    ["--do_train", "--input_file={shards}/*.tfrecord", "--sentence_prediction=nsp"],
    "says the shards hold sop",
    write_shards_manifest,
  ),
  "no TPU named": BadInput([*TRAIN_ON_SHARDS, "--distribution_strategy=tpu"], "needs --tpu=NAME"),
  "warm-up beyond the end": BadInput(
    [*TRAIN_ON_SHARDS, "--num_warmup_steps=9"], r"num_warmup_steps \(9\) must not exceed num_train_steps \(4\)"
  ),
  "a recipe with bad stages": BadInput(
    [*TRAIN_ON_SHARDS, "--recipe={shards}/../r.json"],
    "stages, stage 2 of 2: until is 0.4, not above the 0.5",
    lambda shards: (shards.parent / "r.json").write_text('{"stages": [{"until": 0.5}, {"until": 0.4}]}'),
  ),
  "shards of a stage that are too long": BadInput(
    [*TRAIN_ON_SHARDS, '--stages=[{{"until": 0.5, "input_file": "{shards}/../long/*"}}, {{"until": 1}}]'],
    "stage 1 of 2: .*/part-00.tfrecord holds sequences of 33 tokens, the model has 32 positions: write shorter",
    lambda shards: write_shards(shards.parent / "long", [9], length=33),
  ),
  "not a recipe": BadInput(
    ["--recipe={shards}/r.json"],
    "unknown section 'modle'",
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
