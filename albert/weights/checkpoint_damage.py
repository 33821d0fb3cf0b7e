"""Verifies checkpoint directories: manifest.json lists the size and the SHA-256 of each file."""

from __future__ import annotations

import re

import msgspec

from albert.data.shard_files.manifest import file_sha256
from albert.errors import RunError, UserError
from albert.io import files, json_values

# The names of the files of the TensorFlow checkpoint begin with this: weights.index, weights.data-00000-of-00001.
WEIGHTS_PREFIX = "weights"
MANIFEST_FILE = "manifest.json"
MODEL_CONFIG_FILE = "albert_config.json"
_DATA_FILE_PATTERN = re.compile(rf"^{WEIGHTS_PREFIX}\.data-\d{{5}}-of-(\d{{5}})$")


class _FileEntry(msgspec.Struct):
  """The size and the hash of a file."""

  bytes: json_values.Count
  sha256: str


class _Manifest(msgspec.Struct):
  """The content of manifest.json."""

  step: json_values.Count
  files: dict[json_values.FileName, _FileEntry]


def find_damage(path: str, step: int | None = None) -> str | None:
  """Compares a checkpoint directory with its manifest.

  Args:
    path: the directory.
    step: the step that the manifest must have; None for any step.
  Returns:
    A description of the damage; None if the checkpoint is undamaged.
  Raises:
    UserError, RunError: a file exists but cannot be read, because of its permissions or of a disk error. This does not
      count as damage: the checkpoint may be intact, and the user decides whether to use an older one.
  """
  if not files.exists(path):
    return "it is missing"
  if not files.is_dir(path):
    return "it is not a directory"
  try:
    with files.convert_errors(path, "read"):
      names = files.listdir(path)
    if MANIFEST_FILE not in names:
      return f"no {MANIFEST_FILE}, so it was never finished"
    return _compare_with_manifest(path, step)
  except (UserError, RunError) as error:
    raise type(error)(
      f"{error}; if it cannot be made readable, move {path} away, and an older checkpoint is used"
    ) from error


def _compare_with_manifest(path: str, step: int | None) -> str | None:
  """Compares the files of a checkpoint directory with its manifest, and returns their damage; see find_damage."""
  manifest = _read_manifest(path)
  if isinstance(manifest, str):
    return manifest
  if step is not None and manifest.step != step:
    return f"{MANIFEST_FILE} says step {manifest.step}, so the checkpoint of that step was renamed or copied"
  for name, entry in manifest.files.items():
    file = files.join(path, name)
    if not files.exists(file):
      return f"{name} is missing"
    if not files.is_regular(file):
      return f"{name} is not a regular file"
    if files.size(file) != entry.bytes:
      return f"{name} has {files.size(file)} bytes instead of {entry.bytes}"
    if file_sha256(file) != entry.sha256:
      return f"{name} is damaged (its SHA-256 differs from the manifest's)"
  return None


def _read_manifest(path: str) -> _Manifest | str:
  """Reads the manifest of a checkpoint directory. If it is damaged, returns a description of the damage."""
  manifest_path = files.join(path, MANIFEST_FILE)
  if not files.is_regular(manifest_path):
    return f"{MANIFEST_FILE} is not a regular file"
  with files.open_file(manifest_path) as file:
    content = file.read()
  try:
    manifest = json_values.parse(MANIFEST_FILE, content, _Manifest)
  except UserError as error:
    return f"{MANIFEST_FILE} is damaged ({error})"
  # The name of each data file ends in the number of data files, such as weights.data-00000-of-00002. If no data file is
  # listed, 1 is used, and the loop below reports the missing file.
  counts = [int(match[1]) for match in map(_DATA_FILE_PATTERN.match, manifest.files) if match]
  num_data_files = counts[0] if counts and counts[0] else 1
  data_files = [f"{WEIGHTS_PREFIX}.data-{index:05d}-of-{num_data_files:05d}" for index in range(num_data_files)]
  for name in (f"{WEIGHTS_PREFIX}.index", *data_files, MODEL_CONFIG_FILE):
    if name not in manifest.files:
      return f"{MANIFEST_FILE} is damaged (it does not list {name})"
  return manifest


def describe_damage(path: str) -> str | None:
  """Like find_damage, but returns the message of an error instead of raising it."""
  try:
    return find_damage(path)
  except (UserError, RunError) as error:
    return str(error)
