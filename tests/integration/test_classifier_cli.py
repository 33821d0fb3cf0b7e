"""run_classifier.py end to end: tasks of every kind, submissions, resuming, reruns, bad input."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from sklearn import metrics

from albert.cli import script_flags as cli_flags
from albert.errors import UserError
from albert.settings.resolve import make_task_and_config
from albert.weights.checkpoints import CheckpointManager
from tests.script_flags import parsed_flags, run_script, script_flags
from tests.synthetic import TINY_MODEL, TINY_MODEL_FLAGS
from tests.tasks.glue.archive import edit, rows_of, write_archive
from tests.torture.workplace import Workplace

ROOT = Path(__file__).parents[2]
STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def _flags(all_steps_eager: None) -> Iterator[None]:
  with script_flags("classifier"):
    yield


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
  tasks = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "diagnostic"]
  return write_archive(tmp_path_factory.mktemp("glue"), tasks, num_rows=10)


@pytest.fixture(scope="module")
def common(spm_model: str) -> list[str]:
  """The flags of a short run of a small model from random weights."""
  size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  return [
    "--do_train",
    "--from_scratch",
    f"--spm_model_file={spm_model}",
    *TINY_MODEL_FLAGS,
    f"--vocab_size={size}",
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


def weights(output_dir: Path) -> dict[str, np.ndarray]:
  newest, _ = CheckpointManager(str(output_dir / "checkpoints"), keep=1, model_config=TINY_MODEL).latest()
  assert newest is not None
  reader = tf.train.load_checkpoint(newest.prefix)
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def results(output_dir: Path) -> dict[str, Any]:
  values: dict[str, Any] = json.loads((output_dir / "eval_results.json").read_text())
  return values


def table(path: Path) -> list[dict[str, str]]:
  with path.open(encoding="utf-8") as file:
    return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@dataclasses.dataclass(frozen=True)
class Run:
  """A finished run: its directory, and the flags of its command without --output_dir."""

  directory: Path
  flags: list[str]


@pytest.fixture(scope="module")
def mrpc(archive: Path, common: list[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
  """A run that trained, evaluated and predicted."""
  output = tmp_path_factory.mktemp("runs") / "mrpc"
  flags = [*common, "--task_name=mrpc", f"--data_dir={archive}", "--hidden_dropout_prob=0.1", "--do_eval"]
  run(*flags, f"--output_dir={output}", "--do_predict")
  return Run(output, flags)


def test_a_run_leaves_what_the_design_says(mrpc: Run) -> None:
  assert {path.name for path in mrpc.directory.iterdir()} >= {
    "MRPC.tsv",
    "checkpoints",
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
  config = json.loads((mrpc.directory / "config.json").read_text())
  # Settings without a flag are those of the task's recipe.
  assert (config["optimizer"]["optimizer"], config["optimizer"]["learning_rate"]) == ("adamw", 0.002)
  assert config["train"]["select_checkpoint"] == "best"
  assert (config["data"]["task_name"], config["data"]["labels"]) == ("MRPC", "0,1")


def test_metrics_are_those_of_the_predictions_file(mrpc: Run, archive: Path) -> None:
  rows = table(mrpc.directory / "predictions_dev.tsv")
  labels, predicted = [row["label"] for row in rows], [row["prediction"] for row in rows]
  assert labels == [row[0].lstrip("\ufeff") for row in rows_of(archive / "MRPC" / "dev.tsv")[1:]]
  assert results(mrpc.directory)["accuracy"] == metrics.accuracy_score(labels, predicted)
  assert results(mrpc.directory)["f1"] == metrics.f1_score(labels, predicted, pos_label="1", zero_division=0.0)
  for row in rows:
    assert float(row["probability_0"]) + float(row["probability_1"]) == pytest.approx(1, abs=1e-6)
    assert row["prediction"] == str(int(float(row["probability_1"]) > float(row["probability_0"])))
  wrong = [row["id"] for row in rows if row["label"] != row["prediction"]]
  assert sorted(row["id"] for row in table(mrpc.directory / "mistakes_dev.tsv")) == sorted(wrong)


def test_the_submission_has_a_line_for_each_test_row(mrpc: Run) -> None:
  submitted = rows_of(mrpc.directory / "MRPC.tsv")
  assert submitted[0] == ["index", "prediction"]
  assert [row[0] for row in submitted[1:]] == [str(index) for index in range(10)]
  assert [row[1] for row in submitted[1:]] == [
    row["prediction"] for row in table(mrpc.directory / "predictions_test.tsv")
  ]


def test_prediction_alone_needs_only_the_run_and_the_file(mrpc: Run, archive: Path, tmp_path: Path) -> None:
  shutil.copytree(mrpc.directory, tmp_path / "run")
  (tmp_path / "run" / "MRPC.tsv").unlink()
  argv = ["--do_predict", f"--output_dir={tmp_path / 'run'}", "--select_checkpoint=best"]
  run(*argv, f"--predict_file={archive / 'MRPC' / 'test.tsv'}")
  assert (tmp_path / "run" / "MRPC.tsv").read_bytes() == (mrpc.directory / "MRPC.tsv").read_bytes()


def test_later_commands_use_the_checkpoint_that_the_run_chose(
  mrpc: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  """The recipe of the run's task selects the best checkpoint. The later commands do not name the task."""
  output, other = tmp_path / "run", tmp_path / "other"
  shutil.copytree(mrpc.directory, output)
  best = json.loads((output / "checkpoints" / "best.json").read_text())
  (output / "checkpoints" / "best.json").write_text(json.dumps(best | {"step": 3}))  # the newest is step 6
  shutil.copytree(output, other)
  run("--do_eval", "--do_predict", f"--output_dir={output}")
  evaluations = [json.loads(line) for line in (output / "eval_metrics.jsonl").read_text().splitlines()]
  assert results(output)["step"] == 3
  assert results(output)["loss"] == pytest.approx(evaluations[0]["loss"], rel=1e-5)
  capsys.readouterr()
  run("--do_train", "--do_eval", f"--output_dir={other}")
  assert f"has all {STEPS} steps already" in capsys.readouterr().err
  assert results(other) == results(output)


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
def test_a_flag_that_contradicts_the_run_is_refused(mrpc: Run, archive: Path, flag: str) -> None:
  name = flag.removeprefix("--").removeprefix("no").partition("=")[0]
  with pytest.raises(UserError, match=CONTRADICTIONS[flag]) as caught:
    run("--do_predict", f"--output_dir={mrpc.directory}", f"--data_dir={archive}", flag)
  assert name in str(caught.value)
  assert "\n" not in str(caught.value)


