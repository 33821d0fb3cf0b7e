"""Finds the form of each input file by its name, and the reader of each form; and the flags with which text is read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

from albert.config import command_flags
from albert.config.base import Config, define_field_flag, option_fields
from albert.errors import UserError
from albert.io import files
from data_prep import text_files
from data_prep.readers import lines, records, tables, wikipedia

READERS = {
  records.TEXT: lines.TEXT_READER,
  records.JSON_LINES: lines.JSON_LINES_READER,
  records.PARQUET: tables.PARQUET_READER,
  records.DATASETS: tables.DATASETS_READER,
  records.WIKIPEDIA: wikipedia.READER,
  records.WIKIEXTRACTOR: lines.WIKIEXTRACTOR_READER,
}
# Patterns of file names, without .gz, .bz2 and .zst, and the form of these files.
_NAME_PATTERNS = (
  (re.compile(r"\.(jsonl|ndjson|json)$", re.IGNORECASE), records.JSON_LINES),
  (re.compile(r"\.parquet$", re.IGNORECASE), records.PARQUET),
  (re.compile(r"\.arrow$", re.IGNORECASE), records.DATASETS),
  (re.compile(r"\.xml(-p\d+p\d+)?$", re.IGNORECASE), records.WIKIPEDIA),
  (re.compile(r"^wiki_\d{2,}$"), records.WIKIEXTRACTOR),
)
# Before the text is read, at most this many remote files are checked, since a remote file system may transfer many
# megabytes to read a few bytes. Later, the processes that read the text check every file.
_MAX_REMOTE_FILES = 4
# Warnings come from a sample of at most this many files, and this many bytes of each.
_MAX_SAMPLE_FILES = 16
_SAMPLE_BYTES = 16 << 10
# Names of files that hold no text: the report of data_prep.split_text, and descriptions of saved datasets.
_NAMES_WITHOUT_TEXT = frozenset({"reading.json", "dataset_info.json", "state.json", "dataset_dict.json"})


def format_of(path: str, settings: records.ReadingSettings) -> str:
  """Returns the form of a file: --text_format, or with --text_format=auto the form that its name tells."""
  if settings.text_format != records.AUTO:
    return settings.text_format
  name = os.path.basename(path).removesuffix(text_files.compression(path))
  return next((text_format for pattern, text_format in _NAME_PATTERNS if pattern.search(name)), records.TEXT)


def is_read_directly(path: str, settings: records.ReadingSettings) -> bool:
  """Whether a file already has the form that is tokenized: a sentence on each line, documents between blank lines."""
  if settings.document == records.FILE or settings.splits_sentences(records.TEXT):
    return False
  if settings.drop_duplicates or settings.skip_bad_records:
    return False
  return format_of(path, settings) == records.TEXT and text_files.compression(path) in ("", ".gz")


def check_inputs(paths: Sequence[str], settings: records.ReadingSettings) -> None:
  """Checks the beginning of all local and of some remote files, and that the needed libraries are installed."""
  for path in _files_to_check(paths):
    READERS[format_of(path, settings)].check(path, settings)


def sample_lines(paths: Sequence[str]) -> list[list[str]]:
  """Returns the lines at the beginning of some of the files, for warnings about their text."""
  sampled_paths = _select_evenly(_files_to_check(paths), _MAX_SAMPLE_FILES)
  heads = (text_files.read_head(path)[:_SAMPLE_BYTES] for path in sampled_paths)
  return [head.decode("utf-8", errors="ignore").split("\n") for head in heads]


def _files_to_check(paths: Sequence[str]) -> list[str]:
  remote_paths = _select_evenly([path for path in paths if files.is_remote(path)], _MAX_REMOTE_FILES)
  return [path for path in paths if path in remote_paths or not files.is_remote(path)]


def _select_evenly(paths: Sequence[str], limit: int) -> list[str]:
  """Returns at most `limit` of the paths, evenly spaced."""
  return [paths[index * len(paths) // limit] for index in range(limit)] if len(paths) > limit else list(paths)


def find_inputs(spec: str) -> list[str]:
  """Lists the input files that files, directories and globs, separated by commas, stand for: sorted, each one once.

  A directory stands for all files below it that are not hidden.

  Raises:
    UserError: a pattern matches nothing, or a file is empty or cannot be read.
  """
  expanded: list[str] = []
  for pattern in files.split_globs(spec):
    expanded += _files_of_directory(pattern) if files.is_dir(pattern) else [pattern]
  return files.expand_globs(expanded)


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
  for field in option_fields(records.ReadingSettings).values():
    if field.name not in without:
      define_field_flag(field, defaults.get(field.name, field.default))


def flag_values(config_class: type[Config]) -> dict[str, Any]:
  """Returns the values of the flags of a config's fields, by name. Fields without a flag are left out."""
  return {name: flags.FLAGS[name].value for name in option_fields(config_class) if name in flags.FLAGS}


def settings_from_flags() -> records.ReadingSettings:
  """Returns the settings that the flags give, and the defaults of fields without a flag."""
  return records.ReadingSettings(**flag_values(records.ReadingSettings))
