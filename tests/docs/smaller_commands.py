"""A program `python` for the tests that run a document's commands: it adds flags which make the commands small."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.blocks import ROOT


def write_python(path: Path, added_flags: Mapping[str, str]) -> None:
  """Writes a program that calls Python with more flags. It ends with an error for a command that is not known.

  Args:
    path: the file to write.
    added_flags: script ("run_squad.py") or module ("albert.export") -> flags, separated by spaces. They come last, and
      the last value of a flag counts.
  """
  cases = "".join(f'  "{name}"|"-m {name}") set -- "$@" {flags} ;;\n' for name, flags in added_flags.items())
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(
    f'#!/bin/sh\ncase "$1 $2" in -m*) command="$1 $2" ;; *) command="$1" ;; esac\ncase "$command" in\n{cases}'
    f'  *) echo "there are no flags for $command" >&2; exit 1 ;;\nesac\nexec {shlex.quote(sys.executable)} "$@"\n'
  )
  path.chmod(0o755)


def run_block(text: str, directory: Path, programs: Path) -> str:
  """Runs a block of shell commands in a directory, and returns what they print. Programs of a folder come first."""
  environment = os.environ | {
    "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "3",
  }
  command = ["bash", "-c", f"set -euo pipefail\n{text}"]
  finished = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
  assert finished.returncode == 0, f"{text}\n{finished.stderr}"
  return finished.stdout
