"""Runs the commands of documents with added flags, which make the commands small. The tests of documents use it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.blocks import ROOT


def write_python(path: Path, added_flags: Mapping[str, str], *, allows_others: bool = False) -> None:
  """Writes a program `python` that adds flags to the command it runs.

  Args:
    path: the file to write.
    added_flags: script ("run_squad.py") or module ("albert.export") -> flags, separated by spaces. They are added at
      the end, and the last value of a flag counts.
    allows_others: whether commands without an entry run as they are. Otherwise they are errors.
  """
  cases = "".join(f'  "{name}"|"-m {name}") set -- "$@" {flags} ;;\n' for name, flags in added_flags.items())
  other = ":" if allows_others else 'echo "there are no flags for $command" >&2; exit 1'
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(f"""#!/bin/sh
case "$1 $2" in
  -m*) command="$1 $2" ;;
  *) command="$1" ;;
esac
case "$command" in
{cases}  *) {other} ;;
esac
exec {shlex.quote(sys.executable)} "$@"
""")
  path.chmod(0o755)


def run_block(text: str, directory: Path, bin_dir: Path) -> str:
  """Runs a block of shell commands, and returns what they print."""
  environment = os.environ | {
    "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "3",
  }
  command = ["bash", "-c", f"set -euo pipefail\n{text}"]
  result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
  assert result.returncode == 0, f"{text}\n{result.stderr}"
  return result.stdout
