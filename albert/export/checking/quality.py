"""Measures the quality, the size and the latency of an export's models, and refuses formats that lose too much."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert.data.examples import EXAMPLE_INDEX
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.shard_files.schema import INPUT_MASK
from albert.errors import UserError
from albert.export.checking.form_evaluations import BATCH_SIZE, FormEvaluation, NamedArrays
from albert.export.checkpoint import ExportCheckpoint
from albert.export.other_formats.converters import Runner, WrittenFormat
from albert.export.registry import FORMS
from albert.export.selection import SelectedForm
from albert.export.signatures import tokens_function
from albert.io import files
from albert.training.evaluator import concatenate_outputs

# The models that are no formats: the SavedModel, and the float32 model if the SavedModel has another precision.
SAVED_MODEL, FLOAT32 = "saved_model", "float32"

# The largest drop of the metric that is accepted if --max_metric_drop is not given, as a share of its best value.
DEFAULT_DROP = 0.01
_WARM_UPS, _ROUNDS = 2, 30


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A model to measure.

  Attributes:
    name: SAVED_MODEL, FLOAT32, or the name of a format.
    num_bytes: size of its files; 0 if it is not part of the export.
    run: runs it on ids.
  """

  name: str
  num_bytes: int
  run: Runner


@dataclasses.dataclass(frozen=True)
class ModelQuality:
  """What was measured for one model.

  Attributes:
    name, num_bytes: see Candidate.
    metrics: the task's metrics, by name.
    drop: by how much the first metric is smaller than that of the float32 model.
    latency_ms: time of the fastest of several requests of one example, in milliseconds. Other work on the machine
      changes it less than the median.
  """

  name: str
  num_bytes: int
  metrics: Mapping[str, float]
  drop: float
  latency_ms: float


@dataclasses.dataclass(frozen=True)
class QualityReport:
  """The measurements of an export.

  Attributes:
    eval_file: the data.
    num_examples: number of examples in it (windows of SQuAD).
    metric_names: the metrics, the one that decides first.
    max_metric_drop: the largest accepted drop of the first metric.
    num_tokens: number of tokens of the example whose latency was measured.
    num_threads: number of cores of the machine that measured.
    models: the float32 model, then the others.
  """

  eval_file: str
  num_examples: int
  metric_names: Sequence[str]
  max_metric_drop: float
  num_tokens: int
  num_threads: int
  models: Sequence[ModelQuality]

  def to_dict(self) -> dict[str, Any]:
    """The values by name, as plain JSON values."""
    return dataclasses.asdict(self)


class QualityCheck:
  """Measures the models of an export on the data of --eval_file.

  Args:
    form: the form in which the model is served.
    checkpoint: the checkpoint to export.
    eval_file: the data, see FormEvaluation.
    max_metric_drop: the largest accepted drop of the metric, in its unit; None for one percent of its best value.
  Raises:
    UserError: the form has no metric, or the data cannot be read or does not belong to the task.
  """

  def __init__(
    self, form: SelectedForm, checkpoint: ExportCheckpoint, eval_file: str, max_metric_drop: float | None = None
  ):
    evaluation_class = form.model_class.evaluation_class
    if evaluation_class is None:
      raise UserError(f"--eval_file={eval_file}: --task={form.name} has no metric to measure: leave --eval_file out")
    self._form, self._checkpoint = form, checkpoint
    self.evaluation = evaluation_class(FORMS[form.name].task, checkpoint, form.settings, eval_file)
    default_drop = DEFAULT_DROP * evaluation_class.best_value
    self._max_drop = default_drop if max_metric_drop is None else max_metric_drop

  def compute_metrics(self, function: Any) -> dict[str, float]:
    """The task's metrics of a model, given as the concrete function of its signature `tokens`."""
    return _compute_metrics(self.evaluation, _function_runner(function))

  def run(self, directory: str, function: Any, formats: Sequence[WrittenFormat]) -> QualityReport:
    """Measures the float32 model, the SavedModel if it has another precision, and the other formats.

    Args:
      directory: the directory of the SavedModel.
      function: the concrete function of its signature `tokens`.
      formats: the formats beside it.
    Raises:
      UserError: see measure.
    """
    settings = self._form.settings
    saved_model = Candidate(SAVED_MODEL, _saved_model_bytes(directory), _function_runner(function))
    candidates = [saved_model]
    if settings.dtype != tf.float32:
      float32_model = self._form.model_class(self._checkpoint, dataclasses.replace(settings, dtype=tf.float32))
      candidates.insert(0, Candidate(FLOAT32, 0, _function_runner(tokens_function(float32_model))))
    candidates += [Candidate(written.name, written.num_bytes, written.run) for written in formats]
    return measure(self.evaluation, candidates, self._max_drop)


def _saved_model_bytes(directory: str) -> int:
  """The size of the graph and the variables."""
  variables = files.join(directory, "variables")
  paths = [files.join(directory, "saved_model.pb"), *(files.join(variables, name) for name in files.listdir(variables))]
  return sum(stat.num_bytes for stat in files.stats(paths).values())


