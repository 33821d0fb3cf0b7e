"""Finds the form of each input file by its name, and the reader of each form; and the flags with which text is read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

from albert.config import command_flags
from albert.config.base import define_field_flag, option_fields
from albert.errors import UserError
from albert.io import files
from albert.io.files import expand_globs, split_globs
from data_prep import text_checks, text_files
from data_prep.readers import lines, tables, wikipedia
from data_prep.readers.records import (
  AUTO,
  DATASETS,
  FILE,
  JSON_LINES,
  PARQUET,
  TEXT,
  WIKIEXTRACTOR,
  WIKIPEDIA,
  ReadingSettings,
)

READERS = {
  TEXT: lines.TEXT_READER,
  JSON_LINES: lines.JSON_LINES_READER,
  PARQUET: tables.PARQUET_READER,
  DATASETS: tables.DATASETS_READER,
  WIKIPEDIA: wikipedia.READER,
  WIKIEXTRACTOR: lines.WIKIEXTRACTOR_READER,
}
# Patterns of file names, without .gz, .bz2 and .zst, and the form of these files.
_NAME_PATTERNS = (
  (re.compile(r"\.(jsonl|ndjson|json)$", re.IGNORECASE), JSON_LINES),
  (re.compile(r"\.parquet$", re.IGNORECASE), PARQUET),
  (re.compile(r"\.arrow$", re.IGNORECASE), DATASETS),
  (re.compile(r"\.xml(-p\d+p\d+)?$", re.IGNORECASE), WIKIPEDIA),
  (re.compile(r"^wiki_\d{2,}$"), WIKIEXTRACTOR),
)
# Names of files that hold no text: the report of data_prep.split_text, and descriptions of saved datasets.
_NAMES_WITHOUT_TEXT = frozenset({"reading.json", "dataset_info.json", "state.json", "dataset_dict.json"})


def format_of(path: str, settings: ReadingSettings) -> str:
  """Returns the form of a file: --text_format, or with --text_format=auto the form that its name tells."""
  if settings.text_format != AUTO:
    return settings.text_format
  name = os.path.basename(path).removesuffix(text_files.compression(path))
  return next((text_format for pattern, text_format in _NAME_PATTERNS if pattern.search(name)), TEXT)


def is_read_directly(path: str, settings: ReadingSettings) -> bool:
  """Whether a file already has the form that is tokenized: a sentence on each line, documents between blank lines."""
  if settings.document == FILE or settings.splits_sentences(TEXT):
    return False
  if settings.drop_duplicates or settings.skip_bad_records:
    return False
  return format_of(path, settings) == TEXT and text_files.compression(path) in ("", ".gz")


def split_by_conversion(paths: Sequence[str], settings: ReadingSettings) -> tuple[list[str], list[str]]:
  """Returns the files that are read directly (`is_read_directly`), and the other ones, which are converted."""
  direct_paths = [path for path in paths if is_read_directly(path, settings)]
  return direct_paths, sorted({*paths} - {*direct_paths})


def check_inputs(paths: Sequence[str], settings: ReadingSettings) -> None:
  """Checks the beginning of local and of some remote files, and that the needed libraries are installed."""
  for path in text_checks.select_checked_paths(paths):
    READERS[format_of(path, settings)].check(path, settings)


def find_inputs(spec: str) -> list[str]:
  """Lists the input files that files, directories and globs, separated by commas, stand for: sorted, each one once.

  A directory stands for all files below it that are not hidden.

  Raises:
    UserError: a pattern matches nothing, or a file is empty or cannot be read.
  """
  expanded: list[str] = []
  for pattern in split_globs(spec):
    expanded += _files_of_directory(pattern) if files.is_dir(pattern) else [pattern]
  return expand_globs(expanded)


def _files_of_directory(directory: str) -> list[str]:
  """Returns the files below a directory that are not hidden. No file, or several datasets, are a UserError."""
  paths: list[str] = []
  names = files.listdir(directory)
  if "dataset_dict.json" in names:
    splits = ", ".join(name for name in names if name != "dataset_dict.json")
    raise UserError(
      f"--input_file: {directory} holds several splits of a dataset ({splits}): give the folder of one, such as "
      f"{files.join(directory, 'train')}"
    )
  for name in names:
    path = files.join(directory, name)
    if name.startswith((".", "_")) or name in _NAMES_WITHOUT_TEXT:
      continue
    if files.is_dir(path):
      paths += _files_of_directory(path)
    else:
      paths.append(path)
  if not paths:
    raise UserError(f"--input_file: {directory} has no files: check the path")
  return paths


def define_flags(without: tuple[str, ...] = (), **defaults: Any) -> None:
  """Defines --input_file and a flag for each field of `ReadingSettings`, except for those in `without`."""
  text = "text in UTF-8 (see --text_format for its forms): comma-separated files, directories and globs"
  command_flags.define("str", "input_file", None, text, required=True)
  for field in option_fields(ReadingSettings).values():
    if field.name not in without:
      define_field_flag(field, defaults.get(field.name, field.default))


def settings_from_flags() -> ReadingSettings:
  """Returns the settings that the flags give, and the defaults of fields without a flag."""
  names = [name for name in option_fields(ReadingSettings) if name in flags.FLAGS]
  values: dict[str, Any] = {name: flags.FLAGS[name].value for name in names}
  return ReadingSettings(**values)
