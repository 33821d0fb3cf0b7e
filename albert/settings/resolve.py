"""From the settings that a command line or a Python call gives to the task and the config of a run.

Settings are decided and checked before TensorFlow is imported, so that mistakes are reported at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert.config.base import Config, alternatives, check_types, option_fields
from albert.config.command_flags import INT32_MAX, name_here
from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig, OptimizerConfig, RunConfig, TrainConfig, training_addresses
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import format_value
from albert.runs import output_files
from albert.settings.sources import Settings, find_existing_run
from albert.tasks import registry
from albert.tasks.pretraining.flags import PretrainingConfig, format_stages
from albert.tasks.splits import DEV, TRAIN
from albert.tokenization.vocabulary import VocabularySize
from albert.weights.files import RESUME_FLAG, WeightLocation, find_weights, open_location

if TYPE_CHECKING:
  from albert.tasks.base import Task
  from albert.tasks.definitions import TaskDefinition


@dataclasses.dataclass(frozen=True)
class ResolvedSettings:
  """All settings of a command, before its task is made. No data has been read, and TensorFlow is not imported yet.

  Attributes:
    settings: where the values come from.
    config: the settings of the run.
    model_config: the model.
    data_config: the task's own config.
    weights: where the weights of init_checkpoint are; None if a new run does not start from any.
    notes: lines for the user about settings that follow the vocabulary, the model or the weights. make_task logs them.
  """

  settings: Settings
  config: RunConfig
  model_config: ModelConfig
  data_config: Config
  weights: WeightLocation | None
  notes: Sequence[str] = ()

  def read_inputs(self) -> Any:
    """Checks that the command has something to do, and reads its local files, without TensorFlow.

    Remote paths (gs://) are left to the task, because only TensorFlow can look at these.

    Returns: the data of the task, see albert.tasks.registry.RegisteredTask; None if the task reads its files later.
    Raises:
      UserError: a flag or a file is missing, a file cannot be used, flags do not fit together, or output_dir cannot be
        written to.
    """
    config, data_config = self.config, self.data_config
    check_actions(config, self.settings.runs_flag)
    check_initial_weights(config, are_needed=config.do_train and isinstance(data_config, FinetuningConfig))
    if not (config.do_train or config.init_checkpoint or self.settings.existing_run):
      raise UserError(f"--output_dir={config.output_dir}: holds no run: train first, or give --init_checkpoint")
    values = [getattr(data_config, name) for name in option_fields(type(data_config))]
    data = None
    if not any(isinstance(value, str) and files.is_remote(value) for value in values):
      evaluates = will_evaluate(config, train=config.do_train, evaluate=config.do_eval)
      data = self.settings.task_entry.read_data(
        self.model_config, data_config, train=config.do_train, evaluate=evaluates, predict=config.do_predict
      )
      if isinstance(data_config, FinetuningConfig):
        self.settings.check_task_settings(data.config.training_settings() | data.checkpoint_settings())
        if config.do_train and (run := self.settings.existing_run):
          output_files.check_training_data(run.directory, run.values, data.content(TRAIN))
    if not files.is_remote(config.output_dir):
      output_files.check_writable(config.output_dir)
    return data

  def make_task(self, data: Any = None) -> Task:
    """Makes the task. This imports TensorFlow, which takes seconds.

    Args:
      data: what `read_inputs` returned; None if nothing was read yet.
    Raises:
      UserError: data that the model cannot be trained on, damaged weights, or a setting that contradicts the run in
        output_dir.
    """
    for line in self.notes:
      log(line)
    if self.weights is not None:
      open_location(self.weights)  # weights that cannot be used are reported before any data is read
    task = registry.make_task(self.settings.task_name, self.model_config, self.data_config, data)
    self.settings.check_task_settings(task.settings())
    return task


def resolve_settings(task_name: str, given: Mapping[str, Any]) -> ResolvedSettings:
  """Decides all settings of a command. Values that are not given come from albert.settings.sources.

  Some depend on the vocabulary, the model or the initial weights.

  Args:
    task_name: a key of albert.tasks.registry.TASKS.
    given: name of a flag of the scripts -> its value, for the flags or arguments that the user gave.
  Raises:
    UserError: a value out of range, an unknown model or recipe, an init_checkpoint that does not exist or is damaged,
      or a setting that contradicts the run in output_dir.
  """
  settings = Settings(task_name, given)
  config = settings.run_config()
  weights = _find_initial_weights(settings, config)
  model_config = settings.model_config(weights.config_file if weights else None)
  data_config = settings.data_config(weights)
  notes = []
  # The model has the vocabulary of the initial weights or, without them, that of the data.
  if not settings.gives_size("vocab_size"):
    if weights is None:
      vocabulary = settings.task_entry.find_vocabulary_size(model_config, data_config)
    else:
      config_of_weights, path = weights.config(), weights.config_file
      vocabulary = VocabularySize(config_of_weights.vocab_size, path) if config_of_weights and path else None
    if vocabulary and not (weights and vocabulary.size == model_config.vocab_size):
      model_config = dataclasses.replace(model_config, vocab_size=vocabulary.size)
      notes.append(f"vocab_size is {vocabulary.size}, the size of the vocabulary according to {vocabulary.file}")
  # If max_seq_length is not given, it is at most the number of positions. The lengths that depend on it shrink with it.
  if isinstance(data_config, FinetuningConfig) and not settings.existing_run:
    default, positions = data_config.max_seq_length, model_config.max_position_embeddings
    if default > positions and "max_seq_length" not in settings.flags:
      data_config = settings.data_config(weights, max_seq_length=positions)
      notes.append(
        f"max_seq_length is {positions}, the number of the model's positions, instead of the default {default}"
      )
      assert isinstance(data_config, FinetuningConfig)
    usual = type(data_config)()
    fitted = [
      f"{name} is {getattr(data_config, name)} instead of {getattr(usual, name)}"
      for name in usual.default_lengths()
      if name not in settings.flags and getattr(data_config, name) < getattr(usual, name)
    ]
    if fitted:
      notes.append(f"{', '.join(fitted)}, to fit max_seq_length {data_config.max_seq_length}")
    if getattr(data_config, "long_texts", "") == "truncate" and {"doc_stride", "max_windows"} & settings.flags.keys():
      notes.append("warning: doc_stride and max_windows change nothing without long_texts=windows")
  if (isinstance(data_config, PretrainingConfig) and not settings.existing_run) and (
    config.has_action or (config.chip and data_config.has_local_shards)
  ):
    config, model_config, data_config = _fit_to_shards(settings, config, model_config, data_config, weights, notes)
  if (config.do_train and getattr(data_config, "train_file", None)) and not (
    settings.existing_run
    or config.do_eval
    or config.train.early_stopping_patience
    or any(getattr(data_config, name, None) for name in ("data_dir", "eval_file", "eval_share", "folds"))
  ):
    config = _without_evaluations(settings, config, notes, "no --eval_file is given")
  if config.train.tpu and config.do_train:
    config.train.check_tpu(needs_python=getattr(data_config, "masking", "dynamic") == "dynamic")
    if isinstance(data_config, FinetuningConfig) and not data_config.pad_to_max_length:
      raise UserError(f"--tpu={config.train.tpu}: a TPU needs batches of one shape: give --pad_to_max_length")
  notes += _compare_recipe_with_weights(settings, weights)
  return ResolvedSettings(settings, config, model_config, data_config, weights, notes)


def _find_initial_weights(settings: Settings, config: RunConfig) -> WeightLocation | None:
  """Finds the weights that a new run starts from; None if there are none."""
  if config.resume_from and settings.flags.get("fresh_head"):
    raise UserError(f"--fresh_head and --resume_from={config.resume_from} are both given: give one")
  if settings.existing_run is not None or not (config.init_checkpoint or config.resume_from):
    return None
  if not config.resume_from:
    weights = find_weights(config.init_checkpoint)
    folder = os.path.dirname(weights.config_file or "")
    if config.output_dir and files.real_path(folder) == files.real_path(config.output_dir):
      raise UserError(f"--output_dir={config.output_dir}: holds the weights of --init_checkpoint: give another one")
    return weights
  weights = find_weights(config.resume_from, flag=RESUME_FLAG)
  # How many steps epochs are is known when the data is read.
  weights.step_to_resume(INT32_MAX if config.train.num_train_epochs else config.train.num_train_steps)
  return weights


def _fit_to_shards(
  settings: Settings,
  config: RunConfig,
  model: ModelConfig,
  data: PretrainingConfig,
  weights: WeightLocation | None,
  notes: list[str],
) -> tuple[RunConfig, ModelConfig, PretrainingConfig]:
  """Fits the positions of a new model and the evaluations to the shards. Adds lines for the user to `notes`."""
  from albert.tasks.pretraining import files as pretraining_files  # it imports NumPy

  length = 0
  if weights is None and not settings.gives_size("max_position_embeddings"):
    length = pretraining_files.find_longest(model, data)
  # A named model, such as albert_base, keeps its positions if the sequences are shorter.
  if length > model.max_position_embeddings or (length and settings.model_is_of_recipe()):
    model = dataclasses.replace(model, max_position_embeddings=length)
    notes.append(f"max_position_embeddings is {length}, the length of the sequences in the shards")
  if data.eval_input_file:
    return config, model, data
  data = dataclasses.replace(data, eval_input_file=pretraining_files.find_heldout(model, data))
  if not data.eval_input_file:
    reason = "the shards have no held-out documents, which data_prep.create_pretraining_data --eval_share=0.02 makes"
    config = _without_evaluations(settings, config, notes, reason)
  return config, model, data


def _without_evaluations(settings: Settings, config: RunConfig, notes: list[str], reason: str) -> RunConfig:
  """Leaves out the evaluations during training that the recipe has and no flag asks for. Adds a line to `notes`."""
  if not config.train.eval_every_steps or "eval_every_steps" in settings.flags:
    return config
  notes.append(f"no evaluation during training: {reason}")
  return dataclasses.replace(config, train=dataclasses.replace(config.train, eval_every_steps=0))


def _compare_recipe_with_weights(settings: Settings, weights: WeightLocation | None) -> list[str]:
  """Returns a line of advice if training starts from other weights than those the recipe is for; else no line."""
  recipe, config = settings.recipe, weights.config() if weights else None
  other = recipe.better_recipe_for(config) if config and settings.flags.get("do_train") else ""
  if not (weights and config and other):
    return []
  dropout = "with" if config.hidden_dropout_prob > 0 else "without"
  return [
    f"warning: the recipe {recipe.name} is for other weights: according to {weights.config_file}, these were "
    f"pretrained {dropout} dropout: give --recipe={other}"
  ]


def check_actions(config: RunConfig, runs_flag: str = "num_runs") -> None:
  """Checks that the config asks for something, and that the processes of TF_CONFIG can do it.

  Raises:
    UserError: the config asks for nothing, or for several runs in several processes or without training and evaluating
      them; or TF_CONFIG is wrong.
  """
  if not config.has_action:
    raise UserError("nothing to do: give --do_train, --do_eval or --do_predict")
  addresses = training_addresses(config.train)
  if config.num_runs == 1:
    return
  if addresses:
    raise UserError(
      f"--{runs_flag}={config.num_runs}: several processes (TF_CONFIG) can train one run only: leave out --{runs_flag}"
    )
  if not (config.do_train and config.do_eval):
    raise UserError(
      f"--{runs_flag}={config.num_runs} compares runs: give --do_train and --do_eval; to use the best run, give its "
      f"directory (see {output_files.RUNS}) as --output_dir"
    )
  if config.predictions_file:
    raise UserError(
      f"--predictions_file={config.predictions_file} names one file, but each of the {config.num_runs} runs writes "
      "predictions: leave it out, and each run writes to its own directory"
    )


def will_evaluate(config: RunConfig, *, train: bool, evaluate: bool) -> bool:
  """Whether a command evaluates: because it was told to, or because it trains with --eval_every_steps.

  Args:
    config: the settings of the run.
    train: whether the command trains.
    evaluate: whether the command was told to evaluate.
  """
  return evaluate or (train and config.train.eval_every_steps > 0)


def check_initial_weights(config: RunConfig, *, are_needed: bool) -> None:
  """Raises UserError if training needs weights to start from and the config gives none."""
  if are_needed and not (config.init_checkpoint or config.resume_from or config.from_scratch):
    raise UserError(
      "--do_train needs --init_checkpoint, the weights to start from; for random weights give --from_scratch"
    )


# Flags of the scripts that are not arguments of an Estimator.
_COMMAND_ONLY_FLAGS = {"do_train", "do_eval", "do_predict", "num_runs", "folds", "fold", "predictions_file", "dry_run"}
_COMMAND_ONLY_FLAGS |= {"chip", "hours", "price_per_hour", "find_learning_rate"}
# Arguments that become absolute paths, since the process may change its directory during the life of an Estimator.
_PATHS = {"output_dir", "init_checkpoint", "resume_from", "spm_model_file", "cache_dir"}


def make_defined_task(definition: TaskDefinition, arguments: Mapping[str, Any]) -> tuple[Task, RunConfig]:
  """Makes the task of a definition and the config of its run.

  Args:
    definition: the task and its data.
    arguments: name -> value of the arguments of the Estimator; None stands for an argument that is not given.
  Raises:
    UserError: an argument is unknown or belongs to the definition; or see resolve_settings and make_task.
  """
  given_arguments = {name: value for name, value in arguments.items() if value is not None}
  settings = _checked_settings(definition, given_arguments)
  given = _default_settings(definition, settings) | settings | definition.settings
  given |= {"do_train": definition.has(TRAIN), "do_eval": definition.has(DEV)}
  resolved = resolve_settings(definition.task_name, given)
  task = resolved.make_task()
  for split, rows in definition.rows.items():
    task = task.with_data(split, rows)
  return task, resolved.config


def _checked_settings(definition: TaskDefinition, arguments: Mapping[str, Any]) -> dict[str, Any]:
  """Checks the names and types of arguments. Returns them as flags: a ModelConfig as `model` becomes its fields."""
  configs = registry.script_configs(definition.task_name)
  config_of_field = {field: config for config in configs for field in option_fields(config)}
  checked_settings: dict[str, Any] = {}
  for name, value in arguments.items():
    if name == "model" and isinstance(value, ModelConfig):
      checked_settings |= value.to_dict()
      continue
    if name == "model":
      path = str(os.fspath(value))
      checked_settings["albert_config_file" if path.endswith(".json") else "model"] = path
      continue
    if name not in config_of_field or name in _COMMAND_ONLY_FLAGS:
      known = config_of_field.keys() - _COMMAND_ONLY_FLAGS - {*definition.settings, *definition.file_fields.values()}
      meant = name_here(name, known) or "".join(difflib.get_close_matches(name, known, n=1))
      hint = f"is {meant} meant?" if meant else "see the flags of the scripts, which have the same names"
      raise UserError(f"{name}={format_value(value)}: no such setting; {hint}")
    if name in definition.settings or name in definition.file_fields.values():
      raise UserError(f"{name}={format_value(value)}: the task gives this setting: leave it out")
    json_value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if name == "stages" and isinstance(value, list | tuple):
      json_value = format_stages(value)
    checked_settings |= check_types(config_of_field[name], {name: json_value}, source="Estimator")
    if name in _PATHS:
      checked_settings[name] = files.absolute(checked_settings[name])
  return checked_settings


def _default_settings(definition: TaskDefinition, settings: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the definition's defaults for the missing settings; {} if a run or a recipe gives the defaults."""
  if "recipe" in settings or find_existing_run(settings.get("output_dir", "")) is not None:
    return {}
  # Field -> the other field for the same setting, such as num_train_epochs -> num_train_steps.
  alternative_names = alternatives(TrainConfig) | alternatives(OptimizerConfig)
  defaults = definition.default_settings.items()
  return {name: value for name, value in defaults if not {name, alternative_names.get(name)} & settings.keys()}
