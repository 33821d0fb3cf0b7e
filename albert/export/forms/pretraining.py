"""What a pretrained model answers: masks filled, the order of two texts, and embeddings (of any ALBERT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert.config.base import Config
from albert.config.run import PretrainingConfig
from albert.export.checkpoint import ExportCheckpoint
from albert.export.forms.classifier import TextServable, add_label, text_fields
from albert.export.network.heads import LinearHead, MaskedLMHead
from albert.export.network.token_layout import TokenBatch, TokenLayout
from albert.export.served_model import AnswerTensors, ExportSettings
from albert.tokenization.graph import starts_with_space
from albert.tokenization.tokenizer import MASK_ID, WORD_START

# B batch, S sequence, M masks of the text that has most of them, K candidates.

MASK = "[MASK]"
_LABELS = {"sop": ("in_order", "swapped"), "nsp": ("next", "random")}


class ServedFillMask(TextServable):
  """The likeliest pieces in place of each [MASK]."""

  head = "masked_lm"
  summary = "says what may stand in place of each [MASK] of a text"
  answers: ClassVar[Mapping[str, str]] = {
    "tokens": "the likeliest candidates as text, the best first, string [B, M, K]",
    "pieces": "the same as the vocabulary has them (▁ for a space), string [B, M, K]",
    "ids": "their ids, int32 [B, M, K]",
    "probabilities": "float32 [B, M, K]",
    "num_masks": "masks of each text, without those that were cut off, int32 [B]; beyond them there is padding",
  }
  counted_by = "num_masks"
  uses_pooler = False

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    self.fields = text_fields([f"with {MASK} wherever a piece is to be filled in"])
    self.output = MaskedLMHead(checkpoint.config, checkpoint.head_weights("masked_lm"), self.encoder.word_embeddings)
    self._pieces = self.tokenizer.reference.pieces
    self._top_k = min(settings.top_k, len(self._pieces))
    self._continued = _continued(self._pieces)

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Ids of texts in which [MASK] stands for one piece, as tasks.pretraining.encode_with_masks gives them."""
    parts = tf.strings.split(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace"), sep=MASK)
    places = tf.ragged.range(parts.row_lengths()).flat_values  # of each part in its text
    ids = self.tokenizer.tokenize(parts.flat_values)
    # What follows a mask directly, such as ".", starts no word.
    is_glued = (places > 0) & ~starts_with_space(parts.flat_values) & (ids.row_lengths() > 0)
    firsts = tf.boolean_mask(ids.row_starts(), is_glued)
    flat = tf.tensor_scatter_nd_update(
      ids.flat_values,
      firsts[:, tf.newaxis],
      tf.gather(tf.constant(self._continued), tf.gather(ids.flat_values, firsts)),
    )
    ids = tf.ragged.boolean_mask(ids.with_flat_values(flat), ids.with_flat_values(flat >= 0))
    num_masks = tf.cast(places > 0, tf.int64)
    masks = tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(num_masks)], MASK_ID), num_masks, validate=False)
    ids = tf.concat([masks, ids], axis=1)
    splits = tf.gather(ids.row_splits, parts.row_splits)
    return tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False)

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """Candidates by their ids."""
    is_mask = (tokens.input_ids == MASK_ID) & (tokens.input_mask > 0)
    num_masks = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)  # [B]
    most = tf.reduce_max(tf.concat([num_masks, [0]], axis=0))
    length = tf.shape(is_mask)[1]
    # At least one position is computed, for other runtimes cannot compute none.
    num_computed = tf.maximum(most, 1)
    # The greatest of what is left to the end of the sequence are the first masks.
    left = tf.where(is_mask, length - tf.range(length), 0)
    left = tf.math.top_k(left, num_computed).values  # [B, M]
    positions = tf.where(left > 0, length - left, 0)
    logits = self.output(self.encoder.at(tokens, positions, layout))
    best = tf.math.top_k(tf.nn.softmax(logits), self._top_k)
    is_real = tf.expand_dims(left > 0, 2)
    return {
      "ids": tf.where(is_real, best.indices, 0)[:, :most],
      "probabilities": tf.where(is_real, best.values, 0.0)[:, :most],
      "num_masks": num_masks,
    }

  def describe(self, answers: AnswerTensors) -> AnswerTensors:
    """Adds the pieces, and their text."""
    is_real = answers["probabilities"] > 0
    names = np.array([[piece.replace(WORD_START, " ").strip() for piece in self._pieces], self._pieces])
    tokens, pieces = (
      tf.where(is_real, tf.gather(tf.constant([n.encode() for n in row]), answers["ids"]), "") for row in names
    )
    return {"tokens": tokens, "pieces": pieces, **answers}

  def examples(self) -> list[dict[str, Any]]:
    """One mask, and two."""
    first, second = f"The {MASK} of France is Paris.", f"She opened the {MASK} and looked at the {MASK} behind it."
    return [{self.fields[0].name: first}, {self.fields[0].name: second}]


