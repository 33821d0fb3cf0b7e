"""Finds the files of pretraining: shards to train and to evaluate on, and lines to predict. Imports no TensorFlow."""

from __future__ import annotations

import itertools
import os
from typing import NamedTuple

import numpy as np

from albert.config.model import ModelConfig
from albert.config.run import PretrainingConfig, TrainConfig
from albert.config.stages import deciding_input_file, read_stages, stage_name, steps_of_stages
from albert.data import manifest, schema
from albert.data.shards import stat_shards
from albert.errors import UserError
from albert.io import files
from albert.io.files import expand_globs
from albert.tokenization.recorded_settings import tokenizer_config
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.vocabulary import VocabularySize

# Number of records that show whether a shard has masks.
_NUM_FIRST_RECORDS = 32


class ShardForm(NamedTuple):
  """How shards were written.

  Attributes:
    max_seq_length: number of tokens of each sequence.
    max_predictions_per_seq: number of masked tokens of each sequence, with padding.
    has_masks: whether one of the first records has a masked token.
  """

  max_seq_length: int
  max_predictions_per_seq: int
  has_masks: bool


def read_form(path: str) -> ShardForm:
  """Reads the form of a shard from its first records. Raises UserError if data preparation did not write them."""
  examples = schema.read_first_records(path, _NUM_FIRST_RECORDS)
  first = next(examples)
  lengths = {feature: len(first.get(feature, ())) for feature in ("input_ids", "masked_lm_ids")}
  for feature, length in lengths.items():
    if not length:
      raise UserError(f"{path}: its records have no {feature}, so they were not written by create_pretraining_data")
  # The first record with a masked token decides. A missing feature is reported when the records are read.
  has_masks = any(np.any(example.get("masked_lm_weights", 1)) for example in itertools.chain([first], examples))
  return ShardForm(lengths["input_ids"], lengths["masked_lm_ids"], has_masks)


def find_shards(flag: str, globs: str) -> dict[str, files.Stat]:
  """Returns path -> size and modification time of the shards of a flag.

  Args:
    flag: "input_file" or "eval_input_file".
    globs: its value.
  Raises:
    UserError: the flag is missing, or matches no shards.
  """
  if not globs and flag == "input_file":
    raise UserError("--do_train needs --input_file: the shards to train on")
  if not globs:
    raise UserError("evaluation needs --eval_input_file: shards of held-out documents, not those trained on")
  return stat_shards(globs, flag=f"--{flag}")


def find_length(config: PretrainingConfig) -> int:
  """Finds the number of tokens in a sequence: max_seq_length, or as in the first local shard of --input_file.

  Raises:
    UserError: there is no such shard, or the stages of the run may have several lengths.
  """
  if config.stages:
    raise UserError("--chip needs sequences of one length: leave out the stages, and give the flags of one of them")
  if config.max_seq_length:
    return config.max_seq_length
  if not config.input_file or files.is_remote(config.input_file):
    raise UserError("--chip needs the length of the sequences: give --max_seq_length, such as 512, or local shards")
  return read_form(next(iter(find_shards("input_file", config.input_file)))).max_seq_length


def describe_stages(model_config: ModelConfig, config: PretrainingConfig, train: TrainConfig) -> list[str]:
  """Returns a line for each stage: its steps, layers, length of the sequences and batch; none without stages.

  Raises:
    UserError: the stages are not possible, or their local shards cannot be read. Remote shards are not read.
  """
  stages = read_stages(config, model_config)
  shares = [stage.until for stage in stages]
  if train.num_train_epochs:  # the number of steps depends on the number of examples
    steps = [f"up to {share:.4g} of the steps" for share in shares]
  else:
    steps = [f"steps {first + 1:,} to {last:,}" for first, last in steps_of_stages(shares, train.num_train_steps)]
  lines = []
  for index, stage in enumerate(stages):
    shards = next(iter(find_shards("input_file", stage.input_file or config.input_file)))
    length = "the shards' length" if files.is_remote(shards) else f"{read_form(shards).max_seq_length} tokens"
    lines.append(
      f"{stage_name(index, len(stages))}: {steps[index]}, "
      f"{stage.num_hidden_layers or model_config.num_hidden_layers} of {model_config.num_hidden_layers} layers, "
      f"sequences of {length}, "
      f"{stage.train_batch_size or train.train_batch_size} examples per step"
    )
  return lines


def load_vocabulary(config: PretrainingConfig) -> Tokenizer:
  """Loads the vocabulary of --spm_model_file. Raises UserError if there is no such file."""
  switches = {"do_lower_case": config.do_lower_case, "keep_accents": config.keep_accents}
  return load_tokenizer(tokenizer_config(config.spm_model_file, **switches, convert_quotes=False))


def find_vocabulary_size(model_config: ModelConfig, config: PretrainingConfig) -> VocabularySize | None:
  """Finds the number of pieces of the vocabulary: in --spm_model_file, else in the manifest of the shards.

  Args:
    model_config: the model, whose depth the stages must fit.
    config: the flags.
  Returns: the number and the file in which it was found; None if neither is given, or if the shards have no manifest.
  Raises:
    UserError: a file or a manifest cannot be read, or the stages are not possible.
  """
  if config.spm_model_file:
    return VocabularySize(load_vocabulary(config).vocab_size, config.spm_model_file)
  shards = {
    "input_file": deciding_input_file(read_stages(config, model_config), config),
    "eval_input_file": config.eval_input_file,
  }
  for flag, globs in shards.items():
    paths = find_shards(flag, globs) if globs else {}
    for directory in dict.fromkeys(os.path.dirname(path) for path in paths):
      shard_manifest = manifest.Manifest.load(directory)
      if shard_manifest:
        return VocabularySize(shard_manifest.vocab_size, files.join(directory, manifest.FILE_NAME))
  return None


def check_can_predict(config: PretrainingConfig, *, has_lines: bool) -> None:
  """Raises UserError if the vocabulary or the lines to predict are missing. `has_lines`: the lines are in memory."""
  if not (config.predict_file or has_lines) or not config.spm_model_file:
    raise UserError("--do_predict needs --predict_file (lines with [MASK]) and --spm_model_file")


def check_files(
  model_config: ModelConfig, config: PretrainingConfig, *, train: bool, evaluate: bool, predict: bool
) -> None:
  """Checks that the files that a command reads exist. They are not read.

  Args:
    model_config: the model.
    config: the flags.
    train, evaluate, predict: what the command does.
  Raises:
    UserError: a flag is missing, there is no such file, or the stages are not possible.
  """
  input_file = deciding_input_file(read_stages(config, model_config), config)
  # Every command reads the length of the sequences from the first shard of --input_file, or else of --eval_input_file.
  if train or input_file:
    find_shards("input_file", input_file)
  if evaluate or (config.eval_input_file and not input_file):
    find_shards("eval_input_file", config.eval_input_file)
  if config.spm_model_file:
    load_vocabulary(config)
  if predict:
    check_can_predict(config, has_lines=False)
    expand_globs(config.predict_file, flag="--predict_file")
