"""bfloat16: what stays float32, and how far 50 steps of training lead from those in float32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.config import ModelConfig, OptimizerConfig, PretrainingConfig
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.optimizers.clipping import clip_by_global_norm, densify
from albert.optimizers.factory import make_optimizer
from albert.optimizers.schedules import WarmupPolynomialDecay
from albert.tasks.pretraining import PretrainingTask
from albert.training.strategy import set_precision
from tests.golden.make_tiny_albert import batch, random_weights
from tests.models.built import pretraining_model

CONFIG = ModelConfig(
  vocab_size=41,
  embedding_size=8,
  hidden_size=24,
  num_hidden_layers=3,
  num_attention_heads=3,
  intermediate_size=40,
  max_position_embeddings=14,
  hidden_dropout_prob=0.1,
  attention_probs_dropout_prob=0.1,
)
SEED = tf.constant([1, 2])


@pytest.fixture
def bfloat16() -> Iterator[None]:
  set_precision("bfloat16")
  yield
  keras.mixed_precision.set_global_policy("float32")


def features(seed: int) -> dict[str, tf.Tensor]:
  return {n: tf.constant(v) for n, v in batch(CONFIG, seed).items()} | {EXAMPLE_WEIGHT: tf.ones([3])}


def dtypes_by_operation() -> dict[str, set[str]]:
  """Kind of operation -> the types it computes in, over the graph of losses and gradients."""
  model, task = pretraining_model(CONFIG), PretrainingTask(CONFIG, PretrainingConfig())
  variables = list(model.named_weights().values())

  @tf.function
  def step(inputs: dict[str, tf.Tensor]):
    with tf.GradientTape() as tape:
      sums = task.forward(model, inputs, SEED).sums
      loss = tf.add_n([value.total / value.weight for value in sums.values()])
    return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]

  found: dict[str, set[str]] = defaultdict(set)
  graph = step.get_concrete_function(features(0)).graph
  for operation in graph.get_operations():
    for tensor in operation.outputs:
      found[operation.type].add(tensor.dtype.name)
  assert {tensor.dtype.name for tensor in tf.nest.flatten(graph.structured_outputs)} == {"float32"}
  return found


def test_softmax_statistics_and_losses_are_float32(bfloat16):
  found = dtypes_by_operation()
  # With deterministic operations, which the Estimator asks for, TensorFlow composes the loss of a LogSoftmax.
  loss = "LogSoftmax" if found["LogSoftmax"] else "SparseSoftmaxCrossEntropyWithLogits"
  for kind in ("Softmax", loss, "Rsqrt", "RsqrtGrad", "Mean", "Square"):
    assert found[kind] == {"float32"}, kind
  assert found["ResourceGather"] == {"float32"}  # embeddings are summed before they are rounded
  products = {kind: found[kind] for kind in ("MatMul", "BatchMatMulV2", "Einsum") if found[kind]}
  assert products
  assert all("bfloat16" in types for types in products.values())


def test_float32_has_no_bfloat16_anywhere():
  assert all("bfloat16" not in types for types in dtypes_by_operation().values())


def test_variables_and_slots_are_float32(bfloat16):
  variables = pretraining_model(CONFIG).named_weights()
  optimizer = make_optimizer(OptimizerConfig(optimizer="lamb"), 0.1)
  optimizer.build(list(variables.values()))
  for variable in variables.values():
    assert variable.dtype == tf.float32
    assert {slot.dtype for slot in optimizer.slots(variable).values()} == {tf.float32}


def losses_of_training(steps: int, optimizer_name: str, peak: float) -> np.ndarray:
  """Loss before each step, on a batch of its own each."""
  model = pretraining_model(CONFIG, random_weights(CONFIG, 3))
  task = PretrainingTask(CONFIG, PretrainingConfig())
  variables = list(model.named_weights().values())
  optimizer = make_optimizer(OptimizerConfig(optimizer=optimizer_name), WarmupPolynomialDecay(peak, 10, 2 * steps))
  optimizer.build(variables)

  @tf.function
  def step(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    with tf.GradientTape() as tape:
      sums = task.forward(model, inputs, None).sums
      loss = tf.add_n([sums[name].total / weight for name, weight in task.loss_weights(inputs).items()])
    gradients, _ = clip_by_global_norm(densify(tape.gradient(loss, variables)), 1.0)
    optimizer.apply_gradients(zip(gradients, variables, strict=True), experimental_aggregate_gradients=False)
    return loss

  return np.array([float(step(features(index % 5))) for index in range(steps)])


@pytest.mark.parametrize(("optimizer_name", "peak"), [("lamb", 5e-3), ("adamw", 1e-3)])
def test_fifty_steps_stay_near_those_of_float32(optimizer_name, peak):
  truth = losses_of_training(50, optimizer_name, peak)
  set_precision("bfloat16")
  try:
    found = losses_of_training(50, optimizer_name, peak)
  finally:
    keras.mixed_precision.set_global_policy("float32")
  learned = truth[:5].mean() - truth[-5:].mean()
  assert learned > 0.5
  difference = np.abs(found - truth)
  assert 0 < difference[0] < 0.01  # one forward pass: bfloat16 keeps 8 bits
  assert difference.max() < 0.05 * learned
