"""The run_* scripts from their first line to their exit, and the console commands that setup.py installs.

The module imports nothing but albert.startup before a command begins, so that Ctrl-C during slow imports prints one
line, not a traceback.
"""

from __future__ import annotations

import functools
import os

from albert import startup

_NOTE_ABOUT_DEFAULTS = (
  "Defaults are those without a recipe and without a run in output_dir, which replace many of them; --model or the "
  "initial weights replace those of the model. --dry_run shows the values that a command would use."
)


def run(task_name: str, description: str | None) -> None:
  """Runs a script from its first line to its exit: handles signals, parses the flags, and calls `main`.

  Args:
    task_name: a key of albert.tasks.registry.TASKS.
    description: the text at the top of --help; a script gives its docstring.
  """
  startup.begin()
  from albert import app
  from albert.settings.resolve import define_flags

  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow prints errors only, no start-up messages
  define_flags(task_name)
  app.run(functools.partial(main, task_name), description=f"{description or ''}\n\n{_NOTE_ABOUT_DEFAULTS}")


def main(task_name: str) -> None:
  """Trains, evaluates and predicts, as the parsed flags say."""
  from albert.settings.resolve import given_flags, resolve_settings

  # Settings: flags, the run in output_dir, the recipe.
  resolved = resolve_settings(task_name, given_flags(task_name))
  if resolved.config.dry_run:
    from albert.settings.dry_run import print_plan

    print_plan(resolved)
    return
  # Read the files once.
  data = resolved.read_inputs()
  # Import TensorFlow, which takes seconds. Then the Estimator of each run chooses the devices and builds the model, and
  # albert.training.run.train_run tells the rest.
  with startup.quick_imports():
    from albert import multi_seed

  multi_seed.run_seeds(resolved.make_task(data), resolved.config)


# Console commands: albert-export is python -m albert.export, and so on. The scripts and data_prep define their own.
convert, embed, experiments, export, predict, report = (
  functools.partial(startup.run_command_of, f"albert.{name}.__main__")
  for name in ("convert", "embed", "experiments", "export", "predict", "report")
)
ensemble, leaderboard = (
  functools.partial(startup.run_command_of, f"albert.{name}") for name in ("ensemble", "leaderboard")
)