def _function_runner(function: Any) -> Runner:
  """Runs a concrete function of ids. The answers that are texts are dropped."""

  def run(inputs: NamedArrays) -> dict[str, np.ndarray]:
    answers = function(**{name: tf.constant(values) for name, values in inputs.items()})
    return {name: tensor.numpy() for name, tensor in answers.items() if tensor.dtype != tf.string}

  return run


def measure(evaluation: FormEvaluation, candidates: Sequence[Candidate], max_metric_drop: float) -> QualityReport:
  """Measures models, and compares the task's metric with that of the first one.

  Args:
    evaluation: the data and the metrics.
    candidates: the float32 model, then the models to compare with it.
    max_metric_drop: the largest accepted drop of the metric.
  Returns: the measurements.
  Raises:
    UserError: the metric of a model is smaller by more than max_metric_drop, or the metric of the float32 model is not
      a number.
  """
  metric = evaluation.metric_names[0]
  metrics: dict[str, dict[str, float]] = {}
  for candidate in candidates:
    metrics[candidate.name] = _compute_metrics(evaluation, candidate.run)
    print(f"{candidate.name}: {metric} {metrics[candidate.name][metric]:.6g}", file=sys.stderr, flush=True)
  baseline = metrics[candidates[0].name][metric]
  if not np.isfinite(baseline):
    raise UserError(
      f"--eval_file={evaluation.eval_file}: the {metric} of the float32 model is {baseline}: give a file with more "
      "examples"
    )
  drops = {name: baseline - values[metric] for name, values in metrics.items()}
  _check_drops(evaluation, {name: values[metric] for name, values in metrics.items()}, drops, max_metric_drop)
  request = _median_example(evaluation)
  latencies = _measure_latencies(candidates, request)
  return QualityReport(
    eval_file=evaluation.eval_file,
    num_examples=evaluation.num_examples,
    metric_names=list(evaluation.metric_names),
    max_metric_drop=max_metric_drop,
    num_tokens=int(request[INPUT_MASK].sum()),
    num_threads=os.cpu_count() or 1,
    models=[
      ModelQuality(
        name=candidate.name,
        num_bytes=candidate.num_bytes,
        metrics={name: metrics[candidate.name][name] for name in evaluation.metric_names},
        drop=drops[candidate.name],
        latency_ms=latencies[candidate.name],
      )
      for candidate in candidates
    ],
  )


def _check_drops(
  evaluation: FormEvaluation, values: Mapping[str, float], drops: Mapping[str, float], limit: float
) -> None:
  """Raises UserError if a drop is larger than `limit`. `values` and `drops`: name of the model -> metric, drop."""
  metric = evaluation.metric_names[0]
  baseline = next(iter(values.values()))
  refused = [
    f"{name} to {values[name]:.6g} (by {drop:.3g})"
    for name, drop in drops.items()
    # A drop of exactly the limit is accepted, also after rounding of the difference.
    if not drop <= limit + 1e-9 * evaluation.best_value
  ]
  if refused:
    raise UserError(
      f"--eval_file={evaluation.eval_file}: the {metric} drops from {baseline:.6g} (float32) with "
      f"{', '.join(refused)}, more than --max_metric_drop={limit:g}: leave this format out, or accept a larger drop"
    )


def _compute_metrics(evaluation: FormEvaluation, run: Runner) -> dict[str, float]:
  """The metrics of a model on all examples."""
  batch_outputs = []
  for batch in evaluation.batches():
    outputs = evaluation.outputs(run(evaluation.model_inputs(batch)), batch)
    batch_outputs.append(outputs | {name: batch[name] for name in (EXAMPLE_INDEX, EXAMPLE_WEIGHT)})
  return evaluation.metrics(concatenate_outputs(batch_outputs))


def _median_example(evaluation: FormEvaluation) -> NamedArrays:
  """The inputs of one example of median length, without padding: int32 [1, S] or [1, K, S]."""
  number, row = divmod(evaluation.num_examples // 2, BATCH_SIZE)  # most tasks sort the examples by their lengths
  batch = next(itertools.islice(evaluation.batches(), number, None))
  example = {name: values[row : row + 1] for name, values in evaluation.model_inputs(batch).items()}
  length = int(example[INPUT_MASK].sum(axis=-1).max())
  return {name: values[..., :length] for name, values in example.items()}


def _measure_latencies(candidates: Sequence[Candidate], request: NamedArrays) -> dict[str, float]:
  """The time of the fastest request in milliseconds, by the name of the model. The models take turns."""
  for candidate in candidates:
    for _ in range(_WARM_UPS):
      candidate.run(request)
  seconds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
  for _ in range(_ROUNDS):
    for candidate in candidates:
      start = time.perf_counter()
      candidate.run(request)
      seconds[candidate.name].append(time.perf_counter() - start)
  return {name: 1000 * min(times) for name, times in seconds.items()}
