"""Checkpoints under the original's names: ours, and a TensorFlow 1 checkpoint that the original's scripts read."""

from __future__ import annotations

from albert.convert.model import Line, Model, expand_sharing, line
from albert.errors import UserError
from albert.io import files
from albert.weights.checkpoint_files import write_bundle
from albert.weights.checkpoints import CheckpointManager

PREFIX = "model.ckpt"


def write_albert(model: Model, directory: str) -> list[Line]:
  """Writes `directory`/step-0, a checkpoint that --init_checkpoint and albert.convert take; the lines of its report."""
  CheckpointManager(directory, keep=1, model_config=model.config).save(0, model.weights)
  return [line(model.sources[name], name, value) for name, value in model.weights.items()]


def write_tf1(model: Model, directory: str) -> list[Line]:
  """Writes model.ckpt.* and albert_config.json for the original's code; the lines of the report.

  Raises:
    UserError: an activation that the original lacks.
  """
  model = expand_sharing(model)
  if model.config.hidden_act == "gelu_erf":
    raise UserError("hidden_act gelu_erf: the original has the tanh approximation alone; give another --format")
  write_bundle(files.join(directory, PREFIX), model.weights)
  config = model.config.to_dict()
  del config["sharing"]  # not the original's
  files.write_json(files.join(directory, "albert_config.json"), config)
  return [line(model.sources[name], name, value) for name, value in model.weights.items()]
