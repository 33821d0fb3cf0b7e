"""The data of pretraining: shards to train and to evaluate on, and lines to predict. Imports no TensorFlow.

Reading is the check: shards that do not match the flags, the model or each other, and lines that cannot be filled, are
refused here. Files on gs:// are read with TensorFlow, later.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.config.model import ModelConfig
from albert.config.run import TrainConfig, stage_name, steps_of_stages
from albert.data import schema
from albert.data.manifest import FILE_NAME as MANIFEST_NAME
from albert.data.manifest import Manifest
from albert.data.rows import DataSource, Rows
from albert.data.shards import stat_shards
from albert.data.tables import read_lines, read_table
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import counted
from albert.tasks.finetuning import tokenizer_config
from albert.tasks.predictions import predictions_name
from albert.tasks.pretraining import flags
from albert.tasks.pretraining.flags import PretrainingConfig, Stage
from albert.tokenization.tokenizer import Tokenizer, encode_with_masks, load_tokenizer
from albert.tokenization.vocabulary import VocabularyId, VocabularySize, fits_model

# Number of records that show whether a shard has masks.
_NUM_FIRST_RECORDS = 32
# Settings of dynamic masking for shards without a manifest (ALBERT, section 4.1).
_DEFAULT_MASKED_LM_PROB, _DEFAULT_NGRAM = 0.15, 3
# Sentence objective -> the prefix of its metrics.
_SENTENCE_METRIC_PREFIXES = {"sop": "sentence_order", "nsp": "next_sentence"}


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


class MaskingSettings(NamedTuple):
  """Settings of dynamic masking: the fraction of the tokens to mask, and the largest number of words in a span."""

  masked_lm_prob: float
  ngram: int


class MaskedLine(NamedTuple):
  """A line of text, which may contain [MASK].

  Attributes:
    number: the number of the line in its file, or of the row in memory, from 1.
    text: the line, without whitespace at its ends.
    ids: the ids of its tokens, with [CLS] and [SEP].
    positions: the positions of the masks in `ids`.
  """

  number: int
  text: str
  ids: list[int]
  positions: list[int]


class PretrainingData:
  """The files of pretraining, and what they say about the run.

  Args:
    model_config: the model.
    config: the shards and the objectives.
    vocabulary: hash and kind of the vocabulary that the shards must have; "" and "" for any. Shards without a manifest
      may have any.

  Attributes:
    config: the flags; do_lower_case and keep_accents are those of the shards if they are not given.
    stages: the stages that the run is divided into; () if it is not divided. With several stages, the other attributes
      are those of the last stage.
    max_seq_length: S, number of tokens of each sequence in the shards.
    max_predictions: P, number of masked tokens of each sequence in the shards to train on, with padding. The held-out
      shards may have another number.
    sentence_prediction: the sentence objective: "sop", "nsp" or "none".
    sentence_metric: the prefix of its metrics, "sentence_order" or "next_sentence"; None if the objective is "none".
    has_manifest: whether there is a manifest beside the first shard.
    unknown_share: fraction of the tokens that are <unk>; None if it is not known.
    masking: the settings of new masks for each example in training; None if the masks in the shards are used.

  Raises:
    UserError: the shards cannot be read, or do not match the flags, the model or each other.
  """

  def __init__(self, model_config: ModelConfig, config: PretrainingConfig, vocabulary: tuple[str, str] = ("", "")):
    self.model_config = model_config
    self.config = config
    self.stages = flags.read_stages(config, model_config)
    input_file = flags.deciding_input_file(self.stages, config)
    self.globs = {"input_file": input_file, "eval_input_file": config.eval_input_file}
    self._shards: dict[str, tuple[dict[str, files.Stat], ShardForm]] = {}
    self._vocab_sha256, self._vocab_kind = vocabulary
    self._rows: Rows | None = None  # the lines to predict, if they are in memory
    self.max_seq_length = config.max_seq_length or model_config.max_position_embeddings
    self.max_predictions = max(config.max_predictions_per_seq, 1)
    self.sentence_prediction = config.sentence_prediction
    manifest = None
    if input_file or config.eval_input_file:
      manifest = self._read_shard_settings("input_file" if input_file else "eval_input_file")
    if self.sentence_prediction == "auto":
      self.sentence_prediction = "sop"
    self.sentence_metric = _SENTENCE_METRIC_PREFIXES.get(self.sentence_prediction)
    self.has_manifest, self.unknown_share = manifest is not None, manifest.unknown_share if manifest else None
    self.masking = self._find_masking(manifest if input_file else None)

  def read(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Checks the shards and reads the lines that a command needs. Raises UserError if one cannot be used."""
    if train:
      _ = self.data_of_stages if self.stages else self.training_shards
    if evaluate:
      _ = self.heldout_shards
    if self.config.spm_model_file:
      _ = self.tokenizer
    if predict:
      _ = self.masked_lines

  # Shards:

  def shards(self, flag: str) -> tuple[dict[str, files.Stat], ShardForm]:
    """Returns path -> size and time of the shards that a flag gives, and the form of the first one. Reads them once."""
    if flag not in self._shards:
      stats = find_shards(flag, self.globs[flag])
      self._shards[flag] = stats, read_form(next(iter(stats)))
    return self._shards[flag]

  @functools.cached_property
  def training_shards(self) -> dict[str, files.Stat]:
    """Path -> size and time of the shards of --input_file; with several stages, of those of the last stage."""
    shards, form = self.shards("input_file")
    if not (self.masking or form.has_masks):
      raise UserError(
        f"--input_file={self.globs['input_file']}: these shards have no masks: give --masking=dynamic and "
        "--spm_model_file if they were written with --masking=none, or else write them again"
      )
    return shards

  @functools.cached_property
  def heldout_shards(self) -> dict[str, files.Stat]:
    """Path -> size and time of the shards of --eval_input_file."""
    shards, form = self.shards("eval_input_file")
    self._check_manifests("eval_input_file")
    if not form.has_masks:
      raise UserError(
        f"--eval_input_file={self.config.eval_input_file}: these shards have no masks. Evaluations are compared with "
        "each other, so they need the same masks: write the shards with --masking=static"
      )
    return shards

  def _read_shard_settings(self, files_flag: str) -> Manifest | None:
    """Sets the lengths to those of the first shard, and checks that flags and model fit. Returns its manifest."""
    shards, form = self.shards(files_flag)
    path, positions = next(iter(shards)), self.model_config.max_position_embeddings
    self.max_seq_length, self.max_predictions = form.max_seq_length, form.max_predictions_per_seq
    lengths = {"max_seq_length": form.max_seq_length}
    if files_flag == "input_file":  # a run has recorded the number of training shards; that of others may differ
      lengths["max_predictions_per_seq"] = form.max_predictions_per_seq
    for flag, length in lengths.items():
      value = getattr(self.config, flag)
      if value not in (0, length):
        raise UserError(
          f"{path} was written with {flag}={length}, not {value}: leave the flag out, or give other shards"
        )
    if self.max_seq_length > positions:
      raise UserError(
        f"{path} holds sequences of {self.max_seq_length} tokens, the model has {positions} positions: write shorter "
        "shards or raise max_position_embeddings"
      )
    return self._check_manifests(files_flag)

  def _check_manifests(self, flag: str) -> Manifest | None:
    """Checks that shards and manifests fit the model and each other. Returns the manifest beside the first shard.

    Shards without a manifest are opened.
    """
    shards, form = self.shards(flag)
    manifests, settings = dict(_load_manifests(shards)), {}
    for directory, manifest in manifests.items():
      if manifest:
        self._check_manifest(directory, manifest)
        settings[files.join(directory, MANIFEST_NAME)] = manifest.settings
      if manifest and manifest.settings.get("heldout") and flag == "input_file":
        raise UserError(f"--input_file={self.globs[flag]}: {directory} holds held-out documents: leave it out")
    unlisted = [path for path in shards if manifests[os.path.dirname(path)] is None]
    settings |= zip(unlisted, map(ShardForm._asdict, files.in_threads(read_form, unlisted)), strict=True)
    first = {"max_seq_length": self.max_seq_length, "max_predictions_per_seq": form.max_predictions_per_seq}
    for source, lengths in settings.items():
      for name, length in first.items():
        if (other := lengths.get(name, length)) != length:
          raise UserError(
            f"{source}: the shards have {name} {other}, the other ones {length}: give shards of one form; in training, "
            "--stages may have one for each length"
          )
    return manifests[os.path.dirname(next(iter(shards)))]

  @functools.cached_property
  def tokenizer(self) -> Tokenizer:
    """The tokenizer of --spm_model_file."""
    return load_tokenizer(tokenizer_config(self.config))

  def _check_manifest(self, directory: str, manifest: Manifest) -> None:
    """Checks that shards fit the model, the flags and other shards. What is not given is set as in the manifest."""
    manifest_file = files.join(directory, MANIFEST_NAME)
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
    if config.spm_model_file and self.tokenizer.sha256 != manifest.vocab_sha256:
      raise UserError(
        f"--spm_model_file={config.spm_model_file} ({self.tokenizer.vocabulary.kind}) is not the vocabulary that "
        f"{manifest_file} was made with ({manifest.vocab_kind}; its SHA-256 differs): give that one"
      )
    if not fits_model(manifest.vocab_size, self.model_config.vocab_size):
      raise UserError(
        f"{manifest_file}: the vocabulary has {manifest.vocab_size} pieces, the model {self.model_config.vocab_size}: "
        f"give shards made with the vocabulary of the weights or, without weights, --vocab_size={manifest.vocab_size}"
      )
    if self._vocab_sha256 not in ("", manifest.vocab_sha256):
      raise UserError(
        f"{manifest_file}: these shards were made with another vocabulary ({manifest.vocab_kind}, SHA-256 "
        f"{manifest.vocab_sha256[:12]}...) than the other ones ({self._vocab_kind}, {self._vocab_sha256[:12]}...): "
        "give shards of one vocabulary"
      )
    self._vocab_sha256, self._vocab_kind = manifest.vocab_sha256, manifest.vocab_kind
    shard_objective = manifest.settings.get("sentence_prediction", "sop")
    if self.sentence_prediction == "auto":
      self.sentence_prediction = shard_objective
    elif self.sentence_prediction not in (shard_objective, "none"):
      raise UserError(
        f"--sentence_prediction={config.sentence_prediction}: {manifest_file} says the shards hold {shard_objective}; "
        "give that, or none to leave the sentence loss out"
      )

  def _find_masking(self, manifest: Manifest | None) -> MaskingSettings | None:
    """Returns the settings of dynamic masking; None if the masks in the shards, which have the manifest, are used."""
    config, input_file = self.config, self.globs["input_file"]
    shard_settings = manifest.settings if manifest else {}
    is_unmasked = shard_settings.get("masking") == "none"
    if is_unmasked and config.masking == "static":
      raise UserError(f"--input_file={input_file}: these shards were written without masks: give --masking=dynamic")
    if config.masking != "dynamic" and not is_unmasked:
      for flag, value in (("masked_lm_prob", config.masked_lm_prob), ("ngram", config.ngram)):
        if value:
          raise UserError(f"--{flag}={value} has an effect only on dynamic masks: also give --masking=dynamic")
      return None
    if not config.spm_model_file:
      raise UserError("dynamic masks need --spm_model_file, the vocabulary of the shards: it shows where words start")
    tokenizer, vocab_size = self.tokenizer, self.model_config.vocab_size
    if not fits_model(tokenizer.vocab_size, vocab_size):
      raise UserError(
        f"--spm_model_file={config.spm_model_file} has {tokenizer.vocab_size} pieces, the model has vocab_size "
        f"{vocab_size}: give that of the shards and weights or, without weights, --vocab_size={tokenizer.vocab_size}"
      )
    return MaskingSettings(
      config.masked_lm_prob or shard_settings.get("masked_lm_prob", _DEFAULT_MASKED_LM_PROB),
      config.ngram or shard_settings.get("ngram", _DEFAULT_NGRAM),
    )

  # Settings:

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
      return VocabularyId(self.tokenizer.sha256, f"--spm_model_file={self.config.spm_model_file}")
    name = f"that of {self.globs['input_file'] or self.config.eval_input_file}"
    return VocabularyId(self._vocab_sha256, name) if self._vocab_sha256 else None

  def checkpoint_settings(self) -> dict[str, Any]:
    """Returns the hash and the kind of the vocabulary, if they are known."""
    vocabulary = self.vocabulary()
    kind = self.tokenizer.vocabulary.kind if self.config.spm_model_file else self._vocab_kind
    return {"vocab_sha256": vocabulary.sha256, "vocab_kind": kind} if vocabulary else {}

  # Stages:

  @functools.cached_property
  def data_of_stages(self) -> list[tuple[Stage, PretrainingData]]:
    """Each stage with its data, in order. A stage is checked like a run without stages.

    Its shards must fit the model, the vocabulary and the objective. A UserError names the stage.
    """
    # The config of a run without stages that trains like the stage. Its lengths are those of its shards.
    config = dataclasses.replace(
      self.config,
      stages="",
      eval_input_file="",
      max_seq_length=0,
      max_predictions_per_seq=0,
      sentence_prediction=self.sentence_prediction,
      masking="dynamic" if self.masking else "static",
      **(self.masking._asdict() if self.masking else {}),
    )
    checked: list[tuple[Stage, PretrainingData]] = []
    for index, stage in enumerate(self.stages):
      try:
        model_config = dataclasses.replace(self.model_config, **stage.fields_of(ModelConfig))
        config_of_stage = dataclasses.replace(config, **stage.fields_of(PretrainingConfig))
        data = PretrainingData(model_config, config_of_stage, (self._vocab_sha256, self._vocab_kind))
        _ = data.training_shards
      except UserError as error:
        raise UserError(f"{stage_name(index, len(self.stages))}: {error}") from error
      checked.append((stage, data))
    return checked

  # Lines to predict:

  def with_source(self, source: DataSource) -> PretrainingData:
    """Returns a copy that has other lines to predict: the path of a file, or rows in memory."""
    data = copy.copy(self)
    data.__dict__.pop("masked_lines", None)
    data._rows = source if isinstance(source, Rows) else None
    data.config = dataclasses.replace(self.config, predict_file="" if isinstance(source, Rows) else source)
    return data

  def predictions_name(self) -> str:
    """Returns NAME in the name of the predictions file (see albert.tasks.predictions.predictions_name)."""
    return predictions_name(self.config.predict_file)

  @functools.cached_property
  def masked_lines(self) -> list[MaskedLine]:
    """The lines to predict, which are not blank. Raises UserError if no line has [MASK], or one is too long."""
    config, rows = self.config, self._rows
    if not (config.predict_file or rows is not None) or not config.spm_model_file:
      raise UserError("--do_predict needs --predict_file (lines with [MASK]) and --spm_model_file")
    sources = files.expand_globs(config.predict_file, flag="--predict_file") if rows is None else [rows]
    lines = read_masked_lines(sources, self.tokenizer, max_length=self.model_config.max_position_embeddings)
    without_mask = [line.number for line in lines if not line.positions]
    if len(without_mask) == len(lines):
      raise UserError(f"--predict_file={config.predict_file}: no line with [MASK] to fill: give one or more")
    if without_mask:
      log(
        f"{config.predict_file or 'the data to predict'}: {counted(len(without_mask), 'line')} without [MASK], the "
        f"first is line {without_mask[0]}: nothing is predicted for them"
      )
    return lines


