"""The registered tasks, by the names that config.json and the scripts run_*.py use.

Importing this module does not import TensorFlow: a task's own modules are imported when the task is made.
"""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from albert.config.base import Config
from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.tasks.glue import specs
from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.race.flags import RaceConfig
from albert.tasks.squad import flags as squad_flags
from albert.tasks.tagging.flags import TaggingConfig
from albert.tokenization.vocabulary import VocabularySize

if TYPE_CHECKING:
  from albert.tasks.base import Task


# Averages the predictions of several runs of one task, without TensorFlow (see albert.ensemble): (output_dirs of two or
# more runs, the section "data" of each run's config.json, the directory to write to) -> metric -> value; {} if none of
# the predictions has labels. It raises UserError if a run lacks predictions, or has predictions for other examples.
RunAverager = Callable[[Sequence[str], Sequence[Mapping[str, Any]], str], dict[str, float]]


def _lazy(reference: str) -> Callable[..., Any]:
  """Returns a function that imports and calls the function "module:name". A task's modules take seconds to import."""

  def call(*arguments: Any, **options: Any) -> Any:
    return pkgutil.resolve_name(reference)(*arguments, **options)

  return call


class TrainingStep(NamedTuple):
  """The kind of a task's training step.

  Attributes:
    name: a key of benchmarks.tpu.programs.STEPS.
    length: tokens in a sequence.
    sequences_per_example: more than 1 for a question with several options.
  """

  name: str
  length: int
  sequences_per_example: int = 1


_find_vocabulary_size = _lazy("albert.tasks.finetuning:find_vocabulary_size")
_find_length = _lazy("albert.tasks.pretraining.files:find_length")
_make_pretraining_task = _lazy("albert.tasks.pretraining.model:PretrainingTask")


@dataclasses.dataclass(frozen=True)
class RegisteredTask:
  """One task and its functions.

  Attributes:
    config_class: the config that holds the task's flags.
    make_task: (model config, what read_data returned) -> the task. It imports TensorFlow.
    read_data: (model config, task config, train=, evaluate=, predict=) -> the data half of the task. It
      reads the files of a command that trains, evaluates or predicts, before TensorFlow is imported, and raises
      UserError if a flag is missing, a file cannot be used, or the vocabulary does not fit the model.
    training_step: task config -> the kind of the training step. It needs no TensorFlow. It raises UserError if there
      are several kinds or the length is not known.
    recipe: task config -> the default recipe, the name of a file in configs/; "" if there is none.
    average_runs: averages the predictions of several runs; None if the task's predictions cannot be averaged.
    find_vocabulary_size: (model config, task config) -> the number of pieces of the vocabulary, and the file in which
      it was found, for a model that starts from random weights; None if the files do not determine it. By default, it
      looks into --spm_model_file.
  """

  config_class: type[Config]
  make_task: Callable[..., Task]
  read_data: Callable[..., Any]
  training_step: Callable[[Any], TrainingStep]
  recipe: Callable[[Any], str] = lambda config: ""
  average_runs: RunAverager | None = None
  find_vocabulary_size: Callable[[ModelConfig, Any], VocabularySize | None] = _find_vocabulary_size


TASKS: dict[str, RegisteredTask] = {
  "pretraining": RegisteredTask(
    PretrainingConfig,
    make_task=lambda model_config, data: _make_pretraining_task(model_config, data.config, data),
    read_data=_lazy("albert.tasks.pretraining.files:read_data"),
    training_step=lambda config: TrainingStep("pretraining", _find_length(config)),
    find_vocabulary_size=_lazy("albert.tasks.pretraining.files:find_vocabulary_size"),
  ),
  "classifier": RegisteredTask(
    ClassifierConfig,
    make_task=_lazy("albert.tasks.glue.model:TextTask"),
    read_data=_lazy("albert.tasks.glue.files:TextData.of_command"),
    training_step=lambda config: TrainingStep("classification", config.max_seq_length),
    recipe=specs.recipe_name,
    average_runs=_lazy("albert.tasks.glue.results:average_runs"),
  ),
  "squad": RegisteredTask(
    squad_flags.SquadConfig,
    make_task=_lazy("albert.tasks.squad.model:SquadTask"),
    read_data=_lazy("albert.tasks.squad.files:SquadData.of_command"),
    training_step=lambda config: TrainingStep(squad_flags.recipe_name(config), config.max_seq_length),
    recipe=squad_flags.recipe_name,
    average_runs=_lazy("albert.tasks.squad.results:average_runs"),
  ),
  "race": RegisteredTask(
    RaceConfig,
    make_task=_lazy("albert.tasks.race.model:RaceTask"),
    read_data=_lazy("albert.tasks.race.files:RaceData.of_command"),
    # RACE's questions have four options.
    training_step=lambda config: TrainingStep("race", config.max_seq_length, sequences_per_example=4),
    recipe=lambda config: "race",
    average_runs=_lazy("albert.tasks.race.results:average_runs"),
  ),
  "tagging": RegisteredTask(
    TaggingConfig,
    make_task=_lazy("albert.tasks.tagging.model:TaggingTask"),
    read_data=_lazy("albert.tasks.tagging.files:TaggingData.of_command"),
    training_step=lambda config: TrainingStep("tagging", config.max_seq_length),
    recipe=lambda config: "tagging",
  ),
}


def script_configs(task_name: str) -> list[type[Config]]:
  """Returns the configs whose fields are flags of the task's script, and arguments of an Estimator."""
  return [RunConfig, TASKS[task_name].config_class, TrainConfig, OptimizerConfig, ModelConfig]


def make_task(name: str, model_config: ModelConfig, config: Config, data: Any = None) -> Task:
  """Makes the task that is registered as `name`.

  Args:
    name: a key of TASKS.
    model_config: the model that the task is for.
    config: the task's own config, of the class that TASKS gives.
    data: what RegisteredTask.read_data returned for this config; None to read the files when they are needed.
  Raises:
    UserError: settings that are not possible together, or files that cannot be used.
  """
  if data is None:
    data = TASKS[name].read_data(model_config, config, train=False, evaluate=False, predict=False)
  return TASKS[name].make_task(model_config, data)
