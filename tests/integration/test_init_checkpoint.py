"""Evaluation and training give the same numbers from the same weights in every format."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from albert.config.model import ModelConfig, load_model_config
from albert.config.run import OptimizerConfig, PretrainingConfig, RunConfig, TrainConfig
from albert.convert.convert_checkpoint import convert
from albert.errors import UserError
from albert.estimator import Estimator
from albert.tasks.pretraining import PretrainingTask
from tests.convert.files_of_weights import huggingface_tensors, write_huggingface, write_tf1
from tests.golden.make_tiny_albert import random_weights
from tests.synthetic import TINY_MODEL, write_manifest, write_shards

pytestmark = pytest.mark.usefixtures("eager_steps")

WEIGHTS = random_weights(TINY_MODEL, 5)


def estimator(directory: Path, init_checkpoint: str, model: ModelConfig = TINY_MODEL, steps: int = 2) -> Estimator:
  shards = str(directory / "shards" / "*.tfrecord")
  task = PretrainingTask(model, PretrainingConfig(input_file=shards, eval_input_file=shards))
  run = RunConfig(
    output_dir=str(directory / f"run_{len(list(directory.iterdir()))}"),
    init_checkpoint=init_checkpoint,
    optimizer=OptimizerConfig(learning_rate=0.01, num_warmup_steps=0),
    train=TrainConfig(train_batch_size=8, eval_batch_size=8, num_train_steps=steps, precision="float32"),
  )
  return Estimator(task, run)


@pytest.fixture
def forms(tmp_path: Path) -> dict[str, str]:
  write_shards(tmp_path / "shards", [24])
  tf1 = write_tf1(tmp_path / "tf1", TINY_MODEL, WEIGHTS, "module/")
  convert(tf1, str(tmp_path / "ours"), "albert")
  bare = huggingface_tensors(WEIGHTS, prefix=False)
  np.savez(tmp_path / "weights.npz", **bare)
  return {
    "tf1": tf1,
    "ours": str(tmp_path / "ours"),
    "huggingface": write_huggingface(tmp_path / "hf", TINY_MODEL, bare),
    "npz": str(tmp_path / "weights.npz"),
  }


@pytest.mark.thorough
def test_every_form_evaluates_alike(tmp_path, forms):
  results = {form: estimator(tmp_path, path).evaluate() for form, path in forms.items()}
  assert 1 < results["tf1"]["masked_lm_loss"] < 20
  assert all(results[form] == results["tf1"] for form in forms), results


@pytest.mark.slow
def test_training_starts_from_either_librarys_weights(tmp_path, forms):
  trained = {}
  for form in ("tf1", "huggingface"):
    run = estimator(tmp_path, forms[form])
    run.train()
    trained[form] = {name: variable.numpy() for name, variable in run.model.named_weights().items()}
  for name, value in trained["tf1"].items():
    np.testing.assert_array_equal(trained["huggingface"][name], value, err_msg=name)
    assert 0 < np.abs(value - WEIGHTS[name]).max() < 0.5, name


def test_a_model_that_differs_where_shapes_do_not_tell_is_refused(tmp_path, forms):
  assert load_model_config(f"{forms['huggingface']}/config.json") == TINY_MODEL
  other = dataclasses.replace(TINY_MODEL, num_attention_heads=4)
  for form in ("tf1", "ours", "huggingface"):
    with pytest.raises(UserError, match="has num_attention_heads 3, this model has 4"):
      estimator(tmp_path, forms[form], other).evaluate()


def test_weights_of_another_vocabulary_than_that_of_the_shards_are_refused(tmp_path):
  paths = write_shards(tmp_path / "shards", [24])
  write_manifest(tmp_path / "shards", paths, [24], vocab_sha256=hashlib.sha256(b"the shards'").hexdigest())
  weights = write_tf1(tmp_path / "tf1", TINY_MODEL, WEIGHTS)
  (tmp_path / "tf1" / "30k-clean.model").write_bytes(b"the weights'")
  run = estimator(tmp_path, weights)
  for action in (run.train, run.evaluate):
    with pytest.raises(
      UserError, match=r"its vocabulary is .*30k-clean\.model .*, but that of .*\.tfrecord is a different one"
    ):
      action()
  (tmp_path / "tf1" / "30k-clean.model").write_bytes(b"the shards'")
  assert run.evaluate()["masked_lm_loss"] > 1
  # config.json records the vocabulary of the run, so later evaluations with another one are refused.
  run_directory = Path(run.config.output_dir)
  (run_directory / "config.json").write_text(json.dumps({"data": {"vocab_sha256": "0" * 64}}))
  with pytest.raises(UserError, match=r"config\.json: its checkpoints were trained with vocab_sha256 = '0000"):
    run.evaluate()
