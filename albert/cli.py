"""The run_* scripts from their first line to their exit, their flags, and the console commands that setup.py installs.

The module imports nothing but albert.startup before a command begins, so that Ctrl-C during slow imports prints one
line, not a traceback; and nothing heavy before the flags are parsed, so that --help answers at once.
"""

from __future__ import annotations

import functools
from typing import Any

from albert import startup

_NOTE_ABOUT_DEFAULTS = (
  "Defaults are those of --recipe={recipe}. Another recipe and a run in output_dir replace many of them; --model or "
  "the initial weights replace those of the model. --dry_run shows the values that a command would use."
)
# Flags that are not fields of a config: name, placeholder of the value, text of --help.
_MODEL_FLAGS = (
  ("model", "NAME", "name of a predefined model, such as albert_base"),
  ("albert_config_file", "FILE", "albert_config.json that describes the model, instead of --model"),
)
_SAME_TIME_AS = (
  "stop after as many seconds of training steps as the finished run in this directory took (--max_train_seconds)"
)


def run(task_name: str, description: str | None) -> None:
  """Runs a script from its first line to its exit: handles signals, parses the flags, and calls `main`.

  Args:
    task_name: a key of albert.tasks.registry.TASKS.
    description: the text at the top of --help; a script gives its docstring.
  """
  startup.begin()
  from albert import app

  note = _NOTE_ABOUT_DEFAULTS.format(recipe=define_flags(task_name) or "none")
  app.run(functools.partial(main, task_name), description=f"{description or ''}\n\n{note}")


def main(task_name: str) -> None:
  """Trains, evaluates and predicts, as the parsed flags say."""
  from albert.settings.resolve import resolve_settings

  # Settings: flags, the run in output_dir, the recipe.
  resolved = resolve_settings(task_name, given_flags(task_name))
  if getattr(resolved.data_config, "find_learning_rate", False):
    from albert.experiments.learning_rate import find_learning_rate

    find_learning_rate(resolved)
    return
  if resolved.config.dry_run:
    from albert.settings.dry_run import print_plan

    print_plan(resolved)
    return
  # Read the files once.
  data = resolved.read_inputs()
  # Import TensorFlow, which takes seconds. The Estimator chooses the devices and builds the model, for each seed, and
  # albert.training.run.train_run tells the rest.
  with startup.quick_imports():
    from albert.estimator import Estimator
    from albert.multi_seed import run_seeds

  task = resolved.make_task(data)
  if resolved.config.num_runs > 1:
    run_seeds(task, resolved.config)
  else:
    Estimator(task, resolved.config).run()


def define_flags(task_name: str) -> str:
  """Defines the flags of a task's script. The default of each is None, which means that the flag is not given.

  Returns: the recipe whose values --help shows: the task's default, that of --task_name=custom; "" if it has none.
  """
  from albert.config import base, command_flags, recipes
  from albert.tasks.registry import TASKS, script_configs

  config_class = TASKS[task_name].config_class
  custom = {"task_name": "custom"} if "task_name" in base.option_fields(config_class) else {}
  recipe = recipes.read_recipe(TASKS[task_name].recipe(config_class(**custom)), task_name)
  shown = {
    name: value for values in recipe.sections.values() if isinstance(values, dict) for name, value in values.items()
  }
  alternatives = base.alternatives(recipes.TrainConfig) | base.alternatives(recipes.OptimizerConfig)
  shown.pop("task_name", None)
  shown |= {alternatives[name]: "" for name, value in shown.items() if value and name in alternatives}
  fields = [
    (field, field.metadata["group"] or config_class.help_group)
    for config_class in script_configs(task_name)
    for field in base.option_fields(config_class).values()
  ]
  for group in base.GROUPS:  # in the order of --help
    if group == base.MODEL:
      for name, placeholder, text in _MODEL_FLAGS:
        command_flags.define("str", name, None, text, placeholder=placeholder, group=group)
    for field, field_group in fields:
      if group == field_group:
        base.define_field_flag(field, None, shown_default=shown.get(field.name, field.default), group=group)
    if group == base.TRAINING:
      command_flags.define("str", "same_time_as", None, _SAME_TIME_AS, placeholder="DIRECTORY", group=group)
  # Data preparation calls its seed --random_seed.
  command_flags.define_other_name("seed", "random_seed")
  return recipe.name


def given_flags(task_name: str) -> dict[str, Any]:
  """Name -> value of the flags that the command line gives, with --max_train_seconds in place of --same_time_as."""
  from absl import flags

  from albert.config.base import option_fields
  from albert.errors import UserError
  from albert.tasks.registry import script_configs

  names = [name for config_class in script_configs(task_name) for name in option_fields(config_class)]
  names += ["same_time_as", *(name for name, *_ in _MODEL_FLAGS)]
  given = {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].value is not None}
  if run := given.pop("same_time_as", ""):
    from albert.runs.logs import training_seconds

    if given.get("max_train_seconds"):
      raise UserError(f"--same_time_as={run} and --max_train_seconds are both given: give one")
    given["max_train_seconds"] = round(training_seconds(run), 3)
  return given


# Console commands: albert-export is python -m albert.export, and so on. The scripts and data_prep define their own.
convert, embed, experiments, export, predict, report = (
  functools.partial(startup.run_command_of, f"albert.{name}.__main__")
  for name in ("convert", "embed", "experiments", "export", "predict", "report")
)
ensemble, leaderboard = (
  functools.partial(startup.run_command_of, f"albert.{name}") for name in ("ensemble", "leaderboard")
)
