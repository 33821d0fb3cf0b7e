"""Opens the checkpoint to export: its weights, config and vocabulary, and the settings and metrics of its run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from albert.config.model import ModelConfig, load_model_config
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.tokenization.vocabulary_files import NAMES, vocabulary_sha256
from albert.weights.files import WeightFile, WeightLocation, find_weights, open_location, selected_checkpoint
from albert.weights.names import POOLER, encoder_shapes, heads, huggingface_groups_agree

FLAG = "--checkpoint"
_STEP_DIRECTORY = re.compile(r"(?:^|/)step-(\d+)$")


@dataclasses.dataclass(frozen=True)
class ExportCheckpoint:
  """A checkpoint to export.

  Attributes:
    file: the weights.
    config: the model's config.
    vocabulary: path of the SentencePiece model.
    step: training step; None if it is not known.
    run: the values of the run's config.json, which names the task; {} if the weights do not come from a run.
    metrics: results of the evaluation at this step, by name; {} if there are none.
  """

  file: WeightFile
  config: ModelConfig
  vocabulary: str
  step: int | None
  run: Mapping[str, Any]
  metrics: Mapping[str, float]

  @property
  def run_dir(self) -> str:
    """The output_dir of the run; "" if the weights do not come from a run."""
    if self.step is None:
      return ""
    checkpoints_directory = self.file.directory.rpartition("/")[0] or "."
    return checkpoints_directory.rpartition("/")[0] or "."

  @property
  def task(self) -> str | None:
    """Name of the run's task in `albert.tasks.registry.TASKS`; None if it is not known."""
    return self.run.get("task")

  @property
  def heads(self) -> list[str]:
    """The heads that the checkpoint holds, by their names in `albert.weights.names.heads`."""
    return [name for name, head in heads(self.config).items() if set(head.shapes) <= set(self.file.names)]

  def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Reads weights.

    Args:
      names: the weights, by their names in the original ALBERT code.
    Returns: float32 arrays by name.
    Raises:
      UserError: a weight is missing, or its shape does not fit the config.
    """
    # None stands for a dimension that the config does not determine, such as the number of classes.
    expected_shapes: dict[str, tuple[int | None, ...]] = {**encoder_shapes(self.config)}
    for head in heads(self.config).values():
      expected_shapes |= head.shapes
    weights = {}
    for name in names:
      if name not in self.file.entries:
        raise UserError(f"{FLAG}={self.file.path}: has no {name}; give a checkpoint of this model and task")
      weights[name] = self.file.read(name)
      shape = weights[name].shape
      expected_shape = expected_shapes.get(name, shape)
      has_expected_shape = len(shape) == len(expected_shape) and all(
        expected_size in (None, size) for size, expected_size in zip(shape, expected_shape, strict=True)
      )
      if not has_expected_shape:
        raise UserError(
          f"{FLAG}={self.file.path}: {name} has shape {list(shape)}, its config gives {list(expected_shape)}"
        )
    return weights

  def encoder_weights(self) -> dict[str, np.ndarray]:
    """All weights of the encoder by name, and the pooler's weights if the checkpoint has them. See read."""
    names = [name for name in encoder_shapes(self.config) if name not in POOLER or self.file.has_pooler]
    return self.read(names)

  def head_weights(self, head: str) -> dict[str, np.ndarray]:
    """All weights of a head by name. See read."""
    return self.read(heads(self.config)[head].shapes)


@dataclasses.dataclass(frozen=True)
class FoundCheckpoint:
  """A checkpoint to export that is not opened yet.

  Attributes:
    weights: where the weights are.
    config: the model's config.
    vocabulary: path of the SentencePiece model.
  """

  weights: WeightLocation
  config: ModelConfig
  vocabulary: str


