"""Functions that read the JSON of tests/integration/json_files.py, where one call of the code is not enough.

The argument of each `read_...` is a directory that holds the file.
"""

from __future__ import annotations

import os
import struct
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert.config.run import process_addresses
from albert.export.companion_files import RequestField
from albert.predict.requests import JSON, RequestParser
from albert.settings.sources import Settings
from albert.tasks.glue.flags import parse_labels
from albert.tasks.pretraining.flags import PretrainingConfig, read_stages
from data_prep.block_files import _MAGIC
from data_prep.conversion.parts import PartTask
from data_prep.examples.settings import PreparationSettings
from data_prep.job import Job, Workspace
from data_prep.readers.records import ReadingSettings
from tests.synthetic import TINY_MODEL


def make_block_from_footer(data: bytes) -> bytes:
  """Returns the bytes of a block file of data preparation that has only a footer with the JSON `data`."""
  return data + struct.pack("<QQ", len(data), zlib.crc32(data)) + _MAGIC


def json_line_without_blanks(data: bytes) -> bytes:
  """Returns a line of a file whose blank lines are skipped. An empty content becomes a list, which is no valid line."""
  return data.strip() or b"[]"


def read_value(directory: Path) -> str:
  """Returns JSON that is not in a file, as the command line or the environment gives it."""
  return (directory / "value").read_bytes().decode("utf-8", "surrogateescape")


def read_settings(directory: Path) -> None:
  settings = Settings("race", {"output_dir": str(directory)})
  settings.run_config()
  settings.model_config()
  settings.data_config()


def read_tf_config(directory: Path) -> None:
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(os.environ, "TF_CONFIG", read_value(directory))
    process_addresses()


def read_stages_value(directory: Path) -> None:
  read_stages(PretrainingConfig(stages=read_value(directory)), TINY_MODEL)


def read_labels(directory: Path) -> None:
  parse_labels(read_value(directory))


def read_request(directory: Path) -> None:
  fields = [RequestField("text", "m")]
  RequestParser(fields, JSON, "requests").parse(2, (directory / "value").read_bytes())


def make_workspace(directory: Path) -> Workspace:
  """Makes the workspace of a job of data preparation."""
  job = Job(inputs=("a.txt",), output_dir=str(directory), spm_model_file="m", settings=PreparationSettings())
  workspace = Workspace(job, "ab")
  workspace.path = str(directory)
  return workspace


def make_part(path: str) -> PartTask:
  """Makes a part of the conversion to text, without sources."""
  return PartTask((), ReadingSettings(), path, 0)


def questions_reader(module: types.ModuleType, **options: Any) -> Callable[[Path], Any]:
  """Returns a function that reads the only file of a directory with `read_questions` of a module."""
  return lambda directory: module.read_questions([str(next(directory.iterdir()))], **options)
