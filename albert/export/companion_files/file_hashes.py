"""SHA-256 hashes of the files of an exported model, which are stored in servable.json.

A SavedModel's own fingerprint.pb has 64-bit hashes of the graph and of the index of the variables, but not of the
variables themselves or of the assets. This module does not import TensorFlow, because it checks a model before the
model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from albert.data.shard_files.manifest import checksum_of, file_sha256
from albert.errors import UserError
from albert.io import files, json_values

_FILES_KEY, _CHECKSUM_KEY = "files", "checksum"  # of servable.json
# The files that are read when a model is loaded. Only these are hashed. Folder -> file names; None stands for all files
# of the folder.
_HASHED_FILES: Mapping[str, tuple[str, ...] | None] = {"": ("saved_model.pb",), "variables": None, "assets": None}


class _HashFields(msgspec.Struct):
  """The fields of servable.json that this module reads. They are empty in files that earlier versions wrote."""

  files: dict[str, dict[json_values.FileName, str]] = {}
  checksum: str = ""


def add_hashes(directory: str, description: Mapping[str, Any]) -> dict[str, Any]:
  """Adds the hashes of a model's files, and a checksum of the whole description, to a description.

  Args:
    directory: the directory of the model.
    description: the values of servable.json.
  Returns: the description with two more keys: files (folder -> file name -> SHA-256) and checksum.
  """
  hashes = {}
  for folder, file_names in _HASHED_FILES.items():
    path = files.join(directory, folder) if folder else directory
    names = file_names or (files.listdir(path) if files.is_dir(path) else [])
    hashes[folder] = {name: file_sha256(files.join(path, name)) for name in names}
  with_hashes = {**description, _FILES_KEY: hashes}
  return {**with_hashes, _CHECKSUM_KEY: checksum_of(with_hashes)}


def check_hashes(directory: str, path: str, description: Mapping[str, Any], remedy: str) -> None:
  """Compares the files of an exported model with the hashes in its description.

  Args:
    directory: the directory of the model.
    path: the path of the description, for error messages.
    description: the content of that file.
    remedy: what the user should do about an error. Each error message ends with it.
  Raises:
    UserError: a file is missing, a file differs from the exported one, or the description was changed.
  """
  fields = json_values.convert(path, dict(description), _HashFields, remedy)
  without_checksum = {name: value for name, value in description.items() if name != _CHECKSUM_KEY}
  if fields.checksum and fields.checksum != checksum_of(without_checksum):
    raise UserError(f"{path}: was changed after the export: {remedy}")
  for folder, hashes in fields.files.items():
    if folder not in _HASHED_FILES:
      raise UserError(f"{path}: {folder!r} is not a folder of an exported model: {remedy}")
    for name, sha256 in hashes.items():
      file = files.join(directory, folder, name) if folder else files.join(directory, name)
      if not files.exists(file):
        raise UserError(f"{file}: is missing, although {path} lists it: {remedy}")
      if file_sha256(file) != sha256:
        raise UserError(f"{file}: is damaged (its SHA-256 differs from that in {path}): {remedy}")
