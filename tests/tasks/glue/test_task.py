"""Tests of the tasks of run_classifier.py: losses compared with NumPy, files, and bad flags."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.data.batches import ExampleDataset
from albert.errors import UserError
from albert.tasks.base import DatasetOutputs
from albert.tasks.glue.specs import ClassifierConfig
from albert.tasks.glue.task import ClassificationTask, RankingTask, RegressionTask, make_task
from albert.tasks.glue.text_task import TextTask
from tests.synthetic import TINY_MODEL
from tests.tasks.glue.archive import edit, rows_of, write_archive

TASKS = ["CoLA", "MNLI", "STS-B", "QNLI", "diagnostic"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
  return write_archive(tmp_path_factory.mktemp("glue"), TASKS, num_rows=6)


@pytest.fixture(scope="module")
def model_config(spm_model: str) -> ModelConfig:
  size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  return dataclasses.replace(TINY_MODEL, vocab_size=size, max_position_embeddings=64)


def make_config(spm_model: str, task_name: str, **options: Any) -> ClassifierConfig:
  return ClassifierConfig(spm_model_file=spm_model, task_name=task_name, max_seq_length=48, **options)


def forward(task: TextTask, split: str) -> tuple[float, DatasetOutputs, dict[str, np.ndarray]]:
  """Returns the mean loss and the outputs of a newly initialized model for a whole split, and the batch."""
  model = task.build_model()
  data = task.data(split)
  assert isinstance(data, ExampleDataset)
  (batch,) = data.evaluation_batches(batch_size=data.num_examples + 2)  # two rows of padding
  result = task.forward(model, batch, training=False)
  loss = float(result.sums["loss"].total / result.sums["loss"].weight)
  is_example = batch["example_weight"].numpy() > 0
  order = np.argsort(batch["example_index"].numpy()[is_example])
  outputs = {name: value.numpy()[is_example][order] for name, value in result.outputs.items()}
  outputs["example_index"] = np.arange(data.num_examples)
  return loss, outputs, {name: value.numpy()[is_example][order] for name, value in batch.items()}


def test_classification(archive: Path, model_config: ModelConfig, spm_model: str) -> None:
  task = make_task(model_config, make_config(spm_model, "mnli", data_dir=str(archive)))
  assert type(task) is ClassificationTask
  assert list(task.evaluation_data()) == ["matched", "mismatched"]
  assert task.best_metric == "matched_accuracy"
  loss, outputs, batch = forward(task, "matched")
  logits = outputs["logits"].astype(np.float64)
  probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  assert batch["label_ids"].tolist() == [0, 1, 2] * 2
  assert loss == pytest.approx(-np.log(probabilities[np.arange(6), batch["label_ids"]]).mean(), abs=1e-6)
  result = task.predictions("matched", outputs)
  np.testing.assert_allclose(result.scores, probabilities, atol=1e-12)
  metrics = task.evaluation_metrics("matched", outputs)
  assert metrics == {
    "accuracy": np.mean(probabilities.argmax(axis=1) == [0, 1, 2] * 2),
    "majority_accuracy": pytest.approx(1 / 3),
  }


def test_regression(archive: Path, model_config: ModelConfig, spm_model: str) -> None:
  task = make_task(model_config, make_config(spm_model, "sts-b", data_dir=str(archive)))
  assert type(task) is RegressionTask
  assert task.best_metric == "pearson"
  loss, outputs, batch = forward(task, "dev")
  assert batch["scores"].tolist() == [0.0, 2.5, 5.0] * 2
  assert loss == pytest.approx(np.mean((outputs["values"] - batch["scores"]) ** 2), rel=1e-6)
  assert set(task.evaluation_metrics("dev", outputs)) == {"pearson", "spearman"}


def test_ranking(archive: Path, model_config: ModelConfig, spm_model: str) -> None:
  task = make_task(model_config, make_config(spm_model, "QNLI", data_dir=str(archive), formulation="ranking"))
  assert type(task) is RankingTask
  loss, outputs, batch = forward(task, "dev")
  right_probabilities = np.exp(outputs["log_probabilities"][:, 1].astype(np.float64))
  is_right = batch["is_right"]
  assert set(is_right.tolist()) == {0, 1}
  assert loss == pytest.approx(
    -np.log(np.where(is_right, right_probabilities, 1 - right_probabilities)).mean(), abs=1e-5
  )
  result = task.predictions("dev", outputs)
  right_class = task.spec.labels.index(task.spec.ranking_label)
  np.testing.assert_allclose(result.scores[:, right_class], right_probabilities, rtol=1e-6)
  np.testing.assert_allclose(result.scores.sum(axis=1), 1, rtol=1e-6)
  # The labels are those of the file, not is_right.
  assert result.labels is not None
  assert [task.spec.labels[label] for label in result.labels] == [
    row[3] for row in rows_of(archive / "QNLI" / "dev.tsv")[1:]
  ]
  np.testing.assert_array_equal(is_right, result.labels == right_class)


def ranking_loss(logits: list[list[float]], mask: list[list[int]], is_right: list[int]) -> tuple[float, np.ndarray]:
  """Returns the loss and log_probabilities of a batch whose sequences have the given logits."""

  def model(inputs: dict[str, tf.Tensor], training: bool, seed: tf.Tensor | None) -> tf.Tensor:
    del training, seed
    return tf.reshape(tf.cast(inputs["input_ids"][:, 0], tf.float32), [-1, 1])

  ids = tf.constant(logits, tf.int32)[:, :, tf.newaxis]
  batch = {
    "input_ids": ids,
    "input_mask": tf.ones_like(ids),
    "segment_ids": tf.zeros_like(ids),
    "option_mask": tf.constant(mask, tf.float32),
    "is_right": tf.constant(is_right),
    "example_weight": tf.ones([len(logits)]),
  }
  result = RankingTask.forward(object.__new__(RankingTask), model, batch, training=False)  # type: ignore[arg-type]
  return float(result.sums["loss"].total), result.outputs["log_probabilities"].numpy()


def test_ranking_loss_by_hand() -> None:
  # Two sequences: the pairwise ranking loss, log(1 + exp(other - own)).
  loss, _ = ranking_loss([[3, 1]], [[1, 1]], [1])
  assert loss == pytest.approx(np.log1p(np.exp(1 - 3)), rel=1e-6)
  loss, _ = ranking_loss([[3, 1]], [[1, 1]], [0])
  assert loss == pytest.approx(np.log1p(np.exp(3 - 1)), rel=1e-6)
  # Three candidates: softmax. The fourth sequence is padding, and its logit has no effect.
  loss, log_probabilities = ranking_loss([[2, 1, -1, 50]], [[1, 1, 1, 0]], [1])
  expected = np.exp(2) / (np.exp(2) + np.exp(1) + np.exp(-1))
  assert loss == pytest.approx(-np.log(expected), rel=1e-6)
  np.testing.assert_allclose(np.exp(log_probabilities[0]), [1 - expected, expected], rtol=1e-5)
  # No other candidates: the sigmoid of the logit.
  loss, _ = ranking_loss([[2, 9], [-1, 9]], [[1, 0], [1, 0]], [1, 0])
  assert loss == pytest.approx(np.log1p(np.exp(-2)) + np.log1p(np.exp(-1)), rel=1e-6)


def test_ranking_takes_candidates_from_the_training_file(
  archive: Path, model_config: ModelConfig, spm_model: str
) -> None:
  task = make_task(model_config, make_config(spm_model, "QNLI", data_dir=str(archive), formulation="ranking"))
  assert [Path(path).name for path in task.data_files("test")] == ["test.tsv", "train.tsv"]
  examples = task.cached_raw_examples("test")
  sentences = {
    row[2]
    for name in ("test.tsv", "train.tsv")
    for row in rows_of(archive / "QNLI" / name)[1:]
    if row[1] == examples[0].question
  }
  assert set(examples[0].candidates) == sentences
  assert len(sentences) > 2


def test_predictions_of_all_test_sets(archive: Path, model_config: ModelConfig, spm_model: str, tmp_path: Path) -> None:
  for name, expected in (("MNLI", ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]), ("AX", ["AX.tsv"])):
    task = make_task(model_config, make_config(spm_model, name, data_dir=str(archive)))
    model = task.build_model()
    assert isinstance(task, TextTask)

    def run_model(data: Any) -> DatasetOutputs:
      logits = np.eye(3, dtype=np.float32)[np.arange(data.num_examples) % 3]
      return {"logits": logits, "example_index": np.arange(data.num_examples)}

    paths = task.predict(model, run_model, str(tmp_path))
    assert [Path(path).name for path in paths[1::2]] == expected
    for path in paths[1::2]:
      rows = rows_of(Path(path))
      assert rows[0] == ["index", "prediction"]
      assert [row[1] for row in rows[1:]] == ["contradiction", "entailment", "neutral"] * 2
    assert task.checkpoint_settings()["task_name"] == "MNLI"


def test_the_diagnostic_set_is_optional(model_config: ModelConfig, spm_model: str, tmp_path: Path) -> None:
  write_archive(tmp_path, ["MNLI"], num_rows=3)
  task = make_task(model_config, make_config(spm_model, "MNLI", data_dir=str(tmp_path)))

  def run_model(data: Any) -> DatasetOutputs:
    return {"logits": np.zeros([3, 3], np.float32), "example_index": np.arange(3)}

  assert [Path(path).name for path in task.predict(task.build_model(), run_model, str(tmp_path))][1::2] == [
    "MNLI-m.tsv",
    "MNLI-mm.tsv",
  ]


def test_a_custom_task_takes_its_labels_from_the_training_file(
  model_config: ModelConfig, spm_model: str, tmp_path: Path
) -> None:
  train = tmp_path / "train.csv"
  train.write_text("text,label\na good one,yes\na bad one,no\nso so,maybe\n", encoding="utf-8")
  options = {"text_columns": "text", "train_file": str(train)}
  task = make_task(model_config, make_config(spm_model, "custom", **options))
  assert task.spec.labels == ("maybe", "no", "yes")
  # The run's config.json keeps them, so that later the file is not needed.
  settings = task.settings()
  assert settings["labels"] == "maybe,no,yes"
  later_task = make_task(model_config, make_config(spm_model, "custom", text_columns="text", labels=settings["labels"]))
  assert later_task.checkpoint_settings() == task.checkpoint_settings()


BAD_FLAGS: dict[str, tuple[str, dict[str, Any], str]] = {
  "no data_dir": ("CoLA", {}, "--data_dir is missing: the folder of CoLA's files"),
  "no such folder": ("CoLA", {"data_dir": "/nowhere"}, "--data_dir=/nowhere: neither /nowhere/CoLA/train.tsv nor /no"),
  "no such file": ("CoLA", {"train_file": "/nowhere.tsv"}, "--train_file=/nowhere.tsv: no such file"),
  "nothing to train on": ("AX", {"data_dir": "x"}, "AX has no train set; it is for --do_predict with a model of MNLI"),
  "a file to train AX on": ("AX", {"train_file": "x.tsv"}, "AX has no train set"),
  "no custom file": ("custom", {"text_columns": "a", "labels": "x,y"}, "--train_file is missing: the train set of a"),
  "no custom labels": ("custom", {"text_columns": "a"}, "--labels is missing, and there is no --train_file"),
  "labels of GLUE": ("RTE", {"labels": "a,b"}, "--labels=a,b: those of RTE are entailment, not_entailment"),
  "ranking elsewhere": ("RTE", {"formulation": "ranking"}, "--formulation=ranking is for QNLI, not for RTE"),
}


def test_the_diagnostic_set_cannot_be_evaluated(model_config: ModelConfig, spm_model: str) -> None:
  for options in ({"data_dir": "x"}, {"eval_file": "x"}):
    with pytest.raises(UserError, match="AX has no labels to evaluate with: give --do_predict"):
      make_task(model_config, make_config(spm_model, "AX", **options)).evaluation_data()


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_flags_give_an_error_of_one_line(model_config: ModelConfig, spm_model: str, case: str) -> None:
  task_name, options, message = BAD_FLAGS[case]
  with pytest.raises(UserError, match=message):
    make_task(model_config, make_config(spm_model, task_name, **options)).training_data()


def test_a_warning_tells_of_skipped_rows(
  model_config: ModelConfig, spm_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  write_archive(tmp_path, ["QQP"], num_rows=300)
  edit(tmp_path / "QQP" / "train.tsv", 7, lambda line: "cut")
  task = make_task(model_config, make_config(spm_model, "QQP", data_dir=str(tmp_path)))
  assert len(task.cached_raw_examples("train")) == 1199
  assert "train.tsv: 1 lines have another number of columns and are skipped; the first one is line 7" in (
    capsys.readouterr().err
  )


def test_scores_is_an_abstract_method_of_text_tasks() -> None:
  assert "scores" in TextTask.__abstractmethods__
