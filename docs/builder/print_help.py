"""Prints the flags of a command as JSON: `python docs/builder/print_help.py run_squad.py` or `... albert.export`.

It runs the command with --help, so that the documentation has the same flags, groups and defaults. The JSON object has
the keys title, description, notes and flags; a flag has the fields of albert.command_help.FlagHelp.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import sys

from albert import command_help
from albert.command_help import HelpPage
from albert.config.ranges import default_processes

# The number of cores differs between machines, and the documentation must not depend on the machine that builds it.
_PER_CORE = {"num_processes", "jobs"}


def _to_json(title: str, description: str, page: HelpPage) -> str:
  flags = [dataclasses.asdict(flag) for flag in page.flags]
  for flag in flags:
    if flag["name"] in _PER_CORE and flag["default"] == str(default_processes()) and "per core" not in flag["text"]:
      flag["default"] = "one per core"
  return json.dumps({"title": title, "description": description, "notes": list(page.notes), "flags": flags})


def main(command: str) -> None:
  """Runs a command with --help, and prints JSON in place of its text.

  Args:
    command: the path of a script, or the name of a module.
  """
  command_help.render = _to_json
  sys.argv = [command, "--help"]
  sys.path.insert(0, os.getcwd())
  if command.endswith(".py"):
    runpy.run_path(command, run_name="__main__")
  else:
    runpy.run_module(command, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
  main(sys.argv[1])
