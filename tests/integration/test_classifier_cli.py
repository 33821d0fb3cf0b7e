"""Tests of run_classifier.py from its flags: every kind of task, the files of a run, and later commands."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from albert.errors import UserError
from tests.integration.conftest import script_fixture
from tests.run_outputs import read_checkpoint, read_json, read_json_lines, read_tsv
from tests.script_flags import from_scratch_flags, run_script
from tests.synthetic import TINY_MODEL
from tests.tasks.glue.archive import read_tsv_rows, write_archive

_defined_flags = script_fixture("classifier")

STEPS = 6


@pytest.fixture(scope="module")
def glue_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """The folder of a GLUE archive. Its training files have 40 rows, the other files have 10."""
  tasks = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "diagnostic"]
  return write_archive(tmp_path_factory.mktemp("glue"), tasks, num_rows=10)


@pytest.fixture(scope="module")
def training_flags(spm_model: str) -> list[str]:
  return [
    *from_scratch_flags(spm_model),
    "--max_seq_length=32",
    "--train_batch_size=8",
    "--eval_batch_size=16",
    f"--num_train_steps={STEPS}",
    "--num_warmup_steps=1",
    "--eval_every_steps=3",
    "--log_every_steps=3",
    "--learning_rate=0.002",
    "--save_checkpoints_steps=1",
    "--keep_checkpoints=100",
  ]


def run(*argv: str) -> None:
  run_script("classifier", *argv)


def read_results(output_dir: Path) -> dict[str, Any]:
  return read_json(output_dir / "eval_results.json")


@dataclasses.dataclass(frozen=True)
class FinishedRun:
  """The directory of a run, and the flags of its command without --output_dir."""

  directory: Path
  flags: list[str]


@pytest.fixture(scope="module")
def mrpc_run(glue_folder: Path, training_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
  """A run of MRPC that trained, evaluated and predicted."""
  output_dir = tmp_path_factory.mktemp("runs") / "mrpc"
  flags = [*training_flags, "--task_name=mrpc", f"--data_dir={glue_folder}", "--hidden_dropout_prob=0.1", "--do_eval"]
  run(*flags, f"--output_dir={output_dir}", "--do_predict")
  return FinishedRun(output_dir, flags)


def test_a_run_leaves_the_documented_files(mrpc_run: FinishedRun) -> None:
  assert {path.name for path in mrpc_run.directory.iterdir()} >= {
    "MRPC.tsv",
    "calibration_dev.png",
    "checkpoints",
    "classes_dev.tsv",
    "config.json",
    "confusion_matrix_dev.png",
    "eval_metrics.jsonl",
    "eval_results.json",
    "features",
    "metrics.jsonl",
    "mistakes_dev.tsv",
    "predictions_dev.tsv",
    "predictions_test.tsv",
    "spiece.model",
  }
  config = read_json(mrpc_run.directory / "config.json")
  # A setting without a flag is that of the task's recipe.
  assert (config["optimizer"]["optimizer"], config["optimizer"]["learning_rate"]) == ("adamw", 0.002)
  assert config["train"]["select_checkpoint"] == "best"
  assert (config["data"]["task_name"], config["data"]["labels"]) == ("MRPC", "0,1")


def test_metrics_agree_with_the_predictions_file(mrpc_run: FinishedRun, glue_folder: Path) -> None:
  rows = read_tsv(mrpc_run.directory / "predictions_dev.tsv")
  labels, predicted = [row["label"] for row in rows], [row["prediction"] for row in rows]
  assert labels == [row[0] for row in read_tsv_rows(glue_folder / "MRPC" / "dev.tsv")[1:]]
  assert read_results(mrpc_run.directory)["accuracy"] == metrics.accuracy_score(labels, predicted)
  assert read_results(mrpc_run.directory)["f1"] == metrics.f1_score(labels, predicted, pos_label="1", zero_division=0.0)
  for row in rows:
    probabilities = {label: float(row[f"probability_{label}"]) for label in ("0", "1")}
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert row["prediction"] == max(probabilities, key=lambda label: probabilities[label])
  wrong_ids = [row["id"] for row in rows if row["label"] != row["prediction"]]
  mistakes = read_tsv(mrpc_run.directory / "mistakes_dev.tsv")
  assert sorted(row["id"] for row in mistakes) == sorted(wrong_ids)


def test_the_submission_has_a_line_for_each_test_row(mrpc_run: FinishedRun) -> None:
  submission = read_tsv(mrpc_run.directory / "MRPC.tsv")
  predictions = read_tsv(mrpc_run.directory / "predictions_test.tsv")
  assert submission == [{"index": row["id"], "prediction": row["prediction"]} for row in predictions]
  assert [row["index"] for row in submission] == [str(index) for index in range(10)]


def test_later_commands_use_the_checkpoint_that_the_run_chose(
  mrpc_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  """The recipe of the run's task selects the best checkpoint. The later commands do not name the task."""
  evaluated, trained = tmp_path / "evaluated", tmp_path / "trained"
  shutil.copytree(mrpc_run.directory, evaluated)
  # Makes step 3 the best one, because the newest one is step 6.
  best_file = evaluated / "checkpoints" / "best.json"
  best_file.write_text(json.dumps(read_json(best_file) | {"step": 3}))
  shutil.copytree(evaluated, trained)
  run("--do_eval", "--do_predict", f"--output_dir={evaluated}")
  evaluation_at_step_3 = read_json_lines(evaluated / "eval_metrics.jsonl")[0]
  assert read_results(evaluated)["step"] == 3
  for name in ("predictions_test.tsv", "MRPC.tsv"):  # those of another checkpoint are replaced
    assert (evaluated / name).stat().st_mtime_ns > (mrpc_run.directory / name).stat().st_mtime_ns
  assert read_results(evaluated)["loss"] == pytest.approx(evaluation_at_step_3["loss"], rel=1e-5)
  capsys.readouterr()
  run("--do_train", "--do_eval", f"--output_dir={trained}")
  assert f"has all {STEPS} steps already" in capsys.readouterr().err
  assert read_results(trained) == read_results(evaluated)


