"""Training in float16: the loss scale, skipped steps, and losses near those of float32."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.errors import RunError, UserError
from albert.estimator import Estimator
from albert.models.layers import ACTIVATIONS
from albert.optimizers import gradients
from albert.optimizers.adamw import AdamW
from albert.optimizers.gradients import LossScale
from albert.optimizers.lamb import LAMB
from albert.runs.logs import read_metrics
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.loop import Trainer
from albert.weights.files import open_weights
from tests.run_outputs import assert_equal_bits, read_checkpoint
from tests.synthetic import TINY_MODEL, write_shards

MODEL = dataclasses.replace(TINY_MODEL, num_hidden_layers=1)


def test_the_scale_is_that_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(gradients, "GROWTH_STEPS", 3)
  optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.0), dynamic_growth_steps=3)
  variable, scale = tf.Variable(1.0), LossScale()
  overflows = [False] * 4 + [True] + [False] * 7 + [True] * 20 + [False] * 3
  hopeless = []
  for is_skipped in overflows:
    optimizer.apply_gradients([(tf.constant(np.inf if is_skipped else 1.0), variable)])
    hopeless.append(bool(scale.update(tf.constant(is_skipped))))
    assert scale.metrics()["loss_scale"] == float(optimizer.loss_scale)
    assert int(scale.state()["loss_scale_good_steps"]) == int(optimizer.dynamic_counter)
  assert scale.metrics()["skipped_steps"] == 21
  # 2^15, doubled after 3 good steps, halved, doubled after 6 more, twice: 2^17 is halved 17 times, then stays 1.
  assert hopeless == [False] * 29 + [True] * 3 + [False] * 3


def test_gradients_are_divided_without_rounding() -> None:
  scale = LossScale()
  values = tf.constant([[1 / 3, 1e-30], [2.5, -7.0]])
  scaled = scale.scale(values)
  np.testing.assert_array_equal(scale.unscale(scaled), values)
  rows = scale.unscale(tf.IndexedSlices(scaled, tf.constant([4, 4]), tf.constant([6, 2])))
  np.testing.assert_array_equal(rows.values, values)
  np.testing.assert_array_equal(rows.indices, [4, 4])


@pytest.mark.parametrize("optimizer_class", [AdamW, LAMB])
def test_an_update_that_is_not_finite_changes_neither_weights_nor_moments(optimizer_class: type[AdamW]) -> None:
  optimizers = [optimizer_class(0.1), optimizer_class(0.1)]
  variables = [tf.Variable([3.0, -2.0]), tf.Variable([3.0, -2.0])]
  optimizers[0].skips_not_finite = True
  for gradient in ([0.5, 0.25], [np.nan, 0.0], [np.inf, 1.0], [0.1, -0.3]):
    optimizers[0].apply_gradients([(tf.constant(gradient), variables[0])])
    if np.isfinite(gradient).all():
      optimizers[1].apply_gradients([(tf.constant(gradient), variables[1])])
  np.testing.assert_array_equal(variables[0], variables[1])
  for name, moment in optimizers[0].slots(variables[0]).items():
    np.testing.assert_array_equal(moment, optimizers[1].slots(variables[1])[name])
  assert int(optimizers[0].iterations) == 4  # a skipped step counts: its batch is not used again


@pytest.mark.parametrize("x", [-60000.0, -300.0, -2.0, 0.5, 300.0, 60000.0])
def test_the_gradient_of_gelu_is_finite_in_float16(x: float) -> None:
  value = tf.constant(x, tf.float16)
  with tf.GradientTape() as tape:
    tape.watch(value)
    result = ACTIVATIONS["gelu"].training(value)
  expected = keras.activations.gelu(tf.constant(x), approximate=True)
  np.testing.assert_allclose(float(result), float(expected), rtol=2e-3, atol=1e-3)
  slope = float(tape.gradient(result, value))
  assert np.isfinite(slope)
  if abs(x) >= 300:
    assert slope == (1.0 if x > 0 else 0.0)


def make_estimator(input_file: str, output_dir: Path, **train_options: object) -> Estimator:
  """A pretraining run of six steps in float16."""
  fields = {"train_batch_size": 8, "num_train_steps": 6, "log_every_steps": 3, "save_checkpoints_steps": 3}
  return Estimator(
    PretrainingTask(MODEL, PretrainingConfig(input_file=input_file)),
    RunConfig(
      output_dir=str(output_dir),
      optimizer=OptimizerConfig(num_warmup_steps=2, learning_rate=0.01),
      train=TrainConfig(**{"precision": "float16", **fields, **train_options}),  # type: ignore[arg-type]
    ),
  )


@pytest.fixture(scope="module")
def input_file(tmp_path_factory: pytest.TempPathFactory) -> str:
  """The pattern of shards with 80 examples."""
  directory = tmp_path_factory.mktemp("shards")
  write_shards(directory, [30, 20, 30])
  return str(directory / "*.tfrecord")


@pytest.mark.thorough
@pytest.mark.usefixtures("eager_steps")
def test_skipped_steps_are_counted_and_a_resumed_run_is_exact(
  input_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(gradients, "INITIAL_SCALE", 2.0**19)  # the first step overflows
  make_estimator(input_file, tmp_path / "whole").train()
  last = read_metrics(str(tmp_path / "whole"))[-1]
  assert 1 <= last["skipped_steps"] <= 4
  assert last["loss_scale"] == 2.0 ** (19 - last["skipped_steps"])
  assert 3 < last["masked_lm_loss"] < 5  # the mean of the steps that were not skipped; ln(61) = 4.1
  replica_step = Trainer.replica_step

  def stop_at_step_4(trainer: Trainer, batch: dict[str, tf.Tensor]) -> None:
    if trainer.step == 4:
      raise RuntimeError("killed")
    replica_step(trainer, batch)

  with monkeypatch.context() as patch:
    patch.setattr(Trainer, "replica_step", stop_at_step_4)
    with pytest.raises(RuntimeError, match="killed"):
      make_estimator(input_file, tmp_path / "resumed").train()
  make_estimator(input_file, tmp_path / "resumed").train()
  final_state = read_checkpoint(tmp_path / "whole", 6)
  assert final_state["loss_scale"] == last["loss_scale"]
  assert_equal_bits(read_checkpoint(tmp_path / "resumed", 6), final_state)
  assert read_metrics(str(tmp_path / "resumed"))[-1]["skipped_steps"] == last["skipped_steps"]
  assert not [name for name in open_weights(str(tmp_path / "whole")).entries if "loss_scale" in name]


@pytest.mark.usefixtures("eager_steps")
def test_an_overflow_at_the_smallest_scale_stops_the_run(
  input_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(gradients, "INITIAL_SCALE", 2.0)
  estimator = make_estimator(input_file, tmp_path)
  weight = estimator.model.named_weights()["bert/embeddings/LayerNorm/beta"]
  weight.assign(tf.fill(weight.shape, 1e30))  # is infinity in float16
  with pytest.raises(RunError, match=r"step 1: the loss or its gradient is not finite.*--precision=float32"):
    estimator.train()


@pytest.mark.slow
def test_losses_are_within_one_percent_of_those_of_float32(input_file: str, tmp_path: Path) -> None:
  losses = {}
  for precision in ("float32", "float16"):
    options = {"num_train_steps": 200, "save_checkpoints_steps": 200, "log_every_steps": 10, "train_batch_size": 16}
    make_estimator(input_file, tmp_path / precision, precision=precision, **options).train()
    losses[precision] = [line["loss"] for line in read_metrics(str(tmp_path / precision))]
  assert len(losses["float16"]) == 20
  assert losses["float32"][-1] < 0.96 * losses["float32"][0]  # the model learns
  np.testing.assert_allclose(losses["float16"], losses["float32"], rtol=0.01)


def test_what_cannot_be_combined_with_float16_is_refused() -> None:
  with pytest.raises(UserError, match="--optimizer=tfa_lamb cannot: give --optimizer=lamb"):
    RunConfig(output_dir="x", optimizer=OptimizerConfig(optimizer="tfa_lamb"), train=TrainConfig(precision="float16"))
