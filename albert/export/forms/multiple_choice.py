"""Multiple choice, as `albert.tasks.race` trains it: each option is a sequence of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from albert.config.base import Config
from albert.errors import UserError
from albert.export.checkpoint import FLAG, ExportCheckpoint
from albert.export.network.heads import LinearHead
from albert.export.network.token_layout import TokenBatch, TokenLayout, UnpaddedLayout, real_tokens, trim
from albert.export.served_model import AnswerTensors, ExportSettings, RequestField, ServedModel, as_token_batch
from albert.tasks.race.data import RaceConfig
from albert.tokenization.graph import first_tokens, last_tokens, pack_pair

# B batch, K options of the question that has most, S sequence.

ARTICLE, QUESTION, OPTIONS = "article", "question", "options"
# Tokens of a sequence that are no text.
_NUM_SPECIAL = 3
_NO_OPTIONS = "options: give at least one for each question"
# The logit of an option that is not there.
_ABSENT = -1e9


class ServedMultipleChoice(ServedModel):
  """The likeliest option."""

  head = "classifier"
  summary = "answers a multiple-choice question on an article"
  answers: ClassVar[Mapping[str, str]] = {
    "option": "the likeliest option's place, from 0, int32 [B]",
    "text": "its text (signature serving_default), string [B]",
    "probabilities": "of the options, 0 for those that are not there, float32 [B, K]",
  }
  counted_by = OPTIONS
  rank_of_ids: ClassVar[int] = 3
  row_of_ids: ClassVar[str] = "for each option [CLS] article [SEP] question with the option [SEP], then padding"

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    self.fields = [
      RequestField(ARTICLE, "what the question is about"),
      RequestField(QUESTION, 'the question; "_" in it stands for the option'),
      RequestField(OPTIONS, 'the options; "" is none', is_list=True),
    ]
    weights = checkpoint.head_weights("classifier")
    if len(weights["output_bias"]) != 1:
      raise UserError(
        f"{FLAG}={checkpoint.file.path}: its head has {len(weights['output_bias'])} outputs, multiple choice has 1"
      )
    assert isinstance(settings.config, RaceConfig)
    self._max_qa_length = min(settings.config.max_qa_length, settings.max_seq_length - _NUM_SPECIAL)
    self.output = LinearHead(weights)

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Config) -> str | None:
    """Adds another kind of head."""
    reason = super().incompatibility(checkpoint, config)
    if reason is None and checkpoint.task not in (None, "race"):
      return f"its run is one of {checkpoint.task}, not of race"
    return reason

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """A sequence for each option, [B, K, S]; without real tokens for an option that is not there."""
    # Before they are put together: two ends of bytes that are no UTF-8 may make a character.
    question, options = (
      tf.strings.unicode_transcode(texts[name], "UTF-8", "UTF-8", errors="replace") for name in (QUESTION, OPTIONS)
    )
    shape = tf.shape(options)
    article = self.tokenizer.tokenize(texts[ARTICLE])
    owners = tf.repeat(tf.range(shape[0]), tf.fill([shape[0]], shape[1]))  # [B * K]
    flat = tf.reshape(options, [-1])
    pairs = self.tokenizer.tokenize(with_options(tf.gather(question, owners), flat))
    pairs = last_tokens(pairs, tf.constant(self._max_qa_length, tf.int64))
    room = self._settings.max_seq_length - _NUM_SPECIAL - pairs.row_lengths()
    parts = first_tokens(tf.gather(article, owners), room)
    tokens = as_token_batch(pack_pair(parts, pairs, self._settings.max_seq_length))
    is_there = tf.cast(tf.strings.length(flat) > 0, tf.int32)
    tokens = tokens._replace(input_mask=tokens.input_mask * is_there[:, tf.newaxis])
    return TokenBatch(*(tf.reshape(values, [shape[0], shape[1], self._settings.max_seq_length]) for values in tokens))

  def from_text(self, **texts: tf.Tensor) -> AnswerTensors:
    """Adds the text of the option."""
    options = texts[OPTIONS]
    tf.debugging.assert_positive(tf.shape(options)[1], message=_NO_OPTIONS)
    answers = super().from_text(**texts)
    return answers | {"text": tf.gather(options, answers["option"], batch_dims=1)}

  def from_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers to ids [B, K, S]."""
    tf.debugging.assert_positive(tf.shape(tokens.input_ids)[1], message=_NO_OPTIONS)
    flat = trim(_flat(tokens), self._config.max_position_embeddings)
    return self._choose(tokens, flat, UnpaddedLayout(flat, self._config))

  def _compute_padded(self, tokens: TokenBatch) -> AnswerTensors:
    return self.compute(tokens)

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """Answers to ids [B, K, S]; a layout is of [B * K, S]."""
    return self._choose(tokens, real_tokens(_flat(tokens)), layout)

  def _choose(self, tokens: TokenBatch, flat: TokenBatch, layout: TokenLayout | None) -> AnswerTensors:
    is_there = tf.reduce_max(tokens.input_mask, axis=2) > 0  # [B, K]
    logits = self.output(self.encoder.pooled(flat, layout))
    logits = tf.where(is_there, tf.reshape(logits, tf.shape(is_there)), _ABSENT)
    return {
      "option": tf.argmax(logits, axis=1, output_type=tf.int32),
      "probabilities": tf.where(is_there, tf.nn.softmax(logits), 0.0),
    }

  def how_text_is_cut(self) -> str:
    """The article at its end, question and option at their beginning."""
    return (
      f"Each option is a sequence of at most {self._settings.max_seq_length} tokens: the last {self._max_qa_length} of "
      "the question with the option, and as many of the article's first as fit."
    )

  def examples(self) -> list[dict[str, Any]]:
    """A question, and one with a blank and fewer options."""
    article = (
      "Every morning old Mr Brown walked to the harbour to feed the gulls. Last winter he fell ill, and for two weeks "
      "his neighbour's daughter went in his place."
    )
    return [
      {
        ARTICLE: article,
        QUESTION: "Who fed the gulls while Mr Brown was ill?",
        OPTIONS: ["A sailor.", "The daughter of his neighbour.", "Nobody.", "His wife."],
      },
      {ARTICLE: article, QUESTION: "Mr Brown went to the harbour every _.", OPTIONS: ["evening", "morning", "winter"]},
    ]


def _flat(tokens: TokenBatch) -> TokenBatch:
  """[B, K, S] -> [B * K, S]."""
  length = tf.shape(tokens.input_ids)[2]
  return TokenBatch(*(tf.reshape(values, [-1, length]) for values in tokens))


def with_options(questions: tf.Tensor, options: tf.Tensor) -> tf.Tensor:
  """String [N], [N] -> [N]: as tasks.race_features.with_option does it, one by one."""
  parts = tf.strings.split(tf.strings.regex_replace(questions, "_+", "_"), sep="_")
  rows = parts.value_rowids()
  is_behind_blank = tf.ragged.range(parts.row_lengths()).flat_values > 0
  pieces = tf.strings.join([tf.where(is_behind_blank, tf.gather(options, rows), ""), parts.flat_values])
  joined = tf.strings.unsorted_segment_join(pieces, rows, num_segments=tf.shape(questions)[0])
  return tf.where(parts.row_lengths() > 1, joined, tf.strings.join([questions, options], separator=" "))
