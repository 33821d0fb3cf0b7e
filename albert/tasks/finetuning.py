"""What all fine-tuning tasks share: vocabulary, cached features, the rules of the warm start."""

from __future__ import annotations

import abc
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig
from albert.data.batches import ExampleDataset
from albert.data.content import DataContent, FileContent
from albert.data.dataset import Dataset
from albert.data.examples import TokenizedExamples
from albert.data.feature_cache import make_examples
from albert.data.manifest import cached_sha256
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.tasks.base import LOSS, Batch, Task
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import VocabularyId

TRAIN, DEV, TEST = "train", "dev", "test"
# Heads of pretraining, which fine-tuning leaves behind.
PRETRAINING_HEADS = ("cls/predictions/", "cls/seq_relationship/")


class FinetuningTask(Task):
  """A task whose examples are sequences of tokens held in memory.

  A subclass says which files a split has, what a raw example of it is, and how a chunk of raw examples becomes
  TokenizedExamples; its model; forward and metrics; and what it writes.
  """

  higher_is_better = True
  needs_initial_weights = True
  ignored_weights: Sequence[str] = PRETRAINING_HEADS
  # Prefixes of the head's weights, by the original's names.
  head_weights: ClassVar[Sequence[str]] = ("output_weights", "output_bias")
  # True for examples of several sequences: batches are [B, K, S].
  multiple_choice: ClassVar[bool] = False
  # Token features that batches carry.
  token_features: ClassVar[Sequence[str]] = ()
  evaluation_splits: Sequence[str] = (DEV,)

  def __init__(self, model_config: ModelConfig, config: FinetuningConfig):
    super().__init__(model_config)
    self.config = config
    if config.max_seq_length > model_config.max_position_embeddings:
      raise UserError(
        f"--max_seq_length={config.max_seq_length}: the model has {model_config.max_position_embeddings} positions: "
        "give at most that"
      )
    if not config.spm_model_file:
      raise UserError(
        "--spm_model_file is missing, and there is no spiece.model in --output_dir or beside --init_checkpoint: give "
        "the SentencePiece model that the weights were trained with"
      )
    self.tokenizer_config = TokenizerConfig(config.spm_model_file, config.do_lower_case, config.convert_quotes)
    self.tokenizer = load_tokenizer(self.tokenizer_config)
    if self.tokenizer.vocab_size != model_config.vocab_size:
      raise UserError(
        f"--spm_model_file={config.spm_model_file} has {self.tokenizer.vocab_size} pieces, the model has vocab_size "
        f"{model_config.vocab_size}: give the vocabulary that the weights were trained with"
      )
    self.fresh_weights = self.head_weights
    self.replaced_weights = self.head_weights if config.fresh_head else ()
    self._examples: dict[str, TokenizedExamples] = {}
    self._content: dict[str, DataContent] = {}

  # What a subclass gives:

  @abc.abstractmethod
  def data_files(self, split: str) -> Sequence[str]:
    """The files that a split is read from. UserError if there are none."""

  @abc.abstractmethod
  def raw_examples(self, split: str) -> Sequence[Any]:
    """The raw examples of a split, in order; called once (see `raw`)."""

  @abc.abstractmethod
  def featurizer(self, split: str) -> Callable[[Sequence[Any]], TokenizedExamples]:
    """Chunk of raw examples -> TokenizedExamples; picklable, in a module that does not import TensorFlow."""

  def feature_settings(self, split: str) -> dict[str, Any]:
    """What the features depend on besides the files, the vocabulary and max_seq_length."""
    del split
    return {}

  # What it gets:

  def settings(self) -> dict[str, Any]:
    """The task's part of config.json."""
    return self.config.training_settings() | self.checkpoint_settings()

  def all_settings(self) -> dict[str, Any]:
    """Adds the fields of the config that may change."""
    return self.config.recorded() | self.settings()

  def vocabulary(self) -> VocabularyId:
    """That of --spm_model_file."""
    return VocabularyId(self.tokenizer.sha256, f"--spm_model_file={self.config.spm_model_file}")

  def checkpoint_settings(self) -> dict[str, Any]:
    """The vocabulary, and how text is normalized."""
    return {
      "vocab_sha256": self.tokenizer.sha256,
      "do_lower_case": self.tokenizer_config.do_lower_case,
      "convert_quotes": self.tokenizer_config.convert_quotes,
    }

  def head_settings(self) -> dict[str, Any]:
    """What the head's weights mean: a head of a run that differs here is not taken over."""
    return {"task": self.name}

  def files_to_keep(self) -> dict[str, str]:
    """The vocabulary."""
    return {output_files.VOCABULARY: self.config.spm_model_file}

  @functools.lru_cache(maxsize=8)  # noqa: B019  (a task lives as long as its run)
  def raw(self, split: str) -> Sequence[Any]:
    """raw_examples, read once. UserError if there are none."""
    raw = self.raw_examples(split)
    if not raw:
      raise UserError(f"{', '.join(self.data_files(split))}: no examples; give the file of the {split} set")
    return raw

  def content(self, split: str) -> DataContent:
    """The hashes of the files of a split, in order."""
    if split not in self._content:
      paths = self.data_files(split)
      names = [os.path.basename(path) for path in paths]
      hashes = files.in_threads(lambda path: cached_sha256(path, files.stat(path)), paths)
      self._content[split] = DataContent(tuple(map(FileContent, names, hashes)))
    return self._content[split]

  def examples(self, split: str) -> TokenizedExamples:
    """The examples of a split, from the cache if they are there."""
    if split not in self._examples:
      config = self.config
      key = {
        "task": self.name,
        "split": split,
        "files": [file.sha256 for file in self.content(split).files],
        "max_seq_length": config.max_seq_length,
        **self.checkpoint_settings(),
        **self.feature_settings(split),
      }
      self._examples[split] = make_examples(
        self.raw(split),
        self.featurizer(split),
        name=f"{self.name}-{split}",
        key=key,
        cache_dir=config.cache_dir,
        num_processes=config.num_processes,
      )
      self._check_ids(split, self._examples[split])
    return self._examples[split]

  def _check_ids(self, split: str, examples: TokenizedExamples) -> None:
    """UserError for an id or a segment that the model has no row for: a GPU or TPU would take another row."""
    ids, vocab_size = examples.input_ids, self.model_config.vocab_size
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
      raise UserError(
        f"{', '.join(self.data_files(split))}: the {split} set has ids from {ids.min()} to {ids.max()}, the model has "
        f"{vocab_size}: give the vocabulary of the model, and delete the features in {self.config.cache_dir}"
      )
    if self.model_config.type_vocab_size < 2 and examples.has_second_segments:
      raise UserError(
        f"{', '.join(self.data_files(split))}: the {split} set has pairs of texts, and the model has one type of "
        "segment: give a model with --type_vocab_size=2"
      )

  def prediction_splits(self) -> Sequence[str]:
    """The splits that predict reads."""
    return (TEST,)

  def prediction_inputs(self) -> Sequence[str]:
    """The files of these splits."""
    return [path for split in self.prediction_splits() for path in self.data_files(split)]

  def check_inputs(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Reads the files of each split."""
    splits = [TRAIN] if train else []
    splits += self.evaluation_splits if evaluate else []
    splits += self.prediction_splits() if predict else []
    for split in splits:
      self.raw(split)

  def data(self, split: str) -> ExampleDataset:
    """The data set of a split."""
    return ExampleDataset(
      self.examples(split),
      f"{self.name} ({split})",
      content=self.content(split),
      token_features=self.token_features,
      multiple_choice=self.multiple_choice,
      length=self.config.max_seq_length if self.config.pad_to_max_length else None,
    )

  def training_data(self) -> Dataset:
    """The training set."""
    return self.data(TRAIN)

  def evaluation_data(self) -> dict[str, Dataset]:
    """The development sets."""
    return {split: self.data(split) for split in self.evaluation_splits}

  def loss_names(self) -> Sequence[str]:
    """One."""
    return (LOSS,)

  def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
    """Every example weighs the same."""
    return {LOSS: tf.reduce_sum(batch[EXAMPLE_WEIGHT])}

  def metric_names(self) -> Sequence[str]:
    """The loss; other metrics are of whole sets."""
    return (LOSS,)
