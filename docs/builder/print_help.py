"""Prints the flags of commands as JSON: `python docs/builder/print_help.py run_squad.py albert.export ...`.

It runs each command with --help, so that the documentation has the same flags, groups and defaults. Each line is a JSON
object with the keys title, description and flags; a flag has the fields of albert.app.FlagHelp.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence

import albert.tasks.registry
import albert.tokenization.tokenizer  # noqa: F401 - most commands import it, so each child process need not
from albert import app
from albert.config.command_flags import default_processes

# Flags whose default is the number of cores. The documentation must not depend on the machine that builds it.
_PER_CORE = {"num_processes", "jobs"}


def _to_json(title: str, description: str, page: Sequence[app.FlagHelp]) -> str:
  """Replaces app.render_help, which formats the text of --help."""
  flags = [flag._asdict() for flag in page]
  for flag in flags:
    if flag["name"] in _PER_CORE and flag["default"] == str(default_processes()) and "per core" not in flag["text"]:
      flag["default"] = "one per core"
  return json.dumps({"title": title, "description": description, "flags": flags}) + "\n"


def main(targets: Sequence[str]) -> None:
  """Runs commands with --help, each in a child process, and prints JSON in place of their texts.

  Args:
    targets: paths of scripts, and names of modules.
  """
  app.render_help = _to_json
  for target in targets:
    sys.stdout.flush()
    child = os.fork()
    if not child:
      _run(target)
    _, status = os.waitpid(child, 0)
    if status:
      sys.exit(f"{target} --help failed")


def _run(target: str) -> None:
  """Runs one command with --help, which ends the process."""
  sys.argv = [target, "--help"]
  if target.endswith(".py"):
    runpy.run_path(target, run_name="__main__")
  else:
    runpy.run_module(target, run_name="__main__", alter_sys=True)
  raise RuntimeError(f"{target} --help has not ended its process")


if __name__ == "__main__":
  sys.path.insert(0, os.getcwd())
  main(sys.argv[1:])
