"""Divides the steps of a run into the stages of its task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import TrainConfig
from albert.config.stages import stage_name, steps_of_stages
from albert.data.content import DataContent
from albert.data.dataset import Dataset
from albert.errors import UserError
from albert.io.wording import counted
from albert.tasks.base import TrainingStage
from albert.training.distribution.distributed_batches import element_spec
from albert.training.distribution.strategy import check_batches


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePlan:
  """One stage of a run. A run that is not divided into stages has a single StagePlan.

  Attributes:
    number: 1 for the first stage.
    num_stages: number of stages of the run.
    first_step: number of updates before the stage.
    last_step: number of updates at its end.
    train: the training settings, with the batch size of the stage and the steps of the whole run.
    model_config: the model as the stage trains it: its depth and its dropout.
    data: the data. Its training batches begin after the examples that earlier stages have used.
    settings: settings of the data for config.json; {} if the run is not divided into stages.
  """

  number: int
  num_stages: int
  first_step: int
  last_step: int
  train: TrainConfig
  model_config: ModelConfig
  data: Dataset
  settings: Mapping[str, Any]

  @property
  def is_of_divided_run(self) -> bool:
    """Whether the run is divided into stages. A stage of such a run has at least one setting."""
    return bool(self.settings)

  @property
  def num_epochs(self) -> float:
    """Number of passes over the data of this stage."""
    return (self.last_step - self.first_step) * self.train.train_batch_size / self.data.num_examples

  def to_dict(self) -> dict[str, Any]:
    """Returns the values that config.json records. A resumed run must have the same values."""
    model = self.model_config
    return {
      "first_step": self.first_step,
      "last_step": self.last_step,
      "num_hidden_layers": model.num_hidden_layers,
      "hidden_dropout_prob": model.hidden_dropout_prob,
      "attention_probs_dropout_prob": model.attention_probs_dropout_prob,
      "train_batch_size": self.train.train_batch_size,
      "num_files": len(self.data.content.files),
      **self.settings,
    }

  def describe(self) -> str:
    """Returns a line for the log: the steps of the stage, and the settings in which stages may differ."""
    model, settings = self.model_config, self.settings
    phrases = [
      f"{stage_name(self.number - 1, self.num_stages)}: steps {self.first_step + 1} to {self.last_step}",
      counted(model.num_hidden_layers, "layer"),
      f"batches of {self.train.train_batch_size}",
    ]
    if "max_seq_length" in settings:
      phrases.append(f"sequences of {settings['max_seq_length']} tokens")
    if model.hidden_dropout_prob or model.attention_probs_dropout_prob:
      phrases.append(f"dropout {model.hidden_dropout_prob:g} (attention {model.attention_probs_dropout_prob:g})")
    if settings.get("masked_lm_prob"):
      phrases.append(f"{settings['masked_lm_prob']:g} of the tokens masked")
    return f"{', '.join(phrases)}, {self.data.describe()} ({self.num_epochs:.2f} epochs)"


def epochs_per_step(stages: Sequence[TrainingStage], train: TrainConfig) -> float:
  """Returns the mean share of an epoch that a step takes. The epochs of a stage are passes over its own data."""
  mean_share, stage_start = 0.0, 0.0  # stage_start: share of all steps before the stage
  for stage in stages:
    batch_size = stage.train_batch_size or train.train_batch_size
    mean_share += (stage.until - stage_start) * batch_size / stage.data.num_examples
    stage_start = stage.until
  return mean_share


def plan_stages(
  stages: Sequence[TrainingStage], train: TrainConfig, strategy: tf.distribute.Strategy
) -> tuple[StagePlan, ...]:
  """Plans the stages of a run.

  Stages with the same data share one stream of examples: a later stage continues where the earlier one ended.

  Args:
    stages: the stages, as the task describes them.
    train: the training settings. The number of steps is known, also if the user gave epochs, and input_parts is not 0.
    strategy: the strategy whose replicas share the batches.
  Returns: the stages in order.
  Raises:
    UserError: a stage is shorter than one step, or its batches or its data cannot be shared by the replicas and hosts.
  """
  plans: list[StagePlan] = []
  steps = steps_of_stages([stage.until for stage in stages], train.num_train_steps)
  num_used_examples: dict[Any, int] = {}  # key of a dataset -> number of its examples that earlier stages use
  for index, stage in enumerate(stages):
    try:
      stage_train = dataclasses.replace(train, train_batch_size=stage.train_batch_size or train.train_batch_size)
      check_batches(stage_train, strategy, trains=True, evaluates=False)
      if len(stages) > 1 and train.input_parts > 1:
        element_spec(strategy, stage_train, stage.data)  # checks that the input parts can share the files
    except UserError as error:
      raise UserError(f"{stage_name(index, len(stages))}: {error}" if len(stages) > 1 else str(error)) from error
    first_step, last_step = steps[index]
    content = stage.data.content
    data_key = content.sha256 if content.files else id(stage.data)
    num_used = num_used_examples.get(data_key, 0)
    num_used_examples[data_key] = num_used + (last_step - first_step) * stage_train.train_batch_size
    plans.append(
      StagePlan(
        number=index + 1,
        num_stages=len(stages),
        first_step=first_step,
        last_step=last_step,
        train=stage_train,
        model_config=stage.model_config,
        data=stage.data.starting_at(num_used),
        settings=stage.settings,
      )
    )
  return tuple(plans)


def joint_content(stages: Sequence[StagePlan]) -> DataContent:
  """Returns the content of the data of all stages, in order. Data that several stages share is listed once."""
  contents = {stage.data.content.sha256: stage.data.content for stage in stages}
  if len(contents) == 1:
    return stages[0].data.content
  return DataContent(tuple(file for content in contents.values() for file in content.files))
