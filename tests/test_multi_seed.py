"""The checks of a command before it trains, and commands that train with several seeds."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from albert import multi_seed
from albert.ensemble import ensemble_runs
from albert.errors import UserError
from albert.runs import output_files
from albert.training.loop import Trainer
from tests.script_flags import run_script, script_flags
from tests.synthetic import TINY_MODEL_FLAGS, write_shards
from tests.tasks.glue.archive import write_archive
from tests.tasks.squad.question_files import write_made_up_squad, write_squad

# Most commands here must end before the first step; these flags keep a failing test short.
TWO_STEPS = ["--train_batch_size=2", "--eval_batch_size=2", "--num_train_steps=2", "--num_warmup_steps=0"]
TWO_STEPS += ["--eval_every_steps=0"]
CUSTOM_TASK = ["--task_name=custom", "--text_columns=text"]
QUESTION = {"article": "nobody sold the letter.", "question": "who?", "options": ["nobody", "the captain"]}


def finetuning_flags(spm_model: str) -> list[str]:
  """Flags of a small run of any fine-tuning script that starts from random weights."""
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  model_flags = [*TINY_MODEL_FLAGS, f"--vocab_size={vocab_size}", "--max_seq_length=32", "--num_processes=1"]
  return ["--from_scratch", f"--spm_model_file={spm_model}", *model_flags, *TWO_STEPS]


def write_lines(path: Path, *lines: str) -> str:
  path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
  return str(path)


def write_json_lines(path: Path, *rows: Mapping[str, object]) -> str:
  return write_lines(path, *map(json.dumps, rows))


# ---- bad files are reported before the first step ---------------------------------------------------


def write_files_to_train_on(task: str, directory: Path) -> list[str]:
  """Writes files to train on, and bad files to evaluate on and to predict. Returns the flags that train."""
  if task == "classifier":
    train = write_lines(directory / "train.tsv", "text\tlabel", *["a good one\tyes", "a bad one\tno"] * 4)
    write_lines(directory / "unknown.tsv", "text\tlabel", "so so\tmaybe")
    return [*CUSTOM_TASK, f"--train_file={train}"]
  if task == "squad":
    train = write_made_up_squad(directory / "train.json", 4)
    write_squad(directory / "unanswered.json", [("Nobody sold it.", [{"id": "q", "question": "who?"}])])
    write_lines(directory / "cut.json", '{"data": [')
    return [f"--train_file={train}", "--max_query_length=12", "--doc_stride=8"]
  if task == "race":
    train = write_json_lines(directory / "train.jsonl", *[QUESTION | {"answer": n % 2} for n in range(4)])
    write_json_lines(directory / "far.jsonl", QUESTION | {"answer": "C"})  # QUESTION has two options, A and B
    write_json_lines(directory / "one.jsonl", QUESTION | {"options": ["a"]})
    return [f"--train_file={train}", "--max_qa_length=12"]
  write_shards(directory / "train", [8])
  write_shards(directory / "heldout", [3, 3])
  shard = directory / "heldout" / "part-01.tfrecord"
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 4  # one flipped bit damages the shard
  shard.write_bytes(bytes(content))
  write_lines(directory / "blank.txt", "", " ")
  return [f"--input_file={directory}/train/*"]


# Commands that could train, but whose evaluation or prediction would then fail: the task, further flags, and a pattern
# of the error. {d} stands for the directory of the files.
BAD_COMMANDS = {
  "bad label in an evaluation during training": (
    "classifier --eval_every_steps=1 --eval_file={d}/unknown.tsv",
    r"unknown\.tsv, line 2: label 'maybe' is not a label",
  ),
  "several runs": (
    "classifier --do_eval --do_predict --num_runs=2 --eval_file={d}/train.tsv --predict_file={d}/absent.tsv",
    r"--predict_file=.*absent\.tsv: no such file",
  ),
  "no file to predict": ("squad --do_predict", r"--predict_file is missing: the test set"),
  "no answers to evaluate with": (
    "squad --do_eval --eval_file={d}/unanswered.json",
    r"unanswered\.json: \$\.data\[0\]\.paragraphs\[0\]\.qas\[0\]: lacks 'answers'",
  ),
  "damaged file to predict": ("squad --do_predict --predict_file={d}/cut.json", r"cut\.json, line 2: not JSON"),
  "bad answer in the file to evaluate": (
    "race --do_eval --eval_file={d}/far.jsonl",
    r"far\.jsonl, line 1: answer 'C' is not one of the options",
  ),
  "one option in the file to predict": (
    "race --do_predict --predict_file={d}/one.jsonl",
    r"one\.jsonl, line 1: 1 option: give two or more",
  ),
  "damaged shard to evaluate": (
    "pretraining --do_eval --eval_input_file={d}/heldout/*",
    r"heldout/part-01\.tfrecord.*record \d",
  ),
  "nothing to predict": (
    "pretraining --do_predict --predict_file={d}/blank.txt",
    r"blank\.txt: no line with \[MASK\]",
  ),
}


@pytest.mark.parametrize("case", BAD_COMMANDS)
def test_files_for_evaluation_and_prediction_are_checked_before_training(
  tmp_path: Path, spm_model: str, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
  def fail_in_training(*unused: object, **unused_options: object) -> None:
    raise AssertionError("training began")

  monkeypatch.setattr(Trainer, "train", fail_in_training)
  command, message = BAD_COMMANDS[case]
  task, *flags = command.split()
  flags = [*write_files_to_train_on(task, tmp_path), *(flag.format(d=tmp_path) for flag in flags)]
  if task != "pretraining":
    flags = [*finetuning_flags(spm_model), *flags]
  else:
    flags = [*TINY_MODEL_FLAGS, *TWO_STEPS, *flags]
    if "--do_predict" in flags:
      vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
      flags += [f"--spm_model_file={spm_model}", f"--vocab_size={vocab_size}"]
  with script_flags(task), pytest.raises(UserError, match=message) as raised:
    run_script(task, "--do_train", f"--output_dir={tmp_path / 'run'}", *flags)
  assert "\n" not in str(raised.value)
  assert not list(tmp_path.glob("run/**/step-*"))


def test_check_writable_does_not_make_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  output_files.check_writable(str(tmp_path / "new" / "run"))
  assert not (tmp_path / "new").exists()
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match=r"file/run: cannot be made, since .*/file is not a directory"):
    output_files.check_writable(str(tmp_path / "file" / "run"))
  monkeypatch.setattr("os.access", lambda path, mode: False)
  with pytest.raises(UserError, match=rf"new/run: {tmp_path} cannot be written to"):
    output_files.check_writable(str(tmp_path / "new" / "run"))
  with pytest.raises(UserError, match=r"^gs:///run: cannot write there \(GCS path doesn't contain a bucket name"):
    output_files.check_writable("gs:///run")


# ---- several seeds, then their ensemble -------------------------------------------------------------


def write_task_files(task: str, directory: Path) -> list[str]:
  """Writes files to train on, to evaluate on and to predict, and returns the flags that name them."""
  if task == "classifier":
    write_archive(directory, ["MRPC"], num_rows=6)
    return ["--task_name=mrpc", f"--data_dir={directory}"]
  if task == "squad":
    train = write_made_up_squad(directory / "train.json", 6)
    test = write_made_up_squad(directory / "new.json", 3, seed=4)
    argv = [f"--train_file={train}", f"--eval_file={train}", f"--predict_file={test}"]
    return [*argv, "--max_query_length=12", "--doc_stride=8"]
  train = write_json_lines(directory / "train.jsonl", *[QUESTION | {"answer": n % 2} for n in range(4)])
  test = write_json_lines(directory / "new.jsonl", QUESTION, QUESTION)
  return [f"--train_file={train}", f"--eval_file={train}", f"--predict_file={test}", "--max_qa_length=12"]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("task", "written_files"),
  [
    ("classifier", ["predictions_test.tsv", "MRPC.tsv"]),
    ("squad", ["predictions_new.json", "nbest_predictions_new.json"]),
    ("race", ["predictions_new.tsv"]),
  ],
)
def test_several_seeds_and_their_ensemble_predict_a_test_set(
  tmp_path: Path, spm_model: str, task: str, written_files: list[str]
) -> None:
  flags = [*finetuning_flags(spm_model), *write_task_files(task, tmp_path), "--do_train", "--do_eval", "--do_predict"]
  with script_flags(task):
    run_script(task, *flags, "--num_runs=2", "--seed=5", f"--output_dir={tmp_path / 'runs'}")
  directories = [str(tmp_path / "runs" / f"run-{seed}") for seed in (5, 6)]
  assert ensemble_runs(directories, str(tmp_path / "ensemble"))
  for name in written_files:
    assert (tmp_path / "ensemble" / name).stat().st_size > 0


@pytest.mark.slow
@pytest.mark.usefixtures("eager_steps")
def test_folds_are_runs_whose_predictions_cover_the_training_file(
  tmp_path: Path, spm_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
  rows = [f"text {row} {'good' if row % 3 else 'bad'};{'yes' if row % 3 else 'no'};{row // 2}" for row in range(18)]
  train = write_lines(tmp_path / "train.csv", "text;label;key", *rows)
  runs = tmp_path / "runs"
  argv = [*finetuning_flags(spm_model), *CUSTOM_TASK, f"--train_file={train}", "--group_column=key", "--seed=5"]
  argv += ["--do_train", "--do_eval"]
  for start in range(2):
    with script_flags("classifier"):
      run_script("classifier", *argv, "--folds=3", f"--output_dir={runs}")
    output = capsys.readouterr()
    messages = output.err
    assert output.out.splitlines()[-1].startswith("best: fold ")
    assert messages.count("is done") == 3 * start
    assert ("fold 1: run with seed 5 in " in messages) != start
    assert "--num_runs" not in messages
  lines = (runs / "predictions_out_of_fold.tsv").read_text().splitlines()
  assert [line.split("\t")[:2] for line in lines[1:]] == [[str(n), "yes" if n % 3 else "no"] for n in range(18)]
  of_folds = {run: (runs / f"run-{run}" / "predictions_dev.tsv").read_text() for run in (5, 6, 7)}
  assert sorted(lines[1:]) == sorted(line for text in of_folds.values() for line in text.splitlines()[1:])
  best = json.loads((runs / "runs.json").read_text())["best_run"]
  with script_flags("classifier"):
    run_script("classifier", f"--output_dir={runs / best}", "--do_eval")  # the run knows its fold
  assert (runs / best / "predictions_dev.tsv").read_text() == of_folds[int(best[4:])]
  for flags, message in (
    (["--folds=4"], r"--folds=4: the run in .*run-5 has folds = 3"),
    (["--folds=3", "--num_runs=2"], r"^--folds=3 and --num_runs=2 are both given: give one"),
  ):
    with script_flags("classifier"), pytest.raises(UserError, match=message):
      run_script("classifier", *argv, *flags, f"--output_dir={runs}")


def test_of_equally_good_runs_the_one_with_the_lower_loss_is_the_best(tmp_path: Path) -> None:
  task: Any = types.SimpleNamespace(
    runs_flag="num_runs", best_metric="accuracy", best_loss="loss", higher_is_better=True
  )
  results = {seed: {"accuracy": 0.5, "loss": loss} for seed, loss in ((7, 0.8), (8, 0.6), (9, 0.6))}
  assert multi_seed._summarize(task, str(tmp_path), results) == 8


def test_runs_that_are_no_better_than_guessing_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  task: Any = types.SimpleNamespace(
    runs_flag="num_runs", best_metric="accuracy", best_loss="loss", higher_is_better=True
  )
  of_guessing = {"guessing_loss": 0.69, "majority_accuracy": 0.5}
  results = {seed: {"step": 1, "loss": 0.69, "accuracy": 0.5, **of_guessing} for seed in (7, 8)}
  results[9] = {"step": 1, "loss": 0.2, "accuracy": 0.9, **of_guessing}
  for seed, loss in ((7, 0.69), (8, 0.7), (9, 0.1)):
    (tmp_path / f"run-{seed}").mkdir()
    content = {"step": 1, "loss": loss, "guessing_loss": 0.69, "num_lines": 4}
    (tmp_path / f"run-{seed}" / "training_loss.json").write_text(json.dumps(content))
  assert multi_seed._summarize(task, str(tmp_path), results) == 9
  assert output_files.read_runs(str(tmp_path / "runs.json"))["failed_seeds"] == [7, 8]
  assert "2 of 3 runs have not learned more than guessing: run-7, run-8\n" in capsys.readouterr().out


def test_a_run_whose_metric_is_nan_ranks_last(tmp_path: Path) -> None:
  """In Python 3.10 to 3.13, the functions of `statistics` raise errors for NaN, and comparisons with NaN are false."""
  task: Any = types.SimpleNamespace(runs_flag="num_runs", best_metric="loss", best_loss="loss", higher_is_better=False)
  results = {7: {"step": 1, "loss": math.nan}, 8: {"step": 1, "loss": 0.5}, 9: {"step": 1, "loss": 0.25}}
  assert multi_seed._summarize(task, str(tmp_path), results) == 9
  summary = output_files.read_runs(str(tmp_path / "runs.json"))
  assert summary["best_run"] == "run-9"
  assert summary["metrics"]["loss"] == dict.fromkeys(multi_seed._STATISTICS) | {"values": [None, 0.5, 0.25]}
  with pytest.raises(UserError, match=r"run-8/eval_results\.json lacks 'loss': delete this file"):
    multi_seed._summarize(task, str(tmp_path), results | {8: {"step": 1}})
