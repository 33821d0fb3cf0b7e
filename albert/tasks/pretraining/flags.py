"""The flags of run_pretraining.py, and the stages of --stages.

Stages are parts of the steps with other settings, such as fewer layers or shorter sequences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from albert.config.base import (
  COMMAND,
  DATA,
  TRAINING,
  Config,
  changeable_option,
  from_dict,
  option,
  option_fields,
  option_like,
)
from albert.config.model import ModelConfig
from albert.config.run import TrainConfig, stage_name
from albert.errors import UserError
from albert.io import files, json_text, json_values


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingConfig(Config):
  """The data of pretraining, and the losses that are trained on it."""

  help_group: ClassVar[str] = DATA

  input_file: str = changeable_option(
    "", "TFRecord files to train on: paths, directories or globs, separated by commas"
  )
  eval_input_file: str = changeable_option(
    "", "TFRecord files to evaluate on: paths, directories or globs, separated by commas"
  )
  max_seq_length: int = option(
    0, "sequence length with which the TFRecord files were written; 0: read it from them", minimum=0
  )
  max_predictions_per_seq: int = option(
    0, "number of masked positions per sequence in the TFRecord files of --input_file; 0: read it from them", minimum=0
  )
  sentence_prediction: str = option(
    "auto",
    "sentence loss: sentence order prediction (sop), next sentence prediction (nsp), or none; auto: as in the manifest "
    "of the TFRecord files, or sop if they have none",
    choices=("auto", "sop", "nsp", "none"),
  )
  masking: str = option(
    "auto",
    "static: use the masks in the TFRecord files; dynamic: mask other tokens each time an example is read (needs "
    "--spm_model_file); auto: static, or dynamic if the files were written without masks",
    choices=("auto", "static", "dynamic"),
    resets=("masked_lm_prob", "ngram"),
  )
  masked_lm_prob: float = option(
    0.0,
    "fraction of the tokens that dynamic masking masks; 0: that in the manifest of the TFRecord files, else 0.15",
    minimum=0,
    below=1,
  )
  ngram: int = option(
    0,
    "largest number of words that dynamic masking masks together; 0: as in the manifest of the TFRecords, else 3",
    minimum=0,
  )
  spm_model_file: str = changeable_option(
    "",
    "the vocabulary: a SentencePiece model, vocab.txt (WordPiece), vocab.json (byte-level BPE) or tokenizer.json, the "
    "one of the TFRecord files; needed for dynamic masking and --do_predict; --vocab_file is another name for it",
  )
  do_lower_case: bool | None = option(
    None,
    "lower-case the text of --predict_file; by default as the manifest of the TFRecord files, the file beside the "
    "vocabulary, or the run of --init_checkpoint says, and true if none of them does (byte-level BPE ignores it)",
  )
  keep_accents: bool | None = option(
    None,
    "keep the accents of the text of --predict_file and do not decompose its characters; by default as those files "
    "say, and false if none of them does (byte-level BPE ignores it)",
  )
  predict_file: str = changeable_option("", "text file for --do_predict; each [MASK] in its lines is filled in")
  # It contains paths, which may differ when a run is resumed, so it does not count as affecting training. The other
  # settings of stages are compared with the key "stages" of config.json.
  stages: str = changeable_option(
    "",
    'stages of training as JSON, such as [{"until": 0.5, "num_hidden_layers": 3}, {"until": 1}]; a recipe has them as '
    "its section stages. Each stage lasts until this share of the steps; see docs/staged_pretraining.md",
    group=TRAINING,
  )
  on_collapse: str = changeable_option(
    "stop",
    "what to do if the masked LM loss goes back towards that of guessing after the run has learned: stop, with the "
    "command that goes on from before it, or warn",
    choices=("stop", "warn"),
    group=TRAINING,
  )
  cache_dir: str = changeable_option(
    "", "directory that keeps the hashes of TFRecord files without a manifest; by default output_dir", per_command=True
  )
  find_learning_rate: bool = option(
    False,
    "with --do_train: instead of training, find the learning rate with short runs of 5% of the steps (200 to 1,000), "
    "whose rates are a factor of 2 apart; with --dry_run, print their commands",
    per_command=True,
    group=COMMAND,
  )

  @property
  def has_local_shards(self) -> bool:
    """Whether --input_file gives shards on this machine."""
    return bool(self.input_file) and not files.is_remote(self.input_file)


_STAGES_EXAMPLE = '[{"until": 0.9, "input_file": "short/*.tfrecord"}, {"until": 1}]'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage(Config):
  """A part of the steps of a run, and its settings. A setting that is None has the value of the run.

  Attributes:
    until: the share of all steps at which the stage ends.
    num_hidden_layers: number of encoder layers that are trained.
    hidden_dropout_prob, attention_probs_dropout_prob: see ModelConfig.
    train_batch_size: see TrainConfig.
    input_file: the shards, and with them the length of the sequences.
    masked_lm_prob: fraction of the tokens that dynamic masking masks.
  """

  until: float = option(0.0, "", above=0, maximum=1)
  num_hidden_layers: int | None = option_like(ModelConfig, "num_hidden_layers")
  hidden_dropout_prob: float | None = option_like(ModelConfig, "hidden_dropout_prob")
  attention_probs_dropout_prob: float | None = option_like(ModelConfig, "attention_probs_dropout_prob")
  train_batch_size: int | None = option_like(TrainConfig, "train_batch_size")
  input_file: str | None = option_like(PretrainingConfig, "input_file")
  masked_lm_prob: float | None = option_like(PretrainingConfig, "masked_lm_prob")

  def fields_of(self, config_class: type[Config]) -> dict[str, Any]:
    """Returns name -> value of the settings of this stage that are fields of a config."""
    names = option_fields(config_class).keys() & option_fields(Stage).keys()
    return {name: getattr(self, name) for name in sorted(names) if getattr(self, name) is not None}


def format_stages(stages: Sequence[Mapping[str, Any]]) -> str:
  """Converts a list of stages, as a recipe or a Python call contains it, to a value of the flag --stages."""
  return json_text.dumps(stages, ensure_ascii=False)


def read_stages(config: PretrainingConfig, model: ModelConfig) -> tuple[Stage, ...]:
  """Reads the stages of a run and checks all that can be checked without reading the shards.

  Args:
    config: the settings of pretraining. Only stages and input_file are used.
    model: the model that the last stage trains.
  Returns: the stages in order; () if the run is not divided into stages.
  Raises:
    UserError: a setting is unknown, has a wrong type or is out of range; or the stages do not fit each other or the
      model.
  """
  if not config.stages:
    return ()
  values = json_values.parse("--stages", config.stages, list[dict[str, Any]], f"give a list such as {_STAGES_EXAMPLE}")
  stages: list[Stage] = []
  full_depth, groups = model.num_hidden_layers, model.num_hidden_groups
  until, depth = 0.0, 0
  for index, value in enumerate(values):
    source = f"stages, {stage_name(index, len(values))}"
    if "until" not in value:
      raise UserError(f"{source}: until is missing: give the share of the steps at which this stage ends, such as 0.5")
    stage = from_dict(Stage, value, source=source)
    stages.append(stage)
    if stage.until <= until:
      raise UserError(f"{source}: until is {stage.until:g}, not above the {until:g} before it: give rising shares")
    until, depth_before, depth = stage.until, depth, stage.num_hidden_layers or full_depth
    is_last = index == len(values) - 1
    if is_last and until != 1:
      raise UserError(
        f"{source}: until is {until:g}, and the last stage must end at 1, the last step: give 1, or add a stage"
      )
    if depth > full_depth:
      raise UserError(f"{source}: num_hidden_layers is {depth}, the model has {full_depth}: give at most {full_depth}")
    if depth < depth_before:
      raise UserError(
        f"{source}: num_hidden_layers is {depth}, less than the {depth_before} of the stage before it: a model only "
        f"grows from stage to stage: give {depth_before} or more"
      )
    if is_last and depth != full_depth:
      raise UserError(
        f"{source}: num_hidden_layers is {depth}, and the last stage must train all {full_depth} layers of the model: "
        "leave it out here, or change the model"
      )
    if model.sharing != "none" and depth % groups and depth != full_depth:
      raise UserError(
        f"{source}: num_hidden_layers is {depth}, which {groups} groups cannot share: give a multiple of {groups}"
      )
  if config.input_file and stages and all(stage.input_file not in (None, config.input_file) for stage in stages):
    raise UserError(f"--input_file={config.input_file}: no stage reads it, because each has its own: leave it out")
  return tuple(stages)


def deciding_input_file(stages: Sequence[Stage], config: PretrainingConfig) -> str:
  """Returns the shards that decide the settings of the whole run, such as the length of sequences; "" for no shards.

  With several stages, these are the shards of the last one.
  """
  return (stages[-1].input_file if stages else None) or config.input_file
