"""Serves the classification and regression models that `albert.tasks.glue` trains, for single texts and pairs."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from albert.config.base import Config
from albert.errors import UserError
from albert.export.checking.form_evaluations import (
  ClassifierEvaluation,
  MultiLabelEvaluation,
  RegressionEvaluation,
)
from albert.export.checkpoint import FLAG, ExportCheckpoint
from albert.export.network.heads import LinearHead
from albert.export.network.token_layout import (
  TokenBatch,
  TokenLayout,
  UnpaddedLayout,
  check_length,
  merge_axes,
  normalize_padding,
)
from albert.export.served_model import AnswerTensors, ExportSettings, RequestField, ServedModel, as_token_batch
from albert.io.wording import counted
from albert.models.window_pooling import pool_windows
from albert.tasks.glue.flags import PLAIN, WINDOWS, ClassifierConfig
from albert.tasks.glue.results import thresholds_of_run
from albert.tasks.glue.specs import TaskSpec, make_spec
from albert.tokenization.in_graph.graph_packing import pack_pair, pack_single, pack_windows

TEXT, TEXT_A, TEXT_B = "text", "text_a", "text_b"
_EXAMPLE_TEXTS = (
  "The film is a quiet triumph, and nobody who sees it will forget its last scene.",
  "A dull story, badly told.",
)


def text_fields(meanings: Sequence[str]) -> list[RequestField]:
  """The request fields for a single text (`text`) or a pair (`text_a`, `text_b`).

  Args:
    meanings: a description of each text, for the model card.
  """
  names = [TEXT] if len(meanings) == 1 else [TEXT_A, TEXT_B]
  return [RequestField(name, meaning) for name, meaning in zip(names, meanings, strict=True)]


def text_examples(fields: Sequence[RequestField]) -> list[dict[str, Any]]:
  """Two example requests for the fields of a single text or a pair."""
  names = [field.name for field in fields]
  text_orders = (_EXAMPLE_TEXTS, _EXAMPLE_TEXTS[::-1])
  return [dict(zip(names, texts[: len(names)], strict=True)) for texts in text_orders]


class ServedTextModel(ServedModel):
  """Base class of forms whose request is one text or a pair.

  A request becomes [CLS] a [SEP] or [CLS] a [SEP] b [SEP]. Texts that are too long are cut as in training.
  """

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Tokenizes texts without [CLS] and [SEP].

    Args:
      texts: string [B].
    Returns: ids, int32 [B, (number of tokens)].
    """
    return self.tokenizer.tokenize(texts)

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """Tokenizes texts, see ServedModel.encode."""
    length, special_ids = self._settings.max_seq_length, self.tokenizer.special_ids
    ids = [self.tokenize(texts[field.name]) for field in self.fields]
    if len(ids) == 1:
      return as_token_batch(pack_single(ids[0], length, special_ids))
    return as_token_batch(pack_pair(ids[0], ids[1], length, special_ids))

  def truncation_note(self) -> str:
    """See ServedModel.truncation_note."""
    length = self._settings.max_seq_length
    if len(self.fields) == 1:
      return f"A text of more than {length} tokens, [CLS] and [SEP] included, is cut at its end."
    return (
      f"A pair of more than {length} tokens, [CLS] and [SEP] included, is cut: the longer of the two texts loses its "
      "last token until the pair fits."
    )

  def examples(self) -> list[dict[str, Any]]:
    """See ServedModel.examples."""
    return text_examples(self.fields)


def _make_spec(config: Config) -> TaskSpec:
  assert isinstance(config, ClassifierConfig)
  return make_spec(config)