def find_checkpoint(
  path: str, *, select: str = "", albert_config_file: str = "", spm_model_file: str = ""
) -> FoundCheckpoint:
  """Finds the checkpoint to export, its config and its vocabulary. Imports no TensorFlow.

  Args:
    path: anything that `albert.weights.files.open_weights` opens, or the output_dir of several runs (--num_runs). Of
      several runs, the best one is exported.
    select: "newest" or "best" checkpoint of a run; "" for the run's own --select_checkpoint.
    albert_config_file: path of the model's config; "" for the config file beside the weights.
    spm_model_file: path of the vocabulary; "" for the one beside the weights.
  Raises:
    UserError: there is no checkpoint, it is damaged, or it has no config or vocabulary.
  """
  path = selected_checkpoint(path, select, flag=FLAG)
  weights = find_weights(path, flag=FLAG)
  config_file = albert_config_file or weights.config_file
  if not config_file:
    raise UserError(
      f"{FLAG}={path}: has no albert_config.json beside it; give the model's config with --albert_config_file"
    )
  config = load_model_config(config_file)
  vocabulary = spm_model_file or weights.vocabulary
  if not vocabulary:
    raise UserError(f"{FLAG}={path}: has no {' or '.join(NAMES)} beside it; give the vocabulary with --spm_model_file")
  if not files.exists(vocabulary):
    raise UserError(f"--spm_model_file={vocabulary}: no such file")
  if spm_model_file:
    weights.check_vocabulary(vocabulary_sha256(spm_model_file), f"--spm_model_file={spm_model_file}", flag=FLAG)
  return FoundCheckpoint(weights, config, vocabulary)


def open_checkpoint(
  checkpoint: str | FoundCheckpoint, *, select: str = "", albert_config_file: str = "", spm_model_file: str = ""
) -> ExportCheckpoint:
  """Opens the checkpoint to export.

  Args:
    checkpoint: the path of the checkpoint, or the result of find_checkpoint. The other arguments apply only to a path.
    select, albert_config_file, spm_model_file: see find_checkpoint.
  Raises:
    UserError: see find_checkpoint; or the weights are damaged.
  """
  if isinstance(checkpoint, str):
    checkpoint = find_checkpoint(
      checkpoint, select=select, albert_config_file=albert_config_file, spm_model_file=spm_model_file
    )
  config, vocabulary = checkpoint.config, checkpoint.vocabulary
  file = open_location(checkpoint.weights, flag=FLAG)
  if file.is_huggingface and not huggingface_groups_agree(config):
    raise UserError(
      f"{FLAG}={file.path}: transformers assigns its {config.num_hidden_layers} layers to "
      f"{config.num_hidden_groups} groups in another way than this project; convert it first: "
      "python -m albert.convert --format=albert"
    )
  step_match = _STEP_DIRECTORY.search(file.directory)
  if not step_match:  # only a run names its directories step-N
    return ExportCheckpoint(file, config, vocabulary, step=None, run={}, metrics={})
  step = int(step_match[1])
  run, metrics = _run_settings_and_metrics(file.directory, step)
  return ExportCheckpoint(file, config, vocabulary, step, run, metrics)


def _run_settings_and_metrics(directory: str, step: int) -> tuple[dict[str, Any], dict[str, float]]:
  """Reads the config.json of the run that a checkpoint belongs to, and the run's metrics at this step.

  Args:
    directory: OUTPUT_DIR/checkpoints/step-N.
    step: the step N.
  Returns: the values of config.json and the metrics. Each is {} if the file does not exist; the metrics are also {} if
    they were measured at another step.
  """
  checkpoints_directory = directory.rpartition("/")[0] or "."
  output_dir = checkpoints_directory.rpartition("/")[0] or "."
  config_file = files.join(output_dir, output_files.CONFIG)
  results_file = files.join(output_dir, output_files.EVAL_RESULTS)
  run = output_files.read_config(config_file) if files.exists(config_file) else {}
  results = output_files.read_results(results_file) if files.exists(results_file) else {}
  is_same_step = results.pop("step", None) == step
  return run, results if is_same_step else {}
