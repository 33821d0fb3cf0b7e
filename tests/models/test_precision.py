"""bfloat16: what stays float32, and how far 50 steps of training lead from those in float32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from albert.config.run import OptimizerConfig, PretrainingConfig
from albert.models.classifier import ClassifierModel
from albert.models.heads import LinearHead
from albert.models.multiple_choice import MultipleChoiceModel
from albert.models.squad_heads import SquadV1Model
from albert.optimizers.factory import make_optimizer
from albert.tasks.pretraining import PretrainingTask
from albert.training.global_state import dtype_policy
from tests.models.built import pretraining_model
from tests.parity.bfloat16 import CONFIG, make_batch, rows
from tests.parity.rows import assert_ok

SEED = tf.constant([1, 2])


@pytest.fixture
def bfloat16() -> Iterator[None]:
  with dtype_policy("bfloat16"):
    yield


def dtypes_by_operation() -> dict[str, set[str]]:
  """Kind of operation -> the types it computes in, over the graph of losses and gradients."""
  model, task = pretraining_model(CONFIG), PretrainingTask(CONFIG, PretrainingConfig())
  variables = list(model.named_weights().values())

  @tf.function(autograph=False)
  def step(inputs: dict[str, tf.Tensor]):
    with tf.GradientTape() as tape:
      sums = task.forward(model, inputs, training=True, seed=SEED).sums
      loss = tf.add_n([value.total / value.weight for value in sums.values()])
    return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]

  dtypes: dict[str, set[str]] = defaultdict(set)
  graph = step.get_concrete_function(make_batch(0)).graph
  for operation in graph.get_operations():
    for tensor in operation.outputs:
      dtypes[operation.type].add(tensor.dtype.name)
  assert {tensor.dtype.name for tensor in tf.nest.flatten(graph.structured_outputs)} == {"float32"}
  return dtypes


def test_softmax_statistics_and_losses_are_float32(bfloat16):
  dtypes = dtypes_by_operation()
  # With deterministic operations, which the Estimator asks for, TensorFlow composes the loss of a LogSoftmax.
  loss = "LogSoftmax" if dtypes["LogSoftmax"] else "SparseSoftmaxCrossEntropyWithLogits"
  for kind in ("Softmax", loss, "Rsqrt", "Mean"):
    assert dtypes[kind] == {"float32"}, kind
  assert dtypes["ResourceGather"] == {"float32"}  # embeddings are summed before they are rounded
  products = {kind: dtypes[kind] for kind in ("MatMul", "BatchMatMulV2", "Einsum") if dtypes[kind]}
  assert products
  assert all("bfloat16" in types for types in products.values())


@pytest.mark.thorough
def test_float32_has_no_bfloat16_anywhere():
  assert all("bfloat16" not in types for types in dtypes_by_operation().values())


def test_variables_and_slots_are_float32(bfloat16):
  variables = pretraining_model(CONFIG).named_weights()
  optimizer = make_optimizer(OptimizerConfig(optimizer="lamb"), 0.1)
  optimizer.build(list(variables.values()))
  for variable in variables.values():
    assert variable.dtype == tf.float32
    assert {slot.dtype for slot in optimizer.slots(variable).values()} == {tf.float32}


def assert_product(logits: tf.Tensor, hidden: tf.Tensor, matrix: tf.Variable, bias: tf.Variable) -> None:
  """The logits are the product in float64 but for float32's rounding; bfloat16's is a thousandth of the largest."""
  assert (hidden.dtype, logits.dtype) == (tf.bfloat16, tf.float32)
  states, weights = (tf.cast(value, tf.float32).numpy().astype(np.float64) for value in (hidden, matrix))
  products = states @ weights.T + bias.numpy()
  np.testing.assert_allclose(logits, products, rtol=1e-6, atol=1e-6 * np.abs(products).max())


def test_logits_of_pretraining_are_multiplied_in_float32(bfloat16):
  model, inputs = pretraining_model(CONFIG), make_batch(0)
  output, head = model(inputs), model.masked_lm
  encoded = model.encoder(inputs, positions=inputs["masked_lm_positions"])
  hidden = head.layer_norm(head.activation(head.transform(encoded.sequence_output)))
  assert_product(output.masked_lm_logits, hidden, model.encoder.embeddings.word_embeddings, head.output_bias)
  head = model.sentence
  assert_product(output.sentence_logits, encoded.pooled_output, head.output_weights, head.output_bias)


def squad_v1(inputs: dict[str, tf.Tensor]) -> tuple[SquadV1Model, tf.Tensor, str]:
  model = SquadV1Model(CONFIG)
  every = tf.ones_like(inputs["input_mask"])
  spans = model(inputs | {"input_mask": every, "p_mask": 1 - every})
  return model, tf.stack(spans, axis=-1), "sequence_output"


def classifier(inputs: dict[str, tf.Tensor]) -> tuple[ClassifierModel, tf.Tensor, str]:
  model = ClassifierModel(CONFIG, 3)
  return model, model(inputs), "pooled_output"


def multiple_choice(inputs: dict[str, tf.Tensor]) -> tuple[MultipleChoiceModel, tf.Tensor, str]:
  model = MultipleChoiceModel(CONFIG)
  options = {name: value[tf.newaxis] for name, value in inputs.items()}
  logits = model(options | {"option_mask": tf.ones(options["input_ids"].shape[:2])})
  return model, logits[0, :, tf.newaxis], "pooled_output"


@pytest.mark.parametrize("run", [squad_v1, classifier, multiple_choice])
def test_logits_of_tasks_are_multiplied_in_float32(bfloat16, run):
  inputs = {name: value for name, value in make_batch(0).items() if name in ("input_ids", "segment_ids")}
  inputs["input_mask"] = tf.ones_like(inputs["input_ids"])
  model, logits, states = run(inputs)
  hidden = getattr(model.encoder(inputs), states)
  assert_product(logits, hidden, model.head.output_weights, model.head.output_bias)


def test_no_two_of_many_tokens_tie_in_bfloat16(bfloat16):
  head = LinearHead(2, 0.02, name="squad")
  states = np.random.default_rng(0).standard_normal((16, 384, 64))
  starts = head(tf.constant(states, tf.bfloat16)).numpy()[..., 0]
  assert [len(np.unique(row)) for row in starts] == [384] * 16


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer_name", ["lamb", "adamw"])
def test_fifty_steps_stay_near_those_of_float32(optimizer_name):
  assert_ok(rows(optimizer_name))