class _PooledHeadModel(ServedTextModel):
  """Base class of classification and regression: a linear head on the pooled output."""

  head = "classifier"

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    self.spec = _make_spec(settings.config)
    text_columns = self.spec.formats()[0].texts
    self.fields = text_fields([f"{self.spec.name}: {column}" for column in text_columns])
    weights = checkpoint.head_weights("classifier")
    num_outputs = len(weights["output_bias"])
    num_expected = len(self.spec.labels) or 1  # a regression has no labels
    if num_outputs != num_expected:
      raise UserError(
        f"{FLAG}={checkpoint.file.path}: its head has {counted(num_outputs, 'output')}, but {self.spec.name} has "
        f"{num_expected}: give the task's name or labels that it was trained with (--task_name, --labels)"
      )
    self.output = LinearHead(weights)
    assert isinstance(settings.config, ClassifierConfig)
    self._reads_windows = settings.config.long_texts == WINDOWS
    self._classifier_config = settings.config
    if self._reads_windows:
      self.ids_rank = 3
      self.ids_meaning = "for each window of the text [CLS] part of the text [SEP], then padding"

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """Tokenizes texts, see ServedModel.encode; with windows, int32 [B, K, S] for at most K windows of a text."""
    if not self._reads_windows:
      return super().encode(**texts)
    config, length = self._classifier_config, self._settings.max_seq_length
    ids, special_ids = self.tokenize(texts[TEXT]), self.tokenizer.special_ids
    return as_token_batch(pack_windows(ids, length, config.doc_stride, config.max_windows, special_ids))

  def answer_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers ids. Only the real tokens of the windows are computed."""
    if not self._reads_windows:
      return super().answer_tokens(tokens)
    windows = check_length(merge_axes(tokens), self._config.max_position_embeddings)
    logits = self._pooled_logits(tokens, windows, UnpaddedLayout(windows, self._config))
    return self.add_text_answers(self._answer(logits))

  def _compute_portable(self, tokens: TokenBatch) -> AnswerTensors:
    # Padding is normalized after it is known which windows exist.
    return self.compute(tokens) if self._reads_windows else super()._compute_portable(tokens)

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """See ServedModel.compute. With windows, the ids have the shape [B, K, S]."""
    if self._reads_windows:
      return self._answer(self._pooled_logits(tokens, normalize_padding(merge_axes(tokens)), layout))
    return self._answer(self.output(self.encoder.pooled_output(tokens, layout)))

  def _pooled_logits(self, tokens: TokenBatch, windows: TokenBatch, layout: TokenLayout | None) -> tf.Tensor:
    """The pooled logits of the windows of each text, float32 [B, C].

    Args:
      tokens: ids [B, K, S].
      windows: the same ids as a batch [B * K, S], with normalized padding.
      layout: the layout of `windows`.
    """
    is_window = tf.reduce_max(tokens.input_mask, axis=2) > 0  # [B, K]
    # A text that is all padding has one window of padding.
    is_first = tf.range(tf.shape(is_window)[1]) < 1
    logits = self.output(self.encoder.pooled_output(windows, layout))
    num_logits = len(self.spec.labels) or 1
    logits = tf.reshape(logits, [tf.shape(is_window)[0], tf.shape(is_window)[1], num_logits])
    return pool_windows(logits, is_window | is_first, self._classifier_config.pooling)

  @abc.abstractmethod
  def _answer(self, logits: tf.Tensor) -> AnswerTensors:
    """Converts the logits of texts, float32 [B, C], to the answers that are numbers."""

  def truncation_note(self) -> str:
    """See ServedModel.truncation_note."""
    if not self._reads_windows:
      return super().truncation_note()
    config = self._classifier_config
    return (
      f"A text of more than {self._settings.max_seq_length} tokens is read in overlapping windows of this length, "
      f"[CLS] and [SEP] included, each {config.doc_stride} tokens after the one before it (or fewer, if fewer fit). "
      f"The logits of a text are the {config.pooling} of those of its windows. What does not fit in "
      f"{config.max_windows} windows is cut off."
    )

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Config) -> str | None:
    """See ServedModel.incompatibility: another formulation, or a regression instead of a classification."""
    reason = super().incompatibility(checkpoint, config)
    if reason:
      return reason
    assert isinstance(config, ClassifierConfig)
    if config.formulation != PLAIN:
      return f"it was trained with --formulation={config.formulation}, and only --formulation=plain can be served"
    if config.task_name or not checkpoint.run:
      spec = _make_spec(config)
      if spec.is_regression != (cls is ServedRegression):
        return f"{config.task_name} is a {'regression' if spec.is_regression else 'classification'} task"
      if bool(spec.label_separator) != (cls is ServedMultiLabel):
        return "a row may have several labels (--multi_label)" if spec.label_separator else "each row has one label"
    return None


class ServedClassifier(_PooledHeadModel):
  """Serves a classifier: the most probable class and the probabilities of all classes."""

  evaluation_class = ClassifierEvaluation
  summary = "classifies a text or a pair of texts"
  answers: ClassVar[Mapping[str, str]] = {
    "label": "the most probable class, string [B]",
    "probabilities": "probability of each class, in the order of assets/labels.txt, float32 [B, C]",
  }

  def _answer(self, logits: tf.Tensor) -> AnswerTensors:
    return {"probabilities": tf.nn.softmax(logits)}

  def add_text_answers(self, answers: AnswerTensors) -> AnswerTensors:
    """See ServedModel.add_text_answers."""
    return add_label(answers, self.labels())

  def labels(self) -> Sequence[str]:
    """The labels of the task."""
    return self.spec.labels


class ServedMultiLabel(_PooledHeadModel):
  """Serves a model of several labels: those whose probability is at least their threshold, and all probabilities."""

  evaluation_class = MultiLabelEvaluation
  summary = "finds the labels of a text or a pair of texts, any number of them"
  answers: ClassVar[Mapping[str, str]] = {
    "labels": "the labels whose probability is at least their threshold, the most probable first, string [B, C]; the "
    'row is padded with ""',
    "probabilities": "probability of each label, in the order of assets/labels.txt, float32 [B, C]",
  }

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    assert isinstance(settings.config, ClassifierConfig)
    self._thresholds = thresholds_of_run(checkpoint.run_dir, settings.config.thresholds, self.spec.labels)

  def _answer(self, logits: tf.Tensor) -> AnswerTensors:
    return {"probabilities": tf.sigmoid(logits)}

  def add_text_answers(self, answers: AnswerTensors) -> AnswerTensors:
    """See ServedModel.add_text_answers."""
    probabilities, names = answers["probabilities"], tf.constant(list(self.spec.labels))
    is_predicted = probabilities >= tf.constant(self._thresholds, tf.float32)
    best = tf.math.top_k(tf.where(is_predicted, probabilities, -1.0), len(self.spec.labels))
    return {"labels": tf.where(best.values >= 0, tf.gather(names, best.indices), ""), **answers}

  def labels(self) -> Sequence[str]:
    """The labels of the task."""
    return self.spec.labels

  def thresholds(self) -> Mapping[str, float]:
    """Label -> the probability from which on it is predicted."""
    return dict(zip(self.spec.labels, self._thresholds.tolist(), strict=True))


class ServedRegression(_PooledHeadModel):
  """Serves a regression model: one number for each text or pair."""

  evaluation_class = RegressionEvaluation
  summary = "predicts a number for a text or a pair of texts"
  answers: ClassVar[Mapping[str, str]] = {"value": "the predicted number, float32 [B]"}

  def _answer(self, logits: tf.Tensor) -> AnswerTensors:
    return {"value": logits[:, 0]}


def add_label(answers: AnswerTensors, labels: Sequence[str]) -> AnswerTensors:
  """Adds the name of the most probable class, as `label`. Of equally probable classes it is the first one.

  Args:
    answers: answers that include `probabilities`, float32 [B, C].
    labels: names of the C classes.
  Returns: the answers with `label`, string [B].
  """
  best_class = tf.argmax(answers["probabilities"], axis=-1, output_type=tf.int32)
  return {"label": tf.gather(tf.constant(list(labels)), best_class), **answers}