def read_data(
  model_config: ModelConfig, config: PretrainingConfig, *, train: bool, evaluate: bool, predict: bool
) -> PretrainingData:
  """Reads what a command needs (see albert.tasks.registry.RegisteredTask)."""
  data = PretrainingData(model_config, config)
  data.read(train=train, evaluate=evaluate, predict=predict)
  return data


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
    raise UserError(
      "evaluation needs held-out documents: data_prep.create_pretraining_data --eval_share=0.02 writes them beside the "
      "shards, or give --eval_input_file"
    )
  return stat_shards(globs, flag=f"--{flag}")


def find_length(config: PretrainingConfig) -> int:
  """Finds the number of tokens in a sequence: max_seq_length, or as in the first local shard of --input_file.

  Raises:
    UserError: there is no such shard, or the stages of the run may have several lengths.
  """
  if config.stages:
    raise UserError("--chip needs a run without stages: give --stages= and the flags of one of them")
  if config.max_seq_length:
    return config.max_seq_length
  if not config.has_local_shards:
    raise UserError("--chip needs the length of the sequences: give --max_seq_length, such as 512, or local shards")
  return read_form(next(iter(find_shards("input_file", config.input_file)))).max_seq_length


def count_examples(config: PretrainingConfig) -> tuple[int, float] | None:
  """Counts the examples of --input_file: all, and those of one pass over the text (one of --dupe_factor passes).

  Returns None if there are no local shards, or a directory of shards has no manifest.
  """
  if not config.has_local_shards:
    return None
  shards = find_shards("input_file", config.input_file)
  num_examples, examples_per_pass = 0, 0.0
  for directory, manifest in _load_manifests(shards):
    if manifest is None:
      return None
    number = sum(shard.examples for shard in manifest.shards if files.join(directory, shard.file) in shards)
    num_examples += number
    examples_per_pass += number / manifest.settings.get("dupe_factor", 1)
  return (num_examples, examples_per_pass) if num_examples else None


