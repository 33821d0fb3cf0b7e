"""Finds the form of each input file by its name, and the reader of each form."""

from __future__ import annotations

import os
import re
from typing import cast

from albert.errors import UserError
from albert.io import files
from albert.io.globs import expand_globs
from data_prep.readers import json_lines, plain_text, streams, tables, wikiextractor, wikipedia
from data_prep.readers.records import Reader
from data_prep.readers.settings import (
  AUTO,
  DATASETS,
  JSON_LINES,
  PARQUET,
  TEXT,
  WIKIEXTRACTOR,
  WIKIPEDIA,
  ReadingSettings,
)

_READERS = {
  TEXT: cast("Reader", plain_text),
  JSON_LINES: cast("Reader", json_lines),
  PARQUET: tables.PARQUET_READER,
  DATASETS: tables.DATASETS_READER,
  WIKIPEDIA: cast("Reader", wikipedia),
  WIKIEXTRACTOR: cast("Reader", wikiextractor),
}
# The form of a file whose name, without the ending of a compressed file, matches.
_NAMES = (
  (re.compile(r"\.(jsonl|ndjson|json)$", re.IGNORECASE), JSON_LINES),
  (re.compile(r"\.parquet$", re.IGNORECASE), PARQUET),
  (re.compile(r"\.arrow$", re.IGNORECASE), DATASETS),
  (re.compile(r"\.xml(-p\d+p\d+)?$", re.IGNORECASE), WIKIPEDIA),
  (re.compile(r"^wiki_\d{2,}$"), WIKIEXTRACTOR),
)
# Files of a directory that hold no text: the report of data_prep.split_text, and descriptions of saved datasets.
_NOT_TEXT = frozenset({"reading.json", "dataset_info.json", "state.json", "dataset_dict.json"})
# At the start, at most this many remote files are checked, since a remote file system may transfer many megabytes to
# read a few bytes.
_MAX_REMOTE_FILES = 4


def format_of(path: str, settings: ReadingSettings) -> str:
  """Returns the form of a file: that of --text_format, or else the one that its name stands for."""
  if settings.text_format != AUTO:
    return settings.text_format
  name = os.path.basename(path).removesuffix(streams.compression(path))
  return next((text_format for pattern, text_format in _NAMES if pattern.search(name)), TEXT)


def reader_of(text_format: str) -> Reader:
  """Returns the functions that read a form of text."""
  return _READERS[text_format]


def is_read_directly(path: str, settings: ReadingSettings) -> bool:
  """Whether a file has the form in which text is tokenized: sentences on lines, documents between blank lines."""
  return settings.reads_lines and format_of(path, settings) == TEXT and streams.compression(path) in ("", ".gz")


def check_inputs(paths: list[str], settings: ReadingSettings) -> None:
  """Checks the beginning of every local file, and of some remote files, and that the needed libraries are installed.

  Raises:
    UserError: see `records.Reader.check`.
  """
  remote = [path for path in paths if files.is_remote(path)]
  step = max(1, -(-len(remote) // _MAX_REMOTE_FILES))
  for path in [*(path for path in paths if not files.is_remote(path)), *remote[::step]]:
    reader_of(format_of(path, settings)).check(path, settings)


def find_inputs(spec: str) -> list[str]:
  """Lists the input files.

  Args:
    spec: files, directories and globs, separated by commas. A directory stands for all files below it that are not
      hidden.

  Returns:
    Paths, sorted, each one once.

  Raises:
    UserError: a pattern matches nothing, or a file is empty or cannot be read.
  """
  patterns = [pattern.strip() for pattern in spec.split(",") if pattern.strip()]
  expanded: list[str] = []
  for pattern in patterns:
    expanded += _files_of_directory(pattern) if files.is_dir(pattern) else [pattern]
  return expand_globs(",".join(expanded))


def _files_of_directory(directory: str) -> list[str]:
  """Returns the files below a directory that are not hidden, as they are given to `expand_globs`."""
  found: list[str] = []
  names = files.listdir(directory)
  if "dataset_dict.json" in names:
    splits = ", ".join(name.rstrip("/") for name in names if name != "dataset_dict.json")
    raise UserError(
      f"--input_file: {directory} holds several splits of a dataset ({splits}): give the folder of one, such as "
      f"{files.join(directory, 'train')}"
    )
  for name in names:
    path = files.join(directory, name.rstrip("/"))
    if name.startswith((".", "_")) or name in _NOT_TEXT:
      continue
    if files.is_dir(path):
      found += _files_of_directory(path)
    elif "," in path:
      raise UserError(f"--input_file: {path}: its name has a comma, which separates files: rename it")
    else:
      found.append(path)
  if not found:
    raise UserError(f"--input_file: {directory} has no files: check the path")
  return found
