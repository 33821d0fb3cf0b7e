"""Tests of run_classifier.py from its flags: every kind of task, the files of a run, later commands, bad input."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn import metrics

from albert.errors import UserError
from albert.settings.resolve import given_flags, resolve_settings
from tests.run_outputs import assert_equal_bits, read_checkpoint, read_json, read_json_lines, read_tsv
from tests.script_flags import from_scratch_flags, parsed_flags, run_script, script_flags
from tests.synthetic import TINY_MODEL
from tests.tasks.glue.archive import edit_line, read_tsv_rows, write_archive
from tests.torture.workplace import Workplace

ROOT = Path(__file__).parents[2]
STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def _defined_flags(all_steps_eager: None) -> Iterator[None]:
  with script_flags("classifier"):
    yield


@pytest.fixture(scope="module")
def glue_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """The folder of a GLUE archive. Its training files have 40 rows, the other files have 10."""
  tasks = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "diagnostic"]
  return write_archive(tmp_path_factory.mktemp("glue"), tasks, num_rows=10)


@pytest.fixture(scope="module")
def training_flags(spm_model: str) -> list[str]:
  """The flags of a short run of a small model from random weights."""
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
  probability_of_label = {row["id"]: float(row[f"probability_{row['label']}"]) for row in rows}
  wrong_ids = [row["id"] for row in rows if row["label"] != row["prediction"]]
  mistakes = read_tsv(mrpc_run.directory / "mistakes_dev.tsv")
  assert sorted(row["id"] for row in mistakes) == sorted(wrong_ids)
  losses = [float(row["loss"]) for row in mistakes]
  assert losses == sorted(losses, reverse=True)
  assert losses == pytest.approx([-math.log(probability_of_label[row["id"]]) for row in mistakes], abs=6e-5)


def test_the_submission_has_a_line_for_each_test_row(mrpc_run: FinishedRun) -> None:
  submission = read_tsv(mrpc_run.directory / "MRPC.tsv")
  predictions = read_tsv(mrpc_run.directory / "predictions_test.tsv")
  assert len(predictions) == 10
  assert submission == [{"index": row["id"], "prediction": row["prediction"]} for row in predictions]
  assert [row["index"] for row in submission] == [str(index) for index in range(10)]


def test_prediction_alone_needs_only_the_run_and_the_file(
  mrpc_run: FinishedRun, glue_folder: Path, tmp_path: Path
) -> None:
  shutil.copytree(mrpc_run.directory, tmp_path / "run")
  (tmp_path / "run" / "MRPC.tsv").unlink()
  argv = ["--do_predict", f"--output_dir={tmp_path / 'run'}", "--select_checkpoint=best"]
  run(*argv, f"--predict_file={glue_folder / 'MRPC' / 'test.tsv'}")
  assert (tmp_path / "run" / "MRPC.tsv").read_bytes() == (mrpc_run.directory / "MRPC.tsv").read_bytes()


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


# A flag that contradicts the run `mrpc_run` -> a part of the error.
CONTRADICTIONS = {
  "--select_checkpoint=newest": r"has select_checkpoint = 'best' \(.*config\.json\): leave .*checkpoints/step-N$",
  "--task_name=RTE": "has task_name = 'MRPC'",
  "--hidden_size=48": "has hidden_size = 24",
  "--model=albert_tiny": "has .* = ",
  "--max_seq_length=16": "has max_seq_length = 32",
  "--nodo_lower_case": "has do_lower_case = True",
  "--learning_rate=0.5": "has learning_rate = 0.002",
  "--num_train_epochs=2": "has num_train_steps = 6",
  "--warmup_proportion=0.5": "has num_warmup_steps = 1",
  "--init_checkpoint=elsewhere": "has from_scratch = True",
  "--recipe=glue_cola": "--recipe=glue_cola, with .*: the run in .* has ",
}


@pytest.mark.parametrize("flag", CONTRADICTIONS)
def test_a_flag_that_contradicts_the_run_is_refused(mrpc_run: FinishedRun, glue_folder: Path, flag: str) -> None:
  flag_name = flag.removeprefix("--").removeprefix("no").partition("=")[0]
  with pytest.raises(UserError, match=CONTRADICTIONS[flag]) as caught:
    run("--do_predict", f"--output_dir={mrpc_run.directory}", f"--data_dir={glue_folder}", flag)
  assert flag_name in str(caught.value)
  assert "\n" not in str(caught.value)


def test_a_rerun_of_a_finished_run_trains_nothing(
  mrpc_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  output_dir = tmp_path / "run"
  shutil.copytree(mrpc_run.directory, output_dir)
  run(*mrpc_run.flags, f"--output_dir={output_dir}")
  assert f"has all {STEPS} steps already" in capsys.readouterr().err
  assert_equal_bits(read_checkpoint(output_dir), read_checkpoint(mrpc_run.directory))
  for name in ("eval_results.json", "predictions_dev.tsv", "eval_metrics.jsonl"):
    assert (output_dir / name).read_bytes() == (mrpc_run.directory / name).read_bytes()


# (flags, names of metrics, name of the submission file)
TASK_VARIANTS = [
  (["--task_name=QNLI", "--formulation=ranking"], {"accuracy"}, "QNLI.tsv"),
  (["--task_name=STS-B"], {"pearson", "spearman"}, "STS-B.tsv"),
  (["--task_name=WNLI"], {"accuracy"}, "WNLI.tsv"),
  (["--task_name=CoLA", "--gradient_accumulation_steps=2"], {"matthews_corrcoef", "accuracy"}, "CoLA.tsv"),
  (["--task_name=SST-2", "--pad_to_max_length", "--optimizer=lamb"], {"accuracy"}, "SST-2.tsv"),
  (["--task_name=QQP", "--layerwise_learning_rate_decay=0.8"], {"accuracy", "f1"}, "QQP.tsv"),
]


@pytest.mark.parametrize(
  ("task_flags", "metric_names", "submission"),
  [pytest.param(*variant, marks=pytest.mark.thorough) for variant in TASK_VARIANTS],
)
def test_every_kind_of_task_trains_evaluates_and_predicts(
  glue_folder: Path,
  training_flags: list[str],
  tmp_path: Path,
  task_flags: list[str],
  metric_names: set[str],
  submission: str,
) -> None:
  output_dir = tmp_path / "run"
  flags = [*training_flags, "--num_train_steps=2", "--eval_every_steps=0", "--do_eval", "--do_predict"]
  run(*flags, f"--data_dir={glue_folder}", f"--output_dir={output_dir}", *task_flags)
  assert set(read_results(output_dir)) >= metric_names
  assert all(math.isfinite(number) for number in read_results(output_dir).values())
  assert len(read_tsv(output_dir / submission)) == 10


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


class Fault(NamedTuple):
  """A change of one line of a task's file, and the error that it causes."""

  task_name: str
  file_name: str
  line: int
  change: Callable[[str], str]
  message: str


