"""Tests of --class_weights and --label_smoothing: scikit-learn's weights, and the closed form of the loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from sklearn.utils.class_weight import compute_class_weight

import albert
from albert.errors import UserError
from albert.tasks.glue.flags import ClassifierConfig, make_class_weights
from albert.tasks.glue.specs import make_spec
from tests.tasks.glue.conftest import MakeTask


def test_balanced_weights_equal_those_of_scikit_learn() -> None:
  targets = np.random.default_rng(0).choice(4, 97, p=[0.1, 0.6, 0.0, 0.3])
  expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=targets)
  weights = make_class_weights("balanced", ["a", "b", "never", "d"], targets)
  np.testing.assert_allclose(weights, [expected[0], expected[1], 1.0, expected[2]], rtol=1e-6)
  totals = weights * np.bincount(targets, minlength=4)
  np.testing.assert_allclose(totals[[0, 1, 3]], 97 / 3, rtol=1e-6)


@pytest.mark.parametrize("text", ["b: 2.5 ,c:0.25", '{"c": 0.25, "b": 2.5}'])
def test_weights_of_labels_are_read_from_pairs_and_from_json(text: str) -> None:
  np.testing.assert_array_equal(make_class_weights(text, ["a", "b", "c"], np.zeros(3, int)), [1, 2.5, 0.25])


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("no:2,maybe:1", r"--class_weights=no:2,maybe:1: 'maybe' is not a label of this task: no, yes"),
    ("no:2,no:3", "'no' is given twice"),
    ("balance", "'balance' is not LABEL:WEIGHT: give \"balanced\", LABEL:WEIGHT"),
    ("no:x", "'no:x' is not LABEL:WEIGHT"),
    ("no:0", "the weight of 'no' is 0.0: give a number above 0"),
    ("no:nan", "the weight of 'no' is nan"),
    ("no:1e39", "the weight of 'no' is 1e.39"),
    ('{"no": "x"}', r"--class_weights=.* must be a number, it is a text"),
  ],
)
def test_bad_weights_are_refused_before_the_files_are_read(text: str, message: str) -> None:
  config = ClassifierConfig(task_name="custom", text_columns="text", labels="no,yes", class_weights=text)
  with pytest.raises(UserError, match=message):
    make_spec(config)


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ({"task_name": "STS-B"}, "a regression has no labels: leave the flag out"),
    ({"task_name": "QNLI", "formulation": "ranking"}, "--formulation=ranking has no classes"),
  ],
)
def test_weights_need_classes(flags: dict[str, str], message: str) -> None:
  with pytest.raises(UserError, match=message):
    make_spec(ClassifierConfig(**flags, class_weights="balanced"))  # type: ignore[arg-type]
  with pytest.raises(UserError, match=r"--label_smoothing=0.1 is for classification with one label in a row"):
    make_spec(ClassifierConfig(**flags, label_smoothing=0.1))  # type: ignore[arg-type]


def test_the_python_api_takes_weights_by_label() -> None:
  data = {"text": ["good", "bad", "fine", "poor"], "label": [1, 0, 1, 0]}
  task = albert.tasks.Classification(train=data, class_weights={1: 2, 0: 0.5}, eval_share=0.5)
  assert task.settings["class_weights"] == '{"1": 2.0, "0": 0.5}'
  with pytest.raises(UserError, match=r"class_weights=.*give each label a number above 0"):
    albert.tasks.Classification(train=data, class_weights={1: "many"}, eval_share=0.5)  # type: ignore[dict-item]


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_training_loss_is_the_mean_weighted_by_class(
  make_task: MakeTask, tmp_path: Path, verbose: None, capsys: pytest.CaptureFixture[str], smoothing: float
) -> None:
  path = tmp_path / "train.tsv"
  path.write_text("text\tlabel\na good one\tyes\na bad one\tno\nso so\tno\nwell\tno\n")
  task = make_task(train_file=str(path), class_weights="balanced", label_smoothing=smoothing)
  for _ in range(2):
    task.check_inputs(train=True, evaluate=False, predict=False)
  dataset = task.training_data()
  assert capsys.readouterr().err.count("class weights: no 0.6667, yes 2\n") == 1
  batch = next(iter(dataset.evaluation_batches(batch_size=6)))  # the last two rows are padding

  def model(inputs: dict[str, tf.Tensor], training: bool, seed: tf.Tensor | None) -> tf.Tensor:
    del training, seed
    return tf.one_hot(inputs["input_ids"][:, 1] % 2, 2) * 3.0

  logits = model(batch, False, None).numpy()[:4].astype(np.float64)
  labels = batch["label_ids"].numpy()[:4]
  log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
  losses = -((1 - smoothing) * np.eye(2)[labels] + smoothing / 2 * np.ones(2)) * log_probabilities
  losses, plain_losses = losses.sum(axis=1), -log_probabilities[np.arange(4), labels]
  weights = np.where(labels == 1, 2, 2 / 3)
  sums = task.forward(model, batch, training=True).sums["loss"]
  assert float(sums.total) == pytest.approx(losses @ weights, rel=1e-5)
  assert float(sums.weight) == pytest.approx(4) == pytest.approx(float(task.loss_weights(batch)["loss"]))
  evaluation = task.forward(model, batch, training=False).sums["loss"]
  assert float(evaluation.total / evaluation.weight) == pytest.approx(plain_losses.mean(), rel=1e-5)
