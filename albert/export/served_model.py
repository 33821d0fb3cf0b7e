"""The base class of all served models: a SavedModel that takes texts or ids and returns named answers.

Each form of `albert.export.registry` is a subclass. The functions below it make the signatures of the SavedModel.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.errors import UserError
from albert.export import network
from albert.export.checkpoint import ExportCheckpoint, SelectedForm
from albert.export.companion_files import NamedArrays, RequestField
from albert.export.network import TokenBatch, TokenLayout
from albert.io.text import counted
from albert.tokenization.graph import make_graph_tokenizer
from albert.tokenization.recorded_settings import SETTINGS

# B batch, K texts in a field that is a list, S sequence.

TOKEN_INPUTS = (INPUT_IDS, INPUT_MASK, SEGMENT_IDS)
# Inputs or answers by name. The first dimension of each is the batch.
AnswerTensors = dict[str, tf.Tensor]
# Probabilities below it, and above 1 - it, are rounded to it, so that their logits are finite.
_SMALLEST_PROBABILITY = 1e-30


class ServedModel(tf.Module, abc.ABC):
  """A model and its text processing in one TensorFlow graph.

  A subclass defines the fields of a request (`fields`), how texts become ids (`encode`), the answers to ids
  (`compute`), and the texts of the model card.

  Args:
    checkpoint: the weights, the model's config and the vocabulary.
    form: the form and its settings.
  Attributes:
    task_config: config of the form's task.
    labels: the classes in the order of the answer `probabilities`; () if the form has no classes.
    thresholds: label -> the probability from which on it is predicted, if an example may have several; {} if not.
    max_seq_length: maximum number of tokens in a sequence that is made from text.
    max_positions: maximum number of real tokens in a sequence, which is the number of the model's position embeddings.
    hidden_size: hidden size of the encoder.
  Raises:
    UserError: the checkpoint lacks a weight, or a weight has the wrong shape.
  """

  # Name of the head that the checkpoint must hold, a key of albert.weights.names.heads; "" for the encoder alone, whose
  # answers no task has a metric for.
  head: ClassVar[str] = ""
  # Whether the checkpoint must hold the pooler.
  uses_pooler: ClassVar[bool] = True
  # What the model does, in words that follow "An ALBERT model that " in the model card.
  summary: str = ""
  # Description of each answer, by name, in the order of the model card.
  answers: ClassVar[Mapping[str, str]] = {}
  # The rows of an answer may have different numbers of entries. Then they are padded, and counted_by tells a client how
  # many entries of a row are real. It is the name of an answer that holds this number, or of a list field of the
  # request that has as many entries. "" if answers are not padded.
  counted_by: ClassVar[str] = ""
  # The fields of a request, in the order of the columns of a tab-separated file.
  fields: Sequence[RequestField]
  # Rank of the ids: 2 for [B, S], or 3 for [B, K, S] if an example has several sequences.
  ids_rank: int = 2
  # What a sequence of ids consists of, for the model card.
  ids_meaning: str = "[CLS] text [SEP], or [CLS] first [SEP] second [SEP], then padding"
  # Whether the tokenizer must give the character offsets of tokens.
  needs_offsets: ClassVar[bool] = False
  # For --eval_file: the largest value of the metric, and settings of the task that differ from those of the run.
  best_metric_value: ClassVar[float] = 1.0
  evaluation_settings: ClassVar[Mapping[str, Any]] = {}

  def __init__(self, checkpoint: ExportCheckpoint, form: SelectedForm):
    super().__init__(name="albert")
    self._config, self.task_config = checkpoint.config, form.config
    self.labels: Sequence[str] = ()
    self.thresholds: Mapping[str, float] = {}
    self.max_seq_length, self.max_positions = form.max_seq_length, checkpoint.config.max_position_embeddings
    self.hidden_size = checkpoint.config.hidden_size
    self.tokenizer = make_graph_tokenizer(form.tokenizer_config, with_offsets=self.needs_offsets)
    dtype = tf.as_dtype(form.precision)
    self.encoder = network.ServedEncoder(checkpoint.config, checkpoint.encoder_weights(), dtype)

  @abc.abstractmethod
  def truncation_note(self) -> str:
    """Full sentences for the model card about how texts that are too long are cut."""

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Any) -> str | None:
    """Describes why the settings of a checkpoint's run do not allow this form; None if they do.

    It is called only if the checkpoint has the weights of the form.

    Args:
      checkpoint: the checkpoint to serve.
      config: config of the form's task.
    """
    return None

  @abc.abstractmethod
  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """Tokenizes texts.

    Args:
      **texts: the fields of the requests, string [B] or [B, K].
    Returns: ids of rank `ids_rank`.
    """

  def answer_texts(self, **texts: tf.Tensor) -> AnswerTensors:
    """Answers texts: the fields of the requests, string [B] or [B, K]."""
    return self.answer_tokens(self.encode(**texts))

  @abc.abstractmethod
  def compute(self, tokens: TokenBatch, layout: TokenLayout) -> AnswerTensors:
    """Computes the answers that are numbers, with ops that TFLite and ONNX have if `layout` computes padding.

    Args:
      tokens: ids with normalized padding, int32 [B, S], or [B * K, S] if an example has several sequences.
      layout: how the tokens are arranged in the computation.
    Returns: float32 or int32 [B, ...] by name.
    """

  def add_text_answers(self, answers: AnswerTensors) -> AnswerTensors:
    """Adds the answers that are texts, if the form has any, to the answers of `compute`."""
    return answers

  @abc.abstractmethod
  def examples(self) -> list[dict[str, Any]]:
    """Returns example requests for the checks and the model card: field name -> a text or a list of texts."""

  def available_answers(self) -> Mapping[str, str]:
    """The entries of `answers` that this checkpoint can give."""
    return self.answers

  def answer_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers ids of rank `ids_rank`."""
    flat, has_tokens = network.merge_axes(tokens)
    flat = network.check_length(flat, self.max_positions)
    return self.add_text_answers(self.compute(flat, network.UnpaddedLayout(flat, self._config, has_tokens)))

  def portable_answer_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers ids like answer_tokens, but uses only ops that TFLite and ONNX have, and returns only numbers."""
    num_rows = tf.shape(tokens.input_ids)[0]
    # TFLite and ONNX cannot compute an empty batch: it gets one row.
    paddings = [[0, tf.maximum(1 - num_rows, 0)], *[[0, 0]] * (self.ids_rank - 1)]
    flat, has_tokens = network.merge_axes(TokenBatch(*(tf.pad(values, paddings) for values in tokens)))
    flat = network.normalize_padding(flat)
    answers = self.compute(flat, TokenLayout(flat, self._config, has_tokens))
    return {name: values[:num_rows] for name, values in answers.items()}

  @classmethod
  def evaluation_config(cls, form: SelectedForm, eval_file: str) -> Any:
    """The config of the form's task with the data of --eval_file instead of the files of the run."""
    tokenizer = form.tokenizer_config
    changes: dict[str, Any] = {name: getattr(tokenizer, name) for name in SETTINGS}
    changes |= {"eval_file": eval_file, "spm_model_file": tokenizer.model_file, "cache_dir": ""}
    changes |= {"max_seq_length": form.max_seq_length, "pad_to_max_length": False}
    return dataclasses.replace(form.config, **changes, **cls.evaluation_settings)

  @classmethod
  def use_run(cls, task: Any, run_dir: str) -> None:
    """Makes the form's task use what its run, if there is one, has stored, such as thresholds."""
    if run_dir:
      task.read_run(run_dir)

  @classmethod
  def metric_names(cls, task: Any) -> Sequence[str]:
    """The metrics of the form's task to show. Models are compared by the first one; larger values are better."""
    return (task.best_metric,)

  @classmethod
  def evaluation_inputs(cls, batch: NamedArrays, form: SelectedForm) -> dict[str, np.ndarray]:
    """The inputs of the signature `tokens` for a batch of the task's evaluation, int32 [B, S] or [B, K, S]."""
    return {name: batch[name].astype(np.int32) for name in TOKEN_INPUTS}

  @classmethod
  def training_outputs(cls, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    """Converts the answers to a batch to the outputs of the task's `forward`, [B, ...] each."""
    return {"logits": log_of(answers["probabilities"])}

  @classmethod
  def evaluation_metrics(cls, task: Any, split: str, outputs: Any) -> dict[str, float]:
    """Computes the task's metrics from the `training_outputs` of all examples, a `DatasetOutputs`."""
    return dict(task.evaluation_metrics(split, outputs))


def log_of(probabilities: np.ndarray) -> np.ndarray:
  """Logits whose softmax is `probabilities`, float64."""
  return np.log(np.maximum(probabilities.astype(np.float64), _SMALLEST_PROBABILITY))


def log_odds_of(probabilities: np.ndarray) -> np.ndarray:
  """Logits whose sigmoid is `probabilities`, float64."""
  return log_of(probabilities) - log_of(1.0 - probabilities.astype(np.float64))


def load_linear_head(
  checkpoint: ExportCheckpoint, labels: Sequence[str], owner: str, remedy: str
) -> network.LinearHead:
  """Loads the head `classifier` of `owner`, which has an output for each label, or one output without labels."""
  weights, num_outputs = checkpoint.head_weights("classifier", labels), len(labels) or 1
  if len(weights["output_bias"]) != num_outputs:
    num_held = counted(len(weights["output_bias"]), "output")
    raise UserError(
      f"{checkpoint.file.flag}={checkpoint.file.path}: its head has {num_held}, but {owner} has {num_outputs}{remedy}"
    )
  return network.LinearHead(weights)


def text_function(model: ServedModel) -> Any:
  """Makes the concrete function of the signature serving_default: texts, [B] or [B, K], by field -> answers by name."""
  specs = {
    field.name: tf.TensorSpec([None, None] if field.is_list else [None], tf.string, name=field.name)
    for field in model.fields
  }

  @tf.function(autograph=False)
  def serving_default(**texts: tf.Tensor) -> AnswerTensors:
    first_field, *other_fields = texts
    for other_field in other_fields:
      message = f"{first_field} and {other_field} differ in length: give the same number of each"
      tf.debugging.assert_equal(tf.shape(texts[first_field])[0], tf.shape(texts[other_field])[0], message=message)
    return model.answer_texts(**texts)

  return serving_default.get_concrete_function(**specs)


def tokens_function(model: ServedModel) -> Any:
  """Makes the concrete function of the signature tokens: ids, int32 [B, S] or [B, K, S] -> answers by name."""

  @tf.function(autograph=False)
  def tokens(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> AnswerTensors:
    return model.answer_tokens(TokenBatch(input_ids, input_mask, segment_ids))

  return tokens.get_concrete_function(**_token_specs(model))


def portable_function(model: ServedModel) -> Any:
  """Makes a tf.function of ids that uses only ops that TFLite and ONNX have, and returns only numbers."""

  @tf.function(autograph=False, input_signature=list(_token_specs(model).values()))
  def numbers(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> AnswerTensors:
    return model.portable_answer_tokens(TokenBatch(input_ids, input_mask, segment_ids))

  return numbers


def _token_specs(model: ServedModel) -> dict[str, tf.TensorSpec]:
  return {name: tf.TensorSpec([None] * model.ids_rank, tf.int32, name=name) for name in TOKEN_INPUTS}


def token_inputs(model: ServedModel, texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The ids of texts, int32 [B, S] or [B, K, S]; S is the length of the longest sequence. `texts`: see text_inputs."""
  tokens = model.encode(**{name: tf.constant(value) for name, value in texts.items()})
  max_length = int(tf.reduce_max(tf.reduce_sum(tokens.input_mask, axis=-1)))
  return {name: values[..., :max_length].numpy() for name, values in tokens._asdict().items()}
