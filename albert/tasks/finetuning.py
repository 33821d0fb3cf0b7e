"""The base class of the fine-tuning tasks, with their vocabulary, their examples and their settings."""

from __future__ import annotations

import abc
import copy
import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig
from albert.data.batches import ExampleDataset
from albert.data.dataset import Dataset
from albert.data.examples import TokenizedExamples, make_examples
from albert.data.manifest import DataContent, FileContent
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import DataSource, Rows, source_sha256
from albert.errors import UserError
from albert.io import files
from albert.tasks.base import LOSS, Batch, Task
from albert.tasks.finetuning_checks import load_task_tokenizer, tokenizer_config
from albert.tasks.predictions import predictions_name
from albert.tasks.splits import DEV, FILE_FIELDS, TEST, TRAIN
from albert.tokenization.vocabulary import VocabularyId, vocabulary_copies

# Prefixes of the weights of the pretraining heads, which fine-tuning does not use.
PRETRAINING_HEADS = ("cls/predictions/", "cls/seq_relationship/")

_TaskT = TypeVar("_TaskT", bound="FinetuningTask")
_ValueT = TypeVar("_ValueT")


class FinetuningTask(Task):
  """A task whose tokenized examples are held in memory.

  The files of a split (the training, development or test set) are read to raw examples, such as questions. These are
  tokenized to TokenizedExamples, from which batches are made. A subclass defines the files, how they are read and
  tokenized, the model, the losses and metrics, and the files of predictions. docs/add_a_task.md lists its methods.

  Args:
    model_config: the model.
    config: the task's settings.

  Attributes:
    config: the task's settings.
    tokenizer: the tokenizer of --spm_model_file.
    head_weights: prefixes of the names that the head's weights have in checkpoints.
    multiple_choice: whether an example has several sequences, so that batches are [B, K, S] instead of [B, S].
    numbers_vary: whether batches have different K, see ExampleDataset.
    token_features: names of the token features (see TokenizedExamples) that batches contain.
    group_label: see ExampleDataset.
    evaluation_splits: the splits to evaluate on.

  Raises:
    UserError: there is no vocabulary, its size is not the model's vocab_size, or max_seq_length is greater than the
      model's number of positions.
  """

  higher_is_better = True
  needs_initial_weights = True
  ignored_weights: Sequence[str] = PRETRAINING_HEADS
  head_weights: ClassVar[Sequence[str]] = ("output_weights", "output_bias")
  multiple_choice: bool = False
  numbers_vary: bool = False
  token_features: ClassVar[Sequence[str]] = ()
  group_label: ClassVar[str] = ""
  evaluation_splits: Sequence[str] = (DEV,)

  def __init__(self, model_config: ModelConfig, config: FinetuningConfig):
    super().__init__(model_config)
    self.config = config
    self.tokenizer = load_task_tokenizer(model_config, config)
    self.tokenizer_config = tokenizer_config(config)
    self.new_weights = self.head_weights
    self.reinitialized_weights = self.head_weights if config.fresh_head else ()
    self._rows: dict[str, Rows] = {}  # split -> its rows, if they are in memory
    # Split -> what was read or made so far.
    self._raw_examples: dict[str, Sequence[Any]] = {}
    self._examples: dict[str, TokenizedExamples] = {}
    self._datasets: dict[str, ExampleDataset] = {}
    self._content: dict[str, DataContent] = {}

  # Methods that a subclass defines:

  @abc.abstractmethod
  def data_files(self, split: str) -> Sequence[DataSource]:
    """Returns the files of a split. Raises UserError if there are none. `sources` calls this."""

  @abc.abstractmethod
  def raw_examples(self, split: str) -> Sequence[Any]:
    """Reads the raw examples of a split. `cached_raw_examples` calls this once and keeps the result."""

  @abc.abstractmethod
  def featurizer(self, split: str) -> Callable[[Sequence[Any]], TokenizedExamples]:
    """Returns the function that tokenizes a chunk of raw examples.

    Worker processes call it, so it must be picklable, and its module must not import TensorFlow.
    """

  def feature_settings(self, split: str) -> dict[str, Any]:
    """Returns the settings that change the tokenized examples, besides the vocabulary and max_seq_length.

    They become part of the cache key.
    """
    del split
    return {}

  # Methods that are the same for all fine-tuning tasks:

  def settings(self) -> dict[str, Any]:
    """Returns the fields of the config that affect training, and checkpoint_settings()."""
    return self.config.training_settings() | self.checkpoint_settings()

  def all_settings(self) -> dict[str, Any]:
    """Adds the settings that later commands reuse but may change."""
    return self.config.reusable_values() | self.settings()

  def vocabulary(self) -> VocabularyId:
    """Returns the vocabulary of --spm_model_file."""
    return VocabularyId(self.tokenizer.sha256, f"--spm_model_file={self.config.spm_model_file}")

  def checkpoint_settings(self) -> dict[str, Any]:
    """Returns the vocabulary's hash and kind, and how text is normalized before it is tokenized."""
    return {
      "vocab_sha256": self.tokenizer.sha256,
      "vocab_kind": self.tokenizer.vocabulary.kind,
      "do_lower_case": self.tokenizer_config.do_lower_case,
      "keep_accents": self.tokenizer_config.keep_accents,
      "convert_quotes": self.tokenizer_config.convert_quotes,
    }

  def head_settings(self) -> dict[str, Any]:
    """Returns the task's name: the head of another task is not reused."""
    return {"task": self.name}

  def files_to_keep(self) -> dict[str, str]:
    """Returns the vocabulary, to be copied into the output_dir."""
    return vocabulary_copies(self.config.spm_model_file)

  def with_data(self: _TaskT, split: str, source: DataSource, *, cache: bool = True) -> _TaskT:
    """Returns a copy of the task that has other data for a split."""
    task = copy.copy(self)
    # The copy keeps what was read and made for the other splits.
    splits = self.splits_with_data_of(split)
    task._rows = _without(splits, self._rows)
    task._raw_examples = _without(splits, self._raw_examples)
    task._examples = _without(splits, self._examples)
    task._datasets = _without(splits, self._datasets)
    task._content = _without(splits, self._content)
    if isinstance(source, Rows):
      task._rows[split] = source
    else:
      changes: dict[str, Any] = {FILE_FIELDS[split]: source}
      task.config = dataclasses.replace(task.config, **changes)
    if not cache:
      task.config = dataclasses.replace(task.config, cache_dir="")
    return task

  def splits_with_data_of(self, split: str) -> Collection[str]:
    """Returns the splits that are made from the data of a split: itself, unless a part of it is another split."""
    return (split,)

  def sources(self, split: str) -> Sequence[DataSource]:
    """Returns the data of a split: rows in memory (see with_data), or the paths of files."""
    return [self._rows[split]] if split in self._rows else self.data_files(split)

  def _source_names(self, split: str) -> str:
    """The files of a split, or the name of its rows in memory, for messages."""
    return ", ".join(map(str, self.sources(split)))

  def cached_raw_examples(self, split: str) -> Sequence[Any]:
    """Returns the raw examples of a split, which are read only once. Raises UserError if there are none."""
    if split not in self._raw_examples:
      raw_examples = self.raw_examples(split)
      if not raw_examples:
        raise UserError(f"{self._source_names(split)}: no examples; give the file of the {split} set")
      self._raw_examples[split] = raw_examples
    return self._raw_examples[split]

  def content(self, split: str) -> DataContent:
    """Returns the hashes of the files of a split, in order, or the hash of its rows in memory."""
    if split not in self._content:
      sources = self.sources(split)
      names = [os.path.basename(str(source)) for source in sources]
      hashes = files.in_threads(source_sha256, sources)
      contents = [FileContent(name, sha256) for name, sha256 in zip(names, hashes, strict=True)]
      self._content[split] = DataContent(tuple(contents))
    return self._content[split]

  def examples(self, split: str) -> TokenizedExamples:
    """Returns the tokenized examples of a split, from the cache if it has them."""
    if split not in self._examples:
      config = self.config
      cache_key = {
        "task": self.name,
        "split": split,
        "files": [file.sha256 for file in self.content(split).files],
        "max_seq_length": config.max_seq_length,
        **self.checkpoint_settings(),
        **self.feature_settings(split),
      }
      self._examples[split] = make_examples(
        self.cached_raw_examples(split),
        self.featurizer(split),
        name=f"{self.name}-{split}",
        key=cache_key,
        cache_dir=config.cache_dir,
        num_processes=config.num_processes,
      )
      self._check_ids(split, self._examples[split])
    return self._examples[split]

  def _check_ids(self, split: str, examples: TokenizedExamples) -> None:
    """Raises UserError if the model has no embedding for an id or a segment. A GPU or TPU would not report that."""
    ids, vocab_size = examples.input_ids, self.model_config.vocab_size
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
      raise UserError(
        f"{self._source_names(split)}: the {split} set has ids from {ids.min()} to {ids.max()}, the model has "
        f"{vocab_size}: give the vocabulary of the model, and delete the features in {self.config.cache_dir}"
      )
    if self.model_config.type_vocab_size < 2 and examples.has_second_segments:
      raise UserError(
        f"{self._source_names(split)}: the {split} set has pairs of texts, and the model has one type of "
        "segment: give a model with --type_vocab_size=2"
      )

  def prediction_splits(self) -> Sequence[str]:
    """Returns the splits to predict."""
    return (TEST,)

  def predictions_name(self) -> str:
    """Returns NAME in the names of the test set's predictions files (see albert.tasks.predictions.predictions_name)."""
    return predictions_name("" if TEST in self._rows else getattr(self.config, FILE_FIELDS[TEST]))

  def check_inputs(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Reads the files of every split that the command needs (see Task.check_inputs)."""
    splits = [TRAIN] if train else []
    splits += self.evaluation_splits if evaluate else []
    splits += self.prediction_splits() if predict else []
    for split in splits:
      self.cached_raw_examples(split)

  def data(self, split: str) -> ExampleDataset:
    """Returns the dataset of a split, which is made only once."""
    if split not in self._datasets:
      self._datasets[split] = ExampleDataset(
        self.examples(split),
        f"{self.name} ({split})",
        content=self.content(split),
        token_features=self.token_features,
        multiple_choice=self.multiple_choice,
        numbers_vary=self.numbers_vary,
        length=self.config.max_seq_length if self.config.pad_to_max_length else None,
        group_label=self.group_label,
      )
    return self._datasets[split]

  def tokenize(self) -> None:
    """Tokenizes the training set, or reads its cached features. Other sets are tokenized when they are first used."""
    self.examples(TRAIN)

  def training_data(self) -> Dataset:
    """Returns the training set."""
    return self.data(TRAIN)

  def evaluation_data(self) -> dict[str, Dataset]:
    """Returns split -> development set."""
    return {split: self.data(split) for split in self.evaluation_splits}

  def loss_names(self) -> Sequence[str]:
    """Returns the only term of the loss, "loss"."""
    return (LOSS,)

  def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns the number of examples in the batch, without padding examples."""
    return {LOSS: tf.reduce_sum(batch[EXAMPLE_WEIGHT])}

  def metric_names(self) -> Sequence[str]:
    """Returns "loss". Other metrics are computed from the outputs of the whole split."""
    return (LOSS,)


def _without(splits: Collection[str], values: Mapping[str, _ValueT]) -> dict[str, _ValueT]:
  """Returns a copy of a dict without the entries of some splits."""
  return {name: value for name, value in values.items() if name not in splits}