FAULTS = {
  "column count": Fault(
    "RTE", "train.tsv", 5, lambda line: line + "\tx", r"RTE/train\.tsv, line 5: 5 columns instead of 4"
  ),
  "unknown label": Fault(
    "RTE", "dev.tsv", 3, lambda line: line + "ly", r"RTE/dev\.tsv, line 3: label 'not_entailmently'"
  ),
  "empty field": Fault(  # only the tab and the label remain
    "SST-2", "train.tsv", 2, lambda line: line[-2:], r"SST-2/train\.tsv, line 2: column 'sentence' is"
  ),
  "not a number": Fault(  # the score is the last 5 characters, such as 2.500
    "STS-B", "train.tsv", 4, lambda line: line[:-5] + "much", r"STS-B/train\.tsv, line 4: score 'much'"
  ),
  "duplicate id": Fault(
    "QNLI", "train.tsv", 4, lambda line: "0" + line[1:], r"QNLI/train\.tsv, line 4: index '0' .*used"
  ),
  "another task's file": Fault(
    "QNLI",
    "train.tsv",
    1,
    lambda line: "sentence\tlabel",
    r"QNLI/train\.tsv, line 1: this is the header of a file of SST-2, not of QNLI's",
  ),
}


@pytest.mark.parametrize("fault_name", FAULTS)
def test_bad_data_is_an_error_of_one_line(training_flags: list[str], tmp_path: Path, fault_name: str) -> None:
  fault = FAULTS[fault_name]
  write_archive(tmp_path / "glue", [fault.task_name], num_rows=8)
  edit_line(tmp_path / "glue" / fault.task_name / fault.file_name, fault.line, fault.change)

  def read_data() -> None:
    task = resolve_settings("classifier", given_flags("classifier")).make_task()
    task.training_data()
    task.evaluation_data()

  flags = [f"--task_name={fault.task_name}", f"--data_dir={tmp_path / 'glue'}", f"--output_dir={tmp_path / 'run'}"]
  with parsed_flags(*training_flags, *flags), pytest.raises(UserError, match=fault.message) as caught:
    read_data()
  assert "\n" not in str(caught.value)


@pytest.mark.thorough
def test_the_script_exits_with_code_2_for_bad_data(
  training_flags: list[str], tmp_path: Path, commands: Workplace
) -> None:
  write_archive(tmp_path, ["CoLA"], num_rows=8)
  edit_line(tmp_path / "CoLA" / "train.tsv", 3, lambda line: "source2\tno\t\tThe captain sold it.")
  files = [f"--output_dir={tmp_path / 'run'}", f"--data_dir={tmp_path}"]
  ended = commands.run(["run_classifier.py", *training_flags, "--task_name=CoLA", *files])
  assert ended.code == 2
  message = f"error: {tmp_path}/CoLA/train.tsv, line 3: label 'no' is not a label of this task: 0, 1"
  assert ended.stderr.splitlines()[-1] == message
  assert "Traceback" not in ended.stderr


def test_the_help_of_the_script_lists_the_flags_of_the_task() -> None:
  command = [sys.executable, "run_classifier.py", "--help"]
  ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
  assert ended.returncode == 0
  assert "--formulation" in ended.stdout
