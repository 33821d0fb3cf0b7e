"""bfloat16: what stays float32, and how far 50 steps of training lead from those in float32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
import tensorflow as tf
import tf_keras as keras

from albert.config import OptimizerConfig, PretrainingConfig
from albert.optimizers.factory import make_optimizer
from albert.tasks.pretraining import PretrainingTask
from albert.training.strategy import set_precision
from tests.models.built import pretraining_model
from tests.parity.bfloat16 import CONFIG, PEAKS, features, rows
from tests.parity.rows import assert_ok

SEED = tf.constant([1, 2])


@pytest.fixture
def bfloat16() -> Iterator[None]:
  set_precision("bfloat16")
  yield
  keras.mixed_precision.set_global_policy("float32")


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
  for kind in ("Softmax", loss, "Rsqrt", "Mean"):
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


@pytest.mark.parametrize("optimizer_name", PEAKS)
def test_fifty_steps_stay_near_those_of_float32(optimizer_name):
  assert_ok(rows(optimizer_name))
