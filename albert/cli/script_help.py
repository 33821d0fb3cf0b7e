"""--help of the scripts: the flags by purpose, with the defaults that hold beside the other flags of the command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from albert import command_help
from albert.cli.settings import Settings
from albert.command_help import FlagHelp, HelpPage
from albert.config.base import GROUPS, MODEL, Config, alternatives, is_unset, option_fields
from albert.config.model import REGULARIZATION, ModelConfig
from albert.config.recipes import config_names, read_recipe
from albert.config.run import FinetuningConfig, OptimizerConfig, RunConfig, TrainConfig
from albert.errors import UserError


def page(task_name: str, given: Mapping[str, Any]) -> HelpPage:
  """The flags of a task's script.

  Args:
    task_name: the task.
    given: the flags that stand beside --help; they may choose a recipe, or a run whose settings hold.
  """
  notes = []
  try:
    settings = Settings(task_name, given)
  except UserError as error:
    notes.append(f"The flags beside --help do not count here: {error}")
    settings = Settings(task_name, {})
  notes.append(_source(settings))
  sections: list[tuple[type[Config], str]] = [
    (RunConfig, ""),
    (settings.entry.config_class, "data"),
    (TrainConfig, "train"),
    (OptimizerConfig, "optimizer"),
  ]
  found = [flag for config_class, section in sections for flag in _flags(settings, config_class, section)]
  found += _model_flags(settings)
  return HelpPage(sorted(found, key=lambda flag: GROUPS.index(flag.group)), notes)


def _depends_on_task(settings: Settings) -> bool:
  """Whether the defaults are those of a recipe that no flag has chosen yet."""
  return (
    settings.entry.has_recipes and not settings.recipe.path and not settings.run and not settings.given.get("recipe")
  )


def _recipe_names(task_name: str) -> list[str]:
  """The recipes of a task in configs/."""
  found = []
  for name in config_names():
    try:
      read_recipe(name, task_name)
      found.append(name)
    except UserError:
      continue  # of another task
  return found


def _source(settings: Settings) -> str:
  """A sentence on where the defaults are from."""
  if settings.run:
    return f"Defaults are the values of the run in {settings.run.directory}."
  names = ", ".join(_recipe_names(settings.task_name))
  if _depends_on_task(settings):
    return f"Many defaults depend on the task: give --task_name (or --recipe: {names}) beside --help to see them."
  if settings.recipe.path:
    return (
      f"Defaults are those of the recipe {settings.recipe.name}. To see others, choose one beside --help ({names})."
    )
  return f"Defaults are without a recipe. To see those of one, give --recipe beside --help ({names})."


def _flags(settings: Settings, config_class: type[Config], section: str) -> Iterator[FlagHelp]:
  try:
    inherited = settings.inherited(config_class, section)
  except UserError:
    inherited = {}  # a damaged file: the command itself says so
  if config_class is RunConfig:
    inherited["recipe"] = settings.recipe.name
  of_task = set()
  if _depends_on_task(settings):
    recipes = [read_recipe(name, settings.task_name).sections for name in _recipe_names(settings.task_name)]
    of_task = {name for recipe in recipes for name in recipe.get(section, {})} - {"task_name"}  # which chooses it
  for name in option_fields(config_class):
    yield _flag(
      config_class, name, "from the task's recipe" if name in of_task else _default(config_class, name, inherited)
    )


def _flag(config_class: type[Config], name: str, default: str) -> FlagHelp:
  field = option_fields(config_class)[name]
  value = command_help.value_name(str(field.type), field.metadata["choices"])
  group = field.metadata["group"] or config_class.help_group
  return FlagHelp(name, field.metadata["help"], default, value, group)


def _default(config_class: type[Config], name: str, inherited: Mapping[str, Any]) -> str:
  """The default of a field in words."""
  fields = option_fields(config_class)
  other = alternatives(config_class).get(name, "")
  holds_instead = other and fields[other].metadata["instead_of"] == name
  if holds_instead and not is_unset(fields[other], inherited.get(other, fields[other].default)):
    return f"from --{other}"
  return command_help.shown(inherited.get(name, fields[name].default))


def _model_flags(settings: Settings) -> list[FlagHelp]:
  """--model and the fields of the model: those of a model that is known without reading weights."""
  is_finetuning = issubclass(settings.entry.config_class, FinetuningConfig)
  named = settings.run or settings.given.get("model") or settings.given.get("albert_config_file")
  recipe = settings.recipe.sections.get("model")
  fields = recipe if isinstance(recipe, dict) else {}
  model: dict[str, Any] = dict(fields)
  by_name = "albert_base"
  if isinstance(recipe, str):
    by_name = recipe
  if named or not is_finetuning:
    try:
      without_fields = {name: value for name, value in settings.given.items() if name not in option_fields(ModelConfig)}
      model = Settings(settings.task_name, without_fields).model_config().to_dict()
    except UserError:
      model = {}
  beside = "that beside --init_checkpoint" if is_finetuning and not named else ""
  found = [
    FlagHelp(
      "model", "named model, such as albert_base", beside or ("" if named or fields else by_name), "NAME", MODEL
    ),
    FlagHelp("albert_config_file", "albert_config.json of the model, instead of --model", "", "FILE", MODEL),
  ]
  for name in option_fields(ModelConfig):
    default = command_help.shown(model[name]) if name in model else "the model's"
    if _depends_on_task(settings) and name in REGULARIZATION and name not in model:
      default = "from the task's recipe, or the model's"
    found.append(_flag(ModelConfig, name, default))
  order = ("model", "albert_config_file")
  return sorted(found, key=lambda flag: flag.name not in order)
