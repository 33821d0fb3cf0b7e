"""A custom regression learns standardized numbers, and gives them in the unit of the labels in every form."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_keras as keras

from albert import ClassifierModel, Tokenizer, tasks
from albert.convert.convert_checkpoint import convert
from albert.estimator import Estimator
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import PredictRequest
from albert.runs.logs import format_evaluation
from albert.weights.names import OUTPUT_SCALE
from tests.synthetic import TINY_MODEL


@pytest.fixture(scope="module")
def priced(spm_model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Estimator, list[str]]:
  """A regression of 16 prices between 250,000 and 450,000, and its texts."""
  values = {"river": 20_000, "garden": 30_000, "captain": 100_000, "letter": 50_000}
  rows = []
  for number in range(16):
    words = [word for bit, word in enumerate(values) if number >> bit & 1]
    rows.append((" ".join(["the", *words]), 250_000 + sum(values[word] for word in words)))
  changes: dict[str, Any] = {"vocab_size": Tokenizer(spm_model).vocab_size, "initializer_range": 0.3}
  changes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0}
  model = dataclasses.replace(TINY_MODEL, **changes)
  settings: dict[str, Any] = {"model": model, "spm_model_file": spm_model, "from_scratch": True, "max_seq_length": 32}
  settings |= {"num_train_steps": 100, "train_batch_size": 16, "learning_rate": 0.003, "clip_norm": 0.0}
  task = tasks.Regression(train=rows, eval=rows, text="text", label="price")
  output_dir = tmp_path_factory.mktemp("prices") / "run"
  estimator = Estimator(task, output_dir=output_dir, precision="float32", **settings)
  estimator.train()
  return estimator, [text for text, _ in rows]


def test_a_regression_learns_numbers_of_any_size_and_predicts_them_in_their_unit(
  priced: tuple[Estimator, list[str]],
) -> None:
  metrics = priced[0].evaluate()
  assert metrics["rmse"] < 6000  # the deviation of the prices is 58,737
  assert metrics["loss"] == pytest.approx((metrics["rmse"] / 58_737) ** 2, rel=1e-3)
  assert metrics["guessing_loss"] == pytest.approx(1)
  assert f", rmse {metrics['rmse']:.4g}" in format_evaluation(metrics, "pearson", "loss")


def test_the_loss_of_guessing_is_that_of_the_numbers_as_the_model_learns_them(
  priced: tuple[Estimator, list[str]],
) -> None:
  task = priced[0].task
  scale = task.saved_variables(priced[0].model)[OUTPUT_SCALE]
  standardized = scale.numpy()
  assert task.guessing_loss() == pytest.approx(1)
  try:
    scale.assign([1.0, 0.0])  # a run of a version that did not standardize them
    assert task.guessing_loss() == pytest.approx(58_737**2, rel=1e-4)
  finally:
    scale.assign(standardized)


@pytest.mark.parametrize("form", ["run", "huggingface", "export"])
def test_weights_of_a_regression_give_its_numbers_in_every_form(
  priced: tuple[Estimator, list[str]], form: str, tmp_path: Path
) -> None:
  estimator, texts = priced
  path = estimator.config.output_dir
  if form == "export":
    requests = [PredictRequest(number, {"text": text.encode()}) for number, text in enumerate(texts)]
    numbers = [row["value"] for row in ExportedModel(estimator.export(tmp_path)).answer(requests)]
  else:
    if form == "huggingface":
      convert(path, str(tmp_path / "weights"), "huggingface")
      path = str(tmp_path / "weights")
    model = ClassifierModel.from_pretrained(path)
    numbers = model(Tokenizer.from_pretrained(path)(texts)).numpy()[:, 0].tolist()
  assert numbers == pytest.approx(estimator.predict(texts), rel=1e-5)


@pytest.mark.thorough
def test_a_regression_goes_on_from_the_numbers_of_its_initial_weights(
  priced: tuple[Estimator, list[str]], tmp_path: Path
) -> None:
  estimator, texts = priced
  rows = [(text, 7.0 * number) for number, text in enumerate(texts)]  # other labels, so another deviation
  task = tasks.Regression(train=rows, eval=rows, text="text", label="price")
  settings: dict[str, Any] = {"init_checkpoint": estimator.config.output_dir, "max_seq_length": 32}
  settings |= {"num_train_steps": 1, "learning_rate": 1e-9, "precision": "float32"}
  successor = Estimator(task, output_dir=tmp_path / "run", **settings)
  before = successor.predict(texts)
  successor.train()
  assert before == pytest.approx(estimator.predict(texts), rel=1e-5)
  assert successor.predict(texts) == pytest.approx(before, rel=1e-4)


def test_keras_loads_the_saved_model_of_a_regression(priced: tuple[Estimator, list[str]], tmp_path: Path) -> None:
  estimator, _ = priced
  estimator.model.save(tmp_path / "model.keras")
  loaded = keras.models.load_model(tmp_path / "model.keras")
  assert np.array_equal(loaded.get_weights()[-1], estimator.model.get_weights()[-1])
