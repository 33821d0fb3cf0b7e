"""A fine-tuning task for tests: it classifies whether a sequence contains a certain token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig
from albert.data import tables
from albert.data.dataset import Dataset
from albert.data.examples import TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.io import files
from albert.models.classifier import ClassifierModel
from albert.tasks.base import Batch, DatasetOutputs, ForwardResult, weighted_sum
from albert.tasks.finetuning import LOSS, FinetuningTask
from albert.tokenization.tokenizer import CLS_ID, SEP_ID

WORD = 7


@dataclasses.dataclass(frozen=True)
class Featurizer:
  """Converts lines of numbers to TokenizedExamples. The first number of a line is the label."""

  def __call__(self, raw: Sequence[list[int]]) -> TokenizedExamples:
    tokens = [[CLS_ID, *line[1:], SEP_ID] for line in raw]
    return TokenizedExamples(
      np.array([token for row in tokens for token in row], np.int32),
      np.array([len(row) for row in tokens], np.int32),
      np.ones(len(raw), np.int32),
      {"label_ids": np.array([line[0] for line in raw], np.int32)},
    )


class ToyTask(FinetuningTask):
  """Reads files of lines of numbers: the label, then the tokens."""

  name = "toy"
  best_metric = "accuracy"

  def __init__(self, model_config: ModelConfig, config: FinetuningConfig, directory: str):
    super().__init__(model_config, config)
    self.directory = directory

  def data_files(self, split: str) -> Sequence[str]:
    return [files.join(self.directory, f"{split}.txt")]

  def raw_examples(self, split: str) -> Sequence[list[int]]:
    with files.open_file(self.data_files(split)[0]) as file:
      return [[int(word) for word in line.split()] for line in file.read().decode().splitlines()]

  def featurizer(self, split: str) -> Callable[[Sequence[list[int]]], TokenizedExamples]:
    del split
    return Featurizer()

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

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    (path,) = self.prediction_files(directory, predictions_file)
    rows = [{"index": i, "label": int(row.argmax())} for i, row in enumerate(run_model(self.data("test"))["logits"])]
    tables.write_rows(path, rows)
    return [path]


def write_data(directory: str, num_examples: int = 64) -> None:
  """Writes train.txt, dev.txt and test.txt: sequences of 3 to 29 tokens, half of which contain WORD."""
  files.makedirs(directory)
  rng = np.random.default_rng(0)
  for split in ("train", "dev", "test"):
    lines = []
    for number in range(num_examples):
      tokens = rng.integers(10, 60, int(rng.integers(3, 30)))
      if number % 2:
        tokens[rng.integers(len(tokens))] = WORD
      lines.append(" ".join(map(str, [number % 2, *tokens])))
    files.write_atomically(files.join(directory, f"{split}.txt"), "\n".join(lines) + "\n")
