"""Runs code in a new interpreter and lists what it imported, for tests of how fast commands start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class FreshRun(NamedTuple):
  """What a new interpreter did."""

  process: subprocess.CompletedProcess[str]
  modules: set[str]


def command_code(command: list[str]) -> str:
  """Returns Python code that does what `python COMMAND` does."""
  if command[0] == "-m":
    _, module, *flags = command
    call = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
  else:
    script, *flags = command
    call = f"runpy.run_path({script!r}, run_name='__main__')"
  # run_module replaces the first word, which is "-m" here, by the module's path.
  argv = [str(ROOT / command[0]), *flags]
  return f"import runpy, sys\nsys.argv = {argv!r}\n{call}\n"


def run_fresh(code: str, directory: Path, **environment: str) -> FreshRun:
  """Runs code in a new interpreter, in the root of the repository.

  Args:
    code: the code. It may end with any exception.
    directory: where the interpreter writes the list of its modules.
    environment: environment variables to set. TF_USE_LEGACY_KERAS, which this process has set, is unset by default.
  """
  modules_file = directory / "modules.json"
  program = f"""
import json, sys
try:
{textwrap.indent(code, "  ")}
finally:
  with open({str(modules_file)!r}, "w") as file:
    json.dump(sorted(sys.modules), file)
"""
  inherited = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
  process = subprocess.run(
    [sys.executable, "-c", program],
    cwd=ROOT,
    env=inherited | environment,
    capture_output=True,
    text=True,
    check=False,
    timeout=240,
    stdin=subprocess.DEVNULL,
  )
  return FreshRun(process, set(json.loads(modules_file.read_text())))
