"""Serves the question-answering models that `albert.tasks.squad` trains. The graph cuts long contexts into windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from albert.export.checking.form_evaluations import SquadV1Evaluation, SquadV2Evaluation
from albert.export.checkpoint import ExportCheckpoint
from albert.export.forms.squad_windows import ContextWindows, WindowPositions, make_windows
from albert.export.network.squad_heads import NO_SPAN, BestSpans, SpanHead, V1Head, V2Head
from albert.export.network.token_layout import TokenBatch, TokenLayout, UnpaddedLayout, check_length
from albert.export.served_model import AnswerTensors, ExportSettings, RequestField, ServedModel
from albert.tasks.squad.data import SquadConfig

# B batch, W windows of all examples, S sequence.

QUESTION, CONTEXT = "question", "context"
# Number of windows that are computed at once. It bounds the memory that a context of a megabyte needs.
_WINDOWS_AT_ONCE = 16


class _QuestionAnswering(ServedModel):
  """Base class of the forms for SQuAD v1.1 and v2.0."""

  summary = "answers questions with spans of a text"
  answers: ClassVar[Mapping[str, str]] = {
    "answer": 'the answer, a span of the context; "" if there is none (only serving_default), string [B]',
    "best_text": "the best span, even if the question is probably unanswerable (only serving_default), string [B]",
    "score": f"the sum of the scores of the span's start and end; {NO_SPAN:g} if there is no span, float32 [B]",
    "no_answer_probability": "probability that the context does not answer the question (0 in v1.1), float32 [B]",
    "start": "index of the first character of the best span (signature tokens: of its first token), int32 [B]",
    "end": "index after its last character (signature tokens: of its last token), int32 [B]",
  }
  ids_meaning = "one window: [CLS] question [SEP] part of the context [SEP], then padding"
  uses_pooler = False
  head_class: ClassVar[type[SpanHead]]
  needs_offsets = True

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    assert isinstance(settings.config, SquadConfig)
    self._squad_config = settings.config
    self.fields = [
      RequestField(QUESTION, "the question"),
      RequestField(CONTEXT, "the text that may answer it, of any length"),
    ]
    self.output = self.head_class(checkpoint.head_weights(self.head), self._squad_config)

  def cut_into_windows(self, question: tf.Tensor, context: tf.Tensor) -> ContextWindows:
    """Tokenizes questions and contexts, string [B] each, and cuts the contexts into windows."""
    return make_windows(
      self.tokenizer.tokenize(question),
      self.tokenizer.tokenize_with_offsets(context),
      max_seq_length=self._settings.max_seq_length,
      max_query_length=self._squad_config.max_query_length,
      doc_stride=self._squad_config.doc_stride,
      special_ids=self.tokenizer.special_ids,
    )

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """The ids of all windows, int32 [W, S]."""
    return self.cut_into_windows(texts[QUESTION], texts[CONTEXT]).tokens

  def answer_texts(self, **texts: tf.Tensor) -> AnswerTensors:
    """Answers texts with the best span among all windows of each example."""
    # The same replacement as in the tokenizer, so that its character offsets are offsets into this text.
    context = tf.strings.unicode_transcode(texts[CONTEXT], "UTF-8", "UTF-8", errors="replace")
    num_examples = tf.size(context)
    windows = self.cut_into_windows(texts[QUESTION], texts[CONTEXT])
    spans = self._best_spans(windows)
    best_window = _best_windows(spans.score, windows.example, num_examples)  # [B]
    score = tf.gather(spans.score, best_window)
    has_span = score > NO_SPAN

    def character_offset(offsets: tf.Tensor, token_positions: tf.Tensor) -> tf.Tensor:
      """The offset of one token of each example's best window, 0 without a span: [W, S], [W] -> [B]."""
      indices = tf.stack([best_window, tf.gather(token_positions, best_window)], axis=1)
      return tf.where(has_span, tf.gather_nd(offsets, indices), 0)

    char_start = character_offset(windows.positions.char_starts, spans.start)
    char_end = character_offset(windows.positions.char_ends, spans.end)
    text = tf.strings.substr(context, char_start, char_end - char_start, unit="UTF8_CHAR")
    # A question has an answer if one of its windows has one.
    null_odds = tf.math.unsorted_segment_min(spans.null_odds, windows.example, num_examples)
    return {
      "answer": tf.where(null_odds > self._squad_config.null_score_diff_threshold, "", text),
      "best_text": text,
      "score": score,
      "no_answer_probability": tf.sigmoid(null_odds),
      "start": char_start,
      "end": char_end,
    }

  def _best_spans(self, windows: ContextWindows) -> BestSpans:
    """The best span of each window, computed _WINDOWS_AT_ONCE windows at a time."""
    num_windows = tf.size(windows.example)

    def compute_next(begin: tf.Tensor, spans: BestSpans) -> tuple[tf.Tensor, BestSpans]:
      """Appends the best spans of the windows from `begin` on. Returns the index of the next window, and all spans."""
      end = tf.minimum(begin + _WINDOWS_AT_ONCE, num_windows)
      tokens = check_length(
        TokenBatch(*(values[begin:end] for values in windows.tokens)), self._settings.max_seq_length
      )
      positions = windows.positions.rows(begin, end, tf.shape(tokens.input_ids)[1])
      new_spans = self.output(self.encoder.sequence_output(tokens, UnpaddedLayout(tokens, self._config)), positions)
      return end, tf.nest.map_structure(lambda *values: tf.concat(values, axis=0), spans, new_spans)

    no_ints, no_floats = tf.zeros([0], tf.int32), tf.zeros([0], tf.float32)
    no_spans = BestSpans(start=no_ints, end=no_ints, score=no_floats, null_odds=no_floats)
    any_length = tf.nest.map_structure(lambda _: tf.TensorShape([None]), no_spans)
    _, spans = tf.while_loop(
      lambda begin, _: begin < num_windows,
      compute_next,
      (tf.constant(0), no_spans),
      shape_invariants=(tf.TensorShape([]), any_length),
      parallel_iterations=1,
    )
    return spans

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """The best span of each window, see ServedModel.compute."""
    is_context = (
      (tokens.segment_ids > 0) & (tokens.input_mask > 0) & (tokens.input_ids != self.tokenizer.special_ids.sep)
    )
    token_positions = tf.zeros_like(tokens.input_ids) + tf.range(tf.shape(tokens.input_ids)[1])
    # Neither the text nor the other windows are known here. So an answer may start at any token of the context, and the
    # offsets are those of tokens, not of characters.
    positions = WindowPositions(is_context, is_context, token_positions, token_positions + 1)
    spans = self.output(self.encoder.sequence_output(tokens, layout), positions)
    return {
      "score": spans.score,
      "no_answer_probability": tf.sigmoid(spans.null_odds),
      "start": spans.start,
      "end": spans.end,
    }

  def truncation_note(self) -> str:
    """See ServedModel.truncation_note."""
    config = self._squad_config
    return (
      f"A context may have any length: it is read in overlapping windows of at most {self._settings.max_seq_length} "
      f"tokens with the question, each {config.doc_stride} tokens after the one before it (or fewer, if fewer fit). A "
      f"question is cut after {config.max_query_length} tokens, and an answer has at most {config.max_answer_length}."
    )

  def examples(self) -> list[dict[str, Any]]:
    """See ServedModel.examples."""
    context = (
      "The lighthouse at the end of the pier was built in 1874 by the brothers Hale. It burned down twice, and since "
      "1931 its lamp has been electric."
    )
    return [
      {QUESTION: "Who built the lighthouse?", CONTEXT: context},
      {QUESTION: "How many people live on the island?", CONTEXT: context},
    ]


