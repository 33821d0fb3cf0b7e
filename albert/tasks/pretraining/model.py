"""Pretraining: masked LM, and sentence order or next sentence (ALBERT, sections 3.1 and 4.1)."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tensorflow.python.framework import config as tf_config  # TensorFlow exports no function that tells of determinism

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig
from albert.data.dataset import Dataset
from albert.data.dynamic_masking import DynamicMasking
from albert.data.pipeline import EXAMPLE_WEIGHT, ShardDataset
from albert.data.rows import DataSource, Rows, TableData, rows_of
from albert.data.schema import NEXT_SENTENCE_LABELS, FeatureSpec, pretraining_features
from albert.data.shards import Shards, count_and_hash_shards
from albert.errors import UserError
from albert.io import files
from albert.metrics.classification import GUESSING_LOSS
from albert.models.heads import PretrainingModel
from albert.runs.watch import WATCHED_METRICS, Means, WatchSettings
from albert.tasks.base import Batch, DatasetOutputs, ForwardResult, Task, TrainingStage, WeightedSum, weighted_sum
from albert.tasks.predictions import write_table
from albert.tasks.pretraining.files import PretrainingData
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.results import NUM_CANDIDATES, count_guessed, fill_line, guessing_metrics
from albert.tasks.splits import TEST

MASKED_LM_LOSS, MASKED_LM_ACCURACY = WATCHED_METRICS
_MAX_LOSS_OF_PERPLEXITY = 700  # nats; the exponential of a little more overflows
# The settings that may differ between stages. config.json records them for each stage.
_SETTINGS_OF_STAGES = ("max_seq_length", "max_predictions_per_seq", "masking", "masked_lm_prob", "ngram")
# Number of training records that show the frequencies of tokens: 40,000 masked ones in sequences of 128 tokens.
_NUM_GUESSED_RECORDS = 2000
# Networks of this depth learned with this rate at small batches, and not with twice that
# (benchmarks/results/pretraining_trials_2026-11-23.md).
_DEEP, _RATE_OF_DEEP = 6, 1e-3
# The initializer of ALBERT-large; narrower networks need a larger one, by the square root of the width.
_INITIALIZER_RANGE, _WIDTH_OF_INITIALIZER = 0.02, 1024
_MANY_UNKNOWN = 0.02
# Maximum number of logits of a device in training.
MAX_LOGITS = 2**31 - 1


def record_features(data: PretrainingData, max_predictions: int) -> Sequence[FeatureSpec]:
  """Returns the features that each record must have, with this number of masked tokens."""
  model = data.model_config
  features = pretraining_features(data.max_seq_length, max_predictions, model.vocab_size, model.type_vocab_size)
  return [feature for feature in features if data.sentence_metric or feature.name != NEXT_SENTENCE_LABELS]


class PretrainingTask(Task):
  """Pretrains a model: masked LM, and sentence order or next sentence.

  Args:
    model_config: the model.
    config: the shards and the objectives.
    data: the data, if it has been read already.

  Attributes:
    data: the shards, the lines to predict, and the settings that they decide.

  Raises:
    UserError: see PretrainingData.
  """

  name = "pretraining"
  best_metric = MASKED_LM_LOSS
  higher_is_better = False
  predicts_in_batches = False  # lines are predicted one by one
  usual_steps, usual_epochs = 2000, 0
  # Small models learned within these (benchmarks/results/time_to_loss_2026-11-23.md), large ones in the paper.
  usual_rates: Mapping[str, tuple[float, float, float]] = {"lamb": (5e-4, 3e-3, 5e-3)}
  data: PretrainingData

  def __init__(self, model_config: ModelConfig, config: PretrainingConfig, data: PretrainingData | None = None):
    super().__init__(model_config)
    self.data = data or PretrainingData(model_config, config)
    self._shards: dict[str, Shards] = {}  # globs -> the shards, once they are counted
    self.sentence_metric = self.data.sentence_metric
    if not self.sentence_metric:
      self.unused_weights = ("bert/pooler/", "cls/seq_relationship/")

  def settings(self) -> dict[str, Any]:
    """Returns the settings that affect training, with those that were read from the shards."""
    return self.data.settings()

  def build_model(self) -> keras.Model:
    """Makes a PretrainingModel."""
    model = PretrainingModel(self.model_config)
    ids = tf.zeros([1, 2], tf.int32)
    model({"input_ids": ids, "input_mask": ids, "segment_ids": ids, "masked_lm_positions": ids[:, :1]})
    return model

  def check_inputs(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Opens the shards to train on, and reads all records to evaluate on and all lines to predict."""
    self.data.read(train=train, evaluate=evaluate, predict=predict)
    if train:
      self.training_stages()
    if evaluate:
      _ = self._guessing_metrics

  def tokenize(self) -> None:
    """Does nothing: shards hold ids."""

  def training_data(self) -> ShardDataset:
    """Returns the shards of --input_file; with several stages, those of the last stage."""
    return self._training_dataset(self.data)

  def _training_dataset(self, data: PretrainingData) -> ShardDataset:
    masking = DynamicMasking.from_tokenizer(data.tokenizer, *data.masking) if data.masking else None
    features = record_features(data, data.max_predictions)
    return ShardDataset(self._count(data, "input_file", data.training_shards), features, masking)

  def _count(self, data: PretrainingData, flag: str, stats: Mapping[str, files.Stat]) -> Shards:
    """Counts and hashes the shards of a flag. Those that several stages read are counted once."""
    globs = data.globs[flag]
    if globs not in self._shards:
      cache_dir = data.config.cache_dir
      self._shards[globs] = count_and_hash_shards(list(stats), stats=stats, globs=globs, cache_dir=cache_dir)
    return self._shards[globs]

  def training_stages(self) -> Sequence[TrainingStage]:
    """Returns the stages of training in order."""
    if not self.data.stages:
      return super().training_stages()
    stages: list[TrainingStage] = []
    for stage, data in self.data.data_of_stages:
      settings = data.settings()
      stages.append(
        TrainingStage(
          until=stage.until,
          model_config=data.model_config,
          data=self._training_dataset(data),
          train_batch_size=stage.train_batch_size,
          settings={name: settings[name] for name in _SETTINGS_OF_STAGES},
        )
      )
    return stages

  def evaluation_data(self) -> dict[str, Dataset]:
    """Returns the shards of --eval_input_file."""
    return {"heldout": self._heldout_dataset()}

  def _heldout_dataset(self) -> ShardDataset:
    shards = self._count(self.data, "eval_input_file", self.data.heldout_shards)
    _, form = self.data.shards("eval_input_file")
    return ShardDataset(shards, record_features(self.data, form.max_predictions_per_seq))

  def metric_names(self) -> Sequence[str]:
    """Returns the loss and accuracy of masked tokens and, if there is a sentence objective, of sentences."""
    names = [MASKED_LM_LOSS, MASKED_LM_ACCURACY]
    if self.sentence_metric:
      names += [f"{self.sentence_metric}_loss", f"{self.sentence_metric}_accuracy"]
    return names

  def loss_names(self) -> Sequence[str]:
    """Returns the masked LM loss and the sentence loss, which are added (ALBERT, section 3.1)."""
    return [MASKED_LM_LOSS, f"{self.sentence_metric}_loss"] if self.sentence_metric else [MASKED_LM_LOSS]

  def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns the numbers of masked tokens and of examples in the batch."""
    weights = {MASKED_LM_LOSS: tf.reduce_sum(batch["masked_lm_weights"])}
    if self.sentence_metric:
      weights[f"{self.sentence_metric}_loss"] = tf.reduce_sum(batch[EXAMPLE_WEIGHT])
    return weights

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the losses and accuracies of masked tokens and of sentences. There are no outputs.

    Raises:
      UserError: the batch has too many masked tokens for a training step.
    """
    output = model(batch, training=training, seed=seed)
    if training:
      # TensorFlow's deterministic gradient of the cross entropy counts the logits of a device in int32.
      num_logits = output.masked_lm_logits.shape.num_elements()
      if tf_config.is_op_determinism_enabled() and num_logits is not None and num_logits > MAX_LOGITS:
        batch_size, num_predictions, vocab_size = output.masked_lm_logits.shape
        raise UserError(
          f"{batch_size:,} examples x {num_predictions} masked tokens x {vocab_size:,} pieces are {num_logits:,} "
          f"logits on a device; TensorFlow can compute the gradient of at most {MAX_LOGITS:,}: give a smaller "
          f"--train_batch_size, or --gradient_accumulation_steps={math.ceil(num_logits / MAX_LOGITS)} or more"
        )
    loss, accuracy = _loss_and_accuracy(output.masked_lm_logits, batch["masked_lm_ids"], batch["masked_lm_weights"])
    sums = {MASKED_LM_LOSS: loss, MASKED_LM_ACCURACY: accuracy}
    if self.sentence_metric:
      labels = batch["next_sentence_labels"][:, 0]
      loss, accuracy = _loss_and_accuracy(output.sentence_logits, labels, batch[EXAMPLE_WEIGHT])
      sums |= {f"{self.sentence_metric}_loss": loss, f"{self.sentence_metric}_accuracy": accuracy}
    return ForwardResult(sums, {})

  def metrics_from_means(self, means: Mapping[str, float]) -> dict[str, float]:
    """Returns the perplexity of the masked tokens, exp(masked_lm_loss), as in RoBERTa's table 3."""
    loss = means[MASKED_LM_LOSS]
    return {"masked_lm_perplexity": math.inf if loss > _MAX_LOSS_OF_PERPLEXITY else math.exp(loss)}

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the accuracies of the most frequent masked token and sentence label, and the loss of guessing."""
    del split, outputs
    return self._guessing_metrics

  @functools.cached_property
  def _guessing_metrics(self) -> dict[str, float]:
    counts = self._count_guessed(self._heldout_dataset())
    known_tokens = self._training_counts[0] if self.data.globs["input_file"] else 0
    return guessing_metrics(*counts, self.sentence_metric, known_tokens)

  @functools.cached_property
  def _training_counts(self) -> tuple[np.ndarray, np.ndarray]:
    return self._count_guessed(self.training_data(), _NUM_GUESSED_RECORDS)

  def _count_guessed(self, dataset: ShardDataset, max_records: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    return count_guessed(dataset.shards.paths, dataset.features, self.model_config.vocab_size, max_records)

  @functools.cached_property
  def _training_guess(self) -> dict[str, float]:
    return guessing_metrics(*self._training_counts, self.sentence_metric)

  def guessing_loss(self) -> float:
    """Returns the loss of giving each token and label its share of the first training records as its probability."""
    return self._training_guess[GUESSING_LOSS]

  def watch_settings(self, config: RunConfig) -> WatchSettings:
    """Returns the masked LM loss of guessing, and what may keep this run from learning."""
    metrics = self._training_guess
    guess = Means(metrics[f"masked_lm_{GUESSING_LOSS}"], metrics["masked_lm_baseline_accuracy"])
    hazards = [] if config.init_checkpoint else self._hazards(config)
    return WatchSettings(guess, hazards, self.data.config.on_collapse == "stop")

  def _hazards(self, config: RunConfig) -> list[str]:
    """Returns what may keep random weights from learning, with the remedies."""
    model, optimizer, batch = self.model_config, config.optimizer, config.train.train_batch_size
    depth, rate, hazards = model.num_hidden_layers, optimizer.peak_learning_rate(batch), []
    paper_rate = OptimizerConfig(scale_learning_rate=True).peak_learning_rate(batch)
    if depth >= _DEEP and rate > max(paper_rate, _RATE_OF_DEEP):
      flag = f"--learning_rate={optimizer.learning_rate / rate * max(paper_rate, _RATE_OF_DEEP / 2):.3g}"
      hazards.append(f"a learning rate of {rate:.3g}, high for {depth} layers and batches of {batch} ({flag})")
    usual_range = _INITIALIZER_RANGE * math.sqrt(_WIDTH_OF_INITIALIZER / model.hidden_size)
    if 2 * model.initializer_range < usual_range:
      small = f"initial weights of {model.initializer_range:g}, small for a width of {model.hidden_size}"
      hazards.append(f"{small} (--initializer_range={usual_range:.2g})")
    if (unknown := self.data.unknown_share or 0) > _MANY_UNKNOWN:
      hazards.append(f"{unknown:.0%} of the tokens are <unk> (train a vocabulary on this text)")
    if not self.data.has_manifest and len(self.data.training_shards) == 1:
      hazards.append("a single shard, which may have the order of the text (write several with data_prep)")
    return hazards

  def prediction_rows(self, data: TableData) -> Rows:
    """Makes rows of texts with [MASK]."""
    return rows_of(data, "the data to predict", ["text"])

  def with_data(self, split: str, source: DataSource, *, cache: bool = True) -> PretrainingTask:
    """Returns a copy of the task that has other lines to predict. Shards cannot be replaced."""
    del cache
    if split != TEST:
      raise UserError(f"{split}: pretraining reads TFRecord files: give their paths")
    task = copy.copy(self)
    task.data = self.data.with_source(source)
    return task

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Fills the masks in --predict_file: writes predictions_NAME.tsv, and prints it."""
    del run_model
    (path,) = self.prediction_files(directory, predictions_file)
    rows: list[list[str]] = []
    for line in self.data.masked_lines:
      for mask, candidates in enumerate(fill_line(model, self.data.tokenizer, line), start=1):
        cells = itertools.chain.from_iterable(candidates.items())  # pieces and probabilities in turn
        rows.append([str(line.number), str(mask), line.text, *map(str, cells)])
    columns = [f"{name}_{rank}" for rank in range(1, NUM_CANDIDATES + 1) for name in ("piece", "probability")]
    print(write_table(path, ["line", "mask", "text", *columns], rows), end="", flush=True)
    return [path]

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Returns for each line a list with a dict for each [MASK]: the most probable pieces -> their probabilities."""
    del run_model
    return [list(fill_line(model, self.data.tokenizer, line)) for line in self.data.masked_lines]


def _loss_and_accuracy(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[WeightedSum, WeightedSum]:
  """Weighted sums of cross entropy and accuracy, for logits [..., C], labels int [...] and weights [...]."""
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  is_correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels), tf.float32)
  return weighted_sum(losses, weights), weighted_sum(is_correct, weights)