def _continued(pieces: Sequence[str]) -> np.ndarray:
  """int32 [V]: the id of each piece without its ▁; its own if there is no such piece, -1 if nothing is left."""
  ids = {piece: i for i, piece in reversed(list(enumerate(pieces)))}
  rest = [piece.removeprefix(WORD_START) for piece in pieces]
  return np.array([ids.get(piece, i) if piece else -1 for i, piece in enumerate(rest)], np.int32)


class ServedSentenceOrder(TextServable):
  """Whether two texts follow each other (or what next-sentence prediction asks)."""

  head = "sentence"
  summary = "tells whether two texts are in order"
  answers: ClassVar[Mapping[str, str]] = {
    "label": "the likelier class, string [B]",
    "probabilities": "of the classes in assets/labels.txt, float32 [B, 2]",
  }

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    self.fields = text_fields(["the text that is first", "the text that is second"])
    assert isinstance(settings.config, PretrainingConfig)
    self._labels = _LABELS.get(settings.config.sentence_prediction, _LABELS["sop"])
    if self._labels == _LABELS["nsp"]:
      self.summary = "tells whether a text is the continuation of another one, or of another document"
    self.output = LinearHead(checkpoint.head_weights("sentence"), "cls/seq_relationship/")

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Config) -> str | None:
    """Adds a head that was never trained."""
    assert isinstance(config, PretrainingConfig)
    if config.sentence_prediction == "none":
      return "it was pretrained with --sentence_prediction=none, so its sentence head is random"
    return super().incompatibility(checkpoint, config)

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """Probabilities."""
    return {"probabilities": tf.nn.softmax(self.output(self.encoder.pooled(tokens, layout)))}

  def describe(self, answers: AnswerTensors) -> AnswerTensors:
    """Adds the label."""
    return add_label(answers, self.labels())

  def labels(self) -> Sequence[str]:
    """in_order and swapped, or next and random."""
    return self._labels

  def examples(self) -> list[dict[str, Any]]:
    """In order, and not."""
    first, second = "She opened the letter with great care.", "Then she read it aloud to everyone in the room."
    names = [field.name for field in self.fields]
    return [dict(zip(names, texts, strict=True)) for texts in ((first, second), (second, first))]


class ServedEmbeddings(TextServable):
  """Vectors of texts; the mean alone where the checkpoint has no pooler."""

  summary = "gives texts vectors"
  uses_pooler = False
  answers: ClassVar[Mapping[str, str]] = {
    "pooled": "the pooler's output on [CLS], float32 [B, H]",
    "mean": "the mean of the last layer over the tokens, [CLS] and [SEP] included, float32 [B, H]",
  }

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    self.fields = text_fields(["any text"])

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """Both vectors, or the mean alone."""
    sequence = self.encoder.sequence(tokens, layout)
    count = tf.reduce_sum(tf.cast(tokens.input_mask, tf.float32), axis=1, keepdims=True)
    mean = {"mean": tf.reduce_sum(sequence, axis=1) / count}
    return mean if self.encoder.pooler is None else {"pooled": self.encoder.pool(sequence[:, 0]), **mean}

  def given_answers(self) -> Mapping[str, str]:
    """Both, or the mean alone."""
    return {name: text for name, text in self.answers.items() if name == "mean" or self.encoder.pooler is not None}
