"""Where each setting of a command comes from: a flag, the run in output_dir, the recipe, or the default, in this order.

A run that has begun decides for every later command on its output_dir, so that `--do_predict --output_dir=RUN` uses
the model, the data, the vocabulary and the choice of the checkpoint that the run was made with. A flag that contradicts
the run is refused. No TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from albert.config.base import Config, alternatives, check_types, from_dict, is_unset, merge, option_fields
from albert.config.model import REGULARIZATION, ModelConfig, load_model_config, named_model
from albert.config.recipes import SECTIONS, Recipe, read_recipe
from albert.config.run import FinetuningConfig, OptimizerConfig, RunConfig, TrainConfig
from albert.data.manifest import file_sha256
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.tasks import registry

_STEP_DIRECTORY = re.compile(r"step-\d+$")
_SEED_DIRECTORY = re.compile(r"run-(\d+)$")


@dataclasses.dataclass(frozen=True)
class BegunRun:
  """The run in an output_dir that has saved something: its config.json.

  Attributes:
    directory: its output_dir.
    values: what config.json holds.
    seed: of one of several runs (--num_runs), in whose name others are asked for; None for a single run.
  """

  directory: str
  values: Mapping[str, Any]
  seed: int | None = None

  @property
  def file(self) -> str:
    """Its config.json."""
    return files.join(self.directory, output_files.CONFIG)

  def section(self, config_class: type[Config], name: str = "") -> dict[str, Any]:
    """The recorded values that a later command takes over: of a section, or the ones outside of all sections."""
    values = self.values.get(name, {}) if name else self.values
    fields = option_fields(config_class)
    kept = {key: value for key, value in values.items() if key in fields and not fields[key].metadata["per_command"]}
    if self.seed is not None:
      kept.pop("seed", None)
    return kept


def begun_run(output_dir: str, num_runs: int = 1) -> BegunRun | None:
  """The run that has begun in output_dir; of several runs, the one with the least seed. None if none has.

  A run has begun when it has config.json and a checkpoint, or results (of several runs only the best one keeps its
  checkpoints). One that failed before it saved anything has not: the next command decides anew.
  """
  if not output_dir:
    return None
  if num_runs == 1:
    return _begun_run(output_dir)
  seeds = [int(found[1]) for found in map(_SEED_DIRECTORY.match, _listed(output_dir)) if found]
  runs = ((_begun_run(files.join(output_dir, f"run-{seed}")), seed) for seed in sorted(seeds))
  return next((dataclasses.replace(run, seed=seed) for run, seed in runs if run), None)


def _begun_run(directory: str) -> BegunRun | None:
  path = files.join(directory, output_files.CONFIG)
  if not files.exists(path):
    return None
  has_checkpoint = any(map(_STEP_DIRECTORY.match, _listed(files.join(directory, "checkpoints"))))
  has_results = files.exists(files.join(directory, output_files.EVAL_RESULTS))
  return BegunRun(directory, output_files.read_config(path)) if has_checkpoint or has_results else None


def _listed(directory: str) -> list[str]:
  return files.listdir(directory) if files.is_dir(directory) else []


def shown_flag(name: str, value: Any) -> str:
  """A flag as the command line has it."""
  return f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}"


class Settings:
  """The settings of a command.

  Args:
    task_name: the task of the script.
    given: the flags that the command line gives, by name.
  Raises:
    UserError: flags that exclude each other, a run of another task in output_dir, --recipe that contradicts the run or
      is none.
  """

  def __init__(self, task_name: str, given: Mapping[str, Any]):
    self.task_name = task_name
    self.entry = registry.TASKS[task_name]
    self.given = dict(given)
    self._check_alternatives()
    self.run = begun_run(self.given.get("output_dir", ""), self.given.get("num_runs", 1))
    if self.run is None:
      self._check_several_runs()
    elif self.run.values.get("task", task_name) != task_name:
      raise UserError(
        f"{self.run.file}: this directory holds a run of the task {self.run.values['task']}, this script runs "
        f"{task_name}: give another --output_dir"
      )
    self.recipe = self._find_recipe()

  @property
  def trains(self) -> bool:
    """Whether the command trains."""
    return bool(self.given.get("do_train"))

  def given_of(self, config_class: type[Config]) -> dict[str, Any]:
    """The flags of a config that the command line gives."""
    return {name: self.given[name] for name in option_fields(config_class) if name in self.given}

  def _check_alternatives(self) -> None:
    pairs = [("model", "albert_config_file")]
    for config_class in (RunConfig, TrainConfig, OptimizerConfig, self.entry.config_class):
      fields = option_fields(config_class)
      set_here = {name for name in fields if name in self.given and not is_unset(fields[name], self.given[name])}
      pairs += [(name, other) for name, other in alternatives(config_class).items() if {name, other} <= set_here]
    for name, other in pairs:
      if name in self.given and other in self.given:
        first, second = shown_flag(name, self.given[name]), shown_flag(other, self.given[other])
        raise UserError(f"{first} and {second} are both given: give one")

  def _check_several_runs(self) -> None:
    """Refuses to use the directory of several runs as if it were one."""
    directory = self.given.get("output_dir", "")
    path = files.join(directory, output_files.RUNS)
    uses_a_run = self.given.get("do_eval") or self.given.get("do_predict")
    if self.trains or not uses_a_run or self.given.get("init_checkpoint") or not files.exists(path):
      return
    if self.given.get("num_runs", 1) == 1:
      best = files.join(directory, output_files.read_runs(path)["best_run"])
      raise UserError(f"{path}: this directory holds several runs: give one of them, such as --output_dir={best}")

  # Recipes:

  def _find_recipe(self) -> Recipe:
    name = self.given.get("recipe")
    if name is not None:
      recipe = read_recipe(name, self.task_name)
      if self.run:
        self._check_recipe(recipe, self.run)
      return recipe
    config_class = self.entry.config_class
    if self.run is None:
      return read_recipe(self.entry.recipe(config_class(**self.given_of(config_class))), self.task_name)
    # The run has all values; its recipe gives those of fields that are newer than the run.
    name = self.run.values.get("recipe")
    if name is None:
      data = from_dict(config_class, self.run.section(config_class, "data"), source=self.run.file)
      name = self.entry.recipe(data)
    try:
      return read_recipe(name, self.task_name)
    except UserError:
      return Recipe(name)  # the file is gone since then

  def _check_recipe(self, recipe: Recipe, run: BegunRun) -> None:
    """Refuses --recipe for a run of another recipe, unless all it says holds in the run, too."""
    if recipe.name == run.values.get("recipe"):
      return
    for section, config_class in {**SECTIONS, "data": self.entry.config_class}.items():
      values, fields = recipe.sections.get(section, {}), option_fields(config_class)
      recorded = run.section(config_class, section)
      for name in set(values) & set(fields) & set(recorded) - set(self.given) if isinstance(values, dict) else ():
        if fields[name].metadata["affects_training"] and recorded[name] != values[name]:
          raise self._contradiction(f"--recipe={recipe.name}, with {name} = {values[name]!r}", name, recorded)

  # Values:

  def values(self, config_class: type[Config], section: str = "") -> dict[str, Any]:
    """Field -> value of a config, without the fields that are left at their default.

    Args:
      config_class: the config.
      section: of config.json and of recipes that it is in; "" for RunConfig, whose fields are outside of all.
    Raises:
      UserError: a flag contradicts the run, or a file holds a value of the wrong type.
    """
    given = self.given_of(config_class)
    if self.run:
      recorded = self._recorded(self.run, config_class, section)
      # A task settles its data's settings ("auto", spellings, paths): check_data compares those.
      is_settled = section != "data"
      given = {
        name: value for name, value in given.items() if not self._agrees(config_class, recorded, name, is_settled)
      }
    return merge(config_class, self.inherited(config_class, section), given)

  def inherited(self, config_class: type[Config], section: str = "") -> dict[str, Any]:
    """Field -> value that holds where no flag is given: that of the run, else of the recipe; see values."""
    sources = [_checked(config_class, self.recipe.sections.get(section, {}), self.recipe.path)]
    if self.run:
      sources.append(_checked(config_class, self._recorded(self.run, config_class, section), self.run.file))
    return merge(config_class, *sources)

  @staticmethod
  def _recorded(run: BegunRun, config_class: type[Config], section: str) -> dict[str, Any]:
    recorded = run.section(config_class, section)
    if config_class is RunConfig:
      recorded["from_scratch"] = not recorded.get("init_checkpoint")
    return recorded

  def _agrees(self, config_class: type[Config], recorded: Mapping[str, Any], name: str, is_settled: bool) -> bool:
    """True if the run has the value of a flag, False if the flag may give another one. UserError if it may not."""
    if name not in recorded:
      return False
    value, metadata = self.given[name], option_fields(config_class)[name].metadata
    if value == recorded[name] or (name == "init_checkpoint" and _is_same_path(value, recorded[name])):
      return True
    may_differ = not metadata["affects_training"] or metadata["evaluation_may_differ"] or not is_settled
    # Of a run that is resumed the Estimator compares the weights that it started from.
    if may_differ or (name == "init_checkpoint" and self.trains):
      return False
    other = alternatives(config_class).get(name, "")
    raise self._contradiction(shown_flag(name, value), other if recorded.get(other) else name, recorded)

  def _contradiction(self, flag: str, name: str, recorded: Mapping[str, Any]) -> UserError:
    """The error for a flag that contradicts the value of field `name` in the run."""
    assert self.run is not None
    remedy = "give another --output_dir"
    if name == "select_checkpoint" or not self.trains:
      remedy += f" and --init_checkpoint={files.join(self.run.directory, 'checkpoints', 'step-N')}"
    return UserError(
      f"{flag}: the run in {self.run.directory} has {name} = {recorded[name]!r} ({self.run.file}): leave the flag out, "
      f"or {remedy}"
    )

  def run_config(self) -> RunConfig:
    """The config of the run. UserError: see values; or a value out of range."""
    values = self.values(RunConfig) | {"recipe": self.recipe.name}
    train = self.values(TrainConfig, "train")
    if self.run and not self.trains:
      # What the run started from must not be evaluated in place of a checkpoint that is gone.
      values |= {"init_checkpoint": "", "from_scratch": False}
    if self.run and self.run.seed is not None:
      train.setdefault("seed", self.run.seed)
    return RunConfig(
      **values,
      optimizer=OptimizerConfig(**self.values(OptimizerConfig, "optimizer")),
      train=TrainConfig(**train),
    )

  def model_config(self, beside_weights: str | None = None) -> ModelConfig:
    """The model.

    It is that of the run in output_dir, else that of --albert_config_file or --model, else the one beside
    --init_checkpoint, else the recipe's; single flags override its fields. Of a recipe's fields, dropout overrides
    that of any model, since it belongs to the training; the others do not override a model that the flags name.

    Args:
      beside_weights: the config beside --init_checkpoint.
    Raises:
      UserError: an unknown model, a value out of range, or a flag that contradicts the run.
    """
    if self.run:
      return self._model_of(self.run)
    asked, model = self._asked_model(), self.recipe.sections.get("model")
    fields = model if isinstance(model, dict) else {}
    base = asked or (load_model_config(beside_weights) if beside_weights else None)
    if base is not None:
      fields = {name: value for name, value in fields.items() if name in REGULARIZATION}
    else:
      base = named_model(model if isinstance(model, str) else "albert_base")
    if fields:
      base = from_dict(ModelConfig, base.to_dict() | fields, source=self.recipe.path)
    return dataclasses.replace(base, **self.given_of(ModelConfig))

  def _asked_model(self) -> ModelConfig | None:
    """The model that a flag names."""
    if self.given.get("albert_config_file"):
      return load_model_config(self.given["albert_config_file"])
    return named_model(self.given["model"]) if self.given.get("model") else None

  def _model_of(self, run: BegunRun) -> ModelConfig:
    """The model of the run. UserError if flags ask for another one."""
    recorded = run.section(ModelConfig, "model")
    model = from_dict(ModelConfig, recorded, source=run.file)
    given, asked = self.given_of(ModelConfig), self._asked_model()
    for name, value in given.items():
      if value != getattr(model, name) and dataclasses.replace(model, **given) != model:
        raise self._contradiction(shown_flag(name, value), name, model.to_dict())
    for name in set(option_fields(ModelConfig)) - set(REGULARIZATION) - set(given) if asked else ():
      if getattr(asked, name) != getattr(model, name):
        flag = "albert_config_file" if self.given.get("albert_config_file") else "model"
        raise self._contradiction(shown_flag(flag, self.given[flag]), name, model.to_dict())
    return model

  def data_config(self, beside_weights: str | None = None) -> Config:
    """The task's own config.

    Args:
      beside_weights: the vocabulary beside --init_checkpoint.
    Raises:
      UserError: see values; a value out of range; another vocabulary than the run's.
    """
    config_class = self.entry.config_class
    values = self.values(config_class, "data")
    if self.run and not self.trains and "input_file" not in self.given:
      values.pop("input_file", None)  # shards that were trained on, which need not be there any more
    directory = self.run.directory if self.run else self.given.get("output_dir", "")
    own = files.join(directory, output_files.VOCABULARY)
    vocabulary = self._vocabulary(
      values.get("spm_model_file", ""), own if files.exists(own) else "", beside_weights or ""
    )
    values["spm_model_file"] = vocabulary
    if not values.get("cache_dir"):
      output_dir = self.given.get("output_dir", "")
      is_finetuning = issubclass(config_class, FinetuningConfig)
      values["cache_dir"] = files.join(output_dir, "features") if is_finetuning else output_dir
    return config_class(**values)

  def _vocabulary(self, asked: str, own: str, beside_weights: str) -> str:
    """The vocabulary: that of the run; else the one that is asked for, beside the weights, or left in output_dir."""
    if self.run is None:
      is_finetuning = issubclass(self.entry.config_class, FinetuningConfig)
      return asked or (beside_weights or own if is_finetuning else "")
    if "spm_model_file" not in self.given:
      return own or asked
    if own and files.exists(asked) and file_sha256(asked) != file_sha256(own):
      raise self._contradiction(shown_flag("spm_model_file", asked), "spm_model_file", {"spm_model_file": own})
    return asked

  def check_data(self, settled: Mapping[str, Any]) -> None:
    """Refuses flags of the task that contradict the run.

    Args:
      settled: the task's settings(), in which "auto" and other spellings of a value are replaced.
    """
    config_class = self.entry.config_class
    recorded = self.run.section(config_class, "data") if self.run else {}
    for name in self.given_of(config_class):
      metadata = option_fields(config_class)[name].metadata
      is_fixed = metadata["affects_training"] and not metadata["evaluation_may_differ"]
      if is_fixed and name in recorded and name in settled and settled[name] != recorded[name]:
        raise self._contradiction(shown_flag(name, self.given[name]), name, recorded)


def _checked(config_class: type[Config], values: Mapping[str, Any], source: str) -> dict[str, Any]:
  """Values of a file, of the fields' types and, where they can be checked alone, in their range."""
  if values and config_class is not RunConfig:
    from_dict(config_class, values, source=source)
  return check_types(config_class, values, source=source)


def _is_same_path(one: str, other: str) -> bool:
  return bool(one and other) and not files.is_remote(one) and os.path.abspath(one) == os.path.abspath(other)
