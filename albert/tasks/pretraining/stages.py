"""The stages of pretraining: the data and the model of each, checked before the first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from albert.config.model import ModelConfig
from albert.config.run import PretrainingConfig
from albert.config.stages import Stage, stage_name
from albert.data.pipeline import ShardDataset
from albert.errors import UserError
from albert.tasks.base import TrainingStage

if TYPE_CHECKING:
  from albert.tasks.pretraining.task import PretrainingTask

# The settings of PretrainingTask that may differ between stages. config.json records them for each stage.
_SETTINGS_OF_STAGES = ("max_seq_length", "max_predictions_per_seq", "masking", "masked_lm_prob", "ngram")


def training_stages(task: PretrainingTask, stages: Sequence[Stage]) -> list[TrainingStage]:
  """Reads the shards of all stages.

  Each stage is checked like a run without stages: its shards must fit the model, the vocabulary and the objective.

  Args:
    task: the task of the whole run.
    stages: its stages, at least one.
  Returns: the stages in order.
  Raises:
    UserError: the shards of a stage cannot be read or do not fit; the message names the stage.
  """
  checked_stages: list[TrainingStage] = []
  datasets: dict[str, ShardDataset] = {}
  for index, stage in enumerate(stages):
    try:
      checked_stages.append(_training_stage(task, stage, datasets))
    except UserError as error:
      raise UserError(f"{stage_name(index, len(stages))}: {error}") from error
  return checked_stages


def _training_stage(task: PretrainingTask, stage: Stage, datasets: dict[str, ShardDataset]) -> TrainingStage:
  """Makes one stage.

  Args:
    task: the task of the whole run.
    stage: the settings of the stage.
    datasets: --input_file -> dataset, for the earlier stages. The files of such a dataset are not counted again. This
      function adds the dataset of this stage.
  """
  model_config = dataclasses.replace(task.model_config, **stage.fields_of(ModelConfig))
  stage_task = type(task)(model_config, _config_of_stage(task, stage))
  _check_fits_last_stage(stage_task, task)
  input_file = stage_task.config.input_file
  if input_file in datasets:
    data = ShardDataset(datasets[input_file].shards, stage_task.features(), stage_task.masking)
  else:
    data = stage_task.training_data()
  datasets[input_file] = data
  settings = stage_task.settings()
  return TrainingStage(
    until=stage.until,
    model_config=model_config,
    data=data,
    train_batch_size=stage.train_batch_size,
    settings={name: settings[name] for name in _SETTINGS_OF_STAGES},
  )


def _config_of_stage(task: PretrainingTask, stage: Stage) -> PretrainingConfig:
  """Returns the config of a run without stages that trains like this stage.

  The lengths of sequences are not set, because they are read from the stage's own shards. The objective and the masking
  are those of the whole run.
  """
  changes: dict[str, Any] = {
    "stages": "",
    "eval_input_file": "",
    "max_seq_length": 0,
    "max_predictions_per_seq": 0,
    "sentence_prediction": task.sentence_prediction,
  }
  if task.masking:
    masking = task.masking
    changes |= {"masking": "dynamic", "masked_lm_prob": masking.masked_lm_prob, "ngram": masking.ngram}
  changes |= stage.fields_of(PretrainingConfig)
  return dataclasses.replace(task.config, **changes)


def _check_fits_last_stage(stage_task: PretrainingTask, task: PretrainingTask) -> None:
  """Checks that a stage has the same vocabulary as the last stage, and masks if the last stage's shards have masks.

  Args:
    stage_task: the task of the stage.
    task: the task of the whole run, with the vocabulary and the masks of the last stage.
  Raises:
    UserError: the vocabularies differ, or only the shards of this stage have no masks.
  """
  input_file, vocab_sha256 = stage_task.config.input_file, stage_task.vocab_sha256
  if vocab_sha256 and task.vocab_sha256 and vocab_sha256 != task.vocab_sha256:
    raise UserError(
      f"--input_file={input_file}: these shards were made with another vocabulary (SHA-256 {vocab_sha256[:12]}...) "
      f"than those of the last stage ({task.vocab_sha256[:12]}...): give shards of one vocabulary"
    )
  if stage_task.masking and not task.masking:
    raise UserError(
      f"--input_file={input_file}: these shards were written without masks, and those of the last stage with masks: "
      "also give --masking=dynamic"
    )
