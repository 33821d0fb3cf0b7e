"""What is exported: the weights of a checkpoint, and what the run that made them says of itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from albert.config.model import ModelConfig, load_model_config
from albert.data.manifest import file_sha256
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.weights import checkpoints
from albert.weights.files import WeightFile, open_weights
from albert.weights.names import POOLER, encoder_shapes, heads, huggingface_groups_agree

FLAG = "--checkpoint"
_STEP = re.compile(r"(?:^|/)step-(\d+)$")


@dataclasses.dataclass(frozen=True)
class ExportCheckpoint:
  """A checkpoint.

  Attributes:
    file: its weights.
    config: of the model.
    vocabulary: path of the SentencePiece model.
    step: of training; None if it is not known.
    run: config.json of the run, which names its task; {} for weights that come without one.
    metrics: those of this step, by name.
  """

  file: WeightFile
  config: ModelConfig
  vocabulary: str
  step: int | None
  run: Mapping[str, Any]
  metrics: Mapping[str, float]

  @property
  def task(self) -> str | None:
    """The run's task, as the registry of tasks names it."""
    return self.run.get("task")

  @property
  def heads(self) -> list[str]:
    """The heads that the checkpoint holds, as models.weight_names calls them."""
    return [name for name, head in heads(self.config).items() if set(head.shapes) <= set(self.file.names)]

  def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Weights by the original's names. UserError if one is missing or of another shape than the config says."""
    expected: dict[str, tuple[int | None, ...]] = {**encoder_shapes(self.config)}
    for head in heads(self.config).values():
      expected |= head.shapes
    weights = {}
    for name in names:
      if name not in self.file.entries:
        raise UserError(f"{FLAG}={self.file.path}: has no {name}; give a checkpoint of this model and task")
      weights[name] = self.file.read(name)
      found, wanted = weights[name].shape, expected.get(name, weights[name].shape)
      if len(found) != len(wanted) or any(b not in (None, a) for a, b in zip(found, wanted, strict=True)):
        raise UserError(f"{FLAG}={self.file.path}: {name} is {list(found)}, its config says {list(wanted)}")
    return weights

  def encoder_weights(self) -> dict[str, np.ndarray]:
    """All weights of the encoder; those of the pooler where the checkpoint has one."""
    names = [n for n in encoder_shapes(self.config) if n not in POOLER or self.file.has_pooler]
    return self.read(names)

  def head_weights(self, head: str) -> dict[str, np.ndarray]:
    """All weights of a head."""
    return self.read(heads(self.config)[head].shapes)


def open_checkpoint(
  path: str, *, select: str = "", albert_config_file: str = "", spm_model_file: str = ""
) -> ExportCheckpoint:
  """Opens what is to be exported.

  Args:
    path: as albert.weights.files.open_weights takes it; also the output_dir of several runs (--num_runs), for the best.
    select: newest or best, of a run's checkpoints; empty: what the run was evaluated with.
    albert_config_file, spm_model_file: the model's config and vocabulary; empty: those beside the weights.
  Raises:
    UserError: nothing there, damage, no config or no vocabulary.
  """
  path = path.rstrip("/")
  runs_file = files.join(path, output_files.RUNS)
  if files.exists(runs_file):
    path = files.join(path, output_files.read_runs(runs_file)["best_run"])
  path = _selected(path, select)
  file = open_weights(path, flag=FLAG)
  config_file = albert_config_file or file.config_file
  if not config_file:
    raise UserError(
      f"{FLAG}={path}: has no albert_config.json beside it; give the model's config with --albert_config_file"
    )
  config = load_model_config(config_file)
  if file.is_huggingface and not huggingface_groups_agree(config):
    raise UserError(
      f"{FLAG}={path}: its {config.num_hidden_groups} groups of {config.num_hidden_layers} layers are cut as "
      "transformers does, not as here; convert it first: python -m albert.convert --format=albert"
    )
  vocabulary = spm_model_file or file.vocabulary
  if not vocabulary:
    raise UserError(f"{FLAG}={path}: has no spiece.model beside it; give the vocabulary with --spm_model_file")
  if not files.exists(vocabulary):
    raise UserError(f"--spm_model_file={vocabulary}: no such file")
  if spm_model_file:
    file.check_vocabulary(file_sha256(spm_model_file), f"--spm_model_file={spm_model_file}", flag=FLAG)
  step = _STEP.search(file.directory)
  run, metrics = _run_settings_and_metrics(file.directory, int(step[1])) if step else ({}, {})
  return ExportCheckpoint(file, config, vocabulary, int(step[1]) if step else None, run, metrics)


def _selected(path: str, select: str) -> str:
  """The checkpoint of a run that is asked for; `path` itself if it is no run."""
  directory = files.join(path, "checkpoints")
  if not files.is_dir(directory):
    return path
  config_file = files.join(path, output_files.CONFIG)
  config = output_files.read_config(config_file) if files.exists(config_file) else {}
  select = select or config.get("train", {}).get("select_checkpoint", "newest")
  manager = checkpoints.CheckpointManager(directory, keep=1, model_config=ModelConfig())
  chosen, skipped = manager.best_or_latest() if select == "best" else manager.latest()
  if chosen is None:
    raise UserError(f"{FLAG}={path}: no checkpoint that verifies{': ' + skipped[0] if skipped else ''}; train first")
  return chosen.path


def _run_settings_and_metrics(directory: str, step: int) -> tuple[dict[str, Any], dict[str, float]]:
  """config.json of the run whose checkpoint this is, and its metrics at this step; {} where there are none."""
  parent = directory.rpartition("/")[0] or "."
  output_dir = parent.rpartition("/")[0] or "."
  config_file, results_file = (
    files.join(output_dir, output_files.CONFIG),
    files.join(output_dir, output_files.EVAL_RESULTS),
  )
  run = output_files.read_config(config_file) if files.exists(config_file) else {}
  results = output_files.read_results(results_file) if files.exists(results_file) else {}
  is_of_step = results.pop("step", None) == step
  return run, results if is_of_step else {}
