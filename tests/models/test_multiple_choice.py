"""The multiple-choice model gives each option the logit that a classifier gives its sequence alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from albert.models.classifier import ClassifierModel
from albert.models.multiple_choice import MultipleChoiceModel
from tests.models.build_models import SMALL_MODEL

CONFIG = dataclasses.replace(SMALL_MODEL, num_hidden_layers=2)
LENGTHS = np.array([[9, 5, 7, 9], [6, 9, 0, 0], [4, 4, 4, 0]])  # tokens of each option; 0 for a padding option
MAX_LENGTH = 9


def make_batch() -> dict[str, tf.Tensor]:
  mask = (np.arange(MAX_LENGTH) < LENGTHS[..., None]).astype(np.int32)
  ids = np.random.default_rng(0).integers(5, 37, mask.shape) * mask
  segments = (np.arange(MAX_LENGTH) > 2) * mask
  features = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
  tensors = {name: tf.constant(array, tf.int32) for name, array in features.items()}
  return tensors | {"option_mask": tf.constant(LENGTHS > 0, tf.float32)}


def make_models() -> tuple[MultipleChoiceModel, ClassifierModel]:
  """Makes a multiple-choice model and a classifier of one class with the same random weights."""
  multiple_choice, classifier = MultipleChoiceModel(CONFIG), ClassifierModel(CONFIG, 1)
  rng = np.random.default_rng(1)
  for name, variable in multiple_choice.named_weights().items():
    variable.assign(rng.normal(0, 0.4, variable.shape))
    classifier.named_weights()[name].assign(variable)
  return multiple_choice, classifier


def test_the_logit_of_an_option_is_that_of_its_sequence_alone() -> None:
  multiple_choice, classifier = make_models()
  batch = make_batch()
  logits = multiple_choice(batch).numpy()
  assert logits.dtype == np.float32
  for example, option in np.ndindex(*LENGTHS.shape):
    length = LENGTHS[example, option]
    if length == 0:
      assert logits[example, option] == np.float32(-1e9)
      continue
    sequence = {name: batch[name][example, option, None, :length] for name in batch if name != "option_mask"}
    np.testing.assert_allclose(logits[example, option], classifier(sequence)[0, 0], atol=1e-5)


def test_dropout_in_front_of_the_head_is_a_function_of_the_seed() -> None:
  multiple_choice, _ = make_models()
  batch, seed = make_batch(), tf.constant([1, 2])
  logits = multiple_choice(batch, training=True, seed=seed)
  np.testing.assert_array_equal(logits, multiple_choice(batch, training=True, seed=seed))
  is_option = LENGTHS > 0
  assert np.all(logits.numpy()[is_option] != multiple_choice(batch).numpy()[is_option])
