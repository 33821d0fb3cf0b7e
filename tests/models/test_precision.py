"""Precision bfloat16: which operations and variables stay float32, and how near 50 training steps stay to float32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from albert.config.run import OptimizerConfig
from albert.models.classifier import ClassifierModel
from albert.models.heads import EncoderModel
from albert.models.multiple_choice import MultipleChoiceModel
from albert.models.squad_heads import SquadV1Model
from albert.optimizers.factory import make_optimizer
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.model_weights import dtype_policy
from tests.models.build_models import build_pretraining_model
from tests.parity.bfloat16 import CONFIG, make_batch, precision_rows
from tests.parity.rows import assert_ok

SEED = tf.constant([1, 2])


@pytest.fixture
def bfloat16() -> Iterator[None]:
  """Models that the test builds compute in bfloat16."""
  with dtype_policy("bfloat16"):
    yield


def dtypes_by_operation() -> dict[str, set[str]]:
  """Returns type of operation -> the types of its results, in the graph of the pretraining losses and gradients."""
  model, task = build_pretraining_model(CONFIG), PretrainingTask(CONFIG, PretrainingConfig())
  variables = list(model.named_weights().values())

  @tf.function(autograph=False)
  def step(inputs: dict[str, tf.Tensor]):
    with tf.GradientTape() as tape:
      sums = task.forward(model, inputs, training=True, seed=SEED).sums
      loss = tf.add_n([weighted_sum.total / weighted_sum.weight for weighted_sum in sums.values()])
    return loss, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]

  dtypes: dict[str, set[str]] = defaultdict(set)
  graph = step.get_concrete_function(make_batch(0)).graph
  for operation in graph.get_operations():
    for tensor in operation.outputs:
      dtypes[operation.type].add(tensor.dtype.name)
  assert {tensor.dtype.name for tensor in tf.nest.flatten(graph.structured_outputs)} == {"float32"}
  return dtypes


def test_softmax_statistics_and_losses_are_float32(bfloat16):
  dtypes = dtypes_by_operation()
  # With deterministic operations, which the Estimator switches on, TensorFlow computes the loss with a LogSoftmax.
  loss = "LogSoftmax" if dtypes["LogSoftmax"] else "SparseSoftmaxCrossEntropyWithLogits"
  for operation_type in ("Softmax", loss, "Rsqrt", "Mean"):
    assert dtypes[operation_type] == {"float32"}, operation_type
  assert dtypes["ResourceGather"] == {"float32"}  # embeddings are summed before they are rounded
  dtypes_of_products = [dtypes[product] for product in ("MatMul", "BatchMatMulV2", "Einsum") if dtypes[product]]
  assert dtypes_of_products
  assert all("bfloat16" in product_dtypes for product_dtypes in dtypes_of_products)


@pytest.mark.thorough
def test_float32_has_no_bfloat16_anywhere():
  assert all("bfloat16" not in dtypes for dtypes in dtypes_by_operation().values())


def test_variables_and_slots_are_float32(bfloat16):
  variables = build_pretraining_model(CONFIG).named_weights()
  optimizer = make_optimizer(OptimizerConfig(optimizer="lamb"), 0.1)
  optimizer.build(list(variables.values()))
  for variable in variables.values():
    assert variable.dtype == tf.float32
    assert {slot.dtype for slot in optimizer.slots(variable).values()} == {tf.float32}


def to_float64(tensor: tf.Tensor | tf.Variable) -> np.ndarray:
  return tf.cast(tensor, tf.float32).numpy().astype(np.float64)


def assert_computed_in_float32(logits: tf.Tensor, hidden: tf.Tensor, matrix: tf.Variable, bias: tf.Variable) -> None:
  """Checks that the logits equal hidden x matrix^T + bias within the rounding of float32.

  The tolerance is a millionth of the sum of absolute products, which bounds what the order of a sum changes. The
  rounding of bfloat16 would be a thousandth.
  """
  assert (hidden.dtype, logits.dtype) == (tf.bfloat16, tf.float32)
  expected = to_float64(hidden) @ to_float64(matrix).T + to_float64(bias)
  magnitude = np.abs(to_float64(hidden)) @ np.abs(to_float64(matrix)).T + np.abs(to_float64(bias))
  np.testing.assert_array_less(np.abs(logits - expected), 1e-6 * magnitude)


def test_logits_of_pretraining_are_multiplied_in_float32(bfloat16):
  model, inputs = build_pretraining_model(CONFIG), make_batch(0)
  output = model(inputs)
  encoded = model.encoder(inputs, positions=inputs["masked_lm_positions"])
  head = model.masked_lm
  hidden = head.layer_norm(head.activation(head.transform(encoded.sequence_output)))
  embeddings = model.encoder.embeddings.word_embeddings
  assert_computed_in_float32(output.masked_lm_logits, hidden, embeddings, head.output_bias)
  head = model.sentence
  assert_computed_in_float32(output.sentence_logits, encoded.pooled_output, head.output_weights, head.output_bias)


class TaskLogits(NamedTuple):
  """A model with one linear head, its logits, and the name of the encoder's output that the head multiplies."""

  model: EncoderModel
  logits: tf.Tensor
  head_input: str


def squad_v1(inputs: dict[str, tf.Tensor]) -> TaskLogits:
  model = SquadV1Model(CONFIG)
  start_and_end = model(inputs | {"p_mask": tf.zeros_like(inputs["input_ids"])})
  return TaskLogits(model, tf.stack(start_and_end, axis=-1), "sequence_output")


def classifier(inputs: dict[str, tf.Tensor]) -> TaskLogits:
  model = ClassifierModel(CONFIG, 3)
  return TaskLogits(model, model(inputs), "pooled_output")


def multiple_choice(inputs: dict[str, tf.Tensor]) -> TaskLogits:
  model = MultipleChoiceModel(CONFIG)
  options = {name: tensor[tf.newaxis] for name, tensor in inputs.items()}  # one question
  logits = model(options | {"option_mask": tf.ones(options["input_ids"].shape[:2])})
  return TaskLogits(model, logits[0, :, tf.newaxis], "pooled_output")


@pytest.mark.parametrize("run_model", [squad_v1, classifier, multiple_choice])
def test_logits_of_tasks_are_multiplied_in_float32(bfloat16, run_model):
  batch = make_batch(0)
  inputs = {name: batch[name] for name in ("input_ids", "segment_ids")}
  inputs["input_mask"] = tf.ones_like(inputs["input_ids"])
  model, logits, head_input = run_model(inputs)
  hidden = getattr(model.encoder(inputs), head_input)
  assert_computed_in_float32(logits, hidden, model.head.output_weights, model.head.output_bias)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer_name", ["lamb", "adamw"])
def test_fifty_steps_stay_near_those_of_float32(optimizer_name):
  assert_ok(precision_rows(optimizer_name))
