"""Initializing a model from --init_checkpoint: weights are matched by name, and each mismatch is an error."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.vocabulary import VocabularyId
from albert.weights.checkpoint_files import write_bundle
from albert.weights.checkpoints import CheckpointManager
from albert.weights.location import find_prefix
from albert.weights.warm_start import warm_start
from tests.synthetic import TINY_MODEL

ENCODER = {"bert/embeddings/word_embeddings": np.arange(12.0, dtype=np.float32).reshape(4, 3)}
HEAD = {"cls/predictions/output_bias": np.arange(4.0, dtype=np.float32)}


def bundle(directory: Path, tensors: dict[str, np.ndarray]) -> str:
  prefix = str(directory / "model.ckpt")
  write_bundle(prefix, tensors)
  return prefix


def variables(*groups: dict[str, np.ndarray]) -> dict[str, tf.Variable]:
  return {name: tf.Variable(tf.zeros(value.shape)) for group in groups for name, value in group.items()}


def test_moments_and_the_step_are_not_weights(tmp_path: Path):
  extra = {f"{name}/adam_m": value for name, value in ENCODER.items()} | {"global_step": np.int64(7)}
  target = variables(ENCODER)
  assert warm_start(bundle(tmp_path, ENCODER | extra), target) == []
  np.testing.assert_array_equal(target["bert/embeddings/word_embeddings"], ENCODER["bert/embeddings/word_embeddings"])


def test_the_prefix_of_tf_hub_is_removed(tmp_path: Path):
  target = variables(ENCODER)
  warm_start(bundle(tmp_path, {f"module/{name}": value for name, value in ENCODER.items()}), target)
  assert float(tf.reduce_sum(target["bert/embeddings/word_embeddings"])) == 66


def test_a_missing_weight_is_an_error_unless_it_may_be_newly_initialized(tmp_path: Path):
  prefix = bundle(tmp_path, ENCODER)
  with pytest.raises(UserError, match="lacks 1 weights: cls/predictions/output_bias"):
    warm_start(prefix, variables(ENCODER, HEAD))
  assert warm_start(prefix, variables(ENCODER, HEAD), newly_initialized=["cls/"]) == ["cls/predictions/output_bias"]


def test_an_unused_weight_is_an_error_unless_it_may_be_ignored(tmp_path: Path):
  prefix = bundle(tmp_path, ENCODER | HEAD)
  with pytest.raises(UserError, match="has unused 1 weights: cls/predictions/output_bias"):
    warm_start(prefix, variables(ENCODER))
  assert warm_start(prefix, variables(ENCODER), ignored=["cls/"]) == []


def test_another_shape_is_an_error_and_assigns_nothing(tmp_path: Path):
  target = {"bert/embeddings/word_embeddings": tf.Variable(tf.zeros([3, 4]))} | variables(HEAD)
  with pytest.raises(UserError, match=r"another shape .*word_embeddings \[4, 3\] instead of \[3, 4\]"):
    warm_start(bundle(tmp_path, ENCODER | HEAD), target)
  assert all(float(tf.reduce_sum(tf.abs(v))) == 0 for v in target.values())


def test_a_path_without_a_checkpoint_is_an_error(tmp_path: Path):
  with pytest.raises(UserError, match="no checkpoint there"):
    find_prefix(str(tmp_path / "nothing"))


def test_the_output_dir_of_a_run_means_its_newest_undamaged_checkpoint(tmp_path: Path):
  manager = CheckpointManager(str(tmp_path / "checkpoints"), keep=5, model_config=TINY_MODEL)
  for step in (9, 10):
    manager.save(step, ENCODER)
  assert find_prefix(str(tmp_path)).endswith("step-10/weights")
  (tmp_path / "checkpoints" / "step-10" / "weights.index").write_bytes(b"damaged")
  assert find_prefix(str(tmp_path)).endswith("step-9/weights")
  with pytest.raises(UserError, match=r"weights.index"):
    find_prefix(str(tmp_path / "checkpoints" / "step-10"))


def test_a_deeper_network_starts_from_a_shallower_one(tmp_path: Path):
  def layers(count: int) -> dict[str, np.ndarray]:
    name = "bert/encoder/transformer/group_{}/inner_group_0/{}"
    kinds = ("attention_1/self/query/kernel", "LayerNorm/gamma", "ffn_1/intermediate/dense/kernel", "LayerNorm_1/beta")
    return {name.format(group, kind): np.full([2], group, np.float32) for group in range(count) for kind in kinds}

  target = variables(layers(6))
  with pytest.raises(UserError, match="lacks 12 weights"):
    warm_start(bundle(tmp_path, layers(3)), target)
  warm_start(bundle(tmp_path, layers(3)), target, from_shallower=True)
  for name, variable in target.items():
    group = int(name.split("group_")[1].split("/")[0])
    assert float(variable[0]) == group // 2


def run_with_head(directory: Path, data: dict[str, str], task: str = "classifier") -> str:
  manager = CheckpointManager(str(directory / "checkpoints"), keep=1, model_config=TINY_MODEL)
  manager.save(1, {name: tf.Variable(value) for name, value in (ENCODER | HEAD).items()})
  (directory / "config.json").write_text(json.dumps({"task": task, "data": data}))
  return str(directory)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"task": "classifier", "labels": "yes,no"}, r"labels 'no,yes', this run has 'yes,no'; give --fresh_head"),
    ({"task": "race"}, r"task 'classifier', this run has 'race'; give --fresh_head"),
  ],
)
def test_a_head_of_other_labels_or_another_task_is_refused(tmp_path: Path, settings: dict, message: str):
  path = run_with_head(tmp_path, {"labels": "no,yes"})
  target = variables(ENCODER, HEAD)
  with pytest.raises(UserError, match=message):
    warm_start(path, target, newly_initialized=["cls/"], head_settings=settings)
  assert all(float(tf.reduce_sum(tf.abs(v))) == 0 for v in target.values())
  # A head that the model does not have may be ignored, whatever it was trained for.
  assert (
    warm_start(path, variables(ENCODER), newly_initialized=["cls/"], ignored=["cls/"], head_settings=settings) == []
  )


def test_a_head_of_the_same_labels_is_reused(tmp_path: Path):
  path = run_with_head(tmp_path, {"labels": "no,yes"})
  target = variables(ENCODER, HEAD)
  assert (
    warm_start(path, target, newly_initialized=["cls/"], head_settings={"task": "classifier", "labels": "no,yes"}) == []
  )
  np.testing.assert_array_equal(target["cls/predictions/output_bias"], HEAD["cls/predictions/output_bias"])


def test_another_vocabulary_than_that_of_the_weights_is_refused(tmp_path: Path):
  different, file_content = VocabularyId("a" * 64, "--spm_model_file=x.model"), b"a SentencePiece model"
  same = VocabularyId(hashlib.sha256(file_content).hexdigest(), "the same")
  prefix = bundle(tmp_path, ENCODER)
  # The vocabulary of the weights is not known.
  assert warm_start(prefix, variables(ENCODER), vocabulary=different) == []
  for name in ("30k-clean.model", "spiece.model"):
    (tmp_path / name).write_bytes(file_content)
    target = variables(ENCODER)
    message = rf"vocabulary is .*{name} \(SHA-256 .* --spm_model_file=x\.model is a different one"
    with pytest.raises(UserError, match=message):
      warm_start(prefix, target, vocabulary=different)
    assert all(float(tf.reduce_sum(tf.abs(v))) == 0 for v in target.values())
    assert warm_start(prefix, variables(ENCODER), vocabulary=same) == []


def test_the_vocabulary_of_a_run_is_in_its_config(tmp_path: Path):
  path = run_with_head(tmp_path, {"vocab_sha256": "b" * 64})
  for sha256 in ("a" * 64, "b" * 64):
    vocabulary = VocabularyId(sha256, "that of the shards")
    if sha256.startswith("b"):
      assert warm_start(path, variables(ENCODER, HEAD), vocabulary=vocabulary) == []
    else:
      with pytest.raises(UserError, match=r"config\.json \(SHA-256 bbbb.*, but that of the shards is a different one"):
        warm_start(path, variables(ENCODER, HEAD), vocabulary=vocabulary)
