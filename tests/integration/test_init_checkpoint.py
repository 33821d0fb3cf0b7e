"""Pretraining tasks evaluate and train alike from the same weights in every format (--init_checkpoint)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from albert.config.model import ModelConfig, load_model_config
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.convert.convert_checkpoint import convert
from albert.errors import UserError
from albert.estimator import Estimator
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from tests.convert.files_of_weights import huggingface_tensors, write_huggingface, write_tf1
from tests.golden.make_tiny_albert import random_weights
from tests.synthetic import TINY_MODEL, write_manifest, write_shards

pytestmark = pytest.mark.usefixtures("eager_steps")

WEIGHTS = random_weights(TINY_MODEL, seed=5)


def make_estimator(directory: Path, init_checkpoint: str, model: ModelConfig = TINY_MODEL) -> Estimator:
  """Makes an estimator with a new output_dir, which trains on and evaluates with the shards of the directory."""
  shards = str(directory / "shards" / "*.tfrecord")
  task = PretrainingTask(model, PretrainingConfig(input_file=shards, eval_input_file=shards))
  run = RunConfig(
    output_dir=str(directory / f"run_{len(list(directory.iterdir()))}"),
    init_checkpoint=init_checkpoint,
    optimizer=OptimizerConfig(learning_rate=0.01, num_warmup_steps=0),
    train=TrainConfig(train_batch_size=8, eval_batch_size=8, num_train_steps=2, precision="float32"),
  )
  return Estimator(task, run)


@pytest.fixture
def paths_of_formats(tmp_path: Path) -> dict[str, str]:
  """The same weights in every format: name of the format -> path for --init_checkpoint. Also writes the shards."""
  write_shards(tmp_path / "shards", [24])
  tf1 = write_tf1(tmp_path / "tf1", TINY_MODEL, WEIGHTS, name_prefix="module/")
  convert(tf1, str(tmp_path / "ours"), "albert")
  tensors = huggingface_tensors(WEIGHTS, with_prefix=False)
  save_file(WEIGHTS, str(tmp_path / "weights.safetensors"))
  return {
    "tf1": tf1,
    "ours": str(tmp_path / "ours"),
    "huggingface": write_huggingface(tmp_path / "hf", TINY_MODEL, tensors),
    "safetensors": str(tmp_path / "weights.safetensors"),
  }


@pytest.mark.thorough
def test_every_format_gives_the_same_results(tmp_path, paths_of_formats):
  results = {name: make_estimator(tmp_path, path).evaluate() for name, path in paths_of_formats.items()}
  assert 1 < results["tf1"]["masked_lm_loss"] < 20
  assert all(results[name] == results["tf1"] for name in paths_of_formats), results


def test_another_number_of_attention_heads_is_refused_although_it_changes_no_shape(tmp_path, paths_of_formats):
  assert load_model_config(f"{paths_of_formats['huggingface']}/config.json") == TINY_MODEL
  other_model = dataclasses.replace(TINY_MODEL, num_attention_heads=4)
  for name in ("tf1", "ours", "huggingface"):
    with pytest.raises(UserError, match="has num_attention_heads 3, this model has 4"):
      make_estimator(tmp_path, paths_of_formats[name], other_model).evaluate()


def test_weights_with_another_vocabulary_than_the_shards_are_refused(tmp_path):
  paths = write_shards(tmp_path / "shards", [24])
  vocabulary_of_shards, other_vocabulary = b"the vocabulary of the shards", b"another vocabulary"
  sha256 = hashlib.sha256(vocabulary_of_shards).hexdigest()
  write_manifest(tmp_path / "shards", paths, [24], vocab_sha256=sha256)
  weights = write_tf1(tmp_path / "tf1", TINY_MODEL, WEIGHTS)
  (tmp_path / "tf1" / "30k-clean.model").write_bytes(other_vocabulary)
  estimator = make_estimator(tmp_path, weights)
  message = r"its vocabulary is .*30k-clean\.model .*, but that of .*\.tfrecord is a different one"
  for action in (estimator.train, estimator.evaluate):
    with pytest.raises(UserError, match=message):
      action()
  (tmp_path / "tf1" / "30k-clean.model").write_bytes(vocabulary_of_shards)
  assert estimator.evaluate()["masked_lm_loss"] > 1

  # config.json records the vocabulary of the run. Later evaluations with another vocabulary are refused.
  config_file = Path(estimator.config.output_dir, "config.json")
  config_file.write_text(json.dumps({"data": {"vocab_sha256": "0" * 64}}))
  with pytest.raises(UserError, match=r"config\.json: its checkpoints were trained with vocab_sha256 = '0000"):
    estimator.evaluate()
