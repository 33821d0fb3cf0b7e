"""Layers and models work inside other Keras models and in fit, and give the same outputs after saving and loading."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.config.model import MODELS, ModelConfig
from albert.errors import UserError
from albert.models.classifier import ClassifierModel
from albert.models.encoder import Encoder
from albert.models.heads import PretrainingModel
from albert.optimizers.lamb import LAMB
from albert.optimizers.schedules import WarmupPolynomialDecay
from tests.convert import files_of_weights
from tests.models.build_models import INPUT_NAMES, TASK_MODELS, B, S, task_model_inputs, token_features
from tests.thorough import thorough_except

# Without dropout, because a loaded model draws other masks.
CONFIG = dataclasses.replace(files_of_weights.CONFIG, classifier_dropout_prob=0.0)
# Two layers, for the tests in which Keras calls or trains the model again and again.
SHALLOW_CONFIG = dataclasses.replace(CONFIG, num_hidden_layers=2, inner_group_num=1)


def randomize(layer: keras.layers.Layer) -> None:
  """Adds random numbers to all weights. A weight that is not saved then differs after loading."""
  rng = np.random.default_rng(1)
  for variable in layer.weights:
    if variable.dtype.is_floating:
      variable.assign(variable + 0.1 * rng.standard_normal(variable.shape).astype(np.float32))


def assert_equal_outputs(actual: Any, expected: Any) -> None:
  """Compares the arrays of two nested outputs. None, an output that a call does not have, is left out."""
  for actual_array, expected_array in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
    assert (actual_array is None) == (expected_array is None)
    if expected_array is not None:
      np.testing.assert_array_equal(actual_array, expected_array)


@pytest.mark.parametrize("name", thorough_except(["pretraining"], list(TASK_MODELS)))
def test_every_task_model_is_saved_and_loaded(tmp_path: Path, name: str):
  (model_class, arguments), inputs = TASK_MODELS[name], task_model_inputs(name)
  model = model_class(CONFIG, *arguments)
  names_before_call = set(model.named_weights())
  assert model.built
  assert {id(v) for v in model.named_weights().values()} == {id(v) for v in model.trainable_variables}
  randomize(model)
  expected = model(inputs)
  assert set(model.named_weights()) == names_before_call
  model.save(tmp_path / "model.keras")
  loaded = keras.models.load_model(tmp_path / "model.keras")
  assert type(loaded) is type(model)
  assert loaded.config == CONFIG
  assert_equal_outputs(loaded(inputs), expected)
  copy = type(model).from_config(model.get_config())
  assert copy.get_config() == model.get_config()


@pytest.mark.parametrize("sharing", thorough_except(["attention"], ["all", "attention", "ffn", "none"]))
def test_an_encoder_has_the_same_weights_before_and_after_its_first_call(sharing):
  config = ModelConfig(**{**CONFIG.to_dict(), "sharing": sharing})
  encoder, called_encoder = Encoder(config), Encoder(config)
  called_encoder(token_features(B, S))
  weights, weights_after_call = encoder.named_weights(), called_encoder.named_weights()
  shapes = {name: tuple(variable.shape) for name, variable in weights.items()}
  assert shapes == {name: tuple(variable.shape) for name, variable in weights_after_call.items()}
  assert [variable.name for variable in weights.values()] == [variable.name for variable in weights_after_call.values()]
  encoder(token_features(B, S))
  assert all(weights[name] is variable for name, variable in encoder.named_weights().items())
  assert len(encoder.weights) == len(weights)


def keras_inputs() -> dict[str, Any]:
  return {name: keras.Input([None], dtype=tf.int32, name=name) for name in INPUT_NAMES}


def functional_model() -> keras.Model:
  """A classifier that uses several outputs of the encoder."""
  inputs = keras_inputs()
  output = Encoder(SHALLOW_CONFIG)(inputs)
  states = keras.layers.Concatenate()(
    [output.pooled_output, output.sequence_output[:, 0], output.hidden_states[1][:, 1]]
  )
  return keras.Model(inputs, keras.layers.Dense(2, name="labels")(states))


@keras.saving.register_keras_serializable("tests")
class SubclassedModel(keras.Model):
  """A classifier with its own class, which is saved with its encoder."""

  def __init__(self, encoder: Encoder | None = None, **kwargs: Any):
    super().__init__(**kwargs)
    self.encoder = encoder or Encoder(SHALLOW_CONFIG)
    self.dense = keras.layers.Dense(2)

  def call(self, inputs: dict[str, tf.Tensor], training: bool | None = None) -> tf.Tensor:
    return self.dense(self.encoder(inputs, training=training).pooled_output)

  def get_config(self) -> dict[str, Any]:
    return {"encoder": keras.saving.serialize_keras_object(self.encoder)}

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> SubclassedModel:
    return cls(keras.saving.deserialize_keras_object(config["encoder"]))


def functional_model_with_a_task_model() -> keras.Model:
  inputs = keras_inputs()
  return keras.Model(inputs, keras.layers.Dense(2)(ClassifierModel(SHALLOW_CONFIG, 3)(inputs)))


def task_model() -> keras.Model:
  return ClassifierModel(SHALLOW_CONFIG, 2)


@pytest.mark.parametrize("suffix", thorough_except(["keras"], ["keras", "h5"]))
@pytest.mark.parametrize(
  "build",
  [
    functional_model,
    pytest.param(SubclassedModel, marks=pytest.mark.slow),
    pytest.param(functional_model_with_a_task_model, marks=pytest.mark.slow),
    pytest.param(task_model, marks=pytest.mark.thorough),
  ],
)
@pytest.mark.usefixtures("eager_steps")
def test_a_model_that_contains_an_encoder_is_trained_saved_and_loaded(tmp_path: Path, build, suffix):
  if suffix == "h5" and build is not functional_model:
    pytest.skip("Keras saves only functional models of layers as .h5")
  model = build()
  inputs, labels = token_features(B, S), np.array([0, 1, 1])
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(optimizer=LAMB(WarmupPolynomialDecay(0.002, 1, 40)), loss=loss)
  losses = model.fit(inputs, labels, batch_size=B, epochs=3, verbose=0).history["loss"]
  assert losses[-1] != losses[0]
  path = str(tmp_path / f"model.{suffix}")
  model.save(path)
  loaded = keras.models.load_model(path)
  assert_equal_outputs(loaded(inputs), model(inputs))
  assert isinstance(loaded.optimizer, LAMB)
  assert loaded.optimizer.get_config() == model.optimizer.get_config()
  assert_equal_outputs(loaded.optimizer.variables, model.optimizer.variables)
  # The loaded model continues the training as the saved one does.
  for continued in (model, loaded):
    continued.fit(inputs, labels, batch_size=B, verbose=0)
  np.testing.assert_allclose(loaded(inputs), model(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_an_encoder_output_can_be_the_output_of_a_functional_model(tmp_path: Path):
  inputs = keras_inputs()
  encoder = Encoder(SHALLOW_CONFIG)
  model = keras.Model(inputs, encoder(inputs))
  features = token_features(B, S)
  assert_equal_outputs(model(features), encoder(features))
  model.save(tmp_path / "model.keras")
  assert_equal_outputs(keras.models.load_model(tmp_path / "model.keras")(features), encoder(features))


@pytest.mark.thorough
def test_a_loaded_model_keeps_its_dtype_policy(tmp_path: Path):
  encoder, inputs = Encoder(SHALLOW_CONFIG, dtype="mixed_bfloat16"), keras_inputs()
  model = keras.Model(inputs, encoder(inputs).pooled_output)
  features = token_features(B, S)
  expected = model(features)
  assert expected.dtype == tf.bfloat16
  assert {variable.dtype for variable in model.weights} == {tf.float32}
  model.save(tmp_path / "model.keras")
  output = keras.models.load_model(tmp_path / "model.keras")(features)
  assert output.dtype == tf.bfloat16
  assert_equal_outputs(tf.cast(output, tf.float32), tf.cast(expected, tf.float32))


def test_an_encoder_accepts_a_name_and_refuses_unknown_names_and_other_types():
  assert Encoder("albert_base").config == MODELS["albert_base"]
  with pytest.raises(UserError, match=r"^config=albert_bas: unknown model; known: .*albert_base"):
    Encoder("albert_bas")
  with pytest.raises(UserError, match="give a ModelConfig"):
    Encoder(768)  # type: ignore[arg-type]


def test_wrong_inputs_are_refused():
  ids = token_features(B, S)["input_ids"]
  with pytest.raises(UserError, match="Encoder got a dictionary without input_mask, segment_ids"):
    Encoder(CONFIG)({"input_ids": ids})
  with pytest.raises(UserError, match="PretrainingModel got ndarray: give a dictionary"):
    PretrainingModel(CONFIG)(ids)  # type: ignore[arg-type]
  ragged = {**token_features(B, S), "input_ids": tf.ragged.constant([[2, 3], [2]])}
  message = r"Encoder got a ragged tensor as input_ids: .*, padded arrays as albert.Tokenizer"
  with pytest.raises(UserError, match=message):
    Encoder(CONFIG)(ragged)
  with pytest.raises(UserError, match=r"sequences of 15 tokens.*14 positions.*max_length=14"):
    Encoder(CONFIG)(token_features(B, 15))


@pytest.mark.parametrize("name", [name for name in TASK_MODELS if name != "classifier"])
def test_the_error_for_a_batch_of_the_tokenizer_alone_says_how_to_make_the_other_input(name: str):
  (model_class, arguments), inputs = TASK_MODELS[name], task_model_inputs(name)
  (missing,) = set(inputs) - set(INPUT_NAMES)
  message = f"a dictionary without {missing}: .*segment_ids, {missing}, .*{missing}"
  with pytest.raises(UserError, match=message) as caught:
    model_class(CONFIG, *arguments)({key: inputs[key] for key in INPUT_NAMES})
  assert "returns" not in str(caught.value)  # albert.Tokenizer does not return it


@pytest.mark.parametrize("name", thorough_except(["classifier"], ["classifier", "multiple_choice", "squad_v1"]))
def test_an_exported_model_takes_other_batch_sizes_and_lengths_than_the_first_call_had(tmp_path: Path, name: str):
  (model_class, arguments), inputs = TASK_MODELS[name], task_model_inputs(name)
  model = model_class(SHALLOW_CONFIG, *arguments)
  first = {key: value[:1] if key == "option_mask" else value[:1, ..., :4] for key, value in inputs.items()}
  model(first)
  model.export(tmp_path / "export")
  loaded = tf.saved_model.load(tmp_path / "export")
  for output, expected in zip(tf.nest.flatten(loaded.serve(inputs)), tf.nest.flatten(model(inputs)), strict=True):
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_objects_of_keras_3_are_refused():
  keras_3 = pytest.importorskip("keras")
  inputs = {name: keras_3.Input([S], dtype="int32", name=name) for name in INPUT_NAMES}
  for layer in (Encoder(CONFIG), ClassifierModel(CONFIG, 3)):
    with pytest.raises(UserError, match=rf"{type(layer).__name__} is a tf_keras object.*import tf_keras as keras"):
      layer(inputs)
  with pytest.raises(UserError, match="got a Adam of another Keras"):
    ClassifierModel(CONFIG, 3).compile(optimizer=keras_3.optimizers.Adam())
