"""The body that all run_* scripts share. Imports nothing heavy, so that --help answers at once."""

from __future__ import annotations

import functools
import os

from albert import startup


def run(task_name: str, description: str | None) -> None:
  """Runs a script from its first line to its exit: handles signals, parses the flags, and calls `main`.

  Args:
    task_name: a key of albert.tasks.registry.TASKS.
    description: the text at the top of --help; a script gives its docstring.
  """
  startup.begin()  # before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback
  from albert import app
  from albert.cli import script_flags

  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow prints errors only, no start-up messages
  script_flags.define_flags(task_name)
  app.run(
    functools.partial(main, task_name),
    help_page=functools.partial(script_flags.help_page, task_name),
    description=description,
  )


def main(task_name: str) -> None:
  """Trains, evaluates and predicts, as the parsed flags say."""
  from albert.cli import script_flags
  from albert.settings.resolve import resolve_settings

  # Settings: flags, the run in output_dir, the recipe.
  resolved = resolve_settings(task_name, script_flags.given_flags(task_name))
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
