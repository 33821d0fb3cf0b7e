"""Checks a model before its export is finished: on its examples and edge cases, and on data of its task (--eval_file).

The data is read, tokenized and scored by the code that evaluates runs. A format whose metric drops too much is refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert.data.examples import EXAMPLE_INDEX
from albert.data.schema import INPUT_IDS, INPUT_MASK
from albert.errors import RunError, UserError
from albert.export.checkpoint import ExportCheckpoint, SelectedForm
from albert.export.companion_files import NamedArrays, text_inputs
from albert.export.registry import EVALUATION_BATCH_SIZE, FORMS, TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.export.served_model import ServedModel, tokens_function
from albert.io import files
from albert.io.progress import log
from albert.tasks import registry as task_registry

# B rows, S sequence, K sequences of an example.

# Runs a model on a batch of ids.
Runner = Callable[[NamedArrays], dict[str, np.ndarray]]
# Name of the batch that holds all examples.
EXAMPLE_BATCH = "the examples"
# At most this many sequences of the examples are also run one at a time. A long SQuAD context has many sequences.
_MAX_SINGLE_SEQUENCES = 3
# Candidates that are not formats: the SavedModel, and the float32 model if the SavedModel has another precision.
SAVED_MODEL, FLOAT32 = "saved_model", "float32"

# The largest accepted drop of the metric without --max_metric_drop, as a share of the largest value that it can have.
DEFAULT_DROP = 0.01
_WARM_UPS, _ROUNDS = 2, 30  # of the measurement of latency


def id_test_batches(model: ServedModel, examples: NamedArrays) -> dict[str, NamedArrays]:
  """Makes batches of ids to run a model on: its examples, int32 [B, S] or [B, K, S] each, and edge cases.

  Each key of the result describes its batch in an error message. The first batch is EXAMPLE_BATCH.
  """
  max_length = model.max_positions
  batches = {EXAMPLE_BATCH: examples}
  for row in range(min(len(examples[INPUT_IDS]), _MAX_SINGLE_SEQUENCES)):
    single = {name: values[row : row + 1] for name, values in examples.items()}
    batches[f"example {row + 1} alone"] = _trim_padding(single)
  special_ids = model.tokenizer.special_ids
  is_mask = examples[INPUT_IDS] == special_ids.mask
  if np.any(is_mask):
    ids = np.where(is_mask, np.int32(special_ids.unk), examples[INPUT_IDS])
    batches["texts without [MASK]"] = {**examples, INPUT_IDS: ids}
  batches["an empty batch"] = {name: values[:0] for name, values in examples.items()}
  mask = examples[INPUT_MASK].copy()
  mask[0] = 0
  batches["a row of only padding"] = {**examples, INPUT_MASK: mask}
  batches["a single token"] = {name: values[:1, ..., :1] for name, values in examples.items()}
  first = _trim_padding({name: values.reshape(-1, values.shape[-1])[:1] for name, values in examples.items()})
  shape = [1] * (examples[INPUT_IDS].ndim - 1) + [max_length]
  batches[f"a sequence of {max_length} tokens"] = {name: np.resize(values, shape) for name, values in first.items()}
  # Only real tokens count toward the limit of the model: padding may go beyond it.
  num_padding = max(max_length + 1 - examples[INPUT_IDS].shape[-1], 1)
  batches[f"padding beyond {max_length} tokens"] = {
    name: np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, num_padding)]) for name, values in examples.items()
  }
  return batches


def text_test_batches(model: ServedModel) -> dict[str, NamedArrays]:
  """Makes edge cases for the signature serving_default. In each request all fields hold the same text."""

  def make_batch(text: str) -> NamedArrays:
    request = {field.name: [text, text] if field.is_list else text for field in model.fields}
    return text_inputs(model.fields, [request])

  return {
    "an empty batch": {name: values[:0] for name, values in make_batch("a").items()},
    "empty texts": make_batch(""),
    "texts of one word": make_batch("a"),
    "texts that are too long for one sequence": make_batch("a " * model.max_seq_length),
  }


def _trim_padding(example: NamedArrays) -> dict[str, np.ndarray]:
  """Cuts a batch of one example to the length of its longest sequence."""
  length = int(example[INPUT_MASK].sum(axis=-1).max())
  return {name: values[..., :length] for name, values in example.items()}


def run_test_batches(
  function: Runner, batches: Mapping[str, NamedArrays], *, function_name: str
) -> dict[str, dict[str, np.ndarray]]:
  """Runs a function on batches, which are named by their descriptions. Returns the answers to each batch by its name.

  Raises:
    RunError: the function fails, or an answer has a wrong number of rows or a number that is not finite.
  """
  answers_by_batch = {}
  for batch_name, inputs in batches.items():
    try:
      answers = function(inputs)
    except Exception as error:
      reason = " ".join(str(error).split())[-300:]
      raise RunError(f"{function_name} fails for {batch_name}: {reason}") from error
    rows = len(next(iter(inputs.values())))
    for name, value in answers.items():
      if value.shape[:1] != (rows,):
        raise RunError(
          f"{function_name}: for {batch_name}, {name!r} has the shape {list(value.shape)} instead of {rows} rows"
        )
      if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise RunError(
          f"{function_name}: for {batch_name}, {name!r} is not finite; do the weights of the checkpoint hold NaN?"
        )
    answers_by_batch[batch_name] = answers
  return answers_by_batch


def check_signatures(
  functions: Mapping[str, Any], model: ServedModel, examples: Mapping[str, NamedArrays]
) -> dict[str, dict[str, np.ndarray]]:
  """Runs both signatures of a model on its examples and on the edge cases, see run_test_batches.

  Args:
    functions: signature -> its concrete function.
    model: the model.
    examples: signature -> the inputs of the examples.
  Returns: description of each batch of id_test_batches -> the answers of the signature `tokens`.
  """
  texts = {EXAMPLE_BATCH: examples[TEXT_SIGNATURE]} | text_test_batches(model)
  batches = {TEXT_SIGNATURE: texts, TOKENS_SIGNATURE: id_test_batches(model, examples[TOKENS_SIGNATURE])}
  answers = {
    signature: run_test_batches(
      array_function(function), batches[signature], function_name=f"the signature {signature}"
    )
    for signature, function in functions.items()
  }
  return answers[TOKENS_SIGNATURE]


def largest_difference(answers: NamedArrays, expected: NamedArrays, *, exact: str = "") -> float:
  """Returns the largest difference of two sets of answers: absolute for expected values up to 1, else relative.

  Args:
    answers: the numbers to check, by name.
    expected: the answers of the SavedModel, by name. Its texts are ignored.
    exact: name of an integer answer that must be equal; "" for none. Other integers are not compared: they are ranks or
      positions of candidates, and candidates with almost equal probabilities may change their order.
  Returns: the difference; infinity if a name, a shape or the exact answer differs; NaN if a number is NaN.
  """
  expected_numbers = {name: value for name, value in expected.items() if value.dtype.kind in "fi"}
  expected_shapes = {name: value.shape for name, value in expected_numbers.items()}
  if {name: value.shape for name, value in answers.items()} != expected_shapes:
    return float("inf")
  if exact in expected_numbers and not np.array_equal(answers[exact], expected_numbers[exact]):
    return float("inf")
  differences = [
    np.max(np.abs(answers[name] - value) / np.maximum(1.0, np.abs(value)), initial=0.0)
    for name, value in expected_numbers.items()
    if value.dtype.kind == "f"
  ]
  return float(np.max(differences, initial=0.0))


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A model to measure.

  Attributes:
    name: SAVED_MODEL, FLOAT32, or the name of a format.
    num_bytes: size of its files; 0 if it is not part of the export.
    run: runs it on ids.
    note: a line for the model card; empty if the model is not a format.
  """

  name: str
  num_bytes: int
  run: Runner
  note: str = ""


