"""Writes checkpoints with the original's names: for this project, and for the scripts of the original."""

from __future__ import annotations

from albert.convert.model import ConvertedModel, ReportLine, expand_sharing, report_line
from albert.errors import UserError
from albert.io import files
from albert.runs.metrics_log import log
from albert.weights.checkpoint_files import write_bundle
from albert.weights.checkpoints import CheckpointManager

# The prefix of the checkpoint's files, as in the archives of the original.
CHECKPOINT_PREFIX = "model.ckpt"


def write_albert(model: ConvertedModel, directory: str) -> list[ReportLine]:
  """Writes a checkpoint for --init_checkpoint to `directory`/step-0, and returns the lines of the report."""
  CheckpointManager(directory, keep=1, model_config=model.config).save(0, model.weights)
  return [report_line(model.sources[name], name, value) for name, value in model.weights.items()]


def write_tf1(model: ConvertedModel, directory: str) -> list[ReportLine]:
  """Writes model.ckpt.* and albert_config.json for the original's code, and returns the lines of the report.

  Raises:
    UserError: the original does not have the activation.
  """
  model = expand_sharing(model)
  if model.config.hidden_act == "gelu_erf":
    raise UserError("hidden_act gelu_erf: the original has only the tanh approximation; give another --format")
  settings = model.tokenizer_config
  if settings and not settings.do_lower_case:
    log("format tf1: its scripts need --do_lower_case=false: the format has no place for the case of the vocabulary")
  if settings and settings.keep_accents:
    log("warning: format tf1: its scripts always drop accents, so they give other ids than this model was trained on")
  write_bundle(files.join(directory, CHECKPOINT_PREFIX), model.weights)
  config = model.config.to_dict()
  del config["sharing"]  # the original has no such key
  files.write_json(files.join(directory, "albert_config.json"), config)
  return [report_line(model.sources[name], name, value) for name, value in model.weights.items()]
