"""Writes an HTML page about runs: their settings, curves, results and some of their predictions.

python -m albert.report RUN_DIR...
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import os

from absl import flags

from albert.config import command_flags
from albert.config.command_flags import Range
from albert.errors import UserError
from albert.io import files
from albert.io.text import counted
from albert.report.page import PAGE_START, make_page
from albert.report.records import read_runs

_DEFAULT_NAME = "report.html"
# If there are more runs, the heading gives their number instead of their names.
_MAX_NAMES_IN_HEADING = 3
# The words of the command line that are not flags.
_directories: list[str] = []
OTHER_WORDS = {"operands": _directories}


def define_flags() -> None:
  """Defines the flags of this command."""
  help_text = "the page to write (default: report.html, in the directory of a single run)"
  command_flags.define("str", "output_file", "", help_text)
  command_flags.define("str", "title", "", "heading of the page (default: the names of the runs, or their number)")
  command_flags.define(
    "int", "num_examples", 10, "number of rows to show of each predictions file; 0 shows none", allowed=Range(0)
  )


def main() -> None:
  """Writes the page and prints its path."""
  flag_values = flags.FLAGS
  output_file = flag_values.output_file or files.join(*(_directories if len(_directories) == 1 else ()), _DEFAULT_NAME)
  _check_output_file(output_file)
  runs, summaries = read_runs(_directories, num_examples=flag_values.num_examples)
  default_title = ", ".join(run.name for run in runs) if len(runs) <= _MAX_NAMES_IN_HEADING else f"{len(runs)} runs"
  files.makedirs(os.path.dirname(output_file) or ".")
  files.write_atomically(output_file, make_page(flag_values.title or default_title, runs, summaries))
  print(f"wrote {output_file} ({counted(len(runs), 'run')})")


def _check_output_file(path: str) -> None:
  """Raises UserError if writing the page would replace a file that is not a page, such as a file of a run."""
  if not files.exists(path):
    return
  files.check_not_special(path, name=f"--output_file={path}", remedy="give a file")
  with files.open_file(path) as file:
    start = file.read(len(PAGE_START))
  if start and start.lower() != PAGE_START.lower():
    raise UserError(f"--output_file={path}: exists and is not an HTML page: give another file, or delete it")


if __name__ == "__main__":
  startup.run_command_of(__name__)