class QualityCheck:
  """Measures the models of an export on the data of --eval_file.

  Args:
    form: the form in which the model is served.
    checkpoint: the checkpoint to export.
    eval_file: what the task's own evaluation reads: a file, or for some tasks globs or a folder.
    max_metric_drop: the largest accepted drop of the metric, in its unit; None for DEFAULT_DROP.
  Attributes:
    eval_file: see above.
    task: the form's task, with this data (an `albert.tasks.base.Task`).
    num_examples: number of examples in the data: rows, windows of SQuAD, or sequences of pretraining.
    metric_names: the metrics to show. Models are compared by the first one. Larger values of it are better.
  Raises:
    UserError: the form has no metric, or the data cannot be read or does not belong to the task.
  """

  def __init__(
    self, form: SelectedForm, checkpoint: ExportCheckpoint, eval_file: str, max_metric_drop: float | None = None
  ):
    model_class = form.model_class
    if not model_class.head:
      raise UserError(f"--eval_file={eval_file}: --task={form.name} has no metric to measure: leave --eval_file out")
    self.eval_file = eval_file
    self._form, self._checkpoint = form, checkpoint
    self._max_drop = DEFAULT_DROP * model_class.best_metric_value if max_metric_drop is None else max_metric_drop
    config = model_class.evaluation_config(form, eval_file)
    try:
      self.task: Any = task_registry.make_task(FORMS[form.name].task, checkpoint.config, config)
      self.task.check_inputs(train=False, evaluate=True, predict=False)
      ((self._split, self._data),) = self.task.evaluation_data().items()
    except UserError as error:
      raise UserError(str(error).replace("--eval_input_file", "--eval_file")) from error
    model_class.use_run(self.task, checkpoint.run_dir)
    self.num_examples = self._data.num_examples
    self.metric_names = model_class.metric_names(self.task)

  def batches(self) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of all examples, with the features of the task's batches, example_weight and example_index."""
    batches = self._data.evaluation_batches(batch_size=EVALUATION_BATCH_SIZE).as_numpy_iterator()
    for index, batch in enumerate(batches):
      yield {EXAMPLE_INDEX: np.arange(EVALUATION_BATCH_SIZE) + index * EVALUATION_BATCH_SIZE, **batch}

  def model_inputs(self, batch: NamedArrays) -> dict[str, np.ndarray]:
    """Returns the inputs of a batch for the signature `tokens`, int32 [B, S] or [B, K, S]."""
    return self._form.model_class.evaluation_inputs(batch, self._form)

  def compute_metrics(self, run: Runner) -> dict[str, float]:
    """Returns the task's metrics of a model on all examples."""
    from albert.data.pipeline import EXAMPLE_WEIGHT
    from albert.training.evaluator import concatenate_outputs  # imports the loop, which other exports do not need

    model_class = self._form.model_class
    batch_outputs = []
    for batch in self.batches():
      outputs = model_class.training_outputs(run(self.model_inputs(batch)), batch)
      batch_outputs.append(outputs | {name: batch[name] for name in (EXAMPLE_INDEX, EXAMPLE_WEIGHT)})
    return model_class.evaluation_metrics(self.task, self._split, concatenate_outputs(batch_outputs))

  def run(self, directory: str, function: Any, formats: Sequence[Candidate]) -> dict[str, Any]:
    """Measures the float32 model, the SavedModel if it has another precision, and the other formats, see measure.

    Args:
      directory: the directory of the SavedModel.
      function: the concrete function of its signature `tokens`.
      formats: the other formats of the export.
    """
    names = ["saved_model.pb", *(files.join("variables", name) for name in files.listdir(f"{directory}/variables"))]
    paths = [files.join(directory, name) for name in names]
    num_bytes = sum(stat.num_bytes for stat in files.stats(paths).values())
    candidates = [Candidate(SAVED_MODEL, num_bytes, array_function(function))]
    if self._form.precision != FLOAT32:
      float32_form = dataclasses.replace(self._form, precision=FLOAT32)
      float32_model = self._form.model_class(self._checkpoint, float32_form)
      candidates.insert(0, Candidate(FLOAT32, 0, array_function(tokens_function(float32_model))))
    return self.measure([*candidates, *formats])

  def measure(self, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Measures models, and compares the task's metric with that of the first one, the float32 model.

    Returns: the key `quality` of servable.json.
      eval_file, num_examples, metric_names: see the attributes.
      max_metric_drop: the largest accepted drop of the metric.
      num_tokens: number of tokens of the example whose latency was measured.
      num_threads: number of cores of the machine that measured.
      models: for each candidate its name, num_bytes, metrics, drop (by how much the first metric is smaller than that
        of the float32 model) and latency_ms, the time of the fastest of several requests with one example. Other work
        on the machine changes it less than it changes the median.
    Raises:
      UserError: the metric of a model drops by too much, or the metric of the float32 model is not a number.
    """
    metric = self.metric_names[0]
    metrics: dict[str, dict[str, float]] = {}
    for candidate in candidates:
      metrics[candidate.name] = self.compute_metrics(candidate.run)
      log(f"{candidate.name}: {metric} {metrics[candidate.name][metric]:.6g}")
    baseline = metrics[candidates[0].name][metric]
    if not np.isfinite(baseline):
      raise UserError(
        f"--eval_file={self.eval_file}: the {metric} of the float32 model is {baseline}: give a file with more examples"
      )
    drops = {name: baseline - values[metric] for name, values in metrics.items()}
    # The tolerance accepts a drop of exactly the limit, whose difference may be rounded up.
    limit = self._max_drop + 1e-9 * self._form.model_class.best_metric_value
    refused = [
      f"{name} to {metrics[name][metric]:.6g} (by {drop:.3g})" for name, drop in drops.items() if not drop <= limit
    ]
    if refused:
      raise UserError(
        f"--eval_file={self.eval_file}: the {metric} drops from {baseline:.6g} (float32) with {', '.join(refused)}, "
        f"more than --max_metric_drop={self._max_drop:g}: leave this format out, or accept a larger drop"
      )
    # One example of median length, without padding: most tasks sort the examples by their lengths.
    number, row = divmod(self.num_examples // 2, EVALUATION_BATCH_SIZE)
    batch = self.model_inputs(next(itertools.islice(self.batches(), number, None)))
    request = _trim_padding({name: values[row : row + 1] for name, values in batch.items()})
    # The models take turns, so that other work on the machine slows all of them alike.
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for _ in range(_WARM_UPS + _ROUNDS):
      for candidate in candidates:
        start = time.perf_counter()
        candidate.run(request)
        seconds[candidate.name].append(time.perf_counter() - start)
    return {
      "eval_file": self.eval_file,
      "num_examples": self.num_examples,
      "metric_names": list(self.metric_names),
      "max_metric_drop": self._max_drop,
      "num_tokens": int(request[INPUT_MASK].sum()),
      "num_threads": os.cpu_count() or 1,
      "models": [
        {
          "name": candidate.name,
          "num_bytes": candidate.num_bytes,
          "metrics": {name: metrics[candidate.name][name] for name in self.metric_names},
          "drop": drops[candidate.name],
          "latency_ms": 1000 * min(seconds[candidate.name][_WARM_UPS:]),
        }
        for candidate in candidates
      ],
    }


def array_function(function: Any) -> Runner:
  """Returns a function of arrays that calls a concrete function of tensors."""

  def run(inputs: NamedArrays) -> dict[str, np.ndarray]:
    answers = function(**{name: tf.constant(values) for name, values in inputs.items()})
    return {name: tensor.numpy() for name, tensor in answers.items()}

  return run