def describe_stages(model_config: ModelConfig, config: PretrainingConfig, train: TrainConfig) -> list[str]:
  """Returns a line for each stage: its steps, layers, length of the sequences and batch; none without stages.

  Raises:
    UserError: the stages are not possible, or their local shards cannot be read. Remote shards are not read.
  """
  stages = flags.read_stages(config, model_config)
  shares = [stage.until for stage in stages]
  if train.num_train_epochs:  # the number of steps depends on the number of examples
    steps = [f"up to {share:.4g} of the steps" for share in shares]
  else:
    steps = [f"steps {first + 1:,} to {last:,}" for first, last in steps_of_stages(shares, train.num_train_steps)]
  lines = []
  for index, stage in enumerate(stages):
    shards = next(iter(find_shards("input_file", stage.input_file or config.input_file)))
    length = "the shards' length" if files.is_remote(shards) else f"{read_form(shards).max_seq_length} tokens"
    depth, full_depth = stage.num_hidden_layers or model_config.num_hidden_layers, model_config.num_hidden_layers
    lines.append(
      f"{stage_name(index, len(stages))}: {steps[index]}, {depth} of {full_depth} layers, sequences of {length}, "
      f"{stage.train_batch_size or train.train_batch_size} examples per step"
    )
  return lines


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
    return VocabularySize(load_tokenizer(tokenizer_config(config)).vocab_size, config.spm_model_file)
  input_file = flags.deciding_input_file(flags.read_stages(config, model_config), config)
  for flag, globs in (("input_file", input_file), ("eval_input_file", config.eval_input_file)):
    for directory, manifest in _load_manifests(find_shards(flag, globs) if globs else ()):
      if manifest:
        return VocabularySize(manifest.vocab_size, files.join(directory, MANIFEST_NAME))
  return None


