"""Names of the files in an output_dir, and readers for the files that several modules read."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import msgspec

from albert.io import files, json_values

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"  # a directory
# The name of a checkpoint's directory in CHECKPOINTS; its group is the number of updates.
STEP_DIRECTORY = re.compile(r"^step-(\d+)$")
ENVIRONMENT = "environment.json"
# Hashes of the files that the run was trained on, in the order in which they were read.
TRAINING_DATA = "training_data.json"
# How many rows each label has, and which rows of the training data are held out (--eval_share).
DATA_SUMMARY = "data_summary.json"
EVAL_SPLIT = "eval_split.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "eval_metrics.jsonl"
EVAL_RESULTS = "eval_results.json"
# The training loss at the end of a run, and that of guessing. It exists only if training has ended.
TRAINING_LOSS = "training_loss.json"
# The thresholds of the labels' probabilities (--multi_label), and the development set that they were chosen on.
THRESHOLDS = "thresholds.json"
# The seeds and metrics of several runs (--num_runs), and which of them is the best.
RUNS = "runs.json"
# A file of this name is also in the folder of a converted checkpoint, and in the assets of an export.
VOCABULARY = "spiece.model"
# In the folder of a converted checkpoint: the names, the shape and the SHA-256 of each weight.
CONVERSION = "conversion.tsv"

_REMEDY = "restore this file, or give another --output_dir"


class _TrainingDataSummary(msgspec.Struct):
  sha256: str | None = None


class _DataSection(msgspec.Struct):
  vocab_sha256: str | None = None
  max_seq_length: json_values.Count = 0
  do_lower_case: bool | None = None
  keep_accents: bool | None = None
  convert_quotes: bool | None = None


class _TrainSection(msgspec.Struct):
  num_train_steps: json_values.Count = 0
  train_batch_size: json_values.Count = 0
  select_checkpoint: str = "newest"


class _Config(msgspec.Struct):
  """The values of config.json that are read. Earlier versions did not record all of them."""

  task: str = ""
  recipe: str | None = None
  init_checkpoint: str = ""
  init_checkpoint_sha256: str = ""
  model: dict[str, Any] = {}
  optimizer: dict[str, Any] = {}
  train: _TrainSection = msgspec.field(default_factory=_TrainSection)
  data: _DataSection = msgspec.field(default_factory=_DataSection)
  training_data: _TrainingDataSummary = msgspec.field(default_factory=_TrainingDataSummary)
  stages: list[dict[str, Any]] = []


class _Runs(msgspec.Struct):
  """The values of runs.json that are read."""

  seeds: list[int]
  best_run: Annotated[str, msgspec.Meta(pattern=r"^run-[0-9]+\Z")]
  metrics: dict[str, dict[str, Any]]


def read_config(path: str) -> dict[str, Any]:
  """Reads config.json of a run.

  Raises:
    UserError: the file cannot be read, or a section or a value of it has the wrong type.
  """
  values = files.read_json(path, remedy=_REMEDY)
  json_values.convert(path, values, _Config, _REMEDY)
  return values


def read_runs(path: str) -> dict[str, Any]:
  """Reads runs.json. Numbers that are not finite are None.

  Raises:
    UserError: the file cannot be read, or it lacks the seeds, the best run or the metrics.
  """
  remedy = "make it again with the command of these runs"
  values = files.read_json(path, dict[str, Any], remedy, nan_is_null=True)
  json_values.convert(path, values, _Runs, remedy)
  return values


def read_results(path: str) -> dict[str, float]:
  """Reads the metrics in eval_results.json. A value that is null becomes NaN.

  Raises:
    UserError: the file cannot be read, or a value is not a number.
  """
  values = files.read_json(path, dict[str, int | float | None], _REMEDY, nan_is_null=True)
  return {name: math.nan if value is None else value for name, value in values.items()}