def test_a_rerun_of_a_finished_run_trains_nothing(
  mrpc: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  output = tmp_path / "run"
  shutil.copytree(mrpc.directory, output)
  run(*mrpc.flags, f"--output_dir={output}")
  assert f"has all {STEPS} steps already" in capsys.readouterr().err
  whole, rerun = weights(mrpc.directory), weights(output)
  assert whole.keys() == rerun.keys()
  for name, value in whole.items():
    assert value.tobytes() == rerun[name].tobytes(), name
  for name in ("eval_results.json", "predictions_dev.tsv", "eval_metrics.jsonl"):
    assert (output / name).read_bytes() == (mrpc.directory / name).read_bytes()


KINDS = [
  (["--task_name=QNLI", "--formulation=ranking"], {"accuracy"}, ["QNLI.tsv"]),
  (["--task_name=STS-B"], {"pearson", "spearman"}, ["STS-B.tsv"]),
  (["--task_name=WNLI"], {"accuracy"}, ["WNLI.tsv"]),
  (["--task_name=CoLA", "--gradient_accumulation_steps=2"], {"matthews_corrcoef", "accuracy"}, ["CoLA.tsv"]),
  (["--task_name=SST-2", "--pad_to_max_length", "--optimizer=lamb"], {"accuracy"}, ["SST-2.tsv"]),
  (["--task_name=QQP", "--layerwise_learning_rate_decay=0.8"], {"accuracy", "f1"}, ["QQP.tsv"]),
]


@pytest.mark.parametrize(
  ("argv", "names", "submissions"), [pytest.param(*kind, marks=pytest.mark.thorough) for kind in KINDS]
)
def test_every_kind_of_task(
  archive: Path, common: list[str], tmp_path: Path, argv: list[str], names: set[str], submissions: list[str]
) -> None:
  output = tmp_path / "run"
  flags = [*common, f"--data_dir={archive}", f"--output_dir={output}", "--num_train_steps=2", "--do_eval"]
  run(*flags, "--eval_every_steps=0", "--do_predict", *argv)
  assert set(results(output)) >= names
  assert all(math.isfinite(value) for value in results(output).values())
  for name in submissions:
    assert len(rows_of(output / name)) == 11


@pytest.mark.slow
def test_mnli_and_what_starts_from_it(archive: Path, common: list[str], tmp_path: Path) -> None:
  short = ["--eval_every_steps=0", f"--data_dir={archive}", "--num_train_steps=1", "--num_warmup_steps=0"]
  mnli = tmp_path / "mnli"
  run(*common, *short, "--task_name=MNLI", f"--output_dir={mnli}", "--do_eval", "--do_predict")
  assert {"matched_accuracy", "mismatched_accuracy", "matched_loss"} < set(results(mnli))
  for name in ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"):
    assert {row[1] for row in rows_of(mnli / name)[1:]} <= {"contradiction", "entailment", "neutral"}
  # The model, the vocabulary and the encoder are from the run. Its head does not fit, so a flag must allow a new one.
  flags = ["--do_train", *short, "--max_seq_length=32", "--train_batch_size=8", "--learning_rate=1e-12"]
  flags += ["--task_name=RTE", f"--init_checkpoint={mnli}"]
  run(*flags, f"--output_dir={tmp_path / 'rte'}", "--fresh_head")
  source, target = weights(mnli), weights(tmp_path / "rte")
  assert target["output_weights"].shape == (2, TINY_MODEL.hidden_size)
  np.testing.assert_allclose(target["bert/pooler/dense/kernel"], source["bert/pooler/dense/kernel"], atol=1e-8)
  with pytest.raises(UserError, match=r"output_weights \[3, 24\] instead of \[2, 24\]; give --fresh_head"):
    run(*flags, f"--output_dir={tmp_path / 'other'}")


def test_a_custom_task(common: list[str], tmp_path: Path) -> None:
  train = tmp_path / "train.jsonl"
  kinds = [("why", "so", "good"), ("when", "no", "bad")] * 15
  rows = [{"question": first, "answer": second, "kind": kind} for first, second, kind in kinds]
  train.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
  new = tmp_path / "new.csv"
  new.write_text('answer,question\nso,"why, then"\n', encoding="utf-8")
  flags = ["--task_name=custom", "--text_columns=question,answer", "--label_column=kind"]
  output = tmp_path / "run"
  argv = [*common, *flags, f"--train_file={train}", f"--eval_file={train}", f"--predict_file={new}", "--do_eval"]
  run(*argv, f"--output_dir={output}", "--do_predict", "--num_train_steps=2", "--eval_every_steps=0")
  assert table(output / "predictions_test.tsv")[0]["prediction"] in ("good", "bad")
  assert set(results(output)) == {"step", "loss", "accuracy", "f1", "matthews_corrcoef", "majority_accuracy"}
  assert results(output)["step"] == 2  # from the flag, not from the 3 epochs of the recipe
  # Labels must be those of the checkpoint.
  other = tmp_path / "eval.tsv"
  other.write_text("question\tanswer\tkind\nwhy\tso\tugly\n", encoding="utf-8")
  argv = ["--do_eval", f"--eval_file={other}", f"--output_dir={output}"]
  with pytest.raises(UserError, match=r"eval\.tsv, line 2: kind 'ugly' is not a label of this task: bad, good"):
    run(*argv)
  with pytest.raises(UserError, match=r"--labels=good,ugly: the run in .* has labels = 'bad,good' \(.*config\.json\)"):
    run(*argv, "--labels=good,ugly")


BAD_INPUT: dict[str, tuple[str, str, int, Callable[[str], str], str]] = {
  "column count": ("RTE", "train.tsv", 5, lambda line: line + "\tx", r"RTE/train\.tsv, line 5: 5 columns instead of 4"),
  "unknown label": ("RTE", "dev.tsv", 3, lambda line: line + "ly", r"RTE/dev\.tsv, line 3: label 'not_entailmently'"),
  "empty field": ("SST-2", "train.tsv", 2, lambda line: line[-2:], r"SST-2/train\.tsv, line 2: column 'sentence' is"),
  "not a number": ("STS-B", "train.tsv", 4, lambda line: line[:-5] + "much", r"STS-B/train\.tsv, line 4: score 'much'"),
  "duplicate id": ("QNLI", "train.tsv", 4, lambda line: "0" + line[1:], r"QNLI/train\.tsv, line 4: index '0' .*used"),
  "another task's file": (
    "QNLI",
    "train.tsv",
    1,
    lambda line: "sentence\tlabel",
    r"QNLI/train\.tsv, line 1: this is the header of a file of SST-2, not of QNLI's",
  ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_data_is_one_clear_line(common: list[str], tmp_path: Path, case: str) -> None:
  task_name, name, line, change, message = BAD_INPUT[case]
  write_archive(tmp_path / "glue", [task_name], num_rows=8)
  edit(tmp_path / "glue" / task_name / name, line, change)

  argv = [f"--task_name={task_name}", f"--data_dir={tmp_path / 'glue'}", f"--output_dir={tmp_path / 'run'}"]

  def read_data() -> None:
    task, _ = make_task_and_config("classifier", cli_flags.given_flags("classifier"))
    task.training_data()
    task.evaluation_data()

  with parsed_flags(*common, *argv), pytest.raises(UserError, match=message) as caught:
    read_data()
  assert "\n" not in str(caught.value)


@pytest.mark.thorough
def test_the_script_itself_exits_with_2(common: list[str], tmp_path: Path, commands: Workplace) -> None:
  write_archive(tmp_path, ["CoLA"], num_rows=8)
  edit(tmp_path / "CoLA" / "train.tsv", 3, lambda line: line.replace("\t2", "\t"))
  edit(tmp_path / "CoLA" / "train.tsv", 3, lambda line: line.replace("\t0\t", "\tno\t"))
  files = [f"--output_dir={tmp_path / 'run'}", f"--data_dir={tmp_path}"]
  result = commands.run(["run_classifier.py", *common, "--task_name=CoLA", *files])
  assert result.code == 2
  assert result.stderr.splitlines()[-1] == (
    f"error: {tmp_path}/CoLA/train.tsv, line 3: label 'no' is not a label of this task: 0, 1"
  )
  assert "Traceback" not in result.stderr
  command = [sys.executable, "run_classifier.py", "--help"]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
  assert result.returncode == 0
  assert "--formulation" in result.stdout
