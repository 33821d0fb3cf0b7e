"""The data half of a fine-tuning task: its vocabulary and the rows of its splits, read once. Needs no TensorFlow."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig
from albert.data.rows import DataSource, Rows
from albert.errors import UserError
from albert.tasks.splits import DEV, FILE_FIELDS, TEST, TRAIN
from albert.tokenization import recorded_settings
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.vocabulary import TokenizerConfig, VocabularySize

_DataT = TypeVar("_DataT", bound="FinetuningData")


class FinetuningData(abc.ABC):
  """The data of a fine-tuning task. A split is read when `rows` is first called for it: reading is the check.

  Args:
    config: the task's flags.

  Attributes:
    config: the task's flags. `find_labels` adds what only the files tell.
  """

  def __init__(self, config: Any):
    self.config = config
    self._memory: dict[str, Rows] = {}  # split -> its rows, if they are in memory
    self._rows: dict[str, Sequence[Any]] = {}  # split -> what was read

  @classmethod
  def of_command(
    cls: type[_DataT], model_config: ModelConfig, config: Any, *, train: bool, evaluate: bool, predict: bool
  ) -> _DataT:
    """Reads the data of a command, and checks its vocabulary; see albert.tasks.registry.DataReader."""
    splits = [split for split, is_read in ((TRAIN, train), (DEV, evaluate), (TEST, predict)) if is_read]
    data = cls(config)
    for split in splits:
      data.sources(split)  # missing files and a wrong vocabulary are reported before anything is read
    load_task_tokenizer(model_config, config)
    data.find_labels()
    for split in splits:
      data.rows(split)
    return data

  @abc.abstractmethod
  def find(self, split: str) -> Sequence[str]:
    """Returns the paths of the files of a split. Raises UserError if a flag is missing or there is no such file."""

  @abc.abstractmethod
  def read_split(self, split: str) -> Sequence[Any]:
    """Reads the rows of a split from `sources`. Raises UserError if a row cannot be used."""

  def find_labels(self) -> None:
    """Adds the labels to `config`, if a task takes them from its training file and no flag gives them."""
    return

  def sources(self, split: str) -> Sequence[DataSource]:
    """Returns the data of a split: the paths of files, or rows in memory (see with_source)."""
    return [self._memory[split]] if split in self._memory else self.find(split)

  def rows(self, split: str) -> Sequence[Any]:
    """Returns the rows of a split, which are read only once."""
    if split not in self._rows:
      self._rows[split] = self.read_split(split)
    return self._rows[split]

  def with_source(self: _DataT, split: str, source: DataSource) -> _DataT:
    """Returns a copy that has another file or rows in memory for a split, and keeps what was read for the others."""
    data = copy.copy(self)
    data._rows = {other: rows for other, rows in self._rows.items() if other != split}
    data._memory = {other: rows for other, rows in self._memory.items() if other != split}
    if isinstance(source, Rows):
      data._memory[split] = source
    else:
      data.config = dataclasses.replace(self.config, **{FILE_FIELDS[split]: source})
    return data


def tokenizer_config(config: FinetuningConfig) -> TokenizerConfig:
  """Returns the settings of the task's tokenizer: the given ones, or those that the vocabulary was made with."""
  return recorded_settings.tokenizer_config(
    config.spm_model_file,
    do_lower_case=config.do_lower_case,
    keep_accents=config.keep_accents,
    convert_quotes=config.convert_quotes,
  )


def find_vocabulary_size(model_config: ModelConfig, config: FinetuningConfig) -> VocabularySize | None:
  """Finds the number of pieces of the task's vocabulary, see albert.tasks.registry.VocabularySizeFinder."""
  del model_config
  if not config.spm_model_file:
    return None
  return VocabularySize(load_tokenizer(tokenizer_config(config)).vocab_size, config.spm_model_file)


def load_task_tokenizer(model_config: ModelConfig, config: FinetuningConfig) -> Tokenizer:
  """Loads the vocabulary of a task, and checks that model, vocabulary and max_seq_length fit together.

  Args:
    model_config: the model.
    config: the task's settings.
  Raises:
    UserError: there is no vocabulary, its size is not the model's vocab_size, or max_seq_length is greater than the
      model's number of positions.
  """
  if config.max_seq_length > model_config.max_position_embeddings:
    raise UserError(
      f"--max_seq_length={config.max_seq_length}: the model has {model_config.max_position_embeddings} positions: "
      f"give {model_config.max_position_embeddings} or less"
    )
  if not config.spm_model_file:
    raise UserError(
      "--spm_model_file is missing, and there is no vocabulary such as spiece.model in --output_dir or beside "
      "--init_checkpoint: give the vocabulary that the weights were trained with"
    )
  tokenizer = load_tokenizer(tokenizer_config(config))
  if tokenizer.vocab_size != model_config.vocab_size:
    raise UserError(
      f"--spm_model_file={config.spm_model_file} has {tokenizer.vocab_size} pieces, the model has vocab_size "
      f"{model_config.vocab_size}: give the vocabulary that the weights were trained with"
    )
  return tokenizer


def check_files(
  find_files: Callable[[Any, str], Sequence[str]],
  model_config: ModelConfig,
  config: FinetuningConfig,
  *,
  train: bool,
  evaluate: bool,
  predict: bool,
) -> None:
  """Checks that the files that a command reads exist, and its vocabulary. The files are not opened.

  Args:
    find_files: (task config, split) -> the paths of the split's files.
    model_config: the model.
    config: the task's settings.
    train, evaluate, predict: what the command does.
  Raises:
    UserError: a flag is missing, or there is no such file; or see load_task_tokenizer.
  """
  for split, is_read in ((TRAIN, train), (DEV, evaluate), (TEST, predict)):
    if is_read:
      find_files(config, split)
  load_task_tokenizer(model_config, config)
