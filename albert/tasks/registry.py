"""The registered tasks, by the names that config.json and the scripts run_*.py use.

Importing this module does not import TensorFlow: a task's own modules are imported when the task is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from albert.config.base import Config
from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig, PretrainingConfig
from albert.config.stages import read_stages
from albert.tasks.glue import config as glue_config
from albert.tasks.glue import specs
from albert.tasks.race import data as race_data
from albert.tasks.squad import data as squad_data
from albert.tasks.tagging import data as tagging_data
from albert.tokenization.vocabulary import VocabularySize

if TYPE_CHECKING:
  from albert.tasks.base import Task
  from albert.tasks.glue.files import TextData


class RunAverager(Protocol):
  """Averages the predictions of several runs of one task (see albert.ensemble). Needs no TensorFlow."""

  def __call__(
    self, run_dirs: Sequence[str], settings_of_runs: Sequence[Mapping[str, Any]], output_dir: str
  ) -> dict[str, float]:
    """Writes the averaged predictions.

    Args:
      run_dirs: the output_dirs of two or more runs.
      settings_of_runs: the section "data" of each run's config.json.
      output_dir: where to write.
    Returns: metric -> value; {} if none of the predictions has labels.
    Raises:
      UserError: a run lacks predictions, or has predictions for other examples.
    """
    ...


class DataReader(Protocol):
  """Reads the files of a command, or checks that they exist, before TensorFlow is imported."""

  def __call__(self, model_config: ModelConfig, config: Any, *, train: bool, evaluate: bool, predict: bool) -> Any:
    """Reads what must be read to find mistakes; the messages are those that the task itself would give later.

    Args:
      model_config: the model.
      config: the task's own config.
      train, evaluate, predict: what the command does.
    Returns: the data, for make_task; None if the task reads its files later.
    Raises:
      UserError: a flag is missing, a file cannot be used, or the vocabulary does not fit the model.
    """
    ...


class VocabularySizeFinder(Protocol):
  """Finds the number of pieces of a task's vocabulary. Needs no TensorFlow."""

  def __call__(self, model_config: ModelConfig, config: Any) -> VocabularySize | None:
    """Finds the number of pieces.

    Args:
      model_config: the model; its vocab_size is not used.
      config: the task's own config.
    Returns: the number and the file in which it was found; None if the task's files do not determine it.
    Raises:
      UserError: a file cannot be read.
    """
    ...


def _find_vocabulary_size(model_config: ModelConfig, config: FinetuningConfig) -> VocabularySize | None:
  del model_config
  from albert.tasks import finetuning_checks

  return finetuning_checks.find_vocabulary_size(config)


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


@dataclasses.dataclass(frozen=True)
class RegisteredTask:
  """One task and its functions.

  Attributes:
    config_class: the config that holds the task's flags.
    make_task: (model config, task config, data or None) -> the task. It imports the task's module, and so TensorFlow.
    read_data: reads the files of a command, before TensorFlow is imported.
    training_step: task config -> the kind of the training step. It needs no TensorFlow. It raises UserError if there
      are several kinds or the length is not known.
    recipe: task config -> the default recipe, the name of a file in configs/; "" if there is none.
    average_runs: averages the predictions of several runs; None if the task's predictions cannot be averaged.
    find_vocabulary_size: finds the vocab_size of a model that starts from random weights; by default in
      --spm_model_file.
  """

  config_class: type[Config]
  make_task: Callable[[ModelConfig, Any, Any], Task]
  read_data: DataReader
  training_step: Callable[[Any], TrainingStep]
  recipe: Callable[[Any], str] = lambda config: ""
  average_runs: RunAverager | None = None
  find_vocabulary_size: VocabularySizeFinder = _find_vocabulary_size


# The functions below import modules when they are called, because importing a task takes seconds: it imports TensorFlow
# and scikit-learn.


def _make_pretraining(model_config: ModelConfig, config: PretrainingConfig, data: None) -> Task:
  del data
  # Refuses bad stages before TensorFlow is imported. read_data does the same, but is not called for remote shards.
  read_stages(config, model_config)
  from albert.tasks.pretraining.task import PretrainingTask

  return PretrainingTask(model_config, config)


def _check_pretraining(
  model_config: ModelConfig, config: PretrainingConfig, *, train: bool, evaluate: bool, predict: bool
) -> None:
  from albert.tasks.pretraining import files as pretraining_files

  pretraining_files.check_files(model_config, config, train=train, evaluate=evaluate, predict=predict)


def _pretraining_step(config: PretrainingConfig) -> TrainingStep:
  from albert.tasks.pretraining import files as pretraining_files

  return TrainingStep("pretraining", pretraining_files.find_length(config))


def _find_pretraining_vocabulary_size(model_config: ModelConfig, config: PretrainingConfig) -> VocabularySize | None:
  from albert.tasks.pretraining import files as pretraining_files

  return pretraining_files.find_vocabulary_size(model_config, config)


