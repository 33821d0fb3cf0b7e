"""Classification and regression of texts and pairs, as `albert.tasks.glue` trains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from albert.config.base import Config
from albert.errors import UserError
from albert.export.checkpoint import FLAG, ExportCheckpoint
from albert.export.network.heads import LinearHead
from albert.export.network.token_layout import TokenBatch, TokenLayout
from albert.export.served_model import AnswerTensors, ExportSettings, RequestField, ServedModel, as_token_batch
from albert.tasks.glue import data as glue_data
from albert.tasks.glue.specs import PLAIN, ClassifierConfig, TaskSpec
from albert.tokenization.graph import pack_pair, pack_single

TEXT, TEXT_A, TEXT_B = "text", "text_a", "text_b"
_EXAMPLES = (
  "The film is a quiet triumph, and nobody who sees it will forget its last scene.",
  "A dull story, badly told.",
)


def text_fields(meanings: Sequence[str]) -> list[RequestField]:
  """The field of a single text, or those of a pair."""
  names = [TEXT] if len(meanings) == 1 else [TEXT_A, TEXT_B]
  return [RequestField(name, meaning) for name, meaning in zip(names, meanings, strict=True)]


def text_examples(fields: Sequence[RequestField]) -> list[dict[str, Any]]:
  """Two requests of single texts or pairs."""
  return [dict(zip((field.name for field in fields), texts)) for texts in (_EXAMPLES, _EXAMPLES[::-1])]  # noqa: B905


class TextServable(ServedModel):
  """One text or a pair -> [CLS] a [SEP] or [CLS] a [SEP] b [SEP], cut as in training."""

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Ids int32 [B, (T)] of texts [B]."""
    return self.tokenizer.tokenize(texts)

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """One text or a pair for each example."""
    first, *second = [self.tokenize(texts[field.name]) for field in self.fields]
    length = self._settings.max_seq_length
    return as_token_batch(pack_pair(first, second[0], length) if second else pack_single(first, length))

  def how_text_is_cut(self) -> str:
    """At its end; of a pair the longer one."""
    length = self._settings.max_seq_length
    if len(self.fields) == 1:
      return f"A text of more than {length} tokens, [CLS] and [SEP] included, is cut at its end."
    return (
      f"A pair of more than {length} tokens, [CLS] and [SEP] included, is cut: the longer of the two texts loses its "
      "last token until it fits."
    )

  def examples(self) -> list[dict[str, Any]]:
    """Two requests."""
    return text_examples(self.fields)


def _spec(config: Config) -> TaskSpec:
  assert isinstance(config, ClassifierConfig)
  return glue_data.make_spec(config)


class _HeadOnPooled(TextServable):
  head = "classifier"

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    self.spec = _spec(settings.config)
    texts = self.spec.formats()[0].texts
    self.fields = text_fields([f"{self.spec.name}: {name}" for name in texts])
    weights = checkpoint.head_weights("classifier")
    found, wanted = len(weights["output_bias"]), max(len(self.spec.labels), 1)
    if found != wanted:
      raise UserError(
        f"{FLAG}={checkpoint.file.path}: its head has {found} outputs, {self.spec.name} has {wanted}: give the "
        "task's name or labels that it was trained with (--task_name, --labels)"
      )
    self.output = LinearHead(weights)

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Config) -> str | None:
    """Adds the kind of the task."""
    reason = super().incompatibility(checkpoint, config)
    if reason:
      return reason
    assert isinstance(config, ClassifierConfig)
    if config.formulation != PLAIN:
      return f"it was trained with --formulation={config.formulation}, and only the plain form is served"
    if config.task_name or not checkpoint.run:
      is_regression = _spec(config).is_regression
      if is_regression != (cls is ServedRegression):
        return f"{config.task_name} is a {'regression' if is_regression else 'classification'}"
    return None


class ServedClassifier(_HeadOnPooled):
  """One of several classes."""

  summary = "tells which of several classes a text, or a pair of texts, belongs to"
  answers: ClassVar[Mapping[str, str]] = {
    "label": "the likeliest class, string [B]",
    "probabilities": "of the classes in assets/labels.txt, float32 [B, C]",
  }

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """Probabilities."""
    return {"probabilities": tf.nn.softmax(self.output(self.encoder.pooled(tokens, layout)))}

  def describe(self, answers: AnswerTensors) -> AnswerTensors:
    """Adds the label."""
    return add_label(answers, self.labels())

  def labels(self) -> Sequence[str]:
    """Those of the task."""
    return self.spec.labels


class ServedRegression(_HeadOnPooled):
  """A number."""

  summary = "gives a text, or a pair of texts, a number"
  answers: ClassVar[Mapping[str, str]] = {"value": "float32 [B]"}

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """The number."""
    return {"value": self.output(self.encoder.pooled(tokens, layout))[:, 0]}


def add_label(answers: AnswerTensors, labels: Sequence[str]) -> AnswerTensors:
  """Adds the name of the likeliest class, the first of equal ones."""
  best = tf.argmax(answers["probabilities"], axis=-1, output_type=tf.int32)
  return {"label": tf.gather(tf.constant(list(labels)), best), **answers}
