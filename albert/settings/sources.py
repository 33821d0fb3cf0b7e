"""Decides the value of each setting of a command. Imports no TensorFlow.

A value comes from the first of these sources that gives it: a flag, the run that output_dir already holds, the recipe,
the default of the field. So `--do_predict --output_dir=RUN` uses the model, the data, the vocabulary and the checkpoint
selection of the run in RUN. A flag that contradicts that run is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from albert.config.base import Config, alternatives, check_types, from_dict, is_unset, merge, option_fields
from albert.config.command_flags import format_flag
from albert.config.model import REGULARIZATION, ModelConfig, load_model_config, named_model
from albert.config.recipes import SECTIONS, Recipe, read_recipe
from albert.config.run import FinetuningConfig, OptimizerConfig, RunConfig, TrainConfig
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.tasks import registry
from albert.tasks.glue.specs import CUSTOM, canonical_name
from albert.tasks.published_models import settings_of_weights
from albert.tokenization.recorded_settings import SETTINGS, known_settings
from albert.tokenization.vocabulary import NAMES, NO_VOCABULARY, vocabulary_in, vocabulary_sha256
from albert.weights.files import WeightLocation

_SEED_DIRECTORY = re.compile(r"run-(\d+)$")


@dataclasses.dataclass(frozen=True)
class ExistingRun:
  """A run in output_dir that has saved a checkpoint or has ended.

  Attributes:
    directory: its output_dir.
    values: the content of its config.json.
    seed: its seed, if it is one of several runs that --num_runs started with different seeds; None for a single run.
  """

  directory: str
  values: Mapping[str, Any]
  seed: int | None = None

  @property
  def config_file(self) -> str:
    """The path of its config.json."""
    return files.join(self.directory, output_files.CONFIG)

  def reusable_values(self, config_class: type[Config], section: str = "") -> dict[str, Any]:
    """The recorded values that later commands reuse.

    Args:
      config_class: the config whose fields are looked up.
      section: the section of config.json that holds the config; "" for RunConfig, whose fields are at the top level.
    Returns:
      Field name -> value, without fields that depend on the command (`per_command` in `option`).
    """
    values = self.values.get(section, {}) if section else self.values
    fields = option_fields(config_class)
    reusable = {name for name, field in fields.items() if not field.metadata["per_command"]}
    recorded = {name: value for name, value in values.items() if name in reusable}
    if self.seed is not None:  # each of the runs has its seed, and with --folds its fold
      recorded = {name: value for name, value in recorded.items() if name not in ("seed", "fold")}
    if config_class is RunConfig:
      # Pretraining without --init_checkpoint starts from random weights, whether or not --from_scratch is given.
      recorded["from_scratch"] = not recorded.get("init_checkpoint")
    return recorded


def find_existing_run(output_dir: str, num_runs: int = 1, runs_flag: str = "num_runs") -> ExistingRun | None:
  """Finds the run whose settings later commands on output_dir use.

  A run counts if it has a config.json and either a checkpoint or the record of the end of its training. With --num_runs
  only the best run keeps its checkpoints. A run that failed before it saved anything does not count.

  Args:
    output_dir: the output_dir of the command; "" if it has none.
    num_runs: the number of runs. If it is greater than 1, they are in the folders run-SEED of output_dir.
    runs_flag: the flag that gives it.
  Returns:
    The run; if there are several, the one with the smallest seed; None if there is none.
  Raises:
    UserError: --num_runs is greater than 1, but output_dir already holds a single run.
  """
  if not output_dir:
    return None
  single_run = _read_run(output_dir)
  if num_runs == 1:
    return single_run
  if single_run:
    raise UserError(f"--{runs_flag}={num_runs}: {single_run.config_file} is of a single run: give another --output_dir")
  seeds = [int(match[1]) for match in map(_SEED_DIRECTORY.match, _list_directory(output_dir)) if match]
  runs = (_read_run(files.join(output_dir, f"run-{seed}"), seed) for seed in sorted(seeds))
  return next(filter(None, runs), None)


def _read_run(directory: str, seed: int | None = None) -> ExistingRun | None:
  """Reads the run in a directory; None if there is none, or if it failed before it saved anything."""
  path = files.join(directory, output_files.CONFIG)
  if not files.exists(path):
    return None
  checkpoints = _list_directory(files.join(directory, output_files.CHECKPOINTS))
  has_checkpoint = any(map(output_files.STEP_DIRECTORY.match, checkpoints))
  has_ended = files.exists(files.join(directory, output_files.TRAINING_LOSS))
  return ExistingRun(directory, output_files.read_config(path), seed) if has_checkpoint or has_ended else None


def _list_directory(directory: str) -> list[str]:
  return files.listdir(directory) if files.is_dir(directory) else []


def _must_equal_run(config_class: type[Config], name: str) -> bool:
  """Whether a later command on the output_dir of a run must give this field the value of the run."""
  metadata = option_fields(config_class)[name].metadata
  return bool(metadata["affects_training"] and not metadata["evaluation_may_differ"])


class Settings:
  """The settings of a command.

  Args:
    task_name: the task of the script, a key of albert.tasks.registry.TASKS.
    flags: name -> value of the flags on the command line, without those that are left out.

  Attributes:
    flags: name -> value of the flags on the command line, without those that are left out.
    task_entry: the task's entry in the registry.
    runs_flag: the flag that gives the number of runs: folds if each fold is a run, else num_runs.
    existing_run: the run that output_dir already holds; None if there is none.
    recipe: the recipe of the command or of that run.

  Raises:
    UserError: two flags exclude each other, output_dir holds a run of another task, or --recipe does not exist or
      contradicts that run.
  """

  def __init__(self, task_name: str, flags: Mapping[str, Any]):
    self.task_name = task_name
    self.task_entry = registry.TASKS[task_name]
    self._data_class = self.task_entry.config_class
    self.flags = dict(flags)
    self._does_training = bool(flags.get("do_train"))
    self._check_alternatives()
    self.runs_flag = "folds" if flags.get("folds") and not flags.get("fold") else "num_runs"
    if self.runs_flag == "folds" and "num_runs" in flags:
      raise UserError(f"--folds={flags['folds']} and --num_runs={flags['num_runs']} are both given: give one")
    self._num_runs: int = flags.get(self.runs_flag, 1)
    self.existing_run = find_existing_run(self.flags.get("output_dir", ""), self._num_runs, self.runs_flag)
    if self.existing_run is None:
      self._refuse_directory_of_several_runs()
    elif self.existing_run.values.get("task", task_name) != task_name:
      raise UserError(
        f"{self.existing_run.config_file}: this directory holds a run of the task {self.existing_run.values['task']}, "
        f"but this script runs {task_name}: use the other task's script, or give another --output_dir"
      )
    self.recipe = self._find_recipe()

  def recorded(self, config_class: type[Config], section: str = "data") -> dict[str, Any]:
    """The values of a config that the run has recorded and that later commands reuse; {} if there is no run."""
    return self.existing_run.reusable_values(config_class, section) if self.existing_run else {}

  def _flags_of(self, config_class: type[Config]) -> dict[str, Any]:
    """Name -> value of the flags on the command line that are fields of a config."""
    return {name: self.flags[name] for name in option_fields(config_class) if name in self.flags}

  def _check_alternatives(self) -> None:
    """Refuses two flags that express the same setting, such as --num_train_steps and --num_train_epochs."""
    model_flags = ("model", "albert_config_file")
    conflicts = [model_flags] if set(model_flags) <= set(self.flags) else []
    for config_class in (RunConfig, TrainConfig, OptimizerConfig, self._data_class):
      fields, flags = option_fields(config_class), self._flags_of(config_class)
      # A flag with the value that stands for "not set", such as --num_train_epochs=0, conflicts with no other flag.
      flags_with_value = {name for name, value in flags.items() if not is_unset(fields[name], value)}
      conflicts += [pair for pair in alternatives(config_class).items() if set(pair) <= flags_with_value]
    if conflicts:
      both = " and ".join(format_flag(name, self.flags[name]) for name in conflicts[0])
      raise UserError(f"{both} are both given: give one")

  def _refuse_directory_of_several_runs(self) -> None:
    """Refuses to evaluate or predict with the output_dir of --num_runs, which has no checkpoints of its own."""
    directory = self.flags.get("output_dir", "")
    path = files.join(directory, output_files.RUNS)
    evaluates_or_predicts = self.flags.get("do_eval") or self.flags.get("do_predict")
    if self._does_training or not evaluates_or_predicts or self.flags.get("init_checkpoint") or not files.exists(path):
      return
    if self._num_runs == 1:
      best = files.join(directory, output_files.read_runs(path)["best_run"])
      raise UserError(f"{path}: this directory holds several runs: give one of them, such as --output_dir={best}")

  # Recipes:

  def _find_recipe(self) -> Recipe:
    """Reads the recipe: the one that --recipe names, else the one of the existing run, else the task's default."""
    run = self.existing_run
    name = self.flags.get("recipe")
    if name is None and run:
      name = run.values.get("recipe") or ""
    elif name is None:
      name = self.task_entry.recipe(self._data_class(**self._flags_of(self._data_class)))
    try:
      recipe = read_recipe(name, self.task_name)
    except UserError:
      if run is None or "recipe" in self.flags:
        raise
      return Recipe(name)  # the file was deleted after the run
    if run and "recipe" in self.flags and name != run.values.get("recipe"):
      self._refuse_other_recipe(recipe)
    return recipe

  def _refuse_other_recipe(self, recipe: Recipe) -> None:
    """Refuses --recipe if it gives a field that affects training another value than the run has."""
    for section, config_class in {**SECTIONS, "data": self._data_class}.items():
      values, fields = recipe.sections.get(section, {}), option_fields(config_class)
      if not isinstance(values, dict):
        continue  # the section is the name of a model, which is not compared
      recorded = self.recorded(config_class, section)
      for name in [name for name in values if name in recorded and name not in self.flags]:
        if fields[name].metadata["affects_training"] and recorded[name] != values[name]:
          raise self._contradiction(f"--recipe={recipe.name}, with {name} = {values[name]!r}", name, recorded)

  # Values:

  def values(self, config_class: type[Config], section: str = "") -> dict[str, Any]:
    """The values of a config's fields.

    Args:
      config_class: the config.
      section: its section in config.json and in recipes; "" for RunConfig, whose fields are at the top level.
    Returns:
      Field name -> value, without the fields that keep their default.
    Raises:
      UserError: a flag contradicts the run, or a file has a value of the wrong type.
    """
    flags = self._flags_of(config_class)
    recipe = _checked_values(config_class, self.recipe.sections.get(section, {}), self.recipe.path)
    if self.existing_run is None:
      return merge(config_class, recipe, flags)
    recorded, fields = self.recorded(config_class, section), option_fields(config_class)
    for name in [name for name in flags if name in recorded]:
      value, recorded_value = flags[name], recorded[name]
      if name in ("init_checkpoint", "resume_from"):
        value, recorded_value = files.absolute(value), files.absolute(recorded_value)
      choices = fields[name].metadata["choices"]
      # A task may replace "auto" and free texts, such as labels; check_task_settings compares them later.
      is_final = section != "data" or isinstance(value, float) or (choices and "auto" not in choices)
      if value == recorded_value:
        if name in alternatives(config_class):
          del flags[name]  # both alternatives are recorded, and a given one would drop the other
      elif is_final and _must_equal_run(config_class, name):
        if name == "init_checkpoint" and self._does_training:
          continue  # the Estimator compares the content of the weights instead of their path
        # A run that was given --num_train_epochs has recorded the steps, too. The message names its epochs.
        alternative = alternatives(config_class).get(name, "")
        was_given = fields[name].metadata["instead_of"] and recorded_value
        recorded_name = alternative if recorded.get(alternative) and not was_given else name
        raise self._contradiction(format_flag(name, flags[name]), recorded_name, recorded)
    return merge(config_class, recipe, _checked_values(config_class, recorded, self.existing_run.config_file), flags)

  def _contradiction(self, flag: str, name: str, recorded: Mapping[str, Any]) -> UserError:
    """Makes the error for a flag, as the message shows it, that contradicts recorded[name], the value of the run."""
    run = self.existing_run
    assert run is not None
    remedy = "give another --output_dir"
    if name == "select_checkpoint" or not self._does_training:  # the command uses a checkpoint of the run
      remedy += f" and --init_checkpoint={files.join(run.directory, 'checkpoints', 'step-N')}"
    elif name in ("num_train_steps", "num_train_epochs") and run.seed is None:
      remedy += f"; with --init_checkpoint={run.directory} there, its weights are trained further, with a new schedule"
    value = f"{name} = {recorded[name]!r} ({run.config_file})"
    return UserError(f"{flag}: the run in {run.directory} has {value}: leave the flag out, or {remedy}")

  def run_config(self) -> RunConfig:
    """The config of the run.

    Raises:
      UserError: see `values`; or a value is out of range.
    """
    values = self.values(RunConfig) | {"recipe": self.recipe.name, "num_runs": self._num_runs}
    train = self.values(TrainConfig, "train")
    if self.existing_run and not self._does_training:
      # The command uses a checkpoint of the run. If all of them were deleted, it must fail. It must not use the weights
      # that training started from.
      values |= {"init_checkpoint": "", "from_scratch": False}
    if self.existing_run and self.existing_run.seed is not None:
      train.setdefault("seed", self.existing_run.seed)
    warmup_is_given = "num_warmup_steps" in self.flags or self.flags.get("warmup_proportion")
    return RunConfig(
      **values,
      warmup_is_default=self.existing_run is None and not warmup_is_given,
      precision_is_default="precision" not in self.flags,
      optimizer=OptimizerConfig(**self.values(OptimizerConfig, "optimizer")),
      train=TrainConfig(**train),
    )

  def model_config(self, weights_config_file: str | None = None) -> ModelConfig:
    """The config of the model.

    If output_dir holds a run, it is the config of that run. Otherwise it comes from the first of these sources:
    --albert_config_file or --model, the config file beside --init_checkpoint, the recipe. If the recipe has values for
    dropout or the initializer (the fields in REGULARIZATION), these are used in any case, because they belong to the
    training. Flags such as --num_hidden_layers replace single fields last.

    Args:
      weights_config_file: path of the config file beside --init_checkpoint, if there is one.
    Raises:
      UserError: an unknown model, a value out of range, or a flag that contradicts the run.
    """
    if self.existing_run:
      return self._model_of_run(self.existing_run)
    recipe_model, fields = self.recipe.sections.get("model"), self._recipe_model()
    base = self._model_of_flags() or (load_model_config(weights_config_file) if weights_config_file else None)
    if base is not None:
      fields = {name: value for name, value in fields.items() if name in REGULARIZATION}
    else:
      base = named_model(recipe_model if isinstance(recipe_model, str) else "albert_base")
    if fields:
      base = from_dict(ModelConfig, base.to_dict() | fields, source=self.recipe.path)
    return dataclasses.replace(base, **self._flags_of(ModelConfig))

  def _model_of_flags(self) -> ModelConfig | None:
    """The model that --albert_config_file or --model names; None if neither is given."""
    if self.flags.get("albert_config_file"):
      return load_model_config(self.flags["albert_config_file"])
    return named_model(self.flags["model"]) if self.flags.get("model") else None

  def gives_size(self, name: str) -> bool:
    """Whether a flag, the config file of a model, the run in output_dir or the recipe gives a field of the model.

    The name of a model does not give it: the models of the paper can be trained with any vocabulary and length.
    """
    if self.existing_run or name in self.flags:
      return True
    if self.flags.get("albert_config_file") or self.flags.get("model"):
      return self._config_file_gives(name)
    return name in self._recipe_model()

  def model_is_of_recipe(self) -> bool:
    """Whether the sizes of the model come from a recipe: neither a flag nor the recipe names a model or its config."""
    is_named = self.flags.get("albert_config_file") or self.flags.get("model")
    return not is_named and not self._recipe_model().keys() <= {*REGULARIZATION}

  def _recipe_model(self) -> dict[str, Any]:
    """The fields of the model in the recipe; {} if it names a model."""
    recipe_model = self.recipe.sections.get("model")
    return recipe_model if isinstance(recipe_model, dict) else {}

  def _config_file_gives(self, name: str) -> bool:
    path = self.flags.get("albert_config_file")
    return bool(path and name in files.read_json(path))

  def _model_of_run(self, run: ExistingRun) -> ModelConfig:
    """The model of an existing run, after comparing it with the flags."""
    model = from_dict(ModelConfig, self.recorded(ModelConfig, "model"), source=run.config_file)
    flags, model_of_flags = self._flags_of(ModelConfig), self._model_of_flags()
    for name, value in flags.items():
      # An activation may have several names. ModelConfig stores one of them, so two models are compared, not the names.
      if value != getattr(model, name) and dataclasses.replace(model, **flags) != model:
        raise self._contradiction(format_flag(name, value), name, model.to_dict())
    if model_of_flags is None:
      return model
    not_compared = {*REGULARIZATION, *flags}
    if not self._config_file_gives("vocab_size"):
      not_compared.add("vocab_size")
    for name in option_fields(ModelConfig):
      if name not in not_compared and getattr(model_of_flags, name) != getattr(model, name):
        flag = "albert_config_file" if self.flags.get("albert_config_file") else "model"
        raise self._contradiction(format_flag(flag, self.flags[flag]), name, model.to_dict())
    return model

  def data_config(self, weights: WeightLocation | None = None, **changes: Any) -> Config:
    """The task's own config.

    Args:
      weights: where the weights of --init_checkpoint are, for a run that starts from some.
      **changes: values that replace those of the sources.
    Raises:
      UserError: see `values`; or a value is out of range, --spm_model_file is not the vocabulary of the run, or a flag
        contradicts the settings that the vocabulary was made with.
    """
    values = self.values(self._data_class, "data")
    if self.existing_run and not self._does_training:
      # The training shards are not needed, and may have been deleted.
      values.pop("stages", None)
      if "input_file" not in self.flags:
        values.pop("input_file", None)
    values["spm_model_file"] = self._vocabulary(values.get("spm_model_file", ""), weights)
    self._add_vocabulary_settings(values, weights)
    if weights and not self._does_training:
      self._add_label_settings(values, weights)
    if not values.get("cache_dir"):
      output_dir, is_finetuning = self.flags.get("output_dir", ""), issubclass(self._data_class, FinetuningConfig)
      values["cache_dir"] = files.join(output_dir, "features") if is_finetuning else output_dir
    return self._data_class(**values | changes)

  def _add_label_settings(self, values: dict[str, Any], weights: WeightLocation) -> None:
    """Adds labels, and settings such as multi_label, from another library's weights, unless flags give them."""
    fields = option_fields(self._data_class)
    if values.get("labels") or values.get("regression") or "labels" not in fields:
      return
    if "task_name" in fields and canonical_name(values.get("task_name", "")) != CUSTOM:
      return
    settings = settings_of_weights(weights)
    if weights.architecture and not (settings and settings.keys() <= fields.keys()):
      raise UserError(
        f"{weights.flag}={weights.path}: {weights.config_file} names {weights.architecture}, which has no head for "
        "this task: fine-tune it first, with --do_train"
      )
    values |= {name: value for name, value in settings.items() if name not in values}

  def _add_vocabulary_settings(self, values: dict[str, Any], weights: WeightLocation | None) -> None:
    """Adds the settings that the vocabulary was made with. Refuses flags that contradict them or the run."""
    names = [name for name in SETTINGS if name in option_fields(self._data_class)]
    recorded = self.recorded(self._data_class)
    for name in names:
      if values.get(name) is not None and recorded.get(name) not in (None, values[name]):
        raise self._contradiction(format_flag(name, values[name]), name, recorded)
    vocabulary = values["spm_model_file"] or (weights.vocabulary if weights else None)
    if not vocabulary and weights and weights.run_file:  # a run that was given no vocabulary has recorded its settings
      vocabulary = files.join(weights.run_file.rpartition("/")[0], NAMES[0])
    if vocabulary:
      given = {name: values.get(name) for name in names}
      known = known_settings(vocabulary, *([weights.directory] if weights else []), **given)
      values |= {name: known[name] for name in names if name in known}

  def _vocabulary(self, configured: str, weights: WeightLocation | None) -> str:
    """The path of the vocabulary; "" if there is none. Refuses a flag that gives a run another vocabulary."""
    in_output_dir = vocabulary_in(
      self.existing_run.directory if self.existing_run else self.flags.get("output_dir", "")
    )
    if self.existing_run is None:
      # Only fine-tuning needs a vocabulary: pretraining reads token ids from its shards.
      is_finetuning = issubclass(self._data_class, FinetuningConfig)
      vocabulary = configured or (is_finetuning and ((weights and weights.vocabulary) or in_output_dir)) or ""
      if is_finetuning and weights and not vocabulary:
        raise UserError(f"--spm_model_file is missing, and {weights.flag}={weights.path} {NO_VOCABULARY}")
      return vocabulary
    if "spm_model_file" not in self.flags:
      return in_output_dir or configured
    if in_output_dir and files.exists(configured) and vocabulary_sha256(configured) != vocabulary_sha256(in_output_dir):
      recorded = {"spm_model_file": in_output_dir}
      raise self._contradiction(format_flag("spm_model_file", configured), "spm_model_file", recorded)
    return configured

  def check_task_settings(self, task_settings: Mapping[str, Any]) -> None:
    """Refuses flags of the task's config that contradict the run.

    Args:
      task_settings: the result of the task's settings(). It holds the values in use, for example "sop" for "auto".
    Raises:
      UserError: a flag contradicts the run.
    """
    recorded = self.recorded(self._data_class)
    for name, value in self._flags_of(self._data_class).items():
      is_compared = name in recorded and name in task_settings and _must_equal_run(self._data_class, name)
      if is_compared and task_settings[name] != recorded[name]:
        raise self._contradiction(format_flag(name, value), name, recorded)


def _checked_values(config_class: type[Config], values: Mapping[str, Any], source: str) -> dict[str, Any]:
  """Returns the values of a file, converted to the types of the fields. Raises UserError for a wrong type or range."""
  # A RunConfig cannot be made here, because output_dir is missing, so only the types of its values are checked.
  if values and config_class is not RunConfig:
    from_dict(config_class, values, source=source)
  return check_types(config_class, values, source=source)
