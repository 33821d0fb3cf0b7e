"""Reads lines of text, and prints the answers of a model: of an export, of a run, or from Hugging Face.

python -m albert.predict --model=models/comments --input_file=texts.txt
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import os
import stat
import sys
from contextlib import nullcontext
from typing import BinaryIO

from absl import flags

from albert.config import command_flags
from albert.config.command_flags import MAX_BATCH_SIZE, Range
from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress, log
from albert.predict.exported_model import open_model
from albert.predict.requests import AUTO, JSON, LINES, TSV, RequestParser, answer_batches, format_answer


def define_flags() -> None:
  """Defines the flags of this command."""
  command_flags.define(
    "str",
    "model",
    "",
    "what albert.export wrote (one version or all), the output_dir of a run, or a directory from Hugging Face",
  )
  command_flags.define("str", "input_file", "", "file to read instead of standard input")
  command_flags.define(
    "str",
    "format",
    AUTO,
    "lines: each line is a text; tsv: tab-separated columns in the order of the model's fields; json: each line is a "
    "JSON object, whose other fields are copied to the answer (as input_NAME if the model has an answer called NAME); "
    "auto: decided by the first line that is not blank",
    choices=(AUTO, LINES, TSV, JSON),
  )
  command_flags.define("int", "batch_size", 32, "lines computed together", allowed=Range(1, MAX_BATCH_SIZE))


def main() -> None:
  """Reads the lines, and prints the answer to each line as a JSON object on one line."""
  # A lone surrogate in a field that is copied to the answer is printed as its JSON escape, such as "\ud800".
  sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
  values = flags.FLAGS
  path = "" if values.input_file == "-" else values.input_file
  if path and not files.exists(path):
    raise UserError(f"--input_file={path}: no such file")
  if values.format == AUTO and path.lower().endswith((".csv", ".parquet")):
    raise UserError(f"--input_file={path}: a table is --predict_file of the run's script; here give text, tabs or JSON")
  model = open_model(values.model)
  parser = RequestParser(model.description.fields, values.format, path or "standard input", model.description.answers)
  log(f"answers from {model.describe_origin()}")
  # The thread that reads ahead may wait for a line at the end, so this file stays open. Python closes sys.stdin itself.
  file = files.open_file(path, or_pipe=True) if path else open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
  num_bytes = _regular_size(file)
  show_progress = num_bytes is not None and not sys.stdout.isatty()
  with Progress(num_bytes or 0, "B", "answering") if show_progress else nullcontext() as progress:
    for answers in answer_batches(model, parser, file, batch_size=values.batch_size, progress=progress):
      sys.stdout.write("".join(map(format_answer, answers)))
      sys.stdout.flush()


def _regular_size(file: BinaryIO) -> int | None:
  """The size of a regular file in bytes; None for a pipe, a terminal or a remote file."""
  try:
    file_status = os.fstat(file.fileno())
  except (AttributeError, OSError):
    return None
  return file_status.st_size if stat.S_ISREG(file_status.st_mode) else None


if __name__ == "__main__":
  startup.run_command_of(__name__)
