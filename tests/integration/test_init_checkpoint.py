"""A pretraining task refuses weights of another model or vocabulary (--init_checkpoint)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.errors import UserError
from albert.estimator import Estimator
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from tests.convert.files_of_weights import write_tf1
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


def test_another_number_of_attention_heads_is_refused_although_it_changes_no_shape(tmp_path):
  write_shards(tmp_path / "shards", [24])
  other_model = dataclasses.replace(TINY_MODEL, num_attention_heads=4)
  with pytest.raises(UserError, match="has num_attention_heads 3, this model has 4"):
    make_estimator(tmp_path, write_tf1(tmp_path / "tf1", TINY_MODEL, WEIGHTS), other_model).evaluate()


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