def _make_classifier(
  model_config: ModelConfig, config: glue_config.ClassifierConfig, text_data: TextData | None
) -> Task:
  from albert.tasks.glue import task as glue_task

  return glue_task.make_task(model_config, config, text_data)


def _read_classifier(
  model_config: ModelConfig, config: glue_config.ClassifierConfig, *, train: bool, evaluate: bool, predict: bool
) -> TextData:
  from albert.tasks import finetuning_checks
  from albert.tasks.glue.files import TextData

  text_data = TextData(config, train=train, evaluate=evaluate, predict=predict)
  finetuning_checks.load_task_tokenizer(model_config, config)
  return text_data


def _average_classifiers(
  run_dirs: Sequence[str], settings_of_runs: Sequence[Mapping[str, Any]], output_dir: str
) -> dict[str, float]:
  from albert.tasks.glue import evaluation

  return evaluation.average_runs(run_dirs, settings_of_runs, output_dir)


def _make_file_check(find_files: Callable[[Any, str], Sequence[str]]) -> DataReader:
  """Returns the function that checks the files and the vocabulary of a fine-tuning task.

  Args:
    find_files: (task config, split) -> the files of the split.
  """

  def check(model_config: ModelConfig, config: Any, *, train: bool, evaluate: bool, predict: bool) -> None:
    from albert.tasks import finetuning_checks

    finetuning_checks.check_splits(find_files, config, train=train, evaluate=evaluate, predict=predict)
    finetuning_checks.load_task_tokenizer(model_config, config)

  return check


def _make_squad(model_config: ModelConfig, config: squad_data.SquadConfig, data: None) -> Task:
  del data
  from albert.tasks.squad import task as squad_task

  return squad_task.make_task(model_config, config)


def _average_squad(
  run_dirs: Sequence[str], settings_of_runs: Sequence[Mapping[str, Any]], output_dir: str
) -> dict[str, float]:
  from albert.tasks.squad import evaluation

  return evaluation.average_runs(run_dirs, settings_of_runs, output_dir)


def _make_race(model_config: ModelConfig, config: race_data.RaceConfig, data: None) -> Task:
  del data
  from albert.tasks.race import task as race_task

  return race_task.RaceTask(model_config, config)


def _average_race(
  run_dirs: Sequence[str], settings_of_runs: Sequence[Mapping[str, Any]], output_dir: str
) -> dict[str, float]:
  from albert.tasks.race import evaluation

  return evaluation.average_runs(run_dirs, settings_of_runs, output_dir)


def _make_tagging(model_config: ModelConfig, config: tagging_data.TaggingConfig, data: None) -> Task:
  del data
  from albert.tasks.tagging import task as tagging_task

  return tagging_task.make_task(model_config, config)


TASKS: dict[str, RegisteredTask] = {
  "pretraining": RegisteredTask(
    PretrainingConfig,
    _make_pretraining,
    _check_pretraining,
    _pretraining_step,
    find_vocabulary_size=_find_pretraining_vocabulary_size,
  ),
  "classifier": RegisteredTask(
    glue_config.ClassifierConfig,
    _make_classifier,
    _read_classifier,
    lambda config: TrainingStep("classification", config.max_seq_length),
    recipe=specs.recipe_name,
    average_runs=_average_classifiers,
  ),
  "squad": RegisteredTask(
    squad_data.SquadConfig,
    _make_squad,
    _make_file_check(squad_data.find_files),
    lambda config: TrainingStep("squad_v2" if config.version_2_with_negative else "squad_v1", config.max_seq_length),
    recipe=squad_data.recipe_name,
    average_runs=_average_squad,
  ),
  "race": RegisteredTask(
    race_data.RaceConfig,
    _make_race,
    _make_file_check(race_data.find_files),
    # RACE's questions have four options.
    lambda config: TrainingStep("race", config.max_seq_length, sequences_per_example=4),
    recipe=lambda config: "race",
    average_runs=_average_race,
  ),
  "tagging": RegisteredTask(
    tagging_data.TaggingConfig,
    _make_tagging,
    _make_file_check(tagging_data.find_files),
    lambda config: TrainingStep("tagging", config.max_seq_length),
    recipe=lambda config: "tagging",
  ),
}


def make_task(name: str, model_config: ModelConfig, config: Config, data: Any = None) -> Task:
  """Makes the task that is registered as `name`.

  Args:
    name: a key of TASKS.
    model_config: the model that the task is for.
    config: the task's own config, of the class that TASKS gives.
    data: what RegisteredTask.read_data returned for this config; None if nothing was read yet.
  Raises:
    UserError: settings that are not possible together, or files that cannot be used.
  """
  return TASKS[name].make_task(model_config, config, data)
