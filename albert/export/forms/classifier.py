"""Serves the classification and regression models that `albert.tasks.glue` trains, for single texts and pairs."""

from __future__ import annotations

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
from albert.export.network.token_layout import TokenBatch, TokenLayout
from albert.export.served_model import AnswerTensors, ExportSettings, RequestField, ServedModel, as_token_batch
from albert.io.wording import counted
from albert.tasks.glue import data as glue_data
from albert.tasks.glue.config import PLAIN, ClassifierConfig
from albert.tasks.glue.multi_label import thresholds_of_run
from albert.tasks.glue.specs import TaskSpec
from albert.tokenization.in_graph.graph_packing import pack_pair, pack_single

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
  return glue_data.make_spec(config)


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

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """See ServedModel.compute."""
    return {"probabilities": tf.nn.softmax(self.output(self.encoder.pooled_output(tokens, layout)))}

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

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """See ServedModel.compute."""
    return {"probabilities": tf.sigmoid(self.output(self.encoder.pooled_output(tokens, layout)))}

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

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """See ServedModel.compute."""
    return {"value": self.output(self.encoder.pooled_output(tokens, layout))[:, 0]}


def add_label(answers: AnswerTensors, labels: Sequence[str]) -> AnswerTensors:
  """Adds the name of the most probable class, as `label`. Of equally probable classes it is the first one.

  Args:
    answers: answers that include `probabilities`, float32 [B, C].
    labels: names of the C classes.
  Returns: the answers with `label`, string [B].
  """
  best_class = tf.argmax(answers["probabilities"], axis=-1, output_type=tf.int32)
  return {"label": tf.gather(tf.constant(list(labels)), best_class), **answers}
