"""Checks the vocabulary of a fine-tuning task, and that the files of its splits exist. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig
from albert.errors import UserError
from albert.tasks.splits import DEV, TEST, TRAIN
from albert.tokenization import recorded_settings
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.vocabulary import TokenizerConfig, VocabularySize


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
