"""The text of --help of the run_* scripts: the flags, grouped by purpose.

Each flag is shown with the default that the command would use. This default depends on the other flags on the command
line, which may choose a recipe, a model, or a run in output_dir.
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


def make_page(task_name: str, given_flags: Mapping[str, Any]) -> HelpPage:
  """Makes the help page of a task's script.

  Args:
    task_name: a key of albert.tasks.registry.TASKS.
    given_flags: name -> value of the other flags on the command line.
  """
  notes = []
  try:
    settings = Settings(task_name, given_flags)
  except UserError as error:
    notes.append(f"This help ignores the other flags on the command line, because of an error: {error}")
    settings = Settings(task_name, {})
  notes.append(_describe_defaults(settings))
  sections: list[tuple[type[Config], str]] = [
    (RunConfig, ""),
    (settings.task_entry.config_class, "data"),
    (TrainConfig, "train"),
    (OptimizerConfig, "optimizer"),
  ]
  flags = [flag for config_class, section in sections for flag in _config_flags(settings, config_class, section)]
  flags += _model_flags(settings)
  return HelpPage(sorted(flags, key=lambda flag: GROUPS.index(flag.group)), notes)


def _recipe_is_undecided(settings: Settings) -> bool:
  """Whether the defaults come from a recipe, and the given flags do not select this recipe."""
  return (
    settings.task_entry.has_recipes
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
  if _recipe_is_undecided(settings):
    return f"Many defaults depend on the task. To see them, add --task_name=NAME or --recipe=NAME ({names}) to --help."
  if settings.recipe.path:
    return (
      f"Defaults are those of the recipe {settings.recipe.name}. To see those of another recipe, add --recipe=NAME "
      f"({names}) to --help."
    )
  return f"Defaults are those without a recipe. To see those of a recipe, add --recipe=NAME ({names}) to --help."


def _config_flags(settings: Settings, config_class: type[Config], section: str) -> Iterator[FlagHelp]:
  """Yields the help of each flag that is a field of a config. `section` is the config's section in recipes."""
  try:
    inherited = settings.inherited_values(config_class, section)
  except UserError:
    inherited = {}  # a file is damaged; the command without --help reports it
  if config_class is RunConfig:
    inherited["recipe"] = settings.recipe.name
  names_in_recipes = set()  # fields whose defaults are not known, because they depend on the recipe
  if _recipe_is_undecided(settings):
    recipes = [read_recipe(name, settings.task_name).sections for name in _recipe_names(settings.task_name)]
    names_in_recipes = {name for recipe in recipes for name in recipe.get(section, {})} - {"task_name"}
  for name in option_fields(config_class):
    is_in_recipe = name in names_in_recipes
    default = "from the task's recipe" if is_in_recipe else _describe_default(config_class, name, inherited)
    yield _flag_help(config_class, name, default)


def _flag_help(config_class: type[Config], name: str, default: str) -> FlagHelp:
  field = option_fields(config_class)[name]
  placeholder = command_help.value_placeholder(str(field.type), field.metadata["choices"])
  group = field.metadata["group"] or config_class.help_group
  return FlagHelp(name, field.metadata["help"], default, placeholder, group)


def _describe_default(config_class: type[Config], name: str, inherited: Mapping[str, Any]) -> str:
  """The default of a field as --help shows it.

  Args:
    config_class: the config of the field.
    name: the field.
    inherited: field name -> value of the run or the recipe.
  """
  fields = option_fields(config_class)
  replacement = alternatives(config_class).get(name, "")
  if replacement and fields[replacement].metadata["instead_of"] == name:
    replacement_value = inherited.get(replacement, fields[replacement].default)
    if not is_unset(fields[replacement], replacement_value):
      return f"from --{replacement}"  # for example, --num_train_epochs determines --num_train_steps
  return command_help.format_default(inherited.get(name, fields[name].default))


def _model_flags(settings: Settings) -> list[FlagHelp]:
  """The help of --model, --albert_config_file, and the flags that are fields of the model.

  The defaults are those of the model that the command would use, if it is known without reading --init_checkpoint.
  """
  recipe_fields = _recipe_model_fields(settings)
  known_fields = (
    _model_fields(settings) if _is_model_chosen(settings) or not _is_finetuning(settings) else recipe_fields
  )
  has_weights = bool(settings.flags.get("init_checkpoint"))
  vocabulary_decides = bool(known_fields) and not has_weights and not settings.gives_vocab_size()
  flags = [
    FlagHelp("model", MODEL_FLAGS["model"], _default_model(settings), "NAME", MODEL),
    FlagHelp("albert_config_file", MODEL_FLAGS["albert_config_file"], "", "FILE", MODEL),
  ]
  for name in option_fields(ModelConfig):
    if name == "vocab_size" and vocabulary_decides:
      default = "the size of the vocabulary"
    elif name in known_fields:
      default = command_help.format_default(known_fields[name])
    elif _recipe_is_undecided(settings) and name in REGULARIZATION:
      default = "from the task's recipe, or the model's"
    else:
      default = "the model's"
    flags.append(_flag_help(ModelConfig, name, default))
  return flags


def _is_finetuning(settings: Settings) -> bool:
  return issubclass(settings.task_entry.config_class, FinetuningConfig)


def _is_model_chosen(settings: Settings) -> bool:
  """Whether a flag or the run in output_dir determines the model."""
  flags = settings.flags
  return bool(settings.existing_run or flags.get("model") or flags.get("albert_config_file"))


def _recipe_model_fields(settings: Settings) -> dict[str, Any]:
  """The fields of the model in the recipe; {} if the recipe has no model, or the name of a model."""
  model = settings.recipe.sections.get("model")
  return model if isinstance(model, dict) else {}


def _default_model(settings: Settings) -> str:
  """The default of --model as --help shows it; "" if another source determines the model."""
  if _is_model_chosen(settings):
    return ""
  if _is_finetuning(settings):
    return "that beside --init_checkpoint"
  if _recipe_model_fields(settings):
    return ""
  return settings.recipe.sections.get("model") or "albert_base"


def _model_fields(settings: Settings) -> dict[str, Any]:
  """The fields of the model that the command would use without flags for single fields; {} if a flag is wrong."""
  flags = {name: value for name, value in settings.flags.items() if name not in option_fields(ModelConfig)}
  try:
    return Settings(settings.task_name, flags).model_config().to_dict()
  except UserError:
    return {}
