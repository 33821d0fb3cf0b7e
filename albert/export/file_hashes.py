"""SHA-256 hashes of the files of an exported model. They are kept in servable.json, because a SavedModel has none.

This module does not import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from albert.data.manifest import checksum_of, file_sha256
from albert.errors import UserError
from albert.io import files, json_values

_FILES, _CHECKSUM = "files", "checksum"
# The files that loading a model reads: folder -> names of its files; None stands for all files of the folder.
_FOLDERS: Mapping[str, tuple[str, ...] | None] = {"": ("saved_model.pb",), "variables": None, "assets": None}


class _Content(msgspec.Struct):
  """Schema of the hashes in servable.json. Exports of earlier versions have none."""

  files: dict[str, dict[json_values.FileName, str]] = {}
  checksum: str = ""


def add_hashes(directory: str, values: Mapping[str, Any]) -> dict[str, Any]:
  """Adds the hashes of a model's files, and a checksum of all values, to a description.

  Args:
    directory: of the model.
    values: values of the description.
  Returns: the values with two more keys: files (folder -> file name -> SHA-256) and checksum.
  """
  hashes = {}
  for folder, expected in _FOLDERS.items():
    path = files.join(directory, folder) if folder else directory
    names = expected or (files.listdir(path) if files.is_dir(path) else [])
    hashes[folder] = {name: file_sha256(files.join(path, name)) for name in names}
  values = {**values, _FILES: hashes}
  return {**values, _CHECKSUM: checksum_of(values)}


def check_hashes(directory: str, path: str, values: Mapping[str, Any], remedy: str) -> None:
  """Compares the files of an exported model with the hashes in its description.

  Args:
    directory: of the model.
    path: of the description, for error messages.
    values: values of the description.
    remedy: what the user should do, the end of each error message.
  Raises:
    UserError: a file is missing, a file differs from the exported one, or the description was changed.
  """
  content = json_values.convert(path, dict(values), _Content, remedy)
  if content.checksum and content.checksum != checksum_of({k: v for k, v in values.items() if k != _CHECKSUM}):
    raise UserError(f"{path}: was changed after the export: {remedy}")
  for folder, hashes in content.files.items():
    if folder not in _FOLDERS:
      raise UserError(f"{path}: {folder!r} is not a folder of an exported model: {remedy}")
    for name, sha256 in hashes.items():
      file = files.join(directory, folder, name) if folder else files.join(directory, name)
      if not files.exists(file):
        raise UserError(f"{file}: is missing, {path} lists it: {remedy}")
      if file_sha256(file) != sha256:
        raise UserError(f"{file}: is damaged (its SHA-256 differs from that in {path}): {remedy}")
