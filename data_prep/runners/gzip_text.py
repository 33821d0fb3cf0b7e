"""Decompresses .txt.gz files to text files, since a GZIP file can only be read from its beginning.

Processes of a cluster then read different parts of the same file. The hash of the GZIP file is that of the bytes that
were decompressed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from albert.data.manifest import file_sha256
from albert.errors import UserError
from albert.io import files, json_values, local_files
from data_prep import input_hashes
from data_prep.readers import streams

_BYTES_PER_READ = 1 << 20


@dataclasses.dataclass(frozen=True)
class GzipTask:
  """A file to decompress.

  Attributes:
    path: the GZIP file.
    text_path: the text file to write.
  """

  path: str
  text_path: str

  @property
  def record_path(self) -> str:
    """The file for the `_TextRecord`."""
    return f"{self.text_path}.json"


class _TextRecord(msgspec.Struct):
  """The contents of the JSON file that is written beside each decompressed text file.

  Attributes:
    sha256: SHA-256 of the GZIP file, in hex.
    num_bytes: size of the text file.
  """

  sha256: str
  num_bytes: json_values.Count


def _load_record(path: str) -> _TextRecord | None:
  """Returns the record of an earlier command. None if it is missing or damaged."""
  if not files.exists(path):
    return None
  try:
    return files.read_json(path, _TextRecord)
  except UserError:
    return None


def _is_written(task: GzipTask, sha256: str) -> bool:
  """Whether an earlier command has decompressed the file with this hash."""
  record = _load_record(task.record_path)
  if record is None or record.sha256 != sha256 or not files.exists(task.text_path):
    return False
  return record.num_bytes == files.size(task.text_path)


def decompress(task: GzipTask) -> dict[str, Any]:
  """Writes the text of a GZIP file, unless an earlier command has done so.

  Returns:
    The manifest's entry for the GZIP file: its name, size and SHA-256.

  Raises:
    UserError: the file is damaged, or changed while it was being read.
  """
  entry = input_hashes.hash_file(task.path)
  sha256 = entry["sha256"]
  if _is_written(task, sha256):
    return entry
  num_bytes = 0
  staging = files.staging_path(task.text_path)
  try:
    with streams.open_stream(task.path) as source, files.open_file(staging, "wb") as target:
      while block := source.read(_BYTES_PER_READ):
        target.write(block)
        num_bytes += len(block)
      local_files.sync(target)
    if file_sha256(task.path) != sha256:
      raise input_hashes.changed_file_error(task.path)
    files.replace(staging, task.text_path)
  finally:
    files.discard(staging)
  files.write_json(task.record_path, {"sha256": sha256, "num_bytes": num_bytes})
  return entry
