"""Turns the answers of a served model to token ids into the metrics of its task. Each form has one class here.

The data is read, tokenized and scored by the code with which runs are evaluated.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from albert.config.base import Config
from albert.config.run import PretrainingConfig
from albert.data.examples import EXAMPLE_INDEX, OPTION_MASK
from albert.data.shard_files.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.errors import UserError
from albert.export.checkpoint import ExportCheckpoint
from albert.metrics.classification import ERRORS
from albert.tasks import registry as task_registry
from albert.tokenization.tokenizer import load_tokenizer

if TYPE_CHECKING:  # an export without --eval_file need not import the tasks
  from albert.export.served_model import ExportSettings
  from albert.tasks.base import DatasetOutputs, Task
  from albert.tasks.glue.model import MultiLabelTask, TextTask
  from albert.tasks.pretraining.task import PretrainingTask

# B examples in a batch, N examples of the dataset, C classes, K options of a question, P masked tokens of a sequence,
# S sequence, M masks.

NamedArrays = Mapping[str, np.ndarray]
# Number of examples that a model answers at once.
BATCH_SIZE = 16
# Probabilities below it, and above 1 - it, are rounded to it, so that their logits are finite.
_SMALLEST_PROBABILITY = 1e-30
_PRETRAINING_FLAG = "--eval_input_file"


class FormEvaluation(abc.ABC):
  """The data of --eval_file, and how the answers of a form to it become the metrics of the form's task.

  Args:
    task_name: the form's task, a name of `albert.tasks.registry.TASKS`.
    checkpoint: the checkpoint to export.
    settings: how the served model is built.
    eval_file: what the task's own evaluation reads: a file, or for some tasks globs or a folder.

  Attributes:
    task: the task, with this data.
    eval_file: see above.
    best_value: the largest value of the metrics, 1 or 100.
    num_examples: number of examples in the data: rows, windows of SQuAD, or sequences of pretraining.

  Raises:
    UserError: the data cannot be read, or does not belong to the task.
  """

  best_value: ClassVar[float] = 1.0
  task_settings: ClassVar[Mapping[str, Any]] = {}

  def __init__(self, task_name: str, checkpoint: ExportCheckpoint, settings: ExportSettings, eval_file: str):
    self.eval_file = eval_file
    config = self._task_config(settings, eval_file)
    self.task: Task = task_registry.make_task(task_name, checkpoint.config, config)
    self.task.check_inputs(train=False, evaluate=True, predict=False)
    ((self._split, self._data),) = self.task.evaluation_data().items()
    self.num_examples = self._data.num_examples

  def _task_config(self, settings: ExportSettings, eval_file: str) -> Config:
    """The config of the task: that of the form, with the given file instead of those of the run."""
    tokenizer = settings.tokenizer_config
    changes: dict[str, Any] = {
      "eval_file": eval_file,
      "spm_model_file": tokenizer.model_file,
      "do_lower_case": tokenizer.do_lower_case,
      "keep_accents": tokenizer.keep_accents,
      "convert_quotes": tokenizer.convert_quotes,
      "max_seq_length": settings.max_seq_length,
      "pad_to_max_length": False,
      "cache_dir": "",
    }
    return dataclasses.replace(settings.config, **changes, **self.task_settings)

  @property
  def metric_names(self) -> Sequence[str]:
    """The metrics to show. Models are compared by the first one. Larger values of it are better."""
    return (self.task.best_metric,)

  def batches(self) -> Iterator[dict[str, np.ndarray]]:
    """Yields all examples, BATCH_SIZE at a time, with the features of the task's batches, example_weight and index."""
    first = 0
    for batch in self._data.evaluation_batches(batch_size=BATCH_SIZE).as_numpy_iterator():
      yield {EXAMPLE_INDEX: np.arange(first, first + BATCH_SIZE), **batch}
      first += BATCH_SIZE

  def model_inputs(self, batch: NamedArrays) -> dict[str, np.ndarray]:
    """The inputs of a batch for the signature `tokens`, int32 [B, S] or [B, K, S]."""
    return {name: batch[name].astype(np.int32) for name in (INPUT_IDS, INPUT_MASK, SEGMENT_IDS)}

  @abc.abstractmethod
  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    """Converts the answers to a batch to the outputs of the task's `forward`, [B, ...] each."""

  def metrics(self, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the task's metrics.

    Args:
      outputs: the results of `outputs` for all examples, in the order of the examples, with example_index.
    """
    return self.task.evaluation_metrics(self._split, outputs)


def _log(probabilities: np.ndarray) -> np.ndarray:
  """Logits whose softmax is `probabilities`."""
  return np.log(np.maximum(probabilities.astype(np.float64), _SMALLEST_PROBABILITY))


class ClassifierEvaluation(FormEvaluation):
  """Classification: `probabilities` [B, C] become logits."""

  task: TextTask
  task_settings: ClassVar[Mapping[str, Any]] = {"eval_share": 0.0}  # the file is evaluated on, not a part of another

  @property
  def metric_names(self) -> Sequence[str]:
    # At most three, so that the table of the model card is not too wide.
    return [name for name in self.task.spec.metrics if name not in ERRORS][:3]

  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    return {"logits": _log(answers["probabilities"])}


class MultiLabelEvaluation(ClassifierEvaluation):
  """Several labels: `probabilities` [B, C] become logits. The thresholds are those of the run."""

  task: MultiLabelTask

  def __init__(self, task_name: str, checkpoint: ExportCheckpoint, settings: ExportSettings, eval_file: str):
    super().__init__(task_name, checkpoint, settings, eval_file)
    self.task.read_run(checkpoint.run_dir)
    self.task.chooses_thresholds = False

  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    probabilities = answers["probabilities"].astype(np.float64)
    return {"logits": _log(probabilities) - _log(1.0 - probabilities)}


class RegressionEvaluation(ClassifierEvaluation):
  """Regression: `value` [B]."""

  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    return {"values": answers["value"]}


class RaceEvaluation(FormEvaluation):
  """Multiple choice: `probabilities` [B, K] become logits."""

  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    return {"logits": _log(answers["probabilities"]), OPTION_MASK: batch[OPTION_MASK]}


class TaggingEvaluation(FormEvaluation):
  """Token classification: `tag_probabilities` [B, S, C] become log probabilities."""

  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    return {"log_probabilities": _log(answers["tag_probabilities"])}


class _SquadEvaluation(FormEvaluation):
  """SQuAD: an answer holds the best span of a window, and the task chooses among the windows of a question."""

  best_value = 100.0

  @property
  def metric_names(self) -> Sequence[str]:
    return (self.task.best_metric, "exact")


class SquadV1Evaluation(_SquadEvaluation):
  """SQuAD v1.1: all logits are -inf except those of the span's start and end."""

  task_settings: ClassVar[Mapping[str, Any]] = {"version_2_with_negative": False}

  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    rows = np.arange(len(answers["start"]))
    start_logits = np.full(batch[INPUT_IDS].shape, -np.inf)
    end_logits = np.full(batch[INPUT_IDS].shape, -np.inf)
    start_logits[rows, answers["start"]] = answers["score"]
    end_logits[rows, answers["end"]] = 0.0  # the score is the sum of both
    return {"start_logits": start_logits, "end_logits": end_logits}


class SquadV2Evaluation(_SquadEvaluation):
  """SQuAD v2.0: the span is the only result of the beam search."""

  task_settings: ClassVar[Mapping[str, Any]] = {"version_2_with_negative": True}

  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    probability = answers["no_answer_probability"].astype(np.float64)
    return {
      "start_log_probs": answers["score"][:, None],
      "start_positions": answers["start"][:, None],
      "end_log_probs": np.zeros([len(probability), 1, 1]),
      "end_positions": answers["end"][:, None, None],
      "null_logits": _log(probability) - _log(1.0 - probability),
    }


class _PretrainingEvaluation(FormEvaluation):
  """Base class of the forms whose data are the TFRecord files of pretraining. Their metric is an accuracy."""

  task: PretrainingTask

  def __init__(self, task_name: str, checkpoint: ExportCheckpoint, settings: ExportSettings, eval_file: str):
    try:
      super().__init__(task_name, checkpoint, settings, eval_file)
    except UserError as error:
      raise UserError(str(error).replace(_PRETRAINING_FLAG, "--eval_file")) from error

  def _task_config(self, settings: ExportSettings, eval_file: str) -> Config:
    assert isinstance(settings.config, PretrainingConfig)
    return PretrainingConfig(
      eval_input_file=eval_file,
      spm_model_file=settings.tokenizer_config.model_file,
      do_lower_case=settings.tokenizer_config.do_lower_case,
      keep_accents=settings.tokenizer_config.keep_accents,
      sentence_prediction=settings.config.sentence_prediction,
    )

  def metrics(self, outputs: DatasetOutputs) -> dict[str, float]:
    return {self.metric_names[0]: float(outputs["num_correct"].sum() / max(outputs["num_predicted"].sum(), 1))}


class FillMaskEvaluation(_PretrainingEvaluation):
  """Masked LM: the accuracy of the most probable token, with [MASK] at every masked position.

  In the TFRecord files a tenth of the masked tokens is unchanged, and a tenth is replaced by a random token. A served
  model predicts only at [MASK].
  """

  def __init__(self, task_name: str, checkpoint: ExportCheckpoint, settings: ExportSettings, eval_file: str):
    super().__init__(task_name, checkpoint, settings, eval_file)
    self._mask_id = load_tokenizer(settings.tokenizer_config).special_ids.mask

  @property
  def metric_names(self) -> Sequence[str]:
    from albert.tasks.pretraining.task import MASKED_LM_ACCURACY

    return (MASKED_LM_ACCURACY,)

  def model_inputs(self, batch: NamedArrays) -> dict[str, np.ndarray]:
    inputs = super().model_inputs(batch)
    rows, columns = np.nonzero(batch["masked_lm_weights"] > 0)
    inputs[INPUT_IDS] = inputs[INPUT_IDS].copy()
    inputs[INPUT_IDS][rows, batch["masked_lm_positions"][rows, columns]] = self._mask_id
    return inputs

  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    is_predicted = batch["masked_lm_weights"] > 0  # [B, P]
    # An answer holds the masks in the order of their positions: the number of the mask at each position, [B, S].
    numbers = np.cumsum(self.model_inputs(batch)[INPUT_IDS] == self._mask_id, axis=1) - 1
    numbers = np.take_along_axis(numbers, batch["masked_lm_positions"], axis=1)  # [B, P]
    predicted = np.take_along_axis(answers["ids"][:, :, 0], np.maximum(numbers, 0), axis=1)
    is_correct = (predicted == batch["masked_lm_ids"]) & is_predicted
    return {"num_correct": is_correct.sum(axis=1), "num_predicted": is_predicted.sum(axis=1)}


class SentenceOrderEvaluation(_PretrainingEvaluation):
  """Sentence order, or next sentence: the accuracy of the more probable class."""

  @property
  def metric_names(self) -> Sequence[str]:
    return (f"{self.task.sentence_metric}_accuracy",)

  def outputs(self, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    is_correct = answers["probabilities"].argmax(axis=1) == batch["next_sentence_labels"][:, 0]
    return {"num_correct": is_correct.astype(np.int32), "num_predicted": np.ones(len(is_correct), np.int32)}
