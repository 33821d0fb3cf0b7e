"""The weights that a run starts from, in its config.json: known by content, so that their files may move."""

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

_PATH, _SHA256 = "init_checkpoint", "init_checkpoint_sha256"


def content_sha256(weights: WeightFile) -> str:
  """SHA-256 of all weights under the original's names: the same for every file format and place."""
  digest = hashlib.sha256()
  for name in sorted(weights.names):
    value = weights.read(name)
    digest.update(f"{name} {value.shape}\n".encode())
    digest.update(np.ascontiguousarray(value, "<f4").tobytes())
  return digest.hexdigest()


def claim(
  output_dir: str,
  init_checkpoint: str,
  vocabulary: VocabularyId | None,
  *,
  from_scratch: bool,
  is_started: bool,
  is_chief: bool = True,
) -> dict[str, Any]:
  """Compares the weights that a command gives with those that the run in output_dir started from.

  Args:
    output_dir: of the run.
    init_checkpoint: what the command gives; empty for nothing.
    vocabulary: that of the task, which the weights of a new run must have, too; None where it is not known.
    from_scratch: whether the command asks for random weights.
    is_started: whether the run has already saved something. Its weights are then not needed, and need not be there.
    is_chief: false in a process that leaves the writing to another one, and so the hashing.
  Returns: the entries of config.json.
  Raises:
    UserError: the run started from other weights, or the weights have another vocabulary.
  """
  path = files.join(output_dir, output_files.CONFIG)
  if not is_started or not files.exists(path):
    return _of_new_run(init_checkpoint, vocabulary, is_chief=is_chief)
  there = output_files.read_config(path)
  recorded, expected = there.get(_PATH, ""), there.get(_SHA256, "")
  entries = {key: there[key] for key in (_PATH, _SHA256) if key in there}
  if from_scratch and recorded:
    raise UserError(
      f"{path}: this run started from {recorded}, not from random weights: leave --from_scratch out to resume it, or "
      "give another --output_dir"
    )
  if init_checkpoint in ("", recorded):
    return entries
  if not recorded:
    raise UserError(
      f"{path}: this run started from random weights, not from --init_checkpoint={init_checkpoint}: leave the flag out "
      "to resume it, or give another --output_dir"
    )
  found = content_sha256(open_weights(init_checkpoint))
  expected = expected or _content_if_there(recorded)
  if not expected:
    log(
      f"warning: {path} has no hash of {recorded}, which the run started from and which is gone: it cannot be compared "
      f"with {init_checkpoint}"
    )
  elif found != expected:
    raise UserError(
      f"{path}: this run started from {recorded} (SHA-256 of the weights {expected[:12]}...), but --init_checkpoint="
      f"{init_checkpoint} holds different weights ({found[:12]}...): leave the flag out to resume the run, or give "
      "another --output_dir"
    )
  return {_PATH: init_checkpoint, _SHA256: found}


def _of_new_run(init_checkpoint: str, vocabulary: VocabularyId | None, *, is_chief: bool) -> dict[str, Any]:
  if not init_checkpoint:
    return {_PATH: ""}
  weights = open_weights(init_checkpoint)
  if vocabulary is not None:
    weights.check_vocabulary(vocabulary.sha256, vocabulary.name)
  return {_PATH: init_checkpoint, **({_SHA256: content_sha256(weights)} if is_chief else {})}


def _content_if_there(path: str) -> str:
  try:
    return content_sha256(open_weights(path))
  except UserError:
    return ""
