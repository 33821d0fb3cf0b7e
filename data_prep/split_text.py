"""Converts text of any form to plain text with one sentence on each line and a blank line after each document.

The other commands read this form as it is, and they convert other forms in the same way, so this step is optional. Its
output shows what they read. It depends only on the input and the settings, and not on the number of processes.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import msgspec
from absl import flags

from albert.config import command_flags
from albert.config.command_flags import MAX_PROCESSES, Range, default_processes
from albert.data.manifest import InputFile
from albert.errors import Interrupted, Stopped, UserError
from albert.io import files
from albert.io.workers import Workers
from albert.runs.directory_lock import DirectoryLock
from data_prep.conversion import convert
from data_prep.readers import formats
from data_prep.readers.records import SPLIT, ReadingSettings

FLAGS = flags.FLAGS
_REPORT_FILE = "reading.json"


class _FinishedRun(msgspec.Struct):
  """The fields of reading.json that a later run in the same directory compares with its own settings and files."""

  settings: dict[str, Any]
  input_files: list[InputFile]


def split_files(
  inputs: Sequence[str], settings: ReadingSettings, output_dir: str, num_processes: int = 1
) -> convert.ConvertedText:
  """Writes the text of all input files to output_dir, as text-*.txt. Finished files of an earlier call are kept."""
  formats.check_inputs(inputs, settings)
  files.makedirs(output_dir)
  with (
    DirectoryLock(output_dir, "splitting text"),
    files.convert_errors(output_dir, "use"),
    Workers(num_processes) as workers,
  ):
    files.remove_leftovers(output_dir)
    converted = convert.convert_inputs(inputs, settings, output_dir, workers, convert_all=True)
    convert.remove_working_files(output_dir)
    return converted


def define_flags() -> None:
  formats.define_flags(sentences=SPLIT)
  command_flags.define("str", "output_dir", None, f"directory to write text-*.txt and {_REPORT_FILE} to", required=True)
  processes = "number of local processes; the output does not depend on it"
  command_flags.define("int", "num_processes", default_processes(), processes, allowed=Range(1, MAX_PROCESSES))


def _check_output_dir(inputs: Sequence[str], settings: ReadingSettings) -> None:
  """Raises a UserError if output_dir holds text of other files or settings, which would be replaced."""
  path = files.join(FLAGS.output_dir, _REPORT_FILE)
  if not files.exists(path):
    return
  existing = files.read_json(path, _FinishedRun, "not written by this command: choose another --output_dir")
  names_and_sizes = [(os.path.basename(path), files.size(path)) for path in inputs]
  existing_names_and_sizes = [(entry.file, entry.bytes) for entry in existing.input_files]
  if existing.settings != dataclasses.asdict(settings) or existing_names_and_sizes != names_and_sizes:
    raise UserError(f"--output_dir={FLAGS.output_dir} holds other text, or of other settings: choose another directory")


def main() -> None:
  settings = formats.settings_from_flags()
  inputs = formats.find_inputs(FLAGS.input_file)
  _check_output_dir(inputs, settings)
  try:
    converted = split_files(inputs, settings, FLAGS.output_dir, FLAGS.num_processes)
  except Interrupted as stop:
    raise Stopped("stopped: run the same command again to continue", stop.signal_number) from stop
  convert.print_report(converted, inputs, settings)
  if not converted.paths:
    raise UserError(convert.NO_TEXT_MESSAGE)
  files.write_json(
    files.join(FLAGS.output_dir, _REPORT_FILE),
    {"settings": dataclasses.asdict(settings), "input_files": converted.entries, **converted.report.to_dict()},
  )
  print(f"{FLAGS.output_dir}: {len(converted.paths)} text files, and {_REPORT_FILE}")


if __name__ == "__main__":
  startup.run_command_of(__name__)
