"""The heads of SQuAD: logits compared with NumPy in float64, beams with a search over all spans, names and shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.models.squad_heads import SquadV1Model, SquadV2Head, SquadV2Model
from albert.training.model_weights import dtype_policy
from tests.models.build_models import SMALL_MODEL

CONFIG = dataclasses.replace(SMALL_MODEL, num_hidden_layers=2)
# B windows, S tokens, H hidden size.
B, S, H = 3, 11, 20
# These weights add the same number to all scores of a softmax, which does not change it. So their gradient is 0.
WITHOUT_GRADIENT = ("key/bias", "start_logits/dense/bias", "end_logits/LayerNorm/beta", "end_logits/dense_1/bias")
SEED = tf.constant([3, 4])


def make_batch(seed: int = 0) -> dict[str, np.ndarray]:
  """Makes windows of 11, 9 and 6 tokens: [CLS], three tokens of the question with its [SEP], the paragraph, [SEP]."""
  rng = np.random.default_rng(seed)
  lengths = np.array([11, 9, 6])
  mask = (np.arange(S) < lengths[:, None]).astype(np.int32)
  p_mask = np.zeros((B, S), np.int32)
  p_mask[:, 1:4] = 1
  p_mask[np.arange(B), lengths - 1] = 1
  segments = (np.arange(S) >= 4) * mask
  ids = rng.integers(5, 37, (B, S)) * mask
  return {"input_ids": ids, "input_mask": mask, "segment_ids": segments, "p_mask": p_mask * mask}


def to_tensors(features: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
  return {name: tf.constant(array, tf.int32) for name, array in features.items()}


def find_allowed_tokens(features: dict[str, np.ndarray]) -> np.ndarray:
  """Returns bool [B, S]: whether an answer may start or end at the token, which is [CLS] or in the paragraph."""
  return (features["p_mask"] == 0) & (features["input_mask"] == 1)


def randomize(weights: dict[str, tf.Variable], seed: int = 1) -> dict[str, np.ndarray]:
  """Assigns random numbers to all variables. Returns copies in float64."""
  rng = np.random.default_rng(seed)
  for variable in weights.values():
    variable.assign(rng.normal(0, 0.4, variable.shape))
  return {name: variable.numpy().astype(np.float64) for name, variable in weights.items()}


@pytest.fixture
def bfloat16() -> Iterator[None]:
  with dtype_policy("bfloat16"):
    yield


def log_softmax(logits: np.ndarray) -> np.ndarray:
  shifted = logits - logits.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class ReferenceV2:
  """The v2 head in NumPy. It concatenates the two inputs of a dense layer, which the model avoids."""

  def __init__(self, weights: dict[str, np.ndarray], states: np.ndarray, is_allowed: np.ndarray):
    self.weights, self.states, self.is_allowed = weights, states, is_allowed
    self.start_logits = self._mask(self._dense("start_logits/dense", states)[..., 0])

  def _dense(self, name: str, x: np.ndarray) -> np.ndarray:
    return x @ self.weights[f"{name}/kernel"] + self.weights.get(f"{name}/bias", 0.0)

  def _mask(self, logits: np.ndarray) -> np.ndarray:
    """Replaces the logits of tokens that must not be in an answer by -inf."""
    return np.where(self.is_allowed, logits, -np.inf)

  def end_logits(self, starts: np.ndarray) -> np.ndarray:
    """Returns the logits of the ends, [B, S], given the starts, int [B]."""
    start_states = np.broadcast_to(self.states[np.arange(B), starts][:, None], self.states.shape)
    hidden = np.tanh(self._dense("end_logits/dense_0", np.concatenate([self.states, start_states], axis=-1)))
    hidden = (hidden - hidden.mean(-1, keepdims=True)) / np.sqrt(hidden.var(-1, keepdims=True) + 1e-12)
    hidden = hidden * self.weights["end_logits/LayerNorm/gamma"] + self.weights["end_logits/LayerNorm/beta"]
    return self._mask(self._dense("end_logits/dense_1", hidden)[..., 0])

  def null_logits(self) -> np.ndarray:
    """Returns the logits of "no answer", [B]."""
    start_probabilities = np.exp(log_softmax(self.start_logits))
    mean_state_of_start = np.einsum("bs,bsh->bh", start_probabilities, self.states)
    class_states = np.concatenate([mean_state_of_start, self.states[:, 0]], axis=-1)
    hidden = np.tanh(self._dense("answer_class/dense_0", class_states))
    return self._dense("answer_class/dense_1", hidden)[:, 0]


class HeadTest(NamedTuple):
  """A v2 head with random weights, its inputs, and the same head in NumPy. The mask is 1 where no answer may be."""

  head: SquadV2Head
  states: tf.Tensor
  mask: tf.Tensor
  reference: ReferenceV2


def make_head_test() -> HeadTest:
  states = np.random.default_rng(2).standard_normal((B, S, H)).astype(np.float32)
  is_allowed = find_allowed_tokens(make_batch())
  mask = tf.constant(1.0 - is_allowed, tf.float32)
  head = SquadV2Head(CONFIG)
  head(tf.constant(states), mask, start_positions=tf.zeros([B], tf.int32))
  weights = randomize(head.named_weights())
  return HeadTest(head, tf.constant(states), mask, ReferenceV2(weights, states.astype(np.float64), is_allowed))


def test_the_v2_head_equals_numpy() -> None:
  head, states, mask, reference = make_head_test()
  starts = np.array([4, 0, 4])
  output = head(states, mask, start_positions=tf.constant(starts))
  is_allowed = reference.is_allowed
  np.testing.assert_allclose(output.start_logits.numpy()[is_allowed], reference.start_logits[is_allowed], atol=1e-5)
  np.testing.assert_allclose(output.end_logits.numpy()[is_allowed], reference.end_logits(starts)[is_allowed], atol=1e-5)
  np.testing.assert_allclose(output.null_logits, reference.null_logits(), atol=1e-5)
  for logits in (output.start_logits, output.end_logits):
    assert np.all(logits.numpy()[~is_allowed] == np.float32(-1e30))
  assert output.beams is None


def test_beams_are_the_best_starts_each_with_its_best_ends() -> None:
  head, states, mask, reference = make_head_test()
  beams = head(states, mask, num_starts=2, num_ends=2).beams
  log_starts = log_softmax(reference.start_logits)
  for row in range(B):
    starts = np.argsort(-log_starts[row])[:2]
    assert beams.start_positions[row].numpy().tolist() == starts.tolist()
    np.testing.assert_allclose(beams.start_log_probs[row], log_starts[row, starts], atol=1e-5)
    for k, start in enumerate(starts):
      log_ends = log_softmax(reference.end_logits(np.full(B, start)))[row]
      ends = np.argsort(-log_ends)[:2]
      assert beams.end_positions[row, k].numpy().tolist() == ends.tolist()
      np.testing.assert_allclose(beams.end_log_probs[row, k], log_ends[ends], atol=1e-5)


def test_beams_beyond_the_number_of_tokens_have_a_probability_of_zero() -> None:
  head, states, mask, _ = make_head_test()
  beams = head(states, mask, num_starts=14, num_ends=12).beams
  assert beams.start_positions.shape == (B, 14)
  assert beams.end_positions.shape == (B, 14, 12)
  shortest_window = 2
  allowed_positions = np.flatnonzero(mask[shortest_window].numpy() == 0)
  num_allowed = len(allowed_positions)
  assert sorted(beams.start_positions[shortest_window, :num_allowed].numpy()) == allowed_positions.tolist()
  assert np.all(beams.start_log_probs[shortest_window, num_allowed:].numpy() < -1e29)
  assert np.all(beams.end_log_probs[shortest_window, :num_allowed, num_allowed:].numpy() < -1e29)
  assert int(tf.reduce_max(beams.end_positions)) == S - 1


def test_dropout_is_applied_only_before_the_last_layer_of_the_null_logits() -> None:
  head, states, mask, reference = make_head_test()
  head.config = dataclasses.replace(CONFIG, classifier_dropout_prob=0.5)
  starts = tf.constant([4, 0, 4])
  without_dropout = head(states, mask, start_positions=starts)
  with_dropout = head(states, mask, start_positions=starts, training=True, seed=SEED)
  np.testing.assert_array_equal(without_dropout.start_logits, with_dropout.start_logits)
  np.testing.assert_array_equal(without_dropout.end_logits, with_dropout.end_logits)
  assert np.all(without_dropout.null_logits.numpy() != with_dropout.null_logits.numpy())

  # The mean over many masks is the logit without dropout. The inputs of the last layer are between -1 and 1 (tanh). So
  # the standard deviation of a logit is at most the sum of the layer's absolute weights.
  seeds = [tf.constant([i, i + 1]) for i in range(100)]
  mean = np.mean([head(states, mask, training=True, seed=seed).null_logits.numpy() for seed in seeds], axis=0)
  largest_deviation = np.abs(reference.weights["answer_class/dense_1/kernel"]).sum()
  np.testing.assert_allclose(mean, reference.null_logits(), atol=4 * largest_deviation / np.sqrt(len(seeds)))


def test_the_v1_head_scores_starts_and_ends_of_allowed_tokens() -> None:
  features = make_batch()
  inputs, is_allowed = to_tensors(features), find_allowed_tokens(features)
  model = SquadV1Model(CONFIG)
  model(inputs)
  weights = randomize(model.named_weights())
  states = model.encoder(inputs).sequence_output.numpy().astype(np.float64)
  expected = states @ weights["cls/squad/output_weights"].T + weights["cls/squad/output_bias"]
  output = model(inputs)
  for column, logits in enumerate((output.start, output.end)):
    np.testing.assert_allclose(logits.numpy()[is_allowed], expected[..., column][is_allowed], atol=1e-4)
    assert np.all(logits.numpy()[~is_allowed] == np.float32(-1e30))


def build(model: keras.Model) -> keras.Model:
  """Calls a new model, so that it has its weights. Returns it."""
  arguments = {"start_positions": tf.zeros([B], tf.int32)} if isinstance(model, SquadV2Model) else {}
  model(to_tensors(make_batch()), **arguments)
  return model


@pytest.mark.usefixtures("bfloat16")
def test_logits_are_float32_in_bfloat16() -> None:
  v1_model, v2_model = build(SquadV1Model(CONFIG)), build(SquadV2Model(CONFIG))
  assert v1_model.encoder.compute_dtype == v2_model.encoder.compute_dtype == "bfloat16"
  inputs, starts = to_tensors(make_batch()), tf.constant([4, 0, 4])
  v1_output = v1_model(inputs)
  output = v2_model(inputs, start_positions=starts, num_starts=2, num_ends=2, training=True, seed=SEED)
  log_probs = (output.beams.start_log_probs, output.beams.end_log_probs)
  logits = [*v1_output, output.start_logits, output.end_logits, output.null_logits, *log_probs]
  assert {tensor.dtype for tensor in logits} == {tf.float32}
  assert all(variable.dtype == tf.float32 for variable in v2_model.named_weights().values())
  assert np.all(np.isfinite(output.null_logits))


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.thorough), "bfloat16"])
def test_every_weight_that_affects_the_loss_has_a_gradient(precision: str, request: pytest.FixtureRequest) -> None:
  if precision == "bfloat16":
    request.getfixturevalue("bfloat16")
  model = build(SquadV2Model(CONFIG))
  variables = model.named_weights()
  randomize(variables)

  @tf.function(autograph=False)
  def gradients() -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
      output = model(to_tensors(make_batch()), start_positions=tf.constant([4, 5, 4]), training=True, seed=SEED)
      # Token 4 is the first one of the paragraph.
      losses = tf.nn.log_softmax(output.start_logits)[:, 4] + tf.nn.log_softmax(output.end_logits)[:, 4]
      loss = tf.reduce_sum(losses) + tf.reduce_sum(output.null_logits)
    return tape.gradient(loss, list(variables.values()))

  for name, gradient in zip(variables, gradients(), strict=True):
    if "pooler" in name:
      assert gradient is None  # the head uses the states of the tokens, not the pooled output
      continue
    gradient_array = tf.convert_to_tensor(gradient).numpy()
    assert np.all(np.isfinite(gradient_array)), name
    if not name.endswith(WITHOUT_GRADIENT):
      assert np.abs(gradient_array).max() > 1e-6, name
