"""Tests of the tasks of run_classifier.py: losses and predictions compared with NumPy, their files, and bad flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.data.batches import ExampleDataset
from albert.errors import UserError
from albert.tasks.base import DatasetOutputs
from albert.tasks.glue.files import TextData
from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.glue.model import Number, OneOfSeveralClasses, Ranking, TextTask
from tests.tasks.glue.archive import read_tsv_rows, write_archive
from tests.tasks.glue.conftest import MakeTask

NUM_ROWS = 6


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """The folder of a GLUE archive. Its training files have 24 rows, the other files have 6."""
  tasks = ["CoLA", "MNLI", "STS-B", "QNLI", "diagnostic"]
  return write_archive(tmp_path_factory.mktemp("glue"), tasks, num_rows=NUM_ROWS)


def run_newly_initialized_model(task: TextTask, split: str) -> tuple[float, DatasetOutputs, dict[str, np.ndarray]]:
  """Returns the loss, the outputs and the batch of a newly initialized model for all examples of a split, in order."""
  model = task.build_model()
  dataset = task.sets.dataset(split)
  assert isinstance(dataset, ExampleDataset)
  (batch,) = dataset.evaluation_batches(batch_size=dataset.num_examples + 2)  # two rows of padding
  result = task.forward(model, batch, training=False)
  loss = float(result.sums["loss"].total / result.sums["loss"].weight)
  is_example = batch["example_weight"].numpy() > 0
  example_order = np.argsort(batch["example_index"].numpy()[is_example])
  outputs = {name: tensor.numpy()[is_example][example_order] for name, tensor in result.outputs.items()}
  outputs["example_index"] = np.arange(dataset.num_examples)
  examples = {name: tensor.numpy()[is_example][example_order] for name, tensor in batch.items()}
  return loss, outputs, examples


def test_classification_has_the_cross_entropy_and_probabilities_of_numpy(archive: Path, make_task: MakeTask) -> None:
  task = make_task("mnli", data_dir=str(archive))
  assert type(task.formulation) is OneOfSeveralClasses
  assert list(task.evaluation_data()) == ["matched", "mismatched"]
  assert task.best_metric == "matched_accuracy"
  loss, outputs, batch = run_newly_initialized_model(task, "matched")
  logits = outputs["logits"].astype(np.float64)
  probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  labels = batch["label_ids"]
  assert labels.tolist() == [0, 1, 2] * 2
  assert loss == pytest.approx(-np.log(probabilities[np.arange(NUM_ROWS), labels]).mean(), abs=1e-6)
  np.testing.assert_allclose(task.predictions("matched", outputs).scores, probabilities, atol=1e-12)
  metrics = task.evaluation_metrics("matched", outputs)
  assert metrics == {
    "accuracy": np.mean(probabilities.argmax(axis=1) == labels),
    "majority_accuracy": pytest.approx(1 / 3),
    # The newly initialized model gives all rows nearly the same probabilities, which are in one interval.
    "calibration_error": pytest.approx(abs(probabilities.max(axis=1).mean() - 1 / 3)),
    "guessing_loss": pytest.approx(np.log(3)),
  }


def test_regression_has_the_mean_squared_error(archive: Path, make_task: MakeTask) -> None:
  task = make_task("sts-b", data_dir=str(archive))
  assert type(task.formulation) is Number
  assert task.best_metric == "pearson"
  loss, outputs, batch = run_newly_initialized_model(task, "dev")
  assert batch["scores"].tolist() == [0.0, 2.5, 5.0] * 2
  assert loss == pytest.approx(np.mean((outputs["values"] - batch["scores"]) ** 2), rel=1e-6)
  assert set(task.evaluation_metrics("dev", outputs)) == {"pearson", "spearman", "guessing_loss"}
  later_task = make_task("sts-b", data_dir=str(archive), best_metric="rmse")
  assert (later_task.best_metric, later_task.best_loss, later_task.higher_is_better) == ("rmse", "loss", False)
  assert later_task.evaluation_metrics("dev", outputs)["rmse"] == pytest.approx(np.sqrt(loss), rel=1e-6)


def test_ranking_has_the_cross_entropy_of_right_and_wrong(archive: Path, make_task: MakeTask) -> None:
  task = make_task("QNLI", data_dir=str(archive), formulation="ranking")
  assert type(task.formulation) is Ranking
  loss, outputs, batch = run_newly_initialized_model(task, "dev")
  probability_of_right = np.exp(outputs["log_probabilities"][:, 1].astype(np.float64))
  is_right = batch["is_right"]
  assert set(is_right.tolist()) == {0, 1}
  probability_of_label = np.where(is_right, probability_of_right, 1 - probability_of_right)
  assert loss == pytest.approx(-np.log(probability_of_label).mean(), abs=1e-5)
  predictions = task.predictions("dev", outputs)
  right_class = task.spec.labels.index(task.spec.ranking_label)
  np.testing.assert_allclose(predictions.scores[:, right_class], probability_of_right, rtol=1e-6)
  np.testing.assert_allclose(predictions.scores.sum(axis=1), 1, rtol=1e-6)
  # The labels of the predictions are the classes in the file. The class of right sentences has the index 0, not 1.
  # Columns: index, question, sentence, label.
  labels_in_file = [row[3] for row in read_tsv_rows(archive / "QNLI" / "dev.tsv")[1:]]
  assert predictions.labels is not None
  assert [task.spec.labels[label] for label in predictions.labels] == labels_in_file
  np.testing.assert_array_equal(is_right, predictions.labels == right_class)


# Logits of each example's sequences, that of its own sentence first; the number of its sequences, of which further ones
# are padding; whether its own sentence answers its question; and the loss.
RANKINGS = {
  "of two candidates is the pairwise ranking loss": ([[3, 1]], [2], [1], np.log1p(np.exp(1 - 3))),
  "of two candidates with a wrong sentence": ([[3, 1]], [2], [0], np.log1p(np.exp(3 - 1))),
  "of three candidates is the softmax cross entropy": (
    *([[2, 1, -1, 50]], [3], [1]),
    -np.log(np.exp(2) / (np.exp(2) + np.exp(1) + np.exp(-1))),
  ),
  "of one candidate is the sigmoid cross entropy": (
    *([[2, 9], [-1, 9]], [1, 1], [1, 0]),
    np.log1p(np.exp(-2)) + np.log1p(np.exp(-1)),
  ),
}


@pytest.mark.parametrize("name", RANKINGS)
def test_the_ranking_loss(name: str) -> None:
  logits, counts, is_right, expected = RANKINGS[name]
  batch = {
    "option_mask": tf.sequence_mask(counts, len(logits[0]), tf.float32),
    "is_right": tf.constant(is_right),
    "example_weight": tf.ones([len(logits)]),
  }
  formulation = Ranking(TextData(ClassifierConfig(task_name="QNLI", formulation="ranking")))
  result = formulation.forward(tf.constant(logits, tf.float32)[:, :, tf.newaxis], batch, training=False)
  assert float(result.sums["loss"].total) == pytest.approx(expected, rel=1e-6)


def test_ranking_takes_candidates_from_the_training_file(archive: Path, make_task: MakeTask) -> None:
  task = make_task("QNLI", data_dir=str(archive), formulation="ranking")
  assert [Path(str(path)).name for path in task.data.find("test")] == ["test.tsv", "train.tsv"]
  rows = task.data.rows("test")
  sentences = {
    row[2]
    for name in ("test.tsv", "train.tsv")
    for row in read_tsv_rows(archive / "QNLI" / name)[1:]
    if row[1] == rows.texts[0][0]
  }
  assert {rows.texts[1][0], *rows.candidates[0]} == sentences
  assert len(sentences) > 2


def predict_classes_in_turn(dataset: Any) -> DatasetOutputs:
  """Stands in for a model of three classes. It predicts the classes 0, 1, 2, 0, ... for the examples of a dataset."""
  logits = np.eye(3, dtype=np.float32)[np.arange(dataset.num_examples) % 3]
  return {"logits": logits, "example_index": np.arange(dataset.num_examples)}


def write_submissions(task: TextTask, directory: Path) -> list[Path]:
  """Writes the predictions for all test sets. Returns the submissions, which have the upper-case names of tasks."""
  paths = [Path(path) for path in task.predict(task.build_model(), predict_classes_in_turn, str(directory))]
  return [path for path in paths if path.name[0].isupper()]


@pytest.mark.parametrize(
  ("task_name", "names"), [("MNLI", ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]), ("AX", ["AX.tsv"])]
)
def test_mnli_writes_a_submission_for_each_test_set(
  archive: Path, make_task: MakeTask, tmp_path: Path, task_name: str, names: list[str]
) -> None:
  task = make_task(task_name, data_dir=str(archive))
  submissions = write_submissions(task, tmp_path)
  assert [path.name for path in submissions] == names
  for path in submissions:
    rows = read_tsv_rows(path)
    assert rows[0] == ["index", "prediction"]
    assert [row[1] for row in rows[1:]] == ["contradiction", "entailment", "neutral"] * 2
  assert task.checkpoint_settings()["task_name"] == "MNLI"


def test_the_diagnostic_set_is_optional(make_task: MakeTask, tmp_path: Path) -> None:
  write_archive(tmp_path, ["MNLI"], num_rows=3)
  task = make_task("MNLI", data_dir=str(tmp_path))
  assert [path.name for path in write_submissions(task, tmp_path)] == ["MNLI-m.tsv", "MNLI-mm.tsv"]


def test_a_custom_task_takes_its_labels_from_the_training_file(make_task: MakeTask, tmp_path: Path) -> None:
  train_csv = tmp_path / "train.csv"
  train_csv.write_text("text,label\na good one,yes\na bad one,no\nso so,maybe\n", encoding="utf-8")
  task = make_task(train_file=str(train_csv))
  assert task.spec.labels == ("maybe", "no", "yes")
  # The run's config.json holds the labels. So later commands do not need the training file.
  settings = task.settings()
  assert settings["labels"] == "maybe,no,yes"
  later_task = make_task(labels=settings["labels"])
  assert later_task.checkpoint_settings() == task.checkpoint_settings()


@pytest.mark.parametrize(
  ("flags", "best", "positive_label"),
  [
    ({}, ("accuracy", True), "yes"),
    ({"positive_label": "no", "best_metric": "f1"}, ("f1", True), "no"),
    ({"best_metric": "loss"}, ("loss", False), "yes"),
  ],
)
def test_flags_choose_the_best_metric_and_the_positive_label(
  make_task: MakeTask, tmp_path: Path, flags: dict[str, str], best: tuple[str, bool], positive_label: str
) -> None:
  train_csv = tmp_path / "train.csv"
  train_csv.write_text("text,label\na good one,yes\na bad one,no\nso so,no\n", encoding="utf-8")
  task = make_task(train_file=str(train_csv), **flags)
  assert (task.best_metric, task.higher_is_better) == best
  logits = np.array([[0, 1], [0, 1], [1, 0]], np.float32)  # yes, yes, no
  metrics = task.with_data("dev", str(train_csv)).evaluation_metrics(
    "dev", {"logits": logits, "example_index": np.arange(3)}
  )
  f1_scores = {"yes": 2 / 3, "no": 2 / 3}  # yes: tp 1, fp 1, fn 0; no: tp 1, fp 0, fn 1
  precision = {"yes": 1 / 2, "no": 1.0}
  assert metrics["f1"] == pytest.approx(f1_scores[positive_label])
  assert metrics["precision"] == pytest.approx(precision[positive_label])
  assert metrics["macro_f1"] == pytest.approx(2 / 3)
  assert task.all_settings()["positive_label"] == positive_label


# Name of the case -> (name of the task, its flags, the error).
BAD_FLAGS: dict[str, tuple[str, dict[str, Any], str]] = {
  "no data_dir": ("CoLA", {}, "--train_file or --data_dir is missing: the train set, or the folder of CoLA's"),
  "no such folder": ("CoLA", {"data_dir": "/nowhere"}, "--data_dir=/nowhere: neither /nowhere/CoLA/train.tsv nor /no"),
  "no such file": ("CoLA", {"train_file": "/nowhere.tsv"}, "--train_file=/nowhere.tsv: no such file"),
  "nothing to train on": ("AX", {"data_dir": "x"}, "AX has no train set; it is for --do_predict with a model of MNLI"),
  "a file to train AX on": ("AX", {"train_file": "x.tsv"}, "AX has no train set"),
  "no custom file": ("custom", {"text_columns": "a", "labels": "x,y"}, "--train_file is missing: the train set of a"),
  "no custom labels": ("custom", {"text_columns": "a"}, "--labels is missing, and there is no --train_file"),
  "labels of GLUE": ("RTE", {"labels": "a,b"}, "--labels=a,b: those of RTE are entailment, not_entailment"),
  "no such metric": ("RTE", {"best_metric": "rmse"}, "--best_metric=rmse: RTE has accuracy, f1, matthews_corrcoef, "),
  "f1 of no label": ("MNLI", {"best_metric": "f1"}, r"loss: give --positive_label, the label that it is computed for"),
  "no such label": ("RTE", {"positive_label": "no"}, "--positive_label=no: not a label of RTE: give one of entailment"),
  "a label of numbers": ("STS-B", {"positive_label": "5"}, "--positive_label=5: a regression has no labels"),
  "ranking elsewhere": ("RTE", {"formulation": "ranking"}, "--formulation=ranking is for QNLI, not for RTE"),
  "windows of pairs": (
    *("custom", {"text_columns": "a,b", "labels": "x,y", "long_texts": "windows"}),
    r"^--long_texts=windows is for single texts, and custom has pairs \(a, b\)",
  ),
}


def test_the_diagnostic_set_cannot_be_evaluated(make_task: MakeTask) -> None:
  for flags in ({"data_dir": "x"}, {"eval_file": "x"}):
    with pytest.raises(UserError, match="AX has no labels to evaluate with: give --do_predict"):
      make_task("AX", **flags).evaluation_data()


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_flags_are_refused(make_task: MakeTask, case: str) -> None:
  task_name, flags, message = BAD_FLAGS[case]
  with pytest.raises(UserError, match=message):
    make_task(task_name, **flags).training_data()
