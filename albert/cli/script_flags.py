"""The flags of the run_* scripts, one for each config field, and the text of their --help."""

from __future__ import annotations

import sys
from typing import Any

from absl import flags

from albert.command_help import FlagHelp, HelpPage, format_default, value_placeholder
from albert.config import command_flags
from albert.config.base import GROUPS, MODEL, TRAINING, Config, define_field_flag, flag_type, option_fields
from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.errors import UserError
from albert.tasks import registry

# The flags that are not fields of a config.
_OTHER_FLAGS = (
  FlagHelp("model", "name of a predefined model, such as albert_base", value="NAME", group=MODEL),
  FlagHelp(
    "albert_config_file", "albert_config.json that describes the model, instead of --model", value="FILE", group=MODEL
  ),
  FlagHelp(
    "same_time_as",
    "stop after as many seconds of training steps as the finished run in this directory took (--max_train_seconds)",
    value="DIRECTORY",
    group=TRAINING,
  ),
)
_NOTE = (
  "Defaults are those without a recipe and without a run in output_dir, which replace many of them; --model or the "
  "initial weights replace those of the model. --dry_run shows the values that a command would use."
)


def define_flags(task_name: str) -> None:
  """Defines the flags of a task's script. The default of each is None, which means that the flag is not given."""
  for flag in _OTHER_FLAGS:
    command_flags.define("str", flag.name, None, flag.text)
  for config_class in _configs(task_name):
    for field in option_fields(config_class).values():
      define_field_flag(field, None)
  # Data preparation calls its seed --random_seed.
  flags.DEFINE_alias("random_seed", "seed", module_name=sys.argv[0])


def _configs(task_name: str) -> list[type[Config]]:
  """The classes of the configs whose fields are flags of a task's script."""
  return [RunConfig, registry.TASKS[task_name].config_class, TrainConfig, OptimizerConfig, ModelConfig]


def given_flags(task_name: str) -> dict[str, Any]:
  """Name -> value of the flags that the command line gives, with --max_train_seconds in place of --same_time_as."""
  names = [flag.name for flag in help_page(task_name).flags]
  given = {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].value is not None}
  if run := given.pop("same_time_as", ""):
    if given.get("max_train_seconds"):
      raise UserError(f"--same_time_as={run} and --max_train_seconds are both given: give one")
    from albert.runs.logs import training_seconds

    given["max_train_seconds"] = round(training_seconds(run), 3)
  return given


def help_page(task_name: str) -> HelpPage:
  """Makes the content of --help of a task's script: its flags by purpose, with the defaults of the fields."""
  page: list[FlagHelp] = []
  for config_class in _configs(task_name):
    if config_class is ModelConfig:
      page += _OTHER_FLAGS
    for name, field in option_fields(config_class).items():
      placeholder = value_placeholder(flag_type(field), field.metadata["choices"])
      group = field.metadata["group"] or config_class.help_group
      page.append(FlagHelp(name, field.metadata["help"], format_default(field.default), placeholder, group))
  return HelpPage(sorted(page, key=lambda flag: GROUPS.index(flag.group)), [_NOTE])
