"""A page about runs: `python -m albert.report RUN_DIR... --output_file=report.html`."""

from __future__ import annotations

if __name__ == "__main__":  # before the other imports, so that a signal during them ends the command with one line
  from albert import startup

  startup.begin()

from absl import flags

from albert import app
from albert.config import command_flags
from albert.config.ranges import Range
from albert.errors import UserError
from albert.io import files
from albert.report.page import PAGE_START, make_page
from albert.report.records import read_runs

# In a heading.
_MOST_NAMES = 3
_directories: list[str] = []


def define_flags() -> None:
  """The flags of this command."""
  command_flags.define("str", "output_file", "report.html", "the page to write")
  command_flags.define("str", "title", "", "its heading (default: the names of the runs, or their number)")
  command_flags.define("int", "num_examples", 10, "rows of each file of predictions; 0: none", allowed=Range(0))


def main() -> None:
  """Writes the page, and says where."""
  values = flags.FLAGS
  _check_output(values.output_file)
  runs, seeds = read_runs(_directories, num_examples=values.num_examples)
  title = values.title or (", ".join(run.name for run in runs) if len(runs) <= _MOST_NAMES else f"{len(runs)} runs")
  files.write_atomically(values.output_file, make_page(title, runs, seeds))
  print(f"wrote {values.output_file} ({len(runs)} run{'s' if len(runs) > 1 else ''})")


def _check_output(path: str) -> None:
  """UserError if the page would take the place of another file, such as one of a run."""
  if not path:
    raise UserError("--output_file is empty: give the page to write, for example report.html")
  if not files.exists(path):
    return
  if files.is_dir(path):
    raise UserError(f"--output_file={path}: is a directory: give a file, for example {files.join(path, 'report.html')}")
  if files.is_special(path):
    raise UserError(f"--output_file={path}: is no file, but a pipe or a device: give a file")
  with files.open_file(path) as file:
    start = file.read(len(PAGE_START))
  if start and start.lower() != PAGE_START.lower():
    raise UserError(f"--output_file={path}: is there already and is no HTML page: give another file, or delete it")


if __name__ == "__main__":
  define_flags()
  app.run(main, operands=_directories)
