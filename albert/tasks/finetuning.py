"""The data half of a fine-tuning task: its vocabulary, and the rows of its splits, each read and checked once.

A command reads its data before TensorFlow is imported, so that a mistake is reported at once.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import os
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig
from albert.data.manifest import DataContent, FileContent
from albert.data.rows import DataSource, Rows, source_sha256
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.tasks.predictions import predictions_name
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.splits import DEV, FILE_FIELDS, TEST, TRAIN
from albert.tokenization import recorded_settings
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.vocabulary import TokenizerConfig, VocabularyId, VocabularySize, fits_model

NUM_SAMPLE_ROWS = 1000  # of a split, for what is said about it
_DataT = TypeVar("_DataT", bound="FinetuningData")


class FinetuningData(abc.ABC):
  """The data of a fine-tuning task: where the rows of each split are, and what they hold.

  A split is the training, the development or a test set. Its rows, such as questions, come from files or from memory.
  They are checked while they are read. docs/add_a_task.md shows an example.

  Args:
    config: the task's flags.

  Attributes:
    config: the task's flags. A subclass may add settings that it finds in the files, such as the labels.
    evaluation_splits: the splits to evaluate on.
  """

  evaluation_splits: Sequence[str] = (DEV,)

  def __init__(self, config: FinetuningConfig):
    self.config = config
    self._memory: dict[str, Rows] = {}  # split -> its rows, if they are in memory
    # Split -> what was found or read so far.
    self._sources: dict[str, Sequence[DataSource]] = {}
    self._rows: dict[str, Any] = {}
    self._content: dict[str, DataContent] = {}
    # What was logged about the vocabulary and the texts. Copies share it, so that predictions do not repeat it.
    self.described: set[str] = set()

  @classmethod
  def of_command(
    cls: type[_DataT], model_config: ModelConfig, config: Any, *, train: bool, evaluate: bool, predict: bool
  ) -> _DataT:
    """Reads the data of a command, and checks its vocabulary; see albert.tasks.registry.RegisteredTask."""
    data = cls(config)
    for split in data.splits_of_command(train=train, evaluate=evaluate, predict=predict):
      data.sources(split)  # missing files are reported before large ones are read
    data.check_model(model_config)
    data.read(train=train, evaluate=evaluate, predict=predict)
    return data

  # What a subclass defines:

  @abc.abstractmethod
  def find(self, split: str) -> Sequence[DataSource]:
    """Returns the paths of the files of a split. Raises UserError if a flag is missing or there is no such file."""

  @abc.abstractmethod
  def read_split(self, split: str) -> Any:
    """Reads the rows of a split from `sources`: N rows, which can be sliced. Raises UserError for a bad row."""

  def texts_of(self, rows: Any) -> Iterable[str]:
    """Returns the texts of some rows, so that warnings can name characters that the vocabulary lacks."""
    del rows
    return ()

  def count_windows(self, rows: Any) -> Sequence[int]:
    """Returns how many examples each row becomes: the number of its windows. By default it is 1 for every row."""
    del rows
    return (1,)

  def summaries(self) -> dict[str, dict[str, Any]]:
    """Returns split -> a summary of its rows, as JSON values, for the splits with labels that were read."""
    splits = (split for split in self._rows if split != TEST)
    return {split: {"source": self.source_names(split), "rows": len(self._rows[split])} for split in splits}

  def find_labels(self) -> None:
    """Finds the labels in the training file, if the task needs them and no flag gives them."""
    return

  def row_settings(self, split: str) -> dict[str, Any]:
    """Returns the settings that decide what is read from the files of a split, such as the names of columns."""
    del split
    return {}

  def checkpoint_settings(self) -> dict[str, Any]:
    """Returns the settings that a checkpoint depends on: here those of the vocabulary."""
    settings = {name: getattr(self.tokenizer_config, name) for name in recorded_settings.SETTINGS}
    return {"vocab_sha256": self.tokenizer.sha256, "vocab_kind": self.tokenizer.vocabulary.kind, **settings}

  def prediction_splits(self) -> Sequence[str]:
    """Returns the splits to predict."""
    return (TEST,)

  def splits_made_of(self, split: str) -> Collection[str]:
    """Returns the splits that are made from the data of a split. By default, that is only the split itself."""
    return (split,)

  # What all fine-tuning tasks share:

  @functools.cached_property
  def tokenizer_config(self) -> TokenizerConfig:
    """The settings of the task's tokenizer: the given ones, or those that the vocabulary was made with."""
    return tokenizer_config(self.config)

  @functools.cached_property
  def tokenizer(self) -> Tokenizer:
    """The tokenizer of --spm_model_file."""
    return load_tokenizer(self.tokenizer_config)

  def vocabulary(self) -> VocabularyId:
    """Returns the vocabulary of --spm_model_file."""
    return VocabularyId(self.tokenizer.sha256, f"--spm_model_file={self.config.spm_model_file}")

  def check_model(self, model_config: ModelConfig) -> None:
    """Checks that the vocabulary and max_seq_length fit the model.

    Raises:
      UserError: there is no vocabulary, its size does not fit the model's vocab_size, or max_seq_length is greater than
        the model's number of positions.
    """
    config, positions = self.config, model_config.max_position_embeddings
    if config.max_seq_length > positions:
      raise UserError(
        f"--max_seq_length={config.max_seq_length}: the model has {positions} positions: give {positions} or less"
      )
    if not config.spm_model_file:
      raise UserError(
        "--spm_model_file is missing, and there is no vocabulary such as spiece.model in --output_dir or beside "
        "--init_checkpoint: give --init_checkpoint, or the vocabulary that the weights were trained with"
      )
    if not fits_model(self.tokenizer.vocab_size, model_config.vocab_size):
      raise UserError(
        f"--spm_model_file={config.spm_model_file} has {self.tokenizer.vocab_size} pieces, the model has vocab_size "
        f"{model_config.vocab_size}: give the vocabulary that the weights were trained with"
      )

  def splits_of_command(self, *, train: bool, evaluate: bool, predict: bool) -> list[str]:
    """Returns the splits that a command needs."""
    splits = [TRAIN] if train else []
    splits += self.evaluation_splits if evaluate else ()
    return splits + list(self.prediction_splits() if predict else ())

  def read(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Finds the labels, and reads all data that a command needs. What was read before is kept.

    Args:
      train, evaluate, predict: what the command does.
    Raises:
      UserError: a file is missing, or a row cannot be used.
    """
    self.find_labels()
    for split in self.splits_of_command(train=train, evaluate=evaluate, predict=predict):
      self.rows(split)
    problem = self.tokenizer.vocabulary.export_problem if train and self.config.spm_model_file else ""
    if problem and problem not in self.described:
      self.described.add(problem)
      log(f"warning: {problem}")

  def sources(self, split: str) -> Sequence[DataSource]:
    """Returns the data of a split: the paths of files, or rows in memory (see with_source)."""
    if split not in self._sources:
      self._sources[split] = [self._memory[split]] if split in self._memory else self.find(split)
    return self._sources[split]

  def source_names(self, split: str) -> str:
    """Returns the names of the files of a split, or their folder and number, or the name of rows in memory."""
    names = [str(source) for source in self.sources(split)]
    folder = os.path.dirname(os.path.commonprefix(names)) or "."  # noqa: RUF071 - dirname cuts off a part of a name
    return f"{folder} ({len(names):,} files)" if len(names) > 2 else ", ".join(names)

  def rows(self, split: str) -> Any:
    """Returns the rows of a split, which are read only once. Raises UserError if there are none."""
    if split not in self._rows:
      self._rows[split] = self.read_split(split)
    if not self._rows[split]:
      raise UserError(f"{self.source_names(split)}: no examples; give the file of the {split} set")
    return self._rows[split]

  def sample(self, split: str) -> Any:
    """Returns rows of a split at equal distances, at most NUM_SAMPLE_ROWS."""
    rows = self.rows(split)
    return rows[:: -(-len(rows) // NUM_SAMPLE_ROWS)]

  def estimate_examples(self) -> int:
    """Returns about how many training examples there are. Windows are counted in a sample of the rows."""
    return round(len(self.rows(TRAIN)) * statistics.fmean(self.count_windows(self.sample(TRAIN))))

  def content(self, split: str) -> DataContent:
    """Returns the hashes of the files of a split, in order, or the hash of its rows in memory."""
    if split not in self._content:
      sources = self.sources(split)
      hashes = zip(sources, files.in_threads(source_sha256, sources), strict=True)
      contents = (FileContent(os.path.basename(str(source)), sha256) for source, sha256 in hashes)
      self._content[split] = DataContent(tuple(contents))
    return self._content[split]

  def predictions_name(self) -> str:
    """Returns NAME in the names of the test set's predictions files (see albert.tasks.predictions.predictions_name)."""
    return predictions_name("" if TEST in self._memory else getattr(self.config, FILE_FIELDS[TEST]))

  def with_source(self: _DataT, split: str, source: DataSource, *, cache: bool = True) -> _DataT:
    """Returns a copy that has other data for a split, and keeps what was read for the others.

    Args:
      split: "train", "dev" or "test".
      source: the path of a file, or rows in memory.
      cache: whether the tokenized data may be cached on disk.
    """
    data = copy.copy(self)
    changed = {split, *self.splits_made_of(split)}
    for name in ("_sources", "_rows", "_content"):
      kept = {other: value for other, value in getattr(self, name).items() if other not in changed}
      setattr(data, name, kept)
    data._memory = {other: rows for other, rows in self._memory.items() if other != split}
    changes: dict[str, Any] = {} if cache else {"cache_dir": ""}
    if isinstance(source, Rows):
      data._memory[split] = source
    else:
      changes[FILE_FIELDS[split]] = source
    data.config = dataclasses.replace(self.config, **changes)
    return data


def tokenizer_config(config: FinetuningConfig | PretrainingConfig) -> TokenizerConfig:
  """Returns the settings of a task's tokenizer: the given ones, or those that the vocabulary was made with."""
  switches = {name: getattr(config, name, False) for name in recorded_settings.SETTINGS}  # pretraining keeps quotes
  return recorded_settings.tokenizer_config(config.spm_model_file, **switches)


def find_vocabulary_size(model_config: ModelConfig, config: FinetuningConfig) -> VocabularySize | None:
  """Finds the number of pieces of the task's vocabulary, see albert.tasks.registry.RegisteredTask."""
  del model_config
  if not config.spm_model_file:
    return None
  return VocabularySize(load_tokenizer(tokenizer_config(config)).vocab_size, config.spm_model_file)
