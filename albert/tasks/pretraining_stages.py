"""The stages of pretraining: the data and the model of each, checked before the first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from albert.config.model import ModelConfig
from albert.config.run import PretrainingConfig
from albert.config.stage_flags import StageFlags
from albert.config.stages import Stage, stage_name
from albert.data.pipeline import ShardDataset
from albert.errors import UserError
from albert.tasks.base import TrainingStage

if TYPE_CHECKING:
  from albert.tasks.pretraining import PretrainingTask

# The settings that a stage records, of those that are read from its shards.
_RECORDED = ("max_seq_length", "max_predictions_per_seq", "masking", "masked_lm_prob", "ngram")


def training_stages(task: PretrainingTask, stages: Sequence[Stage]) -> list[TrainingStage]:
  """Reads the shards of all stages.

  A stage is checked as a run of its own would be: its shards against the model, the vocabulary and the objective.

  Args:
    task: the task of the whole run.
    stages: its stages, at least one.
  Returns: the stages in order.
  Raises:
    UserError: the shards of a stage cannot be read or do not fit; the message names the stage.
  """
  result: list[TrainingStage] = []
  datasets: dict[str, ShardDataset] = {}
  for index, stage in enumerate(stages):
    try:
      result.append(_training_stage(task, stage, datasets))
    except UserError as error:
      raise UserError(f"{stage_name(index, len(stages))}: {error}") from error
  return result


def _training_stage(task: PretrainingTask, stage: Stage, datasets: dict[str, ShardDataset]) -> TrainingStage:
  """Makes one stage.

  Args:
    task: the task of the whole run.
    stage: the stage.
    datasets: globs -> dataset of the earlier stages, whose files are not counted again. The dataset of this stage is
      added.
  """
  model = dataclasses.replace(task.model_config, **stage.given(ModelConfig))
  part = type(task)(model, _config_of_stage(task, stage))
  _check_same(part, task)
  config = part.config
  earlier = datasets.get(config.input_file)
  data = ShardDataset(earlier.shards, part.features(), part.masking) if earlier else part.training_data()
  datasets[config.input_file] = data
  settings = part.settings()
  return TrainingStage(
    until=stage.until,
    model_config=model,
    data=data,
    train_batch_size=stage.train_batch_size,
    settings={name: settings[name] for name in _RECORDED},
  )


def _config_of_stage(task: PretrainingTask, stage: Stage) -> PretrainingConfig:
  """The config of a stage as a run of its own, with the settings that the run has read from its shards."""
  values: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(StageFlags)}
  values |= {
    "eval_input_file": "",
    "max_seq_length": 0,
    "max_predictions_per_seq": 0,
    "sentence_prediction": task.sentence_prediction,
  }
  if task.masking:
    masking = task.masking
    values |= {"masking": "dynamic", "masked_lm_prob": masking.masked_lm_prob, "ngram": masking.ngram}
  return dataclasses.replace(task.config, **values | stage.given(PretrainingConfig))


def _check_same(part: PretrainingTask, task: PretrainingTask) -> None:
  """Refuses a stage with another vocabulary or other kinds of masks than the last stage.

  Args:
    part: the task of the stage.
    task: the task of the whole run, with the vocabulary and the masks of the last stage.
  """
  if part.vocab_sha256 and task.vocab_sha256 and part.vocab_sha256 != task.vocab_sha256:
    raise UserError(
      f"--input_file={part.config.input_file}: these shards were made with another vocabulary (SHA-256 "
      f"{part.vocab_sha256[:12]}...) than those of the last stage ({task.vocab_sha256[:12]}...): give shards of one "
      "vocabulary"
    )
  if part.masking and not task.masking:
    raise UserError(
      f"--input_file={part.config.input_file}: these shards were written without masks, and those of the last stage "
      "with masks: also give --masking=dynamic"
    )