def find_longest(model_config: ModelConfig, config: PretrainingConfig) -> int:
  """Finds the length of the longest sequences to train on, in the first shard of the run or of each of its stages.

  Returns: the number of tokens; `max_seq_length` if no shards are given.
  Raises:
    UserError: a shard cannot be read, or the stages are not possible.
  """
  stages = flags.read_stages(config, model_config)
  globs = {stage.input_file or config.input_file for stage in stages} if stages else {config.input_file}
  shards = (next(iter(find_shards("input_file", text))) for text in globs if text)
  return max((read_form(path).max_seq_length for path in shards), default=config.max_seq_length)


def find_heldout(model_config: ModelConfig, config: PretrainingConfig) -> str:
  """Finds the shards of held-out documents that data preparation has written beside those to train on.

  Returns: their paths, separated by commas, as --eval_input_file takes them; "" if there are none.
  Raises: see find_longest.
  """
  input_file = flags.deciding_input_file(flags.read_stages(config, model_config), config)
  paths: list[str] = []
  for directory, manifest in _load_manifests(find_shards("input_file", input_file) if input_file else ()):
    folder = files.join(directory, manifest.heldout) if manifest and manifest.heldout else ""
    heldout = Manifest.load(folder) if folder else None
    paths += [files.join(folder, shard.file) for shard in heldout.shards] if heldout else []
  return ",".join(paths)


