"""Manifests and similar files that name a file outside their directory, for the part "safety".

Each function of READERS writes such a file and reads it. It raises UserError or RunError if the project refuses the
name, as it should, and AssertionError if the name is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from albert.data import manifest
from albert.data.manifest import Manifest, ShardInfo
from albert.report.records import read_runs
from tests.torture import hostile

# Modules that import TensorFlow are imported only when they are needed.


class OutsideFile(NamedTuple):
  """A file outside the directory of a manifest. Nothing may open or change it."""

  path: Path
  num_bytes: int
  sha256: str

  def name_from(self, directory: Path, form: str) -> str:
    """Returns a name for the file that a manifest in `directory` could use, in a form of hostile.names_outside."""
    return hostile.names_outside(directory, self.path)[form]


def _read_shards(directory: Path, form: str, outside: OutsideFile) -> None:
  name = outside.name_from(directory, form)
  shard = ShardInfo(name, 1, outside.num_bytes, outside.sha256)
  other_fields: dict[str, Any] = {"vocab_sha256": "0" * 64, "vocab_size": 9, "num_documents": 1, "num_tokens": 9}
  Manifest(kind="pretraining", settings={}, shards=(shard,), **other_fields).save(str(directory))
  loaded = Manifest.load(str(directory))
  assert loaded is not None
  for listed in loaded.shards:
    if manifest.shard_is_intact(str(directory), listed):
      raise AssertionError("the file outside counts as a shard")


def _read_checkpoint(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.config.model import ModelConfig
  from albert.weights.checkpoints import CheckpointManager

  manager = CheckpointManager(str(directory), keep=1, model_config=ModelConfig())
  step = Path(manager.save(1, {"x": np.ones(3, np.float32)}))
  checkpoint_manifest = json.loads((step / "manifest.json").read_text())
  checkpoint_manifest["files"][outside.name_from(step, form)] = {"bytes": outside.num_bytes, "sha256": outside.sha256}
  (step / "manifest.json").write_text(json.dumps(checkpoint_manifest))
  if manager.latest() is not None:
    raise AssertionError("the checkpoint counts as intact")


def _read_best_run(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.export.checkpoint import open_checkpoint

  name = outside.name_from(directory, form)
  best_run = name if name in ("", ".", "..") else str(Path(name).parent)  # the directory of the file is a run
  runs = {"seeds": [1], "best_run": best_run, "metrics": {}}
  (directory / "runs.json").write_text(json.dumps(runs))
  open_checkpoint(str(directory))
  raise AssertionError("the best run is accepted")


def _read_seeds(directory: Path, form: str, outside: OutsideFile) -> None:
  name = outside.name_from(directory, form)
  (directory / "runs.json").write_text(json.dumps({"seeds": [name], "best_run": "run-1", "metrics": {}}))
  read_runs([str(directory)], num_examples=1)
  raise AssertionError("the seed is accepted")


def _read_best_step(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.config.model import ModelConfig
  from albert.weights.checkpoints import CheckpointManager

  name = outside.name_from(directory, form)
  manager = CheckpointManager(str(directory), keep=1, model_config=ModelConfig())
  (directory / "best.json").write_text(json.dumps({"step": name, "metric": "loss", "value": 1.0}))
  manager.select("best")
  raise AssertionError("the step is accepted")


def _read_exported_model(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.export.companion_files import DESCRIPTION
  from albert.predict.exported_model import ExportedModel

  name = outside.name_from(directory, form)
  (directory / DESCRIPTION).parent.mkdir(parents=True)
  field = {"name": name, "is_list": False, "meaning": name}
  description = {
    "task": name,
    "fields": [field],
    "answers": [name],
    "labels": [name],
    "counted_by": name,
    "checkpoint": {"path": name},
  }
  (directory / DESCRIPTION).write_text(json.dumps(description))
  (directory / "saved_model.pb").write_bytes(b"")
  ExportedModel(str(directory))
  raise AssertionError("the model is accepted")


# File that may hold names of files -> function that writes and reads it.
READERS: dict[str, Callable[[Path, str, OutsideFile], None]] = {
  "manifest of shards": _read_shards,
  "manifest of a checkpoint": _read_checkpoint,
  "runs.json, best run": _read_best_run,
  "runs.json, seeds": _read_seeds,
  "best.json": _read_best_step,
  "description of an export": _read_exported_model,
}
