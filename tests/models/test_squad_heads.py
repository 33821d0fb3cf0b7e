"""The heads of SQuAD against NumPy in float64, their beams against all pairs, their names against the table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models.squad_heads import SquadV1Model, SquadV2Head, SquadV2Model
from albert.training.global_state import dtype_policy
from albert.weights.names import encoder_shapes, heads

CONFIG = ModelConfig(
  vocab_size=37,
  embedding_size=6,
  hidden_size=20,
  num_hidden_layers=2,
  num_attention_heads=5,
  intermediate_size=28,
  max_position_embeddings=16,
)
B, S, H = 3, 11, 20
# A shift of all keys, or of all logits of a sequence, changes no softmax: these have no gradient.
SHIFTS = ("key/bias", "start_logits/dense/bias", "end_logits/LayerNorm/beta", "end_logits/dense_1/bias")
SEED = tf.constant([3, 4])


def batch(seed: int = 0) -> dict[str, np.ndarray]:
  """Windows of 11, 9 and 6 tokens, each with 3 of the question between [CLS] and [SEP]."""
  rng = np.random.default_rng(seed)
  lengths = np.array([11, 9, 6])
  mask = (np.arange(S) < lengths[:, None]).astype(np.int32)
  p_mask = np.zeros((B, S), np.int32)
  p_mask[:, 1:4] = 1
  p_mask[np.arange(B), lengths - 1] = 1
  segments = (np.arange(S) >= 4) * mask
  ids = rng.integers(5, 37, (B, S)) * mask
  return {"input_ids": ids, "input_mask": mask, "segment_ids": segments, "p_mask": p_mask * mask}


def tensors(values: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
  return {name: tf.constant(value, tf.int32) for name, value in values.items()}


def allowed(values: dict[str, np.ndarray]) -> np.ndarray:
  """bool [B, S]: [CLS] and the paragraph."""
  return (values["p_mask"] == 0) & (values["input_mask"] == 1)


def randomize(weights: dict[str, tf.Variable], seed: int = 1) -> dict[str, np.ndarray]:
  """Gives every variable its own numbers; their copies in float64."""
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
  """The v2 head in NumPy. It concatenates [a; b] before a dense layer, which the model avoids."""

  def __init__(self, weights: dict[str, np.ndarray], x: np.ndarray, is_allowed: np.ndarray):
    self.w, self.x, self.is_allowed = weights, x, is_allowed
    self.start_logits = self._mask(self._dense("start_logits/dense", x)[..., 0])

  def _dense(self, name: str, x: np.ndarray) -> np.ndarray:
    return x @ self.w[f"{name}/kernel"] + self.w.get(f"{name}/bias", 0.0)

  def _mask(self, logits: np.ndarray) -> np.ndarray:
    """Replaces the logits of tokens that must not be in an answer by -inf."""
    return np.where(self.is_allowed, logits, -np.inf)

  def end_logits(self, starts: np.ndarray) -> np.ndarray:
    """Returns the logits of the ends, [B, S], given the starts, int [B]."""
    start_states = np.broadcast_to(self.x[np.arange(B), starts][:, None], self.x.shape)
    hidden = np.tanh(self._dense("end_logits/dense_0", np.concatenate([self.x, start_states], axis=-1)))
    hidden = (hidden - hidden.mean(-1, keepdims=True)) / np.sqrt(hidden.var(-1, keepdims=True) + 1e-12)
    hidden = hidden * self.w["end_logits/LayerNorm/gamma"] + self.w["end_logits/LayerNorm/beta"]
    return self._mask(self._dense("end_logits/dense_1", hidden)[..., 0])

  def null_logits(self) -> np.ndarray:
    expected = np.einsum("bs,bsh->bh", np.exp(log_softmax(self.start_logits)), self.x)
    hidden = np.tanh(self._dense("answer_class/dense_0", np.concatenate([expected, self.x[:, 0]], axis=-1)))
    return self._dense("answer_class/dense_1", hidden)[:, 0]


def head_and_reference() -> tuple[SquadV2Head, tf.Tensor, tf.Tensor, ReferenceV2]:
  values = batch()
  x = np.random.default_rng(2).standard_normal((B, S, H)).astype(np.float32)
  mask = tf.constant(1.0 - allowed(values), tf.float32)
  head = SquadV2Head(CONFIG)
  head(tf.constant(x), mask, start_positions=tf.zeros([B], tf.int32))
  weights = randomize(head.named_weights())
  return head, tf.constant(x), mask, ReferenceV2(weights, x.astype(np.float64), allowed(values))


def test_the_v2_head_equals_numpy() -> None:
  head, x, mask, reference = head_and_reference()
  starts = np.array([4, 0, 4])
  output = head(x, mask, start_positions=tf.constant(starts))
  is_allowed = reference.is_allowed
  np.testing.assert_allclose(output.start_logits.numpy()[is_allowed], reference.start_logits[is_allowed], atol=1e-5)
  np.testing.assert_allclose(output.end_logits.numpy()[is_allowed], reference.end_logits(starts)[is_allowed], atol=1e-5)
  np.testing.assert_allclose(output.null_logits, reference.null_logits(), atol=1e-5)
  for logits in (output.start_logits, output.end_logits):
    assert np.all(logits.numpy()[~is_allowed] == np.float32(-1e30))
  assert output.beams is None


def test_beams_are_the_best_starts_each_with_its_best_ends() -> None:
  head, x, mask, reference = head_and_reference()
  beams = head(x, mask, num_starts=2, num_ends=2).beams
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


def test_more_beams_than_tokens_are_kept_out_of_the_way() -> None:
  head, x, mask, _ = head_and_reference()
  beams = head(x, mask, num_starts=14, num_ends=12).beams
  assert beams.start_positions.shape == (B, 14)
  assert beams.end_positions.shape == (B, 14, 12)
  count = int(tf.reduce_sum(1.0 - mask[2]))  # the number of tokens of the shortest window that may be in an answer
  assert sorted(beams.start_positions[2, :count].numpy()) == np.flatnonzero(mask[2].numpy() == 0).tolist()
  assert np.all(beams.start_log_probs[2, count:].numpy() < -1e29)
  assert np.all(beams.end_log_probs[2, :count, count:].numpy() < -1e29)
  assert int(tf.reduce_max(beams.end_positions)) == S - 1


def test_dropout_is_in_front_of_the_last_dense_of_answerability_alone() -> None:
  head, x, mask, reference = head_and_reference()
  head.config = ModelConfig(**{**CONFIG.to_dict(), "classifier_dropout_prob": 0.5})
  starts = tf.constant([4, 0, 4])
  plain, dropped = (
    head(x, mask, start_positions=starts),
    head(x, mask, start_positions=starts, training=True, seed=SEED),
  )
  np.testing.assert_array_equal(plain.start_logits, dropped.start_logits)
  np.testing.assert_array_equal(plain.end_logits, dropped.end_logits)
  assert np.all(plain.null_logits.numpy() != dropped.null_logits.numpy())
  seeds = [tf.constant([i, i + 1]) for i in range(100)]
  mean = np.mean([head(x, mask, training=True, seed=seed).null_logits.numpy() for seed in seeds], axis=0)
  spread = np.abs(reference.w["answer_class/dense_1/kernel"]).sum()
  np.testing.assert_allclose(mean, reference.null_logits(), atol=4 * spread / np.sqrt(100))


def test_the_v1_head_scores_starts_and_ends_of_tokens_that_may_answer() -> None:
  values = batch()
  model = SquadV1Model(CONFIG)
  model(tensors(values))
  weights = randomize(model.named_weights())
  x = model.encoder(tensors(values))
  expected = x.sequence_output.numpy().astype(np.float64) @ weights["cls/squad/output_weights"].T
  expected += weights["cls/squad/output_bias"]
  output = model(tensors(values))
  for column, logits in enumerate((output.start, output.end)):
    np.testing.assert_allclose(logits.numpy()[allowed(values)], expected[..., column][allowed(values)], atol=1e-4)
    assert np.all(logits.numpy()[~allowed(values)] == np.float32(-1e30))


def build(model: keras.Model) -> keras.Model:
  arguments = {"start_positions": tf.zeros([B], tf.int32)} if isinstance(model, SquadV2Model) else {}
  model(tensors(batch()), **arguments)
  return model


@pytest.mark.parametrize(("model_class", "head"), [(SquadV1Model, "squad"), (SquadV2Model, "squad_v2")])
def test_names_and_shapes_are_the_originals(model_class: type[keras.Model], head: str) -> None:
  shapes = {name: tuple(v.shape) for name, v in build(model_class(CONFIG)).named_weights().items()}
  head_shapes = {
    name: tuple(2 if size is None else size for size in shape) for name, shape in heads(CONFIG)[head].shapes.items()
  }
  assert shapes == encoder_shapes(CONFIG) | head_shapes


@pytest.mark.usefixtures("bfloat16")
def test_logits_are_float32_in_bfloat16() -> None:
  v1, v2 = build(SquadV1Model(CONFIG)), build(SquadV2Model(CONFIG))
  assert v1.encoder.compute_dtype == v2.encoder.compute_dtype == "bfloat16"
  spans = v1(tensors(batch()))
  output = v2(
    tensors(batch()), start_positions=tf.constant([4, 0, 4]), num_starts=2, num_ends=2, training=True, seed=SEED
  )
  all_logits = [*spans, output.start_logits, output.end_logits, output.null_logits, *output.beams[::2]]
  assert {value.dtype for value in all_logits} == {tf.float32}
  assert all(variable.dtype == tf.float32 for variable in v2.named_weights().values())
  assert np.all(np.isfinite(output.null_logits))


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.thorough), "bfloat16"])
def test_every_weight_learns(precision: str, request: pytest.FixtureRequest) -> None:
  if precision == "bfloat16":
    request.getfixturevalue("bfloat16")
  model = build(SquadV2Model(CONFIG))
  variables = model.named_weights()
  randomize(variables)

  @tf.function(autograph=False)
  def gradients() -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
      output = model(tensors(batch()), start_positions=tf.constant([4, 5, 4]), training=True, seed=SEED)
      losses = tf.nn.log_softmax(output.start_logits)[:, 4] + tf.nn.log_softmax(output.end_logits)[:, 4]
      loss = tf.reduce_sum(losses) + tf.reduce_sum(output.null_logits)
    return tape.gradient(loss, list(variables.values()))

  for name, gradient in zip(variables, gradients(), strict=True):
    if "pooler" in name:
      assert gradient is None  # the head reads tokens
      continue
    numbers = tf.convert_to_tensor(gradient).numpy()
    assert np.all(np.isfinite(numbers)), name
    if not name.endswith(SHIFTS):
      assert np.abs(numbers).max() > 1e-6, name
