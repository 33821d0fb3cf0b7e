"""The encoder compared with the NumPy float64 reference, for all options of the model config."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from albert.config.model import ModelConfig
from albert.models.encoder import Encoder, EncoderOutput
from tests.golden.make_tiny_albert import random_batch, random_weights
from tests.models.build_models import SMALL_MODEL, build_encoder
from tests.reference.albert import Reference
from tests.thorough import thorough_except

CONFIG = dataclasses.replace(SMALL_MODEL, num_hidden_layers=6)


def encode(config: ModelConfig, weights: dict[str, np.ndarray], features: dict[str, np.ndarray]) -> EncoderOutput:
  model = build_encoder(config, weights)
  return model({name: tf.constant(value) for name, value in features.items()})


def assert_equals_reference(config: ModelConfig) -> None:
  """Compares all outputs of an encoder with random weights with those of the NumPy reference."""
  features = random_batch(config, 5)
  weights = random_weights(config, 4, with_heads=())
  expected, _ = Reference(config, weights).encode(
    features["input_ids"], features["input_mask"], features["segment_ids"]
  )
  output = encode(config, weights, features)
  assert len(output.hidden_states) == config.num_hidden_layers + 1
  np.testing.assert_allclose(output.embedding_output, expected.embedding_output, atol=3e-6)
  for states, expected_states in zip(output.hidden_states, expected.hidden_states, strict=True):
    np.testing.assert_allclose(states, expected_states, atol=1e-5)
  np.testing.assert_allclose(output.pooled_output, expected.pooled_output, atol=1e-5)


@pytest.mark.parametrize(
  ("sharing", "groups"),
  thorough_except(
    [("all", 3), ("none", 1), ("attention", 3)], itertools.product(["all", "attention", "ffn", "none"], [1, 3])
  ),
)
def test_layers_share_weights_by_part_and_by_group(sharing, groups):
  assert_equals_reference(dataclasses.replace(CONFIG, sharing=sharing, num_hidden_groups=groups))


@pytest.mark.parametrize(
  "changes",
  [
    {"num_hidden_groups": 4},  # do not divide the layers
    {"inner_group_num": 2, "num_hidden_groups": 2, "num_hidden_layers": 4},
    {"embedding_size": 20},  # the hidden size, so that there is no projection
  ],
)
def test_other_sizes_equal_the_reference(changes):
  assert_equals_reference(dataclasses.replace(CONFIG, **changes))


def test_padding_does_not_change_the_outputs_of_other_tokens():
  features = random_batch(CONFIG, 5)
  weights = random_weights(CONFIG, 4, with_heads=())
  padded = encode(CONFIG, weights, features)
  for row, length in enumerate(features["input_mask"].sum(axis=1)):
    unpadded_features = {
      name: features[name][row : row + 1, :length] for name in ("input_ids", "input_mask", "segment_ids")
    }
    unpadded = encode(CONFIG, weights, unpadded_features)
    np.testing.assert_allclose(padded.sequence_output[row, :length], unpadded.sequence_output[0], atol=3e-6)
    np.testing.assert_allclose(padded.pooled_output[row], unpadded.pooled_output[0], atol=3e-6)


@pytest.mark.parametrize("changes", [{}, {"num_hidden_layers": 1}, {"inner_group_num": 2, "num_hidden_layers": 2}])
@pytest.mark.parametrize("selected", [[[1, 4, 4], [0, 2, 9], [3, 0, 0]], [[], [], []]])
def test_the_last_layer_may_be_computed_for_selected_positions_only(changes, selected):
  config = dataclasses.replace(CONFIG, **changes)
  model = build_encoder(config, random_weights(config, 4, with_heads=()))
  features = random_batch(config, 5)
  inputs = {name: tf.constant(value) for name, value in features.items()}
  full_output = model(inputs)
  positions = np.array(selected, np.int32)  # of the three examples
  output = model(inputs, positions=tf.constant(positions))
  expected = full_output.sequence_output.numpy()[np.arange(3)[:, None], positions.astype(int)]
  assert output.sequence_output.shape == (3, positions.shape[1], config.hidden_size)
  np.testing.assert_allclose(output.sequence_output, expected, atol=1e-6)
  np.testing.assert_allclose(output.pooled_output, full_output.pooled_output, atol=1e-6)
  assert len(output.hidden_states) == len(full_output.hidden_states)
  for states, expected_states in zip(output.hidden_states[:-1], full_output.hidden_states[:-1], strict=True):
    np.testing.assert_array_equal(states, expected_states)


class TracedGradients(NamedTuple):
  """The gradients of an arbitrary loss in a tf.function.

  Attributes:
    compute: a function of the seed of dropout, which returns the gradient of each weight.
    num_products: the number of matrix products in the graph.
  """

  compute: Callable[[list[int]], dict[str, np.ndarray]]
  num_products: int


def trace_gradients(model: Encoder, features: dict[str, np.ndarray]) -> TracedGradients:
  weights = model.named_weights()
  inputs = {name: tf.constant(value) for name, value in features.items()}

  @tf.function(autograph=False, input_signature=[tf.TensorSpec([2], tf.int64)])
  def step(seed: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
      output = model(inputs, training=True, seed=seed)
      loss = tf.reduce_sum(tf.cast(output.sequence_output, tf.float32) ** 3) + tf.reduce_sum(output.pooled_output)
    return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, list(weights.values()))]

  def compute(seed: list[int]) -> dict[str, np.ndarray]:
    gradients = step(tf.constant(seed, tf.int64))
    return {name: gradient.numpy() for name, gradient in zip(weights, gradients, strict=True)}

  operations = step.get_concrete_function().graph.get_operations()
  products = [operation for operation in operations if operation.type in ("MatMul", "BatchMatMulV2")]
  return TracedGradients(compute, len(products))


@pytest.mark.thorough
@pytest.mark.parametrize(
  "sharing", ["all", *(pytest.param(name, marks=pytest.mark.slow) for name in ("attention", "none"))]
)
def test_gradient_checkpointing_gives_the_same_gradients_with_dropout(sharing):
  dropout: dict[str, Any] = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
  config = dataclasses.replace(CONFIG, sharing=sharing, num_hidden_layers=3, **dropout)
  model = build_encoder(config, random_weights(config, 4, with_heads=()))
  features = random_batch(config, 5)
  plain = trace_gradients(model, features)
  gradients = plain.compute([3, 4])
  model.recompute_grad = True
  checkpointed = trace_gradients(model, features)
  gradients_of_checkpointing = checkpointed.compute([3, 4])
  # An absolute tolerance, because the gradient of key/bias is 0 except for rounding.
  scale = max(np.abs(gradient).max() for gradient in gradients.values())
  for name, gradient in gradients.items():
    np.testing.assert_allclose(gradients_of_checkpointing[name], gradient, rtol=1e-4, atol=1e-6 * scale, err_msg=name)
  # A forward pass of a block has 8 products: Q, K, V, scores, context, output, and two of the feed-forward network.
  assert checkpointed.num_products - plain.num_products == 8 * config.num_hidden_layers
  gradients_of_other_seed = checkpointed.compute([3, 5])
  assert any(np.abs(gradients_of_other_seed[name] - gradient).max() > 1e-3 for name, gradient in gradients.items())


def count_sums_of_three(model: Encoder, features: dict[str, np.ndarray]) -> int:
  """Counts the sums of three tensors in TensorFlow's optimized graph of the gradients."""
  context.enable_run_metadata()
  trace_gradients(model, features).compute([3, 4])
  (graph,) = context.export_run_metadata().partition_graphs
  context.disable_run_metadata()
  nodes = list(graph.node)
  for function in graph.library.function:
    nodes.extend(function.node_def)
  return len([node for node in nodes if "AddN" in node.op and len(node.input) == 3])


@pytest.mark.thorough
def test_gradient_checkpointing_adds_the_gradients_of_shared_weights_one_after_the_other():
  config = dataclasses.replace(CONFIG, num_hidden_layers=3)
  model = build_encoder(config, random_weights(config, 4, with_heads=()))
  features = random_batch(config, 5)
  # Without gradient checkpointing, the gradients from all three layers are stored until their sum is computed.
  assert count_sums_of_three(model, features) == 16  # one sum for each of the 16 weights of a layer
  model.recompute_grad = True
  assert count_sums_of_three(model, features) == 0