def _best_windows(scores: tf.Tensor, example: tf.Tensor, num_examples: tf.Tensor) -> tf.Tensor:
  """The index of each example's best window. Of windows with equal scores it is the first one.

  Args:
    scores: score of each window, float32 [W].
    example: index of the example that each window belongs to, int32 [W].
    num_examples: B, int32 [].
  Returns: int32 [B].
  """
  best_scores = tf.math.unsorted_segment_max(scores, example, num_examples)
  is_best = scores == tf.gather(best_scores, example)
  indices = tf.where(is_best, tf.range(tf.size(scores)), tf.size(scores))
  return tf.math.unsorted_segment_min(indices, example, num_examples)


class ServedSquadV1(_QuestionAnswering):
  """SQuAD v1.1: every question has an answer."""

  head = "squad"
  evaluation_class = SquadV1Evaluation
  head_class = V1Head


class ServedSquadV2(_QuestionAnswering):
  """SQuAD v2.0: a question may have no answer."""

  head = "squad_v2"
  evaluation_class = SquadV2Evaluation
  head_class = V2Head

  def truncation_note(self) -> str:
    """See ServedModel.truncation_note; also says when `answer` is empty."""
    threshold = self._squad_config.null_score_diff_threshold
    return super().truncation_note() + (
      f' `answer` is "" where log(p / (1 - p)) of the no_answer_probability p is above {threshold:g} '
      "(null_score_diff_threshold)."
    )
