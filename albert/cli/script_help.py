"""--help of the run_* scripts: the flags, grouped by purpose.

Each flag is shown with the default that the command would use. It depends on the other flags on the command line, which
may choose a recipe, a model, or a run in output_dir.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from albert import command_help
from albert.cli.script_flags import MODEL_FLAGS
from albert.command_help import FlagHelp, HelpPage
from albert.config.base import GROUPS, MODEL, Config, alternatives, is_unset, option_fields
from albert.config.model import REGULARIZATION, ModelConfig
from albert.config.recipes import config_names, read_recipe
from albert.config.run import FinetuningConfig, OptimizerConfig, RunConfig, TrainConfig
from albert.errors import UserError
from albert.settings.sources import Settings


def page(task_name: str, given: Mapping[str, Any]) -> HelpPage:
  """Makes the help page of a task's script.

  Args:
    task_name: a key of albert.tasks.registry.TASKS.
    given: name -> value of the other flags on the command line.
  """
  notes = []
  try:
    settings = Settings(task_name, given)
  except UserError as error:
    notes.append(f"This help ignores the other flags on the command line, because of an error: {error}")
    settings = Settings(task_name, {})
  notes.append(_describe_defaults(settings))
  sections: list[tuple[type[Config], str]] = [
    (RunConfig, ""),
    (settings.entry.config_class, "data"),
    (TrainConfig, "train"),
    (OptimizerConfig, "optimizer"),
  ]
  flags = [flag for config_class, section in sections for flag in _flags(settings, config_class, section)]
  flags += _model_flags(settings)
  return HelpPage(sorted(flags, key=lambda flag: GROUPS.index(flag.group)), notes)


def _recipe_is_open(settings: Settings) -> bool:
  """Whether the defaults will come from a recipe that the given flags do not determine."""
  return (
    settings.entry.has_recipes
    and not settings.recipe.path
    and not settings.existing_run
    and not settings.flags.get("recipe")
  )


def _recipe_names(task_name: str) -> list[str]:
  """The names of a task's recipes in configs/."""
  names = []
  for name in config_names():
    try:
      read_recipe(name, task_name)
      names.append(name)
    except UserError:
      continue  # a recipe of another task
  return names


def _describe_defaults(settings: Settings) -> str:
  """A note that says where the shown defaults come from."""
  if settings.existing_run:
    return f"Defaults are the values of the run in {settings.existing_run.directory}."
  names = ", ".join(_recipe_names(settings.task_name))
  if _recipe_is_open(settings):
    return f"Many defaults depend on the task. To see them, add --task_name=NAME or --recipe=NAME ({names}) to --help."
  if settings.recipe.path:
    return (
      f"Defaults are those of the recipe {settings.recipe.name}. To see those of another recipe, add --recipe=NAME "
      f"({names}) to --help."
    )
  return f"Defaults are those without a recipe. To see those of a recipe, add --recipe=NAME ({names}) to --help."


def _flags(settings: Settings, config_class: type[Config], section: str) -> Iterator[FlagHelp]:
  """The help of the flags that are fields of a config; `section` is its section in recipes (see Settings.values)."""
  try:
    inherited = settings.inherited(config_class, section)
  except UserError:
    inherited = {}  # a file is damaged; the command without --help reports it
  if config_class is RunConfig:
    inherited["recipe"] = settings.recipe.name
  in_some_recipe = set()
  if _recipe_is_open(settings):
    recipes = [read_recipe(name, settings.task_name).sections for name in _recipe_names(settings.task_name)]
    in_some_recipe = {name for recipe in recipes for name in recipe.get(section, {})} - {"task_name"}
  for name in option_fields(config_class):
    is_open = name in in_some_recipe
    yield _flag(config_class, name, "from the task's recipe" if is_open else _default(config_class, name, inherited))


def _flag(config_class: type[Config], name: str, default: str) -> FlagHelp:
  field = option_fields(config_class)[name]
  value = command_help.value_name(str(field.type), field.metadata["choices"])
  group = field.metadata["group"] or config_class.help_group
  return FlagHelp(name, field.metadata["help"], default, value, group)


def _default(config_class: type[Config], name: str, inherited: Mapping[str, Any]) -> str:
  """The default of a field as --help shows it."""
  fields = option_fields(config_class)
  other = alternatives(config_class).get(name, "")
  other_replaces_it = other and fields[other].metadata["instead_of"] == name
  if other_replaces_it and not is_unset(fields[other], inherited.get(other, fields[other].default)):
    return f"from --{other}"
  return command_help.shown(inherited.get(name, fields[name].default))


def _model_flags(settings: Settings) -> list[FlagHelp]:
  """The help of --model, --albert_config_file, and the flags that are fields of the model.

  The defaults are those of the model that the command would use, if it is known without reading --init_checkpoint.
  """
  is_finetuning = issubclass(settings.entry.config_class, FinetuningConfig)
  is_named = settings.existing_run or settings.flags.get("model") or settings.flags.get("albert_config_file")
  recipe_model = settings.recipe.sections.get("model")  # the name of a model, or fields
  model: dict[str, Any] = dict(recipe_model) if isinstance(recipe_model, dict) else {}
  default_name = recipe_model if isinstance(recipe_model, str) else "albert_base"
  if is_named or model:
    default_name = ""
  if is_finetuning and not is_named:
    default_name = "that beside --init_checkpoint"
  if is_named or not is_finetuning:
    try:
      without_fields = {name: value for name, value in settings.flags.items() if name not in option_fields(ModelConfig)}
      model = Settings(settings.task_name, without_fields).model_config().to_dict()
    except UserError:
      model = {}
  flags = [
    FlagHelp("model", MODEL_FLAGS["model"], default_name, "NAME", MODEL),
    FlagHelp("albert_config_file", MODEL_FLAGS["albert_config_file"], "", "FILE", MODEL),
  ]
  for name in option_fields(ModelConfig):
    default = command_help.shown(model[name]) if name in model else "the model's"
    if _recipe_is_open(settings) and name in REGULARIZATION and name not in model:
      default = "from the task's recipe, or the model's"
    flags.append(_flag(ModelConfig, name, default))
  return flags
