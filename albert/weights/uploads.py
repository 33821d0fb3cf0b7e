"""Uploads checkpoints to a remote file system, and recognizes uploads that were interrupted."""

from __future__ import annotations

import hashlib
from typing import Any

from albert.io import files
from albert.weights.checkpoint_damage import MANIFEST_FILE

# A file that marks a remote directory while its files are written or deleted.
UPLOAD_MARKER = ".uploading"
_BLOCK_BYTES = 8 << 20


def upload_file(source: str, target: str) -> dict[str, Any]:
  """Copies a local file to a remote one, and returns its entry in the manifest: its size and its hash."""
  digest, num_bytes = hashlib.sha256(), 0
  with open(source, "rb") as local, files.open_file(target, "wb") as remote:
    while block := local.read(_BLOCK_BYTES):
      digest.update(block)
      remote.write(block)
      num_bytes += len(block)
  return {"bytes": num_bytes, "sha256": digest.hexdigest()}


def is_unfinished_upload(path: str) -> bool:
  """Whether a remote directory is a checkpoint whose upload or deletion was interrupted."""
  if not files.is_remote(path) or files.exists(files.join(path, MANIFEST_FILE)):
    return False
  return files.exists(files.join(path, UPLOAD_MARKER))
