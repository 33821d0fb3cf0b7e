"""Stages of pretraining: parts of the steps with other settings, such as fewer layers or shorter sequences.

Imports no TensorFlow, so that a bad stage is refused at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from albert.config.base import Config, from_dict
from albert.config.model import ModelConfig
from albert.config.ranges import Range
from albert.config.run import PretrainingConfig, TrainConfig
from albert.errors import UserError
from albert.io import json_text, json_values
from albert.io.text import format_value

# Setting of a stage -> the config that has a field of this name. The field gives the setting's type and range.
_CONFIG_OF_SETTING: dict[str, type[Config]] = {
  "num_hidden_layers": ModelConfig,
  "hidden_dropout_prob": ModelConfig,
  "attention_probs_dropout_prob": ModelConfig,
  "train_batch_size": TrainConfig,
  "input_file": PretrainingConfig,
  "masked_lm_prob": PretrainingConfig,
}
_SHARE_RANGE = Range(above=0, maximum=1)
_STAGES_EXAMPLE = '[{"until": 0.9, "input_file": "short/*.tfrecord"}, {"until": 1}]'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
  """A part of the steps of a run, and its settings. A setting that is None has the value of the run.

  Attributes:
    until: the share of all steps at which the stage ends, 0 < until <= 1.
    num_hidden_layers: number of encoder layers that are trained.
    hidden_dropout_prob: see ModelConfig.
    attention_probs_dropout_prob: see ModelConfig.
    train_batch_size: see TrainConfig.
    input_file: the shards, and with them the length of the sequences.
    masked_lm_prob: fraction of the tokens that dynamic masking masks.
  """

  until: float
  num_hidden_layers: int | None = None
  hidden_dropout_prob: float | None = None
  attention_probs_dropout_prob: float | None = None
  train_batch_size: int | None = None
  input_file: str | None = None
  masked_lm_prob: float | None = None

  def fields_of(self, config_class: type[Config]) -> dict[str, Any]:
    """Returns name -> value of the settings of this stage that are fields of a config."""
    names = [name for name, config in _CONFIG_OF_SETTING.items() if config is config_class]
    return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def format_stages(stages: Sequence[Mapping[str, Any]]) -> str:
  """Converts a list of stages, as a recipe or a Python call contains it, to a value of the flag --stages."""
  return json_text.dumps(stages, ensure_ascii=False)


def stage_name(index: int, num_stages: int) -> str:
  """Returns the name of a stage in messages, such as "stage 1 of 2" for index 0."""
  return f"stage {index + 1} of {num_stages}"


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
  remedy = f"give a list such as {_STAGES_EXAMPLE}"
  values = json_values.parse("--stages", config.stages, list[dict[str, Any]], remedy) if config.stages else []
  stages = tuple(_read_stage(value, _source(index, len(values))) for index, value in enumerate(values))
  _check_shares(stages)
  _check_depths(stages, model)
  _check_input_file(stages, config.input_file)
  return stages


def steps_of_stages(shares: Sequence[float], num_train_steps: int) -> list[tuple[int, int]]:
  """Returns the number of steps before each stage, and the number at its end.

  Args:
    shares: `until` of each stage.
    num_train_steps: the steps of the whole run.
  Raises:
    UserError: a stage has no step.
  """
  steps: list[tuple[int, int]] = []
  for index, share in enumerate(shares):
    first_step, last_step = steps[-1][1] if steps else 0, round(share * num_train_steps)
    if last_step <= first_step:
      raise UserError(
        f"{_source(index, len(shares))}: until {share:g} of {num_train_steps} steps is step {last_step}, where the "
        "stage before it ends: give the stage a larger share, or more --num_train_steps"
      )
    steps.append((first_step, last_step))
  return steps


def deciding_input_file(stages: Sequence[Stage], config: PretrainingConfig) -> str:
  """Returns the shards that decide the settings of the whole run, such as the length of sequences; "" for no shards.

  With several stages, these are the shards of the last one.
  """
  return (stages[-1].input_file if stages else None) or config.input_file


def _source(index: int, num_stages: int) -> str:
  return f"stages, {stage_name(index, num_stages)}"


def _read_stage(values: Mapping[str, Any], source: str) -> Stage:
  """Checks the names, types and ranges of the settings of one stage."""
  settings: dict[str, Any] = {}
  for name, value in values.items():
    if name == "until":
      is_number = isinstance(value, int | float) and not isinstance(value, bool)
      violation = _SHARE_RANGE.violation(float(value)) if is_number else "a number"
      if violation:
        raise UserError(f"{source}: until must be {violation}, got {format_value(value)}")
      settings[name] = float(value)
    elif name in _CONFIG_OF_SETTING:
      settings[name] = getattr(from_dict(_CONFIG_OF_SETTING[name], {name: value}, source=source), name)
    else:
      raise UserError(f"{source}: unknown key {name!r}; known: until, {', '.join(_CONFIG_OF_SETTING)}")
  if "until" not in settings:
    raise UserError(f"{source}: until is missing: give the share of the steps at which this stage ends, such as 0.5")
  return Stage(**settings)


def _check_shares(stages: Sequence[Stage]) -> None:
  """Checks that the stages end one after the other, and the last one at the last step."""
  previous_until = 0.0
  for index, stage in enumerate(stages):
    if stage.until <= previous_until:
      raise UserError(
        f"{_source(index, len(stages))}: until is {stage.until:g}, not above the {previous_until:g} of the stage "
        "before it: give shares of all steps in rising order"
      )
    previous_until = stage.until
  if stages and previous_until != 1:
    raise UserError(
      f"{_source(len(stages) - 1, len(stages))}: until is {previous_until:g}, and the last stage must end at 1, the "
      "last step: give 1, or add a stage"
    )


def _check_depths(stages: Sequence[Stage], model: ModelConfig) -> None:
  """Checks that the depth never decreases, that the groups can share it, and that the last depth is the model's."""
  full_depth, groups = model.num_hidden_layers, model.num_hidden_groups
  previous_depth = 0
  for index, stage in enumerate(stages):
    source, depth = _source(index, len(stages)), stage.num_hidden_layers or full_depth
    if depth > full_depth:
      raise UserError(f"{source}: num_hidden_layers is {depth}, the model has {full_depth}: give at most {full_depth}")
    if depth < previous_depth:
      raise UserError(
        f"{source}: num_hidden_layers is {depth}, less than the {previous_depth} of the stage before it: a model only "
        f"grows from stage to stage: give {previous_depth} or more"
      )
    if index == len(stages) - 1 and depth != full_depth:
      raise UserError(
        f"{source}: num_hidden_layers is {depth}, and the last stage must train all {full_depth} layers of the model: "
        "leave it out here, or change the model"
      )
    if model.sharing != "none" and depth % groups and depth != full_depth:
      raise UserError(
        f"{source}: num_hidden_layers is {depth}, which the {groups} groups of layers cannot share evenly: give a "
        f"multiple of {groups}"
      )
    previous_depth = depth


def _check_input_file(stages: Sequence[Stage], input_file: str) -> None:
  """Refuses --input_file if no stage reads it."""
  if input_file and stages and all(stage.input_file not in (None, input_file) for stage in stages):
    raise UserError(
      f"--input_file={input_file}: no stage reads it, because each has an input_file of its own: leave it out, or "
      "remove input_file from a stage"
    )
