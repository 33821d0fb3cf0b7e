"""The encoder compared with the NumPy float64 reference, for all options of the model config."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from albert.config.model import ModelConfig
from albert.models.encoder import Encoder
from tests.golden.make_tiny_albert import batch, random_weights
from tests.models.built import encoder
from tests.reference.albert import ACTIVATIONS, Reference
from tests.thorough import thorough_except

CONFIG = ModelConfig(
  vocab_size=41,
  embedding_size=6,
  hidden_size=20,
  num_hidden_layers=6,
  num_attention_heads=5,
  intermediate_size=28,
  max_position_embeddings=14,
)
ADMITTED = {field.name: field.metadata["choices"] for field in dataclasses.fields(ModelConfig)}["hidden_act"]


def outputs(config: ModelConfig, weights: dict[str, np.ndarray], features: dict[str, np.ndarray]) -> Any:
  model = encoder(config, weights)
  return model({name: tf.constant(value) for name, value in features.items()})


def check(config: ModelConfig, features: dict[str, np.ndarray] | None = None) -> None:
  features = features or batch(config, 5)
  weights = random_weights(config, 4, with_heads=())
  expected, _ = Reference(config, weights).encode(
    features["input_ids"], features["input_mask"], features["segment_ids"]
  )
  output = outputs(config, weights, features)
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
def test_sharing_and_groups(sharing, groups):
  check(dataclasses.replace(CONFIG, sharing=sharing, num_hidden_groups=groups))


def test_groups_that_do_not_divide_the_layers():
  check(dataclasses.replace(CONFIG, num_hidden_groups=4))


def test_inner_groups():
  check(dataclasses.replace(CONFIG, inner_group_num=2, num_hidden_groups=2, num_hidden_layers=4))


def test_as_many_embeddings_as_hidden():
  config = dataclasses.replace(CONFIG, embedding_size=20)
  assert not any("hidden_mapping" in name for name in encoder(config).named_weights())
  check(config)


@pytest.mark.parametrize("activation", ADMITTED)
def test_activations(activation):
  check(dataclasses.replace(CONFIG, hidden_act=activation))


def test_gelu_is_the_tanh_approximation():
  x = np.linspace(-6, 6, 401)
  assert np.abs(ACTIVATIONS["gelu"](x)[0] - ACTIVATIONS["gelu_erf"](x)[0]).max() > 4e-4  # tests can tell them apart


def test_padding_changes_nothing_before_it():
  config, features = CONFIG, batch(CONFIG, 5)
  weights = random_weights(config, 4, with_heads=())
  padded = outputs(config, weights, features)
  for row, length in enumerate(features["input_mask"].sum(axis=1)):
    cut = {name: value[row : row + 1, :length] for name, value in features.items() if name.startswith(("in", "seg"))}
    alone = outputs(config, weights, cut)
    np.testing.assert_allclose(padded.sequence_output[row, :length], alone.sequence_output[0], atol=3e-6)
    np.testing.assert_allclose(padded.pooled_output[row], alone.pooled_output[0], atol=3e-6)


def test_layers_use_the_weights_of_their_group():
  config = dataclasses.replace(CONFIG, num_hidden_groups=3)
  weights = random_weights(config, 4, with_heads=())
  features = batch(config, 5)
  before = outputs(config, weights, features).hidden_states
  changed = dict(weights)
  name = "bert/encoder/transformer/group_1/inner_group_0/ffn_1/intermediate/dense/bias"
  changed[name] = weights[name] + 1
  after = outputs(config, changed, features).hidden_states
  same = [bool(np.array_equal(a, b)) for a, b in zip(before, after, strict=True)]
  assert same == [True, True, True, False, False, False, False]  # layers 3 and 4 of 6 are group 1


@pytest.mark.parametrize("changes", [{}, {"num_hidden_layers": 1}, {"inner_group_num": 2, "num_hidden_layers": 2}])
@pytest.mark.parametrize("selected", [[[1, 4, 4], [0, 2, 9], [3, 0, 0]], [[], [], []]])
def test_last_layer_is_computed_for_selected_positions_only(changes, selected):
  config = dataclasses.replace(CONFIG, **changes)
  model = encoder(config, random_weights(config, 4, with_heads=()))
  features = batch(config, 5)
  inputs = {name: tf.constant(value) for name, value in features.items()}
  full = model(inputs)
  positions = np.array(selected, np.int32)
  some = model(inputs, positions=tf.constant(positions))
  expected = full.sequence_output.numpy()[np.arange(3)[:, None], positions.astype(int)]
  assert some.sequence_output.shape == (3, positions.shape[1], config.hidden_size)
  np.testing.assert_allclose(some.sequence_output, expected, atol=1e-6)
  np.testing.assert_allclose(some.pooled_output, full.pooled_output, atol=1e-6)
  assert len(some.hidden_states) == len(full.hidden_states)
  for one, other in zip(some.hidden_states[:-1], full.hidden_states[:-1], strict=True):
    np.testing.assert_array_equal(one, other)


Gradients = Callable[[list[int]], dict[str, np.ndarray]]


def gradient_function(model: Encoder, features: dict[str, np.ndarray]) -> tuple[Gradients, int]:
  """Traces the gradients of an arbitrary loss.

  Returns:
    A function of a seed that returns weight name -> gradient, and the number of matrix products in the graph.
  """
  weights = model.named_weights()
  inputs = {name: tf.constant(value) for name, value in features.items()}

  @tf.function(autograph=False, input_signature=[tf.TensorSpec([2], tf.int64)])
  def step(seed: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
      output = model(inputs, training=True, seed=seed)
      loss = tf.reduce_sum(tf.cast(output.sequence_output, tf.float32) ** 3) + tf.reduce_sum(output.pooled_output)
    return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, list(weights.values()))]

  def gradients(seed: list[int]) -> dict[str, np.ndarray]:
    values = step(tf.constant(seed, tf.int64))
    return dict(zip(weights, (gradient.numpy() for gradient in values), strict=True))

  products = sum(op.type in ("MatMul", "BatchMatMulV2") for op in step.get_concrete_function().graph.get_operations())
  return gradients, products


@pytest.mark.thorough
@pytest.mark.parametrize(
  "sharing", ["all", *(pytest.param(name, marks=pytest.mark.slow) for name in ("attention", "none"))]
)
def test_recomputed_gradients_are_the_same_with_dropout(sharing):
  dropout = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
  config = dataclasses.replace(CONFIG, sharing=sharing, num_hidden_layers=3, **dropout)
  model = encoder(config, random_weights(config, 4, with_heads=()))
  features = batch(config, 5)
  compute_kept, products = gradient_function(model, features)
  kept = compute_kept([3, 4])
  model.recompute_grad = True
  compute_again, more_products = gradient_function(model, features)
  recomputed = compute_again([3, 4])
  scale = max(np.abs(gradient).max() for gradient in kept.values())  # the gradient of key/bias is 0 except for rounding
  for name, gradient in kept.items():
    np.testing.assert_allclose(recomputed[name], gradient, rtol=1e-4, atol=1e-6 * scale, err_msg=name)
  # Forward there are 8 in each block: Q, K, V, scores, context, output, and two of the feed-forward network.
  assert more_products - products == 8 * config.num_hidden_layers
  other_dropout = compute_again([3, 5])
  assert any(np.abs(other_dropout[name] - kept[name]).max() > 1e-3 for name in kept)


def count_sums(number: int, model: Encoder, features: dict[str, np.ndarray]) -> int:
  """Counts the sums of `number` tensors in TensorFlow's optimized graph of the gradients."""
  context.enable_run_metadata()
  gradient_function(model, features)[0]([3, 4])
  (graph,) = context.export_run_metadata().partition_graphs
  context.disable_run_metadata()
  nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
  return sum("AddN" in node.op and len(node.input) == number for node in nodes)


@pytest.mark.thorough
def test_gradients_of_shared_weights_are_added_one_after_the_other():
  config = dataclasses.replace(CONFIG, num_hidden_layers=3)
  model = encoder(config, random_weights(config, 4, with_heads=()))
  features = batch(config, 5)
  assert count_sums(3, model, features) == 16  # the weights of a layer
  model.recompute_grad = True
  assert count_sums(3, model, features) == 0
