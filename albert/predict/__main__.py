"""Reads lines of text, and prints the answers of a model: of an export, of a run, or from Hugging Face.

python -m albert.predict --model=models/comments --input_file=texts.txt

python -m albert.predict --model=models/comments 'one text' 'another'
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import io
import os
import sys
from contextlib import nullcontext

from absl import flags

from albert.config import command_flags
from albert.config.command_flags import MAX_BATCH_SIZE, Range
from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress, log
from albert.io.text import encode_utf8
from albert.predict.exported_model import open_model
from albert.predict.requests import AUTO, JSON, LINES, TSV, RequestParser, answer_batches, format_answer

# The words of the command line that are not flags: lines to answer.
_texts: list[str] = []
OTHER_WORDS = {"operands": _texts}


def define_flags() -> None:
  """Defines the flags of this command."""
  model_help = "an export (one version or all), the output_dir of a run, or a directory from Hugging Face"
  command_flags.define("str", "model", "", model_help)
  command_flags.define("str", "input_file", "", "file to read instead of standard input")
  command_flags.define("str", "output_file", "", "file for the answers, instead of standard output")
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
  values = flags.FLAGS
  path = "" if values.input_file == "-" else values.input_file
  if path and not files.exists(path):
    raise UserError(f"--input_file={path}: no such file")
  if values.format == AUTO and path.lower().endswith((".csv", ".parquet")):
    raise UserError(f"--input_file={path}: give a table as --predict_file to the command that trained, and text here")
  if _texts and (path or os.path.isfile(_texts[0])):
    raise UserError(f"unexpected argument {_texts[0]!r}: give texts, or one file as --input_file")
  model = open_model(values.model)
  source = path or ("the command line" if _texts else "standard input")
  parser = RequestParser(model.description.fields, values.format, source, model.description.answers)
  log(f"answers from {model.describe_origin()}")
  # A thread reads ahead, and may still wait for a line when the command ends. To close the file would wait for the
  # thread, so it stays open; and sys.stdin, which Python closes at exit, is not read.
  file = files.open_file(path, or_pipe=True) if path else open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
  if _texts:
    file = io.BytesIO(b"".join(encode_utf8(text) + b"\n" for text in _texts))
  path = path or "/dev/stdin"
  num_bytes = os.path.getsize(path) if os.path.isfile(path) and not _texts else None
  show_progress = num_bytes is not None and not (sys.stdout.isatty() and not values.output_file)
  if values.output_file:
    files.makedirs(os.path.dirname(values.output_file) or ".")
  with (
    files.write_whole(values.output_file) if values.output_file else nullcontext(sys.stdout.buffer) as output,
    Progress(num_bytes or 0, "B", "answering") if show_progress else nullcontext() as progress,
  ):
    for answers in answer_batches(model, parser, file, batch_size=values.batch_size, progress=progress):
      # A lone surrogate in a field that is copied to the answer is written as its JSON escape, such as "\ud800".
      output.write("".join(map(format_answer, answers)).encode("utf-8", "backslashreplace"))
      output.flush()


if __name__ == "__main__":
  startup.run_command_of(__name__)
