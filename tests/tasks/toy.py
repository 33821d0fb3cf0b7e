"""A fine-tuning task for tests: it classifies whether a sequence contains a certain token.

tests/tasks/test_finetuning.py uses it to test what all fine-tuning tasks share, and tests/integration/mirrored.py
trains it on several devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig, OptimizerConfig, RunConfig, TrainConfig
from albert.data.examples import TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.io import files
from albert.models.classifier import ClassifierModel
from albert.tasks.base import LOSS, Batch, DatasetOutputs, ExampleSets, ForwardResult, Task, weighted_sum
from albert.tasks.finetuning import FinetuningData
from albert.tasks.predictions import write_table
from albert.tokenization.vocabulary import CLS_ID, SEP_ID
from tests.synthetic import TINY_MODEL

MODEL = dataclasses.replace(TINY_MODEL, vocab_size=61, num_hidden_layers=1)
TARGET_TOKEN = 7


@dataclasses.dataclass(frozen=True)
class ToyFeaturizer:
  """Converts lines of numbers to TokenizedExamples. The first number of a line is the label."""

  def __call__(self, lines: Sequence[list[int]]) -> TokenizedExamples:
    sequences = [[CLS_ID, *line[1:], SEP_ID] for line in lines]
    return TokenizedExamples(
      input_ids=np.concatenate(sequences).astype(np.int32),
      sequence_lengths=np.array([len(sequence) for sequence in sequences], np.int32),
      sequence_counts=np.ones(len(lines), np.int32),
      labels={"label_ids": np.array([line[0] for line in lines], np.int32)},
    )


class ToyData(FinetuningData):
  """Reads files of lines of numbers: the label, then the tokens."""

  def __init__(self, config: FinetuningConfig, directory: str):
    super().__init__(config)
    self.directory = directory

  def find(self, split: str) -> Sequence[str]:
    return [files.join(self.directory, f"{split}.txt")]

  def read_split(self, split: str) -> Sequence[list[int]]:
    (path,) = self.find(split)
    with files.open_file(path) as file:
      return [[int(number) for number in line.split()] for line in file.read().decode().splitlines()]


class ToyTask(Task):
  """Classifies the lines."""

  name = "toy"
  best_metric = "accuracy"

  def __init__(self, model_config: ModelConfig, data: ToyData):
    super().__init__(model_config, data)
    self.sets = ExampleSets(self.name, data, ToyFeaturizer(), model_config, settings={})

  def build_model(self) -> keras.Model:
    model = ClassifierModel(self.model_config, 2)
    ids = tf.zeros([1, 2], tf.int32)
    model({"input_ids": ids, "input_mask": ids, "segment_ids": ids})
    return model

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    logits = model(batch, training=training, seed=seed)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label_ids"], logits)
    loss = weighted_sum(losses, batch[EXAMPLE_WEIGHT])
    return ForwardResult({LOSS: loss}, {"logits": logits, "losses": losses, "label_ids": batch["label_ids"]})

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    return {"accuracy": float(np.mean(outputs["logits"].argmax(-1) == outputs["label_ids"]))}

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    return [predictions_file or files.join(directory, "predictions.tsv")]

  def make_predictions(self, split: str, outputs: DatasetOutputs) -> list[int]:
    return outputs["logits"].argmax(-1).tolist()

  def write_test_predictions(self, predictions: list[int], paths: Sequence[str]) -> None:
    write_table(paths[0], ["index", "label"], [[str(index), str(label)] for index, label in enumerate(predictions)])


def write_toy_files(directory: str, num_examples: int = 64) -> None:
  """Writes train.txt, dev.txt and test.txt: sequences of 3 to 29 tokens. Half of the sequences contain TARGET_TOKEN."""
  files.makedirs(directory)
  rng = np.random.default_rng(0)
  for split in ("train", "dev", "test"):
    lines = []
    for index in range(num_examples):
      label = index % 2
      tokens = rng.integers(10, 60, int(rng.integers(3, 30)))
      if label == 1:
        tokens[rng.integers(len(tokens))] = TARGET_TOKEN
      lines.append(" ".join(map(str, [label, *tokens])))
    files.write_atomically(files.join(directory, f"{split}.txt"), "\n".join(lines) + "\n")


def toy_task(tmp_path: Path, spm_file: str, model: ModelConfig = MODEL, **config_fields: Any) -> ToyTask:
  """Makes a task that reads the files of tmp_path/data, which the first call writes."""
  directory = tmp_path / "data"
  if not directory.exists():
    write_toy_files(str(directory))
  fields = {"spm_model_file": spm_file, "max_seq_length": 32, "cache_dir": str(tmp_path / "features"), **config_fields}
  return ToyTask(model, ToyData(FinetuningConfig(**fields), str(directory)))


def run_config(output_dir: Path, *, optimizer: dict[str, Any] | None = None, **options: Any) -> RunConfig:
  """Makes the config of a run of 12 steps. The options are fields of RunConfig and of TrainConfig."""
  train_options: dict[str, Any] = {
    "train_batch_size": 8,
    "eval_batch_size": 24,
    "num_train_steps": 12,
    "log_every_steps": 4,
    "save_checkpoints_steps": 100,
    "eval_every_steps": 4,
  }
  run_fields = {field.name for field in dataclasses.fields(RunConfig)}
  run_options = {name: value for name, value in options.items() if name in run_fields}
  train_options |= {name: value for name, value in options.items() if name not in run_fields}
  return RunConfig(
    **{"output_dir": str(output_dir), "from_scratch": True, **run_options},
    optimizer=OptimizerConfig(
      **{"optimizer": "adamw", "learning_rate": 0.003, "num_warmup_steps": 2, **(optimizer or {})}
    ),
    train=TrainConfig(**train_options),
  )
