"""Options are scored one by one, whatever stands beside them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.models.classifier import ClassifierModel
from albert.models.multiple_choice import MultipleChoiceModel
from albert.weights.names import encoder_shapes

CONFIG = ModelConfig(
  vocab_size=37,
  embedding_size=6,
  hidden_size=20,
  num_hidden_layers=2,
  num_attention_heads=5,
  intermediate_size=28,
  max_position_embeddings=16,
)
LENGTHS = np.array([[9, 5, 7, 9], [6, 9, 0, 0], [4, 4, 4, 0]])  # tokens of each option; 0 for a padding option


def batch() -> dict[str, tf.Tensor]:
  mask = (np.arange(9) < LENGTHS[..., None]).astype(np.int32)
  ids = np.random.default_rng(0).integers(5, 37, mask.shape) * mask
  values = {"input_ids": ids, "input_mask": mask, "segment_ids": (np.arange(9) > 2) * mask}
  return {
    **{name: tf.constant(value, tf.int32) for name, value in values.items()},
    "option_mask": tf.constant(LENGTHS > 0, tf.float32),
  }


def models() -> tuple[MultipleChoiceModel, ClassifierModel]:
  choice, single = MultipleChoiceModel(CONFIG), ClassifierModel(CONFIG, 1)
  choice(batch())
  single({name: value[:, 0] for name, value in batch().items()})
  rng = np.random.default_rng(1)
  for name, variable in choice.named_weights().items():
    variable.assign(rng.normal(0, 0.4, variable.shape))
    single.named_weights()[name].assign(variable)
  return choice, single


def test_every_option_has_the_logit_it_has_alone() -> None:
  choice, single = models()
  logits = choice(batch()).numpy()
  assert logits.dtype == np.float32
  for row, column in np.ndindex(*LENGTHS.shape):
    length = LENGTHS[row, column]
    if not length:
      assert logits[row, column] == np.float32(-1e9)
      continue
    alone = single(
      {name: value[row, column, None, :length] for name, value in batch().items() if name != "option_mask"}
    )
    np.testing.assert_allclose(logits[row, column], alone[0, 0], atol=1e-5)


def test_names_and_shapes_are_the_originals() -> None:
  shapes = {name: tuple(variable.shape) for name, variable in models()[0].named_weights().items()}
  assert shapes == encoder_shapes(CONFIG) | {"output_weights": (1, 20), "output_bias": (1,)}


def test_dropout_in_front_of_the_head_is_a_function_of_the_seed() -> None:
  choice, _ = models()
  np.testing.assert_array_equal(choice(batch()), choice(batch()))
  first, again = (
    choice(batch(), training=True, seed=tf.constant([1, 2])),
    choice(batch(), training=True, seed=tf.constant([1, 2])),
  )
  np.testing.assert_array_equal(first, again)
  is_option = LENGTHS > 0
  assert np.all(first.numpy()[is_option] != choice(batch()).numpy()[is_option])
