"""Averages the predictions of several runs: `python -m albert.evaluation ensemble --inputs=A,B --output_dir=C`."""

from __future__ import annotations

if __name__ == "__main__":  # before the other imports, so that a signal during them ends the command with one line
  from albert import startup

  startup.begin()

import glob
import sys

from absl import flags

from albert import app
from albert.config import command_flags
from albert.errors import UserError
from albert.evaluation.ensemble import ensemble
from albert.io import files

_COMMAND = "ensemble"


def _expanded(inputs: str) -> list[str]:
  directories: list[str] = []
  for pattern in filter(None, map(str.strip, inputs.split(","))):
    matches = [pattern] if files.exists(pattern) else sorted(glob.glob(pattern))
    if not matches:
      raise UserError(f"--inputs: {pattern} is not there")
    directories += matches
  return directories


def main() -> None:
  """Makes the ensemble, and prints its metrics."""
  values = flags.FLAGS
  for name in ("inputs", "output_dir"):
    if not getattr(values, name):
      raise UserError(f"--{name} is missing (--help explains it)")
  directories = _expanded(values.inputs)
  metrics = ensemble(directories, values.output_dir)
  for name, value in metrics.items():
    print(f"{name} = {value:.6g}")
  print(f"{len(directories)} runs; wrote {values.output_dir}")


def _no_command() -> None:
  raise UserError(f"give the command: python -m albert.evaluation {_COMMAND} --inputs=RUN,RUN --output_dir=DIRECTORY")


def define_flags() -> None:
  """The flags of this command."""
  command_flags.define("str", "inputs", None, "output_dirs of the runs, or globs, with commas between")
  command_flags.define("str", "output_dir", None, "directory to write to")


def run() -> None:
  """Takes the command off the arguments and starts."""
  define_flags()
  is_given = sys.argv[1:2] == [_COMMAND]
  if is_given:
    del sys.argv[1]
  if is_given:
    app.run(main)
  else:
    app.run(_no_command, operands=[])


if __name__ == "__main__":
  run()