@pytest.mark.thorough
def test_ranking_trains_evaluates_and_predicts(glue_folder: Path, training_flags: list[str], tmp_path: Path) -> None:
  flags = [*training_flags, "--num_train_steps=2", "--eval_every_steps=0", "--do_eval", "--do_predict"]
  flags += ["--task_name=QNLI", "--formulation=ranking", f"--data_dir={glue_folder}"]
  run(*flags, f"--output_dir={tmp_path / 'run'}")
  assert {"loss", "accuracy"} <= set(read_results(tmp_path / "run"))
  assert all(math.isfinite(number) for number in read_results(tmp_path / "run").values())
  assert len(read_tsv(tmp_path / "run" / "QNLI.tsv")) == 10


@pytest.mark.slow
def test_mnli_has_two_dev_sets_and_another_task_starts_from_its_encoder(
  glue_folder: Path, training_flags: list[str], tmp_path: Path
) -> None:
  mnli = tmp_path / "mnli"
  one_step = ["--eval_every_steps=0", f"--data_dir={glue_folder}", "--num_train_steps=1", "--num_warmup_steps=0"]
  run(*training_flags, *one_step, "--task_name=MNLI", f"--output_dir={mnli}", "--do_eval", "--do_predict")
  assert {"matched_accuracy", "mismatched_accuracy", "matched_loss"} < set(read_results(mnli))
  for name in ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"):
    assert {row["prediction"] for row in read_tsv(mnli / name)} <= {"contradiction", "entailment", "neutral"}

  # The model, the vocabulary and the encoder are from the run. Its head does not fit, so a flag must allow a new one.
  # With a learning rate of nearly 0 the encoder does not change.
  flags = ["--do_train", *one_step, "--max_seq_length=32", "--train_batch_size=8", "--learning_rate=1e-12"]
  flags += ["--task_name=RTE", f"--init_checkpoint={mnli}"]
  run(*flags, f"--output_dir={tmp_path / 'rte'}", "--fresh_head")
  mnli_weights, rte_weights = read_checkpoint(mnli), read_checkpoint(tmp_path / "rte")
  assert rte_weights["output_weights"].shape == (2, TINY_MODEL.hidden_size)
  pooler_kernel = "bert/pooler/dense/kernel"
  np.testing.assert_allclose(rte_weights[pooler_kernel], mnli_weights[pooler_kernel], atol=1e-8)
  with pytest.raises(UserError, match=r"output_weights \[3, 24\] instead of \[2, 24\]; give --fresh_head"):
    run(*flags, f"--output_dir={tmp_path / 'other'}")


def test_a_custom_task_reads_named_columns_and_keeps_its_labels(training_flags: list[str], tmp_path: Path) -> None:
  train_file, new_file = tmp_path / "train.jsonl", tmp_path / "new.csv"
  rows = [
    {"question": "why", "answer": "so", "kind": "good"},
    {"question": "when", "answer": "no", "kind": "bad"},
  ] * 15
  train_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
  new_file.write_text('answer,question\nso,"why, then"\n', encoding="utf-8")
  output_dir = tmp_path / "run"
  flags = [*training_flags, "--num_train_steps=2", "--eval_every_steps=0", "--do_eval", "--do_predict"]
  flags += ["--task_name=custom", "--text_columns=question,answer", "--label_column=kind"]
  files = [f"--train_file={train_file}", f"--eval_file={train_file}", f"--predict_file={new_file}"]
  run(*flags, *files, f"--output_dir={output_dir}")
  assert read_tsv(output_dir / "predictions_new.tsv")[0]["prediction"] in ("good", "bad")
  averages = {f"{average}_f1" for average in ("macro", "micro")} | {"macro_precision", "macro_recall"}
  scores = {"accuracy", "f1", "precision", "recall", "matthews_corrcoef", "majority_accuracy", "calibration_error"}
  assert set(read_results(output_dir)) == {"step", "loss", "guessing_loss", *scores, *averages}
  assert read_results(output_dir)["step"] == 2  # from the flag, not from the 3 epochs of the recipe

  # Later commands may not have other labels.
  other_file = tmp_path / "eval.tsv"
  other_file.write_text("question\tanswer\tkind\nwhy\tso\tugly\n", encoding="utf-8")
  flags = ["--do_eval", f"--eval_file={other_file}", f"--output_dir={output_dir}"]
  with pytest.raises(UserError, match=r"eval\.tsv, line 2: kind 'ugly' is not a label of this task: bad, good"):
    run(*flags)
  with pytest.raises(UserError, match=r"--labels=good,ugly: the run in .* has labels = 'bad,good' \(.*config\.json\)"):
    run(*flags, "--labels=good,ugly")
