"""Records in config.json which weights a run starts from. A hash of their content identifies them, not their path."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.runs.metrics_log import log
from albert.tokenization.vocabulary import VocabularyId
from albert.weights.files import WeightFile, open_weights

# Keys of config.json.
_PATH_KEY, _SHA256_KEY = "init_checkpoint", "init_checkpoint_sha256"


def content_sha256(weights: WeightFile) -> str:
  """Returns the SHA-256 of the names and values of all weights. It does not depend on the file's format or path."""
  digest = hashlib.sha256()
  for name in sorted(weights.names):
    value = weights.read(name)
    digest.update(f"{name} {value.shape}\n".encode())
    digest.update(np.ascontiguousarray(value, "<f4").tobytes())
  return digest.hexdigest()


def claim_initial_weights(
  output_dir: str,
  init_checkpoint: str,
  vocabulary: VocabularyId | None,
  *,
  from_scratch: bool,
  is_started: bool,
  is_chief: bool = True,
) -> dict[str, Any]:
  """Compares the weights that a command names with those that the run in output_dir started from.

  Args:
    output_dir: the directory of the run.
    init_checkpoint: the weights that the command names, see open_weights; empty if it names none.
    vocabulary: the vocabulary of the task, which the weights of a new run must also have; None if it is not known.
    from_scratch: whether the command asks for random weights.
    is_started: whether the run has already saved something. Then its initial weights are not needed and may be deleted.
    is_chief: whether this process writes config.json. Only this process hashes the weights of a new run.
  Returns:
    The entries of config.json that describe the initial weights.
  Raises:
    UserError: the run started from other weights, or the weights have another vocabulary.
  """
  path = files.join(output_dir, output_files.CONFIG)
  if not is_started or not files.exists(path):
    return _entries_of_new_run(init_checkpoint, vocabulary, is_chief=is_chief)
  config = output_files.read_config(path)
  recorded_path, recorded_sha256 = config.get(_PATH_KEY, ""), config.get(_SHA256_KEY, "")
  if from_scratch and recorded_path:
    raise UserError(
      f"{path}: this run started from {recorded_path}, not from random weights: leave --from_scratch out to resume it, "
      "or give another --output_dir"
    )
  if init_checkpoint in ("", recorded_path):
    return {key: config[key] for key in (_PATH_KEY, _SHA256_KEY) if key in config}
  if not recorded_path:
    raise UserError(
      f"{path}: this run started from random weights, not from --init_checkpoint={init_checkpoint}: leave the flag out "
      "to resume it, or give another --output_dir"
    )
  sha256 = content_sha256(open_weights(init_checkpoint))
  expected_sha256 = recorded_sha256 or _sha256_if_readable(recorded_path)  # earlier versions recorded no hash
  if not expected_sha256:
    log(
      f"warning: {path} has no hash of {recorded_path}, which the run started from and which is gone: it cannot be "
      f"compared with {init_checkpoint}"
    )
  elif sha256 != expected_sha256:
    raise UserError(
      f"{path}: this run started from {recorded_path} (SHA-256 of the weights {expected_sha256[:12]}...), but "
      f"--init_checkpoint={init_checkpoint} holds different weights ({sha256[:12]}...): leave the flag out to resume "
      "the run, or give another --output_dir"
    )
  return {_PATH_KEY: init_checkpoint, _SHA256_KEY: sha256}


def _entries_of_new_run(init_checkpoint: str, vocabulary: VocabularyId | None, *, is_chief: bool) -> dict[str, Any]:
  """Makes the entries of config.json for a run that has saved nothing, after checking its vocabulary."""
  if not init_checkpoint:
    return {_PATH_KEY: ""}
  weights = open_weights(init_checkpoint)
  if vocabulary is not None:
    weights.check_vocabulary(vocabulary.sha256, vocabulary.name)
  entries = {_PATH_KEY: init_checkpoint}
  if is_chief:
    entries[_SHA256_KEY] = content_sha256(weights)
  return entries


def _sha256_if_readable(path: str) -> str:
  """Returns the content_sha256 of the weights at a path; "" if they cannot be read."""
  try:
    return content_sha256(open_weights(path))
  except UserError:
    return ""