def _load_manifests(paths: Iterable[str]) -> Iterator[tuple[str, Manifest | None]]:
  """Yields the directories of shards with their manifests; None where there is none."""
  for directory in dict.fromkeys(map(os.path.dirname, paths)):
    yield directory, Manifest.load(directory)


def read_masked_lines(sources: Sequence[DataSource], tokenizer: Tokenizer, *, max_length: int) -> list[MaskedLine]:
  """Reads and encodes the lines of text files, or of rows in memory. Blank lines are skipped.

  Args:
    sources: paths of UTF-8 text files, or rows with a column "text".
    tokenizer: the tokenizer.
    max_length: maximum tokens of a line, with [CLS] and [SEP].
  Raises:
    UserError: a file is not UTF-8, or a line has too many tokens.
  """
  special_ids = tokenizer.special_ids
  lines: list[MaskedLine] = []
  for location, number, text in itertools.chain.from_iterable(map(_lines_of, sources)):
    if not text.strip():
      continue
    ids = [special_ids.cls, *encode_with_masks(tokenizer, text.strip()), special_ids.sep]
    positions = [position for position, token in enumerate(ids) if token == special_ids.mask]
    if len(ids) > max_length:
      raise UserError(f"{location}: {len(ids)} tokens, the model takes {max_length}")
    lines.append(MaskedLine(number, text.strip(), ids, positions))
  return lines


def _lines_of(source: DataSource) -> Iterator[tuple[str, int, str]]:
  """Yields for each line of a file or row in memory its location for error messages, its number from 1, its text."""
  if isinstance(source, Rows):
    table = read_table(source, ["text"])
    for row, text in enumerate(table.non_empty_texts("text")):
      yield table.location(row), source.row_numbers[row] + 1, text
  else:
    for number, line in read_lines(source):
      yield f"{source}, line {number}", number, line
