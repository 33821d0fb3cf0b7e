"""Converts weights: reads and checks them, writes them to a staging directory, and renames it."""

from __future__ import annotations

import os

from albert.convert.formats import ARCHITECTURES, FORMATS, REPORT_FILE
from albert.convert.huggingface import write_huggingface
from albert.convert.model import ConvertedModel, ReportLine, read_model
from albert.convert.tf1 import write_albert, write_tf1
from albert.errors import RunError, UserError
from albert.io import files, local_files
from albert.tokenization import recorded_settings
from albert.tokenization.vocabulary_files import read_vocabulary_files


def convert(
  path: str,
  output_dir: str,
  target_format: str,
  *,
  albert_config_file: str = "",
  spm_model_file: str = "",
  architecture: str = "",
) -> str:
  """Converts weights to another format. The output directory appears only when it is complete.

  Args:
    path, albert_config_file, spm_model_file: see albert.convert.model.read_model.
    output_dir: a directory that does not exist or is empty.
    target_format: one of FORMATS.
    architecture: the transformers class that config.json names, one of ARCHITECTURES; empty for the class with the
      model's head. Only for the format huggingface.
  Returns:
    The report: a header and a line per weight, with source, target, shape and SHA-256, separated by tabs.
  Raises:
    UserError: bad input, output_dir is not empty, or the format cannot express the model.
  """
  if target_format not in FORMATS:
    raise UserError(f"--format={target_format}: must be one of {', '.join(FORMATS)}")
  if architecture and (target_format != "huggingface" or architecture not in ARCHITECTURES):
    raise UserError(f"--architecture={architecture}: is for --format=huggingface, one of {', '.join(ARCHITECTURES)}")
  output_dir = output_dir.rstrip("/")
  _check_empty(output_dir)
  model = read_model(path, albert_config_file=albert_config_file, spm_model_file=spm_model_file)
  files.remove_leftovers(os.path.dirname(output_dir) or ".")
  staging = files.staging_path(output_dir)
  try:
    files.makedirs(staging)
    with files.convert_errors(output_dir):  # errors of TensorFlow, which writes here, name output_dir
      report = _format_report(_write(model, staging, target_format, architecture))
    files.write_atomically(files.join(staging, REPORT_FILE), report)
    if model.tokenizer_config and model.vocabulary:
      settings_file = files.join(staging, recorded_settings.FILE_NAME)
      if not files.exists(settings_file):  # the format huggingface has its own
        files.write_json(settings_file, recorded_settings.huggingface_tokenizer_config(model.tokenizer_config))
      for name, content in read_vocabulary_files(model.vocabulary).items():
        files.write_atomically(files.join(staging, name), content)
    local_files.sync_tree(staging)
    try:
      files.replace(staging, output_dir)
    except (UserError, RunError):
      _check_empty(output_dir)  # gives a clearer error if another process has written there in the meantime
      raise
  except BaseException:
    files.discard(staging)
    raise
  return report


def _check_empty(output_dir: str) -> None:
  if files.exists(output_dir) and (not files.is_dir(output_dir) or files.listdir(output_dir)):
    raise UserError(f"--output_dir={output_dir}: exists and is not empty; give another one")


def _write(model: ConvertedModel, directory: str, target_format: str, architecture: str) -> list[ReportLine]:
  if target_format == "huggingface":
    return write_huggingface(model, directory, architecture)
  return write_tf1(model, directory) if target_format == "tf1" else write_albert(model, directory)


def _format_report(lines: list[ReportLine]) -> str:
  rows = ["source\ttarget\tshape\tsha256"]
  rows += [f"{line.source}\t{line.target}\t{'x'.join(map(str, line.shape))}\t{line.sha256}" for line in lines]
  return "\n".join(rows) + "\n"
