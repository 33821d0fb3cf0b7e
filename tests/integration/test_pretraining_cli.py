"""run_pretraining.py from its flags: the files a run leaves, recipes and overrides, and bad input."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from albert.cli import script_flags as cli_flags
from albert.errors import UserError
from albert.settings.resolve import make_task_and_config
from tests.script_flags import parsed_flags, run_script, script_flags
from tests.synthetic import TINY_MODEL_FLAGS, write_manifest, write_shards

ROOT = Path(__file__).parents[2]
TRAIN = ["--train_batch_size=8", "--num_train_steps=4", "--num_warmup_steps=1", "--log_every_steps=2"]


@pytest.fixture(scope="module", autouse=True)
def _defined_flags(all_steps_eager: None):
  with script_flags("pretraining"):
    yield


@pytest.fixture
def shards(tmp_path: Path) -> Path:
  write_shards(tmp_path / "shards", [12, 9])
  return tmp_path / "shards"


def run(*argv: str) -> None:
  run_script("pretraining", *argv)


def describe_shards(shards: Path, **changes: object) -> None:
  paths = sorted(map(str, shards.iterdir()))
  write_manifest(shards, paths, [12, 9], settings={"sentence_prediction": "sop"}, **changes)


@pytest.mark.usefixtures("rendered_pictures")
def test_a_run_leaves_what_the_design_says(shards, tmp_path, capsys):
  output = tmp_path / "run"
  pattern = f"{shards}/*.tfrecord"
  run(
    "--do_train",
    "--do_eval",
    f"--input_file={pattern}",
    f"--eval_input_file={pattern}",
    f"--output_dir={output}",
    *TINY_MODEL_FLAGS,
    *TRAIN,
    "--eval_batch_size=8",
  )
  names = {path.name for path in output.iterdir()}
  assert {
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "tensorboard",
    "checkpoints",
    "eval_results.json",
    "curves.png",
  } <= names
  lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
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
  assert lines[1]["learning_rate"] == pytest.approx(1.76e-3 * (1 - 3 / 4))
  results = json.loads((output / "eval_results.json").read_text())
  assert results["step"] == 4
  for metrics in (*lines, results):  # the loss is the sum of its two terms
    assert metrics["loss"] == pytest.approx(metrics["masked_lm_loss"] + metrics["sentence_order_loss"], rel=1e-6)
  printed = capsys.readouterr().out
  assert {"masked_lm_baseline_accuracy", "sentence_order_baseline_accuracy"} < set(results)
  assert all(f"{name} = {value:.6g}" in printed for name, value in results.items() if name != "step")
  config = json.loads((output / "config.json").read_text())
  assert config["model"]["hidden_size"] == 24
  assert config["data"]["max_seq_length"] == 16
  # Evaluation alone takes the model from the run.
  (output / "eval_results.json").unlink()
  run("--do_eval", f"--eval_input_file={pattern}", f"--output_dir={output}", "--eval_batch_size=8")
  assert json.loads((output / "eval_results.json").read_text()) == results


@pytest.mark.thorough
def test_a_short_first_try_needs_neither_vocab_size_nor_warm_up_and_can_be_resumed(shards, tmp_path, capsys):
  describe_shards(shards)
  flags = [flag for flag in TINY_MODEL_FLAGS if "vocab_size" not in flag]
  steps = ["--train_batch_size=8", "--num_train_steps=6", "--log_every_steps=2", "--save_checkpoints_steps=2"]
  argv = ["--do_train", f"--input_file={shards}/*.tfrecord", f"--output_dir={tmp_path / 'run'}", *flags, *steps]
  run(*argv)
  lines = capsys.readouterr().err.splitlines()
  assert f"vocab_size is 61, the size of the vocabulary according to {shards}/manifest.json" in lines
  assert "num_warmup_steps is 1, a tenth of the 6 steps: the default, 3125, is more than half of them" in lines
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  assert (config["model"]["vocab_size"], config["optimizer"]["num_warmup_steps"]) == (61, 1)
  rates = [json.loads(line)["learning_rate"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  assert rates == pytest.approx([1.76e-3 * (1 - step / 6) for step in (1, 3, 5)])
  shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-6")
  (shards / "manifest.json").unlink()  # config.json has the size
  run(*argv)
  lines = capsys.readouterr().err.splitlines()
  assert f"resumed from {tmp_path / 'run'}/checkpoints/step-4" in lines
  assert not any(line.startswith(("vocab_size is", "num_warmup_steps is")) for line in lines)
  resumed = json.loads((tmp_path / "run" / "config.json").read_text())
  assert (resumed["model"], resumed["optimizer"]) == (config["model"], config["optimizer"])


@pytest.mark.thorough
def test_stages_by_flags_and_later_commands_without_them(shards, tmp_path, capsys):
  output, short = tmp_path / "run", tmp_path / "short"
  write_shards(short, [10], length=12)
  stages = ["--first_stage=0.5", f"--first_input_file={short}/*", "--first_num_hidden_layers=1"]
  run("--do_train", f"--input_file={shards}/*", f"--output_dir={output}", *stages, *TINY_MODEL_FLAGS, *TRAIN)
  printed = capsys.readouterr().err
  assert "stage 1 of 2: steps 1 to 2, 1 layer, batches of 8, sequences of 12 tokens" in printed
  assert "stage 2 of 2: steps 3 to 4, 2 layers, batches of 8, sequences of 16 tokens" in printed
  run("--do_train", f"--output_dir={output}")
  assert "has all 4 steps already" in capsys.readouterr().err
  other = [{"until": 0.25, "input_file": f"{short}/*"}, {"until": 1}]
  with pytest.raises(UserError, match=r"config\.json: this directory holds a run with stages = "):
    run("--do_train", f"--output_dir={output}", f"--stages={json.dumps(other)}")
  shutil.rmtree(short)
  run("--do_eval", f"--eval_input_file={shards}/*", f"--output_dir={output}", "--eval_batch_size=8")
  assert json.loads((output / "eval_results.json").read_text())["step"] == 4


def test_two_ways_to_give_stages_are_refused(tmp_path):
  stages = ["--first_stage=0.5", "--first_num_hidden_layers=1", '--stages=[{"until": 1}]']
  with pytest.raises(UserError, match=r"--first_stage=0\.5 and --stages=.* are both given: give one"):
    run("--do_train", f"--output_dir={tmp_path}", *stages)


@pytest.mark.thorough
def test_a_bad_stage_ends_the_command_with_one_line_and_exit_code_2(shards, tmp_path, commands):
  argv = ["--do_train", f"--input_file={shards}/*", f"--output_dir={tmp_path / 'run'}", *TINY_MODEL_FLAGS, *TRAIN]
  stages = '[{"until": 0.5, "num_hidden_layers": 3}, {"until": 1}]'
  ended = commands.run(["run_pretraining.py", *argv, f"--stages={stages}"])
  assert ended.unexpected_end(2) is None
  assert ended.error == "error: stages, stage 1 of 2: num_hidden_layers is 3, the model has 2: give at most 2"
  assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_a_resumed_run_knows_its_data_by_content(tmp_path, capsys):
  output, shards = tmp_path / "run", tmp_path / "shards"
  write_shards(shards, [12, 9, 11])
  write_shards(tmp_path / "other text", [12, 9, 11], seed=8)

  def train(directory: Path) -> str:
    files = [f"--input_file={directory}/*", f"--output_dir={output}"]
    run("--do_train", *files, *TINY_MODEL_FLAGS, *TRAIN, "--num_train_steps=2")
    return capsys.readouterr().err

  train(shards)
  config = json.loads((output / "config.json").read_text())
  assert config["training_data"]["num_examples"] == 32
  assert "resumed" in train(shards)
  shutil.copytree(shards, tmp_path / "moved")
  for path in (tmp_path / "moved").iterdir():
    path.rename(path.with_name(f"renamed-{path.name}"))
  assert "resumed" in train(tmp_path / "moved")
  (tmp_path / "moved" / "renamed-part-00.tfrecord").rename(tmp_path / "moved" / "z.tfrecord")
  with pytest.raises(UserError, match=r"\(the same files in another order: file 1 is renamed-part-01"):
    train(tmp_path / "moved")
  with pytest.raises(UserError, match=r"config\.json: this run was trained on other data .*\(3 of its 3 files changed"):
    train(tmp_path / "other text")
  extra = shutil.copy(tmp_path / "other text" / "part-00.tfrecord", shards / "part-03.tfrecord")
  with pytest.raises(UserError, match=r"\(1 more than its 3 files: part-03\.tfrecord \(12 examples, SHA-256"):
    train(shards)
  Path(extra).unlink()
  (shards / "part-01.tfrecord").unlink()
  with pytest.raises(UserError, match=r"\(1 of its 3 files missing: renamed-part-01\.tfrecord \(9 examples, SHA-256"):
    train(shards)
  # A run of an earlier version has no hashes. It is resumed with a warning, and then records them.
  del config["training_data"]
  (output / "config.json").write_text(json.dumps(config))
  printed = train(tmp_path / "other text")
  assert printed.count("has no hashes of the training data") == 1
  assert "resumed" in printed
  assert "warning" not in train(tmp_path / "other text")


def test_a_flag_overrides_the_recipe(shards, tmp_path):
  recipe = tmp_path / "recipe.json"
  recipe.write_text(
    json.dumps(
      {"task": "pretraining", "model": "albert_tiny", "optimizer": {"learning_rate": 0.5, "num_warmup_steps": 7}}
    )
  )
  argv = [f"--recipe={recipe}", f"--output_dir={tmp_path}", "--learning_rate=0.25", "--hidden_size=64"]
  with parsed_flags(*argv):
    task, config = make_task_and_config("pretraining", cli_flags.given_flags("pretraining"))
  assert (config.optimizer.learning_rate, config.optimizer.num_warmup_steps) == (0.25, 7)
  assert (task.model_config.hidden_size, task.model_config.num_hidden_layers) == (64, 4)


def damaged(shards: Path) -> None:
  path = shards / "part-01.tfrecord"
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 4
  path.write_bytes(bytes(data))


def truncated(shards: Path) -> None:
  path = shards / "part-01.tfrecord"
  path.write_bytes(path.read_bytes()[:-5])


BAD_INPUT: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
  "nothing to do": (lambda s: None, [], "nothing to do"),
  "no input": (lambda s: None, ["--do_train"], "--do_train needs --input_file"),
  "no match": (lambda s: None, ["--do_train", "--input_file={s}/*.nothing"], "matches no file"),
  "no evaluation files": (lambda s: None, ["--do_eval", "--init_checkpoint=x"], "no checkpoint there"),
  "empty file": (
    lambda s: (s / "empty.tfrecord").write_bytes(b""),
    ["--do_train", "--input_file={s}/*"],
    "empty.tfrecord is empty",
  ),
  "flipped bit": (damaged, ["--do_train", "--input_file={s}/*"], r"part-01\.tfrecord.*record \d"),
  "cut off": (truncated, ["--do_train", "--input_file={s}/*"], r"part-01\.tfrecord.*record 8"),
  "other length": (
    lambda s: None,
    ["--do_train", "--input_file={s}/*", "--max_seq_length=32"],
    "--max_seq_length=32: .* was written with 16",
  ),
  "too many predictions": (
    lambda s: None,
    ["--do_train", "--input_file={s}/*", "--max_predictions_per_seq=20"],
    "--max_predictions_per_seq=20: .* was written with 3",
  ),
  "too long for the model": (
    lambda s: None,
    ["--do_train", "--input_file={s}/*", "--max_position_embeddings=8"],
    "sequences of 16 tokens, the model has 8 positions",
  ),
  "other vocabulary": (
    lambda s: describe_shards(s, vocab_size=99),
    ["--do_train", "--input_file={s}/*.tfrecord"],
    "a vocabulary of 99 pieces, the model has vocab_size 61",
  ),
  "other sentence loss": (
    describe_shards,
    ["--do_train", "--input_file={s}/*.tfrecord", "--sentence_prediction=nsp"],
    "says the shards hold sop",
  ),
  "unknown model": (lambda s: None, ["--do_train", "--model=albert_huge"], "unknown model"),
  "two models": (lambda s: None, ["--model=albert_base", "--albert_config_file=x"], "both given"),
  "no such config": (lambda s: None, ["--albert_config_file=/nowhere.json"], "/nowhere.json: no such file"),
  "no TPU named": (
    lambda s: None,
    ["--do_train", "--input_file={s}/*", "--distribution_strategy=tpu"],
    "needs --tpu=NAME",
  ),
  "warm-up beyond the end": (
    lambda s: None,
    ["--do_train", "--input_file={s}/*", "--num_warmup_steps=9"],
    r"num_warmup_steps \(9\) must not exceed num_train_steps \(4\)",
  ),
  "a recipe with bad stages": (
    lambda s: (s.parent / "r.json").write_text('{"stages": [{"until": 0.5}, {"until": 0.4}]}'),
    ["--do_train", "--recipe={s}/../r.json", "--input_file={s}/*"],
    "stages, stage 2 of 2: until is 0.4, not above the 0.5",
  ),
  "shards of a stage that are too long": (
    lambda s: write_shards(s.parent / "long", [9], length=33),
    ["--do_train", "--input_file={s}/*", "--first_stage=0.5", "--first_input_file={s}/../long/*"],
    "stage 1 of 2: .*/part-00.tfrecord holds sequences of 33 tokens, the model has 32 positions: write shorter",
  ),
  "a stage without a share": (
    lambda s: None,
    ["--do_train", "--input_file={s}/*", "--first_num_hidden_layers=1"],
    "--first_num_hidden_layers=1 needs --first_stage",
  ),
  "not a recipe": (
    lambda s: (s / "r.json").write_text('{"modle": 1}'),
    ["--recipe={s}/r.json"],
    "unknown section 'modle'",
  ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_clear_line(case, shards, tmp_path):
  prepare, argv, message = BAD_INPUT[case]
  prepare(shards)
  with pytest.raises(UserError, match=message) as caught:
    run(*TINY_MODEL_FLAGS, *TRAIN, f"--output_dir={tmp_path / 'run'}", *[a.format(s=shards) for a in argv])
  assert "\n" not in str(caught.value)
  assert not list(tmp_path.glob("run/checkpoints/step-*"))


def test_the_script_itself_exits_with_2_and_help_is_quick(tmp_path):
  command = [sys.executable, "run_pretraining.py"]
  flags = ["--do_train", f"--output_dir={tmp_path}", "--input_file=/nowhere/*"]
  result = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
  assert result.returncode == 2
  assert result.stderr == "error: --input_file: '/nowhere/*' matches no file: check the path, and put globs in quotes\n"
  result = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=20)
  assert result.returncode == 0
  assert "--num_train_steps" in result.stdout
