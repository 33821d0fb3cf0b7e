"""Serves the multiple-choice models that `albert.tasks.race` trains. Each option of a question is one sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from albert.config.base import Config
from albert.errors import UserError
from albert.export.checking.form_evaluations import RaceEvaluation
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
from albert.tasks.race.data import RaceConfig
from albert.tokenization.in_graph.graph_packing import first_tokens, last_tokens, pack_pair

# B batch, K largest number of options of a question in the batch, S sequence.

ARTICLE, QUESTION, OPTIONS = "article", "question", "options"
_NUM_SPECIAL_TOKENS = 3  # [CLS] and two [SEP]
_NO_OPTIONS_MESSAGE = "options: give at least one for each question"
# The logit of an option that only pads a shorter list of options.
_MISSING_LOGIT = -1e9


class ServedMultipleChoice(ServedModel):
  """Serves a multiple-choice model: the most probable option and the probabilities of all options."""

  head = "classifier"
  evaluation_class = RaceEvaluation
  summary = "answers multiple-choice questions about an article"
  answers: ClassVar[Mapping[str, str]] = {
    "option": "index of the most probable option, from 0, int32 [B]",
    "text": "text of this option (only signature serving_default), string [B]",
    "probabilities": "probability of each option, 0 for options that only pad a shorter list, float32 [B, K]",
  }
  counted_by = OPTIONS
  ids_rank = 3
  ids_meaning = "for each option [CLS] article [SEP] question with the option [SEP], then padding"

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    self.fields = [
      RequestField(ARTICLE, "the text that the question is about"),
      RequestField(QUESTION, 'the question; "_" in it stands for the option'),
      RequestField(OPTIONS, 'the options; "" is not an option, it pads a shorter list', is_list=True),
    ]
    weights = checkpoint.head_weights("classifier")
    if len(weights["output_bias"]) != 1:
      raise UserError(
        f"{FLAG}={checkpoint.file.path}: its head has {len(weights['output_bias'])} outputs, but multiple choice has 1"
      )
    assert isinstance(settings.config, RaceConfig)
    self._max_qa_length = min(settings.config.max_qa_length, settings.max_seq_length - _NUM_SPECIAL_TOKENS)
    self.output = LinearHead(weights)

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Config) -> str | None:
    """See ServedModel.incompatibility: a classifier of another task may also have a head with one output."""
    reason = super().incompatibility(checkpoint, config)
    if reason is None and checkpoint.task not in (None, "race"):
      return f"its run belongs to the task {checkpoint.task}, not race"
    return reason

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """Makes a sequence for each option, int32 [B, K, S]. The sequence of a "" that pads a list is all padding."""
    # Invalid bytes are replaced before texts are joined, because two incomplete characters may join to a valid one.
    question = tf.strings.unicode_transcode(texts[QUESTION], "UTF-8", "UTF-8", errors="replace")
    options = tf.strings.unicode_transcode(texts[OPTIONS], "UTF-8", "UTF-8", errors="replace")
    num_questions, num_options = tf.unstack(tf.shape(options))
    max_seq_length = self._settings.max_seq_length
    full_article_ids = self.tokenizer.tokenize(texts[ARTICLE])
    question_indices = tf.repeat(tf.range(num_questions), tf.fill([num_questions], num_options))  # [B * K]
    flat_options = tf.reshape(options, [-1])
    answered_questions = insert_options(tf.gather(question, question_indices), flat_options)
    question_ids = last_tokens(self.tokenizer.tokenize(answered_questions), tf.constant(self._max_qa_length, tf.int64))
    # The question with the option is kept; the article fills the rest of the sequence.
    article_lengths = max_seq_length - _NUM_SPECIAL_TOKENS - question_ids.row_lengths()
    article_ids = first_tokens(tf.gather(full_article_ids, question_indices), article_lengths)
    tokens = as_token_batch(pack_pair(article_ids, question_ids, max_seq_length, self.tokenizer.special_ids))
    is_option = tf.cast(tf.strings.length(flat_options) > 0, tf.int32)
    tokens = tokens._replace(input_mask=tokens.input_mask * is_option[:, tf.newaxis])
    return TokenBatch(*(tf.reshape(values, [num_questions, num_options, max_seq_length]) for values in tokens))

  def answer_texts(self, **texts: tf.Tensor) -> AnswerTensors:
    """Answers texts, see ServedModel.answer_texts. `text` is the text of the most probable option."""
    options = texts[OPTIONS]
    tf.debugging.assert_positive(tf.shape(options)[1], message=_NO_OPTIONS_MESSAGE)
    answers = super().answer_texts(**texts)
    return answers | {"text": tf.gather(options, answers["option"], batch_dims=1)}

  def answer_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers ids, int32 [B, K, S]."""
    tf.debugging.assert_positive(tf.shape(tokens.input_ids)[1], message=_NO_OPTIONS_MESSAGE)
    flat_tokens = check_length(merge_axes(tokens), self._config.max_position_embeddings)
    return self._answer(tokens, flat_tokens, UnpaddedLayout(flat_tokens, self._config))

  def _compute_portable(self, tokens: TokenBatch) -> AnswerTensors:
    return self.compute(tokens)  # `compute` normalizes the padding, because it first has to read which options exist

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """See ServedModel.compute. The ids have the shape [B, K, S]; `layout` is that of a batch [B * K, S]."""
    return self._answer(tokens, normalize_padding(merge_axes(tokens)), layout)

  def _answer(self, tokens: TokenBatch, flat_tokens: TokenBatch, layout: TokenLayout | None) -> AnswerTensors:
    # is_option must be computed from `tokens`: in `flat_tokens`, normalized padding has a real token in every row.
    is_option = tf.reduce_max(tokens.input_mask, axis=2) > 0  # [B, K]
    logits = self.output(self.encoder.pooled_output(flat_tokens, layout))
    logits = tf.where(is_option, tf.reshape(logits, tf.shape(is_option)), _MISSING_LOGIT)
    return {
      "option": tf.argmax(logits, axis=1, output_type=tf.int32),
      "probabilities": tf.where(is_option, tf.nn.softmax(logits), 0.0),
    }

  def truncation_note(self) -> str:
    """See ServedModel.truncation_note."""
    return (
      f"Each option is a sequence of at most {self._settings.max_seq_length} tokens: the last {self._max_qa_length} of "
      "the question with the option, and the beginning of the article as far as it fits."
    )

  def examples(self) -> list[dict[str, Any]]:
    """See ServedModel.examples."""
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


def insert_options(questions: tf.Tensor, options: tf.Tensor) -> tf.Tensor:
  """Inserts each option into the blank of its question, or appends it if the question has no blank.

  The texts are the same as those of `albert.tasks.race.features.with_option`.

  Args:
    questions, options: string [N].
  Returns: string [N].
  """
  question_parts = tf.strings.split(tf.strings.regex_replace(questions, "_+", "_"), sep="_")
  question_indices = question_parts.value_rowids()  # of each part
  # True for every part of a question but the first one.
  follows_blank = tf.ragged.range(question_parts.row_lengths()).flat_values > 0
  parts_with_option = tf.strings.join(
    [tf.where(follows_blank, tf.gather(options, question_indices), ""), question_parts.flat_values]
  )
  filled_in = tf.strings.unsorted_segment_join(parts_with_option, question_indices, num_segments=tf.shape(questions)[0])
  has_blank = question_parts.row_lengths() > 1
  return tf.where(has_blank, filled_in, tf.strings.join([questions, options], separator=" "))
