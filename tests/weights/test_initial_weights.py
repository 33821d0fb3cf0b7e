"""The weights of --init_checkpoint, matched by name, where each mismatch is an error; and stacking of layers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.vocabulary import VocabularyId
from albert.weights.checkpoints import CheckpointManager, write_bundle
from albert.weights.files import find_weights
from albert.weights.initial_weights import stacked_sources, warm_start
from albert.weights.names import encoder_shapes
from tests.synthetic import TINY_MODEL

ENCODER_WEIGHTS = {"bert/embeddings/word_embeddings": np.arange(12.0, dtype=np.float32).reshape(4, 3)}
HEAD_WEIGHTS = {"cls/predictions/output_bias": np.arange(4.0, dtype=np.float32)}


def write_checkpoint(directory: Path, tensors: dict[str, np.ndarray]) -> str:
  """Writes tensors in the format of TensorFlow. Returns the prefix of the files."""
  prefix = str(directory / "model.ckpt")
  write_bundle(prefix, tensors)
  return prefix


def make_variables(weights: dict[str, np.ndarray]) -> dict[str, tf.Variable]:
  """Makes variables of zeros with the names and shapes of weights."""
  return {name: tf.Variable(tf.zeros(weight.shape)) for name, weight in weights.items()}


def assert_all_zero(variables: dict[str, tf.Variable]) -> None:
  assert all(not np.any(variable.numpy()) for variable in variables.values())


def test_a_missing_weight_is_an_error_unless_it_may_be_newly_initialized(tmp_path: Path):
  prefix = write_checkpoint(tmp_path, ENCODER_WEIGHTS)
  variables = make_variables(ENCODER_WEIGHTS | HEAD_WEIGHTS)
  with pytest.raises(UserError, match="lacks 1 weight: cls/predictions/output_bias"):
    warm_start(prefix, variables)
  assert warm_start(prefix, variables, newly_initialized=["cls/"]) == ["cls/predictions/output_bias"]


def test_an_unused_weight_is_an_error_unless_it_may_be_ignored(tmp_path: Path):
  prefix = write_checkpoint(tmp_path, ENCODER_WEIGHTS | HEAD_WEIGHTS)
  with pytest.raises(UserError, match="has unused 1 weight: cls/predictions/output_bias"):
    warm_start(prefix, make_variables(ENCODER_WEIGHTS))
  assert warm_start(prefix, make_variables(ENCODER_WEIGHTS), ignored=["cls/"]) == []


def test_another_shape_is_an_error_and_assigns_nothing(tmp_path: Path):
  variables = make_variables(HEAD_WEIGHTS) | {"bert/embeddings/word_embeddings": tf.Variable(tf.zeros([3, 4]))}
  with pytest.raises(UserError, match=r"another shape .*word_embeddings \[4, 3\] instead of \[3, 4\]"):
    warm_start(write_checkpoint(tmp_path, ENCODER_WEIGHTS | HEAD_WEIGHTS), variables)
  assert_all_zero(variables)


def test_the_output_dir_of_a_run_means_its_newest_undamaged_checkpoint(tmp_path: Path):
  manager = CheckpointManager(str(tmp_path / "checkpoints"), keep=5, model_config=TINY_MODEL)
  for step in (9, 10):
    manager.save(step, ENCODER_WEIGHTS)
  assert find_weights(str(tmp_path)).prefix.endswith("step-10/weights")
  (tmp_path / "checkpoints" / "step-10" / "weights.index").write_bytes(b"damaged")
  assert find_weights(str(tmp_path)).prefix.endswith("step-9/weights")
  # A copy under the name of another step is skipped, as when the run is resumed.
  shutil.copytree(tmp_path / "checkpoints" / "step-9", tmp_path / "checkpoints" / "step-11")
  assert find_weights(str(tmp_path)).prefix.endswith("step-9/weights")
  with pytest.raises(UserError, match=r"weights.index"):
    find_weights(str(tmp_path / "checkpoints" / "step-10"))
  (tmp_path / "checkpoints" / "step-9" / "weights.index").unlink()
  with pytest.raises(UserError, match=f"--init_checkpoint={tmp_path}: all its checkpoints are damaged, as the warn"):
    find_weights(str(tmp_path))


def make_layers(num_layers: int) -> dict[str, np.ndarray]:
  """Makes four weights of each layer, which hold the number of the layer."""
  kinds = ("attention_1/self/query/kernel", "LayerNorm/gamma", "ffn_1/intermediate/dense/kernel", "LayerNorm_1/beta")
  weights = {}
  for layer in range(num_layers):
    for kind in kinds:
      weights[f"bert/encoder/transformer/group_{layer}/inner_group_0/{kind}"] = np.full([2], layer, np.float32)
  return weights


def test_each_layer_of_a_network_of_three_layers_initializes_two_layers_of_six(tmp_path: Path):
  prefix, variables = write_checkpoint(tmp_path, make_layers(3)), make_variables(make_layers(6))
  with pytest.raises(UserError, match="lacks 12 weights"):
    warm_start(prefix, variables)
  warm_start(prefix, variables, from_shallower=True)
  for name, variable in variables.items():
    layer = int(name.split("group_")[1].split("/")[0])
    assert float(variable[0]) == layer // 2


def write_run_with_head(directory: Path, data_settings: dict[str, str]) -> str:
  """Writes a run of a classifier, with the settings of its data in config.json. Returns its path."""
  manager = CheckpointManager(str(directory / "checkpoints"), keep=1, model_config=TINY_MODEL)
  manager.save(1, {name: tf.Variable(weight) for name, weight in (ENCODER_WEIGHTS | HEAD_WEIGHTS).items()})
  (directory / "config.json").write_text(json.dumps({"task": "classifier", "data": data_settings}))
  return str(directory)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"task": "classifier", "labels": "yes,no"}, r"labels 'no,yes', not 'yes,no'; give --fresh_head"),
    ({"task": "race"}, r"task 'classifier', not 'race'; give --fresh_head"),
  ],
)
def test_a_head_of_other_labels_or_another_task_is_refused(tmp_path: Path, settings: dict, message: str):
  path = write_run_with_head(tmp_path, {"labels": "no,yes"})
  variables = make_variables(ENCODER_WEIGHTS | HEAD_WEIGHTS)
  with pytest.raises(UserError, match=message):
    warm_start(path, variables, newly_initialized=["cls/"], head_settings=settings)
  assert_all_zero(variables)
  # If the model does not have this head, the head may be ignored, whatever it was trained for.
  encoder_variables = make_variables(ENCODER_WEIGHTS)
  options: dict[str, Any] = {"newly_initialized": ["cls/"], "ignored": ["cls/"], "head_settings": settings}
  assert warm_start(path, encoder_variables, **options) == []


def test_a_head_of_the_same_labels_is_reused(tmp_path: Path):
  path = write_run_with_head(tmp_path, {"labels": "no,yes"})
  variables = make_variables(ENCODER_WEIGHTS | HEAD_WEIGHTS)
  settings = {"task": "classifier", "labels": "no,yes"}
  assert warm_start(path, variables, newly_initialized=["cls/"], head_settings=settings) == []
  np.testing.assert_array_equal(variables["cls/predictions/output_bias"], HEAD_WEIGHTS["cls/predictions/output_bias"])


def test_a_vocabulary_other_than_the_one_beside_the_weights_is_refused(tmp_path: Path):
  model_bytes = b"a SentencePiece model"
  same = VocabularyId(hashlib.sha256(model_bytes).hexdigest(), "the same")
  different = VocabularyId("a" * 64, "--spm_model_file=x.model")
  prefix = write_checkpoint(tmp_path, ENCODER_WEIGHTS)
  # Without a file beside the weights, their vocabulary is not known.
  assert warm_start(prefix, make_variables(ENCODER_WEIGHTS), vocabulary=different) == []
  for name in ("30k-clean.model", "spiece.model"):
    (tmp_path / name).write_bytes(model_bytes)
    variables = make_variables(ENCODER_WEIGHTS)
    message = rf"vocabulary is .*{name} \(SHA-256 .* --spm_model_file=x\.model is a different one"
    with pytest.raises(UserError, match=message):
      warm_start(prefix, variables, vocabulary=different)
    assert_all_zero(variables)
    assert warm_start(prefix, variables, vocabulary=same) == []


def test_a_vocabulary_other_than_the_one_in_the_config_of_a_run_is_refused(tmp_path: Path):
  path = write_run_with_head(tmp_path, {"vocab_sha256": "b" * 64})
  variables = make_variables(ENCODER_WEIGHTS | HEAD_WEIGHTS)
  same = VocabularyId("b" * 64, "that of the shards")
  assert warm_start(path, variables, vocabulary=same) == []
  different = VocabularyId("a" * 64, "that of the shards")
  with pytest.raises(UserError, match=r"config\.json \(SHA-256 bbbb.*, but that of the shards is a different one"):
    warm_start(path, variables, vocabulary=different)


MODEL = dataclasses.replace(TINY_MODEL, num_hidden_layers=5)


# Sharing -> number of weights of each layer that are not shared. The attention of a layer has 10 weights, and its
# feed-forward network has 6.
@pytest.mark.parametrize(("sharing", "num_unshared_weights"), [("none", 16), ("attention", 6), ("ffn", 10), ("all", 0)])
def test_weights_that_are_not_shared_are_copied_with_their_moments(sharing, num_unshared_weights):
  model = dataclasses.replace(MODEL, sharing=sharing)
  names = list(encoder_shapes(model))
  num_lower_layers, num_upper_layers = 2, 3
  sources = stacked_sources([*names, *(f"{name}/adam_m" for name in names)], model, num_lower_layers)
  assert len(sources) == 2 * num_upper_layers * num_unshared_weights  # each weight and its moment
  for name, source in sources.items():
    layer = int(name.split("/group_")[1].split("/")[0])
    assert layer >= num_lower_layers
    assert source == name.replace(f"/group_{layer}/", f"/group_{layer % num_lower_layers}/")
  assert stacked_sources(names, model, 5) == {}
