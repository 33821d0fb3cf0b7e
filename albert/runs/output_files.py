"""The files in an output_dir: their names, and the schemas of those that several modules read."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

from albert.io import files, json_values

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"  # a directory
ENVIRONMENT = "environment.json"
# The hashes of the files that the run was trained on, in order.
TRAINING_DATA = "training_data.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "eval_metrics.jsonl"
EVAL_RESULTS = "eval_results.json"
# Which checkpoint and which input each predictions file was made from.
PREDICTION_SOURCES = "prediction_sources.json"
# Of several runs: their seeds and metrics, and which is the best.
RUNS = "runs.json"
# Also beside the weights of a checkpoint, and in an export's assets.
VOCABULARY = "spiece.model"
# Beside converted weights: the name, shape and SHA-256 of each.
CONVERSION = "conversion.tsv"

_REMEDY = "restore this file, or give another --output_dir"


class _TrainingDataSummary(msgspec.Struct):
  sha256: str | None = None


class _DataSection(msgspec.Struct):
  vocab_sha256: str | None = None
  max_seq_length: json_values.Count = 0
  do_lower_case: bool = True
  convert_quotes: bool = False


class _TrainSection(msgspec.Struct):
  num_train_steps: json_values.Count = 0
  train_batch_size: json_values.Count = 0
  select_checkpoint: str = "newest"


class _Config(msgspec.Struct):
  """config.json of a run. What it leaves out, an earlier version did not record."""

  task: str = ""
  recipe: str | None = None
  init_checkpoint: str = ""
  init_checkpoint_sha256: str = ""
  model: dict[str, Any] = {}
  optimizer: dict[str, Any] = {}
  train: _TrainSection = msgspec.field(default_factory=_TrainSection)
  data: _DataSection = msgspec.field(default_factory=_DataSection)
  training_data: _TrainingDataSummary = msgspec.field(default_factory=_TrainingDataSummary)


class _Runs(msgspec.Struct):
  """runs.json of several runs."""

  seeds: list[int]
  best_run: Annotated[str, msgspec.Meta(pattern=r"^run-[0-9]+\Z")]
  metrics: dict[str, dict[str, Any]]


def read_config(path: str) -> dict[str, Any]:
  """config.json of a run. UserError if a section of it, or a value that is read, is of another type."""
  values = files.read_json(path, remedy=_REMEDY)
  json_values.convert(path, values, _Config, _REMEDY)
  return values


def read_runs(path: str) -> dict[str, Any]:
  """runs.json, with null for what is not a number. UserError if it lacks the seeds, the best run or the metrics."""
  remedy = "make it again with the command of these runs"
  values = files.read_json(path, dict[str, Any], remedy, nan_is_null=True)
  json_values.convert(path, values, _Runs, remedy)
  return values


def read_results(path: str) -> dict[str, float]:
  """The metrics in eval_results.json, with NaN for null. UserError if one is not a number."""
  values = files.read_json(path, dict[str, int | float | None], _REMEDY, nan_is_null=True)
  return {name: math.nan if value is None else value for name, value in values.items()}
