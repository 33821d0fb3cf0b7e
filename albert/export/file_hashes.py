"""The hashes of an exported model's files, in servable.json: a SavedModel has none of its graph and its vocabulary.

No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from albert.data.manifest import checksum_of, file_sha256
from albert.errors import UserError
from albert.io import files, json_values

_FILES, _CHECKSUM = "files", "checksum"
# What is loaded: folder -> its files; None for all.
_FOLDERS: Mapping[str, tuple[str, ...] | None] = {"": ("saved_model.pb",), "variables": None, "assets": None}


class _Content(msgspec.Struct):
  """The hashes in a description; exports of earlier versions have none."""

  files: dict[str, dict[json_values.FileName, str]] = {}
  checksum: str = ""


def add_hashes(directory: str, values: Mapping[str, Any]) -> dict[str, Any]:
  """The values of a description, with the hashes of what is in the directory and one of the values themselves."""
  hashes = {}
  for folder, expected in _FOLDERS.items():
    place = files.join(directory, folder) if folder else directory
    names = expected or (files.listdir(place) if files.is_dir(place) else [])
    hashes[folder] = {name: file_sha256(files.join(place, name)) for name in names}
  values = {**values, _FILES: hashes}
  return {**values, _CHECKSUM: checksum_of(values)}


def check_hashes(directory: str, path: str, values: Mapping[str, Any], remedy: str) -> None:
  """Compares an exported model with the hashes in its description.

  Args:
    directory: of the model.
    path: of the description, for errors.
    values: of the description.
    remedy: how errors end.
  Raises:
    UserError: a file is missing or is not the one that was exported; or the description was changed.
  """
  content = json_values.convert(path, dict(values), _Content, remedy)
  if content.checksum and content.checksum != checksum_of({k: v for k, v in values.items() if k != _CHECKSUM}):
    raise UserError(f"{path}: was changed after the export: {remedy}")
  for folder, hashes in content.files.items():
    if folder not in _FOLDERS:
      raise UserError(f"{path}: {folder!r} is no folder of an exported model: {remedy}")
    for name, sha256 in hashes.items():
      file = files.join(directory, folder, name) if folder else files.join(directory, name)
      if not files.exists(file):
        raise UserError(f"{file}: is missing, {path} lists it: {remedy}")
      if file_sha256(file) != sha256:
        raise UserError(f"{file}: is damaged (its SHA-256 differs from that in {path}): {remedy}")
