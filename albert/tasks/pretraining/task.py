"""Pretraining: masked LM, and sentence order or next sentence (ALBERT, sections 3.1 and 4.1)."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf
import tf_keras as keras
from tensorflow.python.framework import config as tf_config  # TensorFlow exports no function that tells of determinism

from albert.config.model import ModelConfig
from albert.config.run import PretrainingConfig
from albert.config.stages import deciding_input_file, read_stages
from albert.data import tables
from albert.data.dataset import Dataset
from albert.data.masks.dynamic_masking import DynamicMasking
from albert.data.pipeline import EXAMPLE_WEIGHT, ShardDataset
from albert.data.rows import DataSource, Rows, TableData, rows_of
from albert.data.shard_files.manifest import Manifest
from albert.data.shard_files.schema import NEXT_SENTENCE_LABELS, FeatureSpec, pretraining_features
from albert.data.shard_files.shards import count_and_hash_shards
from albert.errors import UserError
from albert.io import files
from albert.io.globs import expand_globs
from albert.metrics.probabilities import perplexity
from albert.models.heads import PretrainingModel
from albert.tasks.base import Batch, DatasetOutputs, ForwardResult, Task, TrainingStage, WeightedSum, weighted_sum
from albert.tasks.predictions import predictions_name, predictions_path
from albert.tasks.pretraining import fill_mask
from albert.tasks.pretraining import stages as pretraining_stages
from albert.tasks.pretraining.baselines import baseline_accuracies
from albert.tasks.pretraining.files import ShardForm, check_can_predict, find_shards, load_vocabulary, read_form
from albert.tasks.pretraining.fill_mask import MaskedLine
from albert.tasks.pretraining.masking import make_masking
from albert.tasks.splits import TEST
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import VocabularyId, vocabulary_copies

MASKED_LM_LOSS = "masked_lm_loss"
MASKED_LM_ACCURACY = "masked_lm_accuracy"
MASKED_LM_PERPLEXITY = "masked_lm_perplexity"
# TensorFlow's deterministic gradient of the cross entropy counts the logits of a device in int32.
MAX_LOGITS = 2**31 - 1
# Sentence objective -> the prefix of its metrics.
_SENTENCE_METRIC_PREFIXES = {"sop": "sentence_order", "nsp": "next_sentence"}

_PretrainingTaskT = TypeVar("_PretrainingTaskT", bound="PretrainingTask")


class PretrainingTask(Task):
  """Pretrains a model: masked LM, and sentence order or next sentence.

  Args:
    model_config: the model.
    config: the shards and the objectives.

  Attributes:
    stages: the stages that the run is divided into; () if it is not divided. With several stages, the other attributes
      are those of the last stage.
    max_seq_length: S, number of tokens of each sequence in the shards.
    max_predictions: P, number of masked tokens of each sequence in the shards to train on, with padding. The held-out
      shards may have another number.
    sentence_prediction: the sentence objective: "sop", "nsp" or "none".
    sentence_metric: the prefix of its metrics, "sentence_order" or "next_sentence"; None if the objective is "none".
    vocab_sha256, vocab_kind: SHA-256 and kind of the vocabulary of the shards; "" if they have no manifest.
    masking: makes new masks for each example in training; None if the masks in the shards are used.

  Raises:
    UserError: the shards cannot be read, or do not match the flags, the model or each other.
  """

  name = "pretraining"
  best_metric = MASKED_LM_LOSS
  higher_is_better = False
  predicts_in_batches = False  # lines are predicted one by one
  config: PretrainingConfig

  def __init__(self, model_config: ModelConfig, config: PretrainingConfig):
    super().__init__(model_config)
    self.config = config
    self.stages = read_stages(config, model_config)
    input_file = deciding_input_file(self.stages, config)
    self._globs = {"input_file": input_file, "eval_input_file": config.eval_input_file}
    self._file_stats: dict[str, dict[str, files.Stat]] = {}
    self._forms: dict[str, ShardForm] = {}
    self.vocab_sha256 = ""
    self.vocab_kind = ""
    self._prediction_rows: Rows | None = None
    self.max_seq_length = config.max_seq_length or model_config.max_position_embeddings
    self.max_predictions = max(config.max_predictions_per_seq, 1)
    self.sentence_prediction = config.sentence_prediction
    manifest = None
    if input_file or config.eval_input_file:
      flag = "input_file" if input_file else "eval_input_file"
      manifest = self._read_shard_settings(flag, list(self._shard_stats(flag)))
    if self.sentence_prediction == "auto":
      self.sentence_prediction = "sop"
    self.masking = make_masking(
      config, manifest if input_file else None, model_config.vocab_size, lambda: self._tokenizer
    )
    self.sentence_metric = _SENTENCE_METRIC_PREFIXES.get(self.sentence_prediction)
    if not self.sentence_metric:
      self.unused_weights = ("bert/pooler/", "cls/seq_relationship/")

  def _shard_stats(self, flag: str) -> dict[str, files.Stat]:
    """Returns path -> size and modification time of each shard that a flag gives. The files are listed only once."""
    if flag not in self._file_stats:
      self._file_stats[flag] = find_shards(flag, self._globs[flag])
    return self._file_stats[flag]

  def _form(self, flag: str) -> ShardForm:
    """Returns the form of the first shard that a flag gives. It is read only once."""
    if flag not in self._forms:
      self._forms[flag] = read_form(next(iter(self._shard_stats(flag))))
    return self._forms[flag]

  def _read_shard_settings(self, files_flag: str, paths: Sequence[str]) -> Manifest | None:
    """Sets max_seq_length and max_predictions to those of the first shard. Checks that flags and model fit the shards.

    Args:
      files_flag: the flag that gives the shards.
      paths: the shards.
    Returns: the manifest beside the first shard, if there is one.
    """
    form = self._form(files_flag)
    for flag in ("max_seq_length", "max_predictions_per_seq"):
      length = getattr(form, flag)
      # A run has recorded the number of predictions of its training shards. That of the held-out shards may differ.
      is_checked = flag == "max_seq_length" or files_flag == "input_file"
      flag_value = getattr(self.config, flag)
      if is_checked and flag_value not in (0, length):
        raise UserError(
          f"--{flag}={flag_value}: {paths[0]} was written with {length}; give {length} or leave the flag out"
        )
    self.max_seq_length, self.max_predictions, path = form.max_seq_length, form.max_predictions_per_seq, paths[0]
    if self.max_seq_length > self.model_config.max_position_embeddings:
      raise UserError(
        f"{path} holds sequences of {self.max_seq_length} tokens, the model has "
        f"{self.model_config.max_position_embeddings} positions: write shorter shards or raise max_position_embeddings"
      )
    return self._check_manifests(paths)

  def _check_manifests(self, paths: Sequence[str]) -> Manifest | None:
    """Checks the manifests beside all shards, and returns the one beside the first shard."""
    manifests = {directory: Manifest.load(directory) for directory in dict.fromkeys(map(os.path.dirname, paths))}
    for directory, manifest in manifests.items():
      if manifest:
        self._check_manifest(directory, manifest)
    return manifests[os.path.dirname(paths[0])]

  @functools.cached_property
  def _tokenizer(self) -> Tokenizer:
    return load_vocabulary(self.config)

  def _check_manifest(self, directory: str, manifest: Manifest) -> None:
    """Checks that shards fit the model, the flags and other shards.

    Sets vocab_sha256, settings of the text that are not given, and with --sentence_prediction=auto also
    sentence_prediction, to the values of the manifest.
    """
    manifest_file = files.join(directory, "manifest.json")
    for name, default in {"do_lower_case": None, "keep_accents": False}.items():
      made_with, value = manifest.settings.get(name, default), getattr(self.config, name)
      if None not in (made_with, value) and made_with != value:
        raise UserError(
          f"{manifest_file}: the shards were made with {name}={str(made_with).lower()}, but {str(value).lower()} is "
          "given, or recorded for the vocabulary or the run: leave the flag out, or give shards made with that value"
        )
      if value is None:
        changes: dict[str, Any] = {name: made_with}
        self.config = dataclasses.replace(self.config, **changes)
    config = self.config
    if config.spm_model_file and self._tokenizer.sha256 != manifest.vocab_sha256:
      raise UserError(
        f"--spm_model_file={config.spm_model_file} ({self._tokenizer.vocabulary.kind}) is not the vocabulary that "
        f"{manifest_file} was made with ({manifest.vocab_kind}; its SHA-256 differs): give that one"
      )
    if manifest.vocab_size != self.model_config.vocab_size:
      raise UserError(
        f"{manifest_file}: the shards use a vocabulary of {manifest.vocab_size} pieces, the model has vocab_size "
        f"{self.model_config.vocab_size}: give --vocab_size={manifest.vocab_size} or other shards"
      )
    if not self.vocab_sha256:
      self.vocab_sha256, self.vocab_kind = manifest.vocab_sha256, manifest.vocab_kind
    if manifest.vocab_sha256 != self.vocab_sha256:
      raise UserError(
        f"{manifest_file}: these shards were made with another vocabulary ({manifest.vocab_kind}, SHA-256 "
        f"{manifest.vocab_sha256[:12]}...) than the other ones ({self.vocab_kind}, {self.vocab_sha256[:12]}...): give "
        "shards of one vocabulary"
      )
    shard_objective = manifest.settings.get("sentence_prediction", "sop")
    if self.sentence_prediction == "auto":
      self.sentence_prediction = shard_objective
    elif self.sentence_prediction not in (shard_objective, "none"):
      raise UserError(
        f"--sentence_prediction={config.sentence_prediction}: {manifest_file} says the shards hold {shard_objective}; "
        "give that, or none to leave the sentence loss out"
      )

  def settings(self) -> dict[str, Any]:
    """Returns the settings that affect training, with those that were read from the shards."""
    settings = self.config.training_settings() | {
      "max_seq_length": self.max_seq_length,
      "max_predictions_per_seq": self.max_predictions,
      "sentence_prediction": self.sentence_prediction,
      "masking": "dynamic" if self.masking else "static",
      "masked_lm_prob": self.masking.masked_lm_prob if self.masking else 0.0,
      "ngram": self.masking.ngram if self.masking else 0,
    }
    return settings | self.checkpoint_settings()

  def vocabulary(self) -> VocabularyId | None:
    """Returns the vocabulary of --spm_model_file, or else of the shards' manifest; None if both are missing."""
    if self.config.spm_model_file:
      return VocabularyId(self._tokenizer.sha256, f"--spm_model_file={self.config.spm_model_file}")
    if not self.vocab_sha256:
      return None
    return VocabularyId(self.vocab_sha256, f"that of {self._globs['input_file'] or self.config.eval_input_file}")

  def checkpoint_settings(self) -> dict[str, Any]:
    """Returns the hash and the kind of the vocabulary, if they are known."""
    vocabulary = self.vocabulary()
    if not vocabulary:
      return {}
    kind = self._tokenizer.vocabulary.kind if self.config.spm_model_file else self.vocab_kind
    return {"vocab_sha256": vocabulary.sha256, "vocab_kind": kind}

  def all_settings(self) -> dict[str, Any]:
    """Adds the settings that later commands reuse but may change."""
    return self.config.reusable_values() | self.settings()

  def files_to_keep(self) -> dict[str, str]:
    """Returns the vocabulary, if it is given. Fine-tuning then finds it beside the checkpoints."""
    return vocabulary_copies(self.config.spm_model_file) if self.config.spm_model_file else {}

  def build_model(self) -> keras.Model:
    """Makes a PretrainingModel."""
    model = PretrainingModel(self.model_config)
    ids = tf.zeros([1, 2], tf.int32)
    model({"input_ids": ids, "input_mask": ids, "segment_ids": ids, "masked_lm_positions": ids[:, :1]})
    return model

  def features(self) -> Sequence[FeatureSpec]:
    """Returns the features that each record of the shards to train on must have."""
    return self._features(self.max_predictions)

  def _features(self, max_predictions: int) -> Sequence[FeatureSpec]:
    model = self.model_config
    features = pretraining_features(self.max_seq_length, max_predictions, model.vocab_size, model.type_vocab_size)
    return [feature for feature in features if self.sentence_metric or feature.name != NEXT_SENTENCE_LABELS]

  @functools.cached_property
  def _heldout_features(self) -> Sequence[FeatureSpec]:
    """The features that each record of the held-out shards must have."""
    return self._features(self._form("eval_input_file").max_predictions_per_seq)

  def check_inputs(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Opens the shards to train on, and reads all records to evaluate on and all lines to predict."""
    if train:
      self.training_stages()
    if evaluate:
      self.evaluation_data()
      _ = self._baselines
    if predict:
      _ = self._masked_lines

  def tokenize(self) -> None:
    """Shards hold ids already."""

  def training_data(self) -> ShardDataset:
    """Returns the shards of --input_file; with several stages, those of the last stage."""
    return self._training_shards

  def training_stages(self) -> Sequence[TrainingStage]:
    """Returns the stages of training in order."""
    return self._training_stages if self.stages else super().training_stages()

  @functools.cached_property
  def _training_stages(self) -> Sequence[TrainingStage]:
    return pretraining_stages.training_stages(self, self.stages)

  @functools.cached_property
  def _training_shards(self) -> ShardDataset:
    if not (self.masking or self._form("input_file").has_masks):
      raise UserError(
        f"--input_file={self._globs['input_file']}: these shards have no masks: give --masking=dynamic and "
        "--spm_model_file if they were written with --masking=none, or else write them again"
      )
    return self._shards("input_file", self.features(), self.masking)

  def evaluation_data(self) -> dict[str, Dataset]:
    """Returns the shards of --eval_input_file."""
    return {"heldout": self._heldout_shards}

  @functools.cached_property
  def _heldout_shards(self) -> ShardDataset:
    self._check_manifests(list(self._shard_stats("eval_input_file")))
    if not self._form("eval_input_file").has_masks:
      raise UserError(
        f"--eval_input_file={self.config.eval_input_file}: these shards have no masks. Evaluations are compared with "
        "each other, so they need the same masks: write the shards with --masking=static"
      )
    return self._shards("eval_input_file", self._heldout_features)

  def _shards(self, flag: str, features: Sequence[FeatureSpec], masking: DynamicMasking | None = None) -> ShardDataset:
    stats, globs = self._shard_stats(flag), self._globs[flag]
    shards = count_and_hash_shards(list(stats), stats=stats, globs=globs, cache_dir=self.config.cache_dir)
    return ShardDataset(shards, features, masking)

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
      _check_logits(output.masked_lm_logits)
    loss, accuracy = _loss_and_accuracy(output.masked_lm_logits, batch["masked_lm_ids"], batch["masked_lm_weights"])
    sums = {MASKED_LM_LOSS: loss, MASKED_LM_ACCURACY: accuracy}
    if self.sentence_metric:
      labels = batch["next_sentence_labels"][:, 0]
      loss, accuracy = _loss_and_accuracy(output.sentence_logits, labels, batch[EXAMPLE_WEIGHT])
      sums |= {f"{self.sentence_metric}_loss": loss, f"{self.sentence_metric}_accuracy": accuracy}
    return ForwardResult(sums, {})

  def metrics_from_means(self, means: Mapping[str, float]) -> dict[str, float]:
    """Returns the perplexity of the masked tokens, exp(masked_lm_loss), as in RoBERTa's table 3."""
    return {MASKED_LM_PERPLEXITY: perplexity(means[MASKED_LM_LOSS])}

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes baselines: the accuracies of always predicting the most frequent masked token or sentence label."""
    del split, outputs
    return self._baselines

  @functools.cached_property
  def _baselines(self) -> dict[str, float]:
    paths = list(self._shard_stats("eval_input_file"))
    return baseline_accuracies(paths, self._heldout_features, self.model_config.vocab_size, self.sentence_metric)

  def prediction_rows(self, data: TableData) -> Rows:
    """Makes rows of texts with [MASK]."""
    return rows_of(data, "the data to predict", ["text"])

  def with_data(self: _PretrainingTaskT, split: str, source: DataSource, *, cache: bool = True) -> _PretrainingTaskT:
    """Returns a copy of the task that has other lines to predict. Shards cannot be replaced."""
    del cache
    if split != TEST:
      raise UserError(f"{split}: pretraining reads TFRecord files: give their paths")
    task = copy.copy(self)
    task.__dict__.pop("_masked_lines", None)  # the cached lines of the original task
    task._prediction_rows = source if isinstance(source, Rows) else None
    task.config = dataclasses.replace(self.config, predict_file="" if isinstance(source, Rows) else source)
    return task

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the path of predictions_NAME.tsv."""
    return [predictions_file or predictions_path(directory, predictions_name(self.config.predict_file))]

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Fills the masks in --predict_file: writes predictions_NAME.tsv, and prints it."""
    del run_model
    (path,) = self.prediction_files(directory, predictions_file)
    print(tables.write_rows(path, list(self.filled_masks(model))), end="", flush=True)
    return [path]

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Returns for each line a list with a dict for each [MASK]: the most probable pieces -> their probabilities."""
    del run_model
    ranks = range(1, fill_mask.NUM_CANDIDATES + 1)
    answers: list[Any] = []
    for line in self._masked_lines:
      rows = fill_mask.fill_line(model, self._tokenizer, line)
      answers.append([{row[f"piece_{rank}"]: row[f"probability_{rank}"] for rank in ranks} for row in rows])
    return answers

  def filled_masks(self, model: keras.Model) -> Iterator[dict[str, Any]]:
    """Finds the five most probable pieces for each [MASK] in --predict_file.

    Args:
      model: the model, with its weights loaded.
    Yields: a row of the predictions file for each [MASK] (see fill_mask.fill_line).
    """
    for line in self._masked_lines:
      yield from fill_mask.fill_line(model, self._tokenizer, line)

  @functools.cached_property
  def _masked_lines(self) -> Sequence[MaskedLine]:
    """The lines of --predict_file. Raises UserError for a line that cannot be filled."""
    check_can_predict(self.config, has_lines=self._prediction_rows is not None)
    max_length = self.model_config.max_position_embeddings
    rows = self._prediction_rows
    sources = expand_globs(self.config.predict_file, flag="--predict_file") if rows is None else [rows]
    lines = fill_mask.read_masked_lines(sources, self._tokenizer, max_length=max_length)
    if not lines:
      raise UserError(f"--predict_file={self.config.predict_file}: no line with [MASK] to fill: give one or more")
    return lines


def _check_logits(logits: tf.Tensor) -> None:
  """Raises a UserError if there are more logits [B, P, V] than TensorFlow's gradient of the loss can count."""
  num_logits = logits.shape.num_elements()
  if tf_config.is_op_determinism_enabled() and num_logits is not None and num_logits > MAX_LOGITS:
    batch_size, num_predictions, vocab_size = logits.shape
    raise UserError(
      f"{batch_size:,} examples x {num_predictions} masked tokens x {vocab_size:,} pieces are {num_logits:,} logits on "
      f"a device; TensorFlow can compute the gradient of at most {MAX_LOGITS:,}: give a smaller --train_batch_size, or "
      f"--gradient_accumulation_steps={math.ceil(num_logits / MAX_LOGITS)} or more"
    )


def _loss_and_accuracy(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[WeightedSum, WeightedSum]:
  """Weighted sums of cross entropy and accuracy, for logits [..., C], labels int [...] and weights [...]."""
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  is_correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels), tf.float32)
  return weighted_sum(losses, weights), weighted_sum(is_correct, weights)
