"""Question answering, as `albert.tasks.squad` trains and predicts it: long contexts in windows, cut in the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from albert.export.checkpoint import ExportCheckpoint
from albert.export.forms.squad_windows import ContextWindows, WindowPositions, make_windows
from albert.export.network.squad_heads import NO_SPAN, BestSpans, SpanHead, V1Head, V2Head
from albert.export.network.token_layout import TokenBatch, TokenLayout, UnpaddedLayout, trim
from albert.export.served_model import AnswerTensors, ExportSettings, RequestField, ServedModel
from albert.tasks.squad.data import SquadConfig
from albert.tokenization.graph_offsets import OffsetGraphTokenizer
from albert.tokenization.tokenizer import SEP_ID

# B batch, W windows of all examples, S sequence.

QUESTION, CONTEXT = "question", "context"
# Windows that are computed at once, so that a context of a megabyte fits in memory.
_WINDOWS_AT_ONCE = 16


class _QuestionAnswering(ServedModel):
  """What both versions have in common."""

  summary = "answers questions with pieces of a text"
  answers: ClassVar[Mapping[str, str]] = {
    "answer": 'a piece of the context, character for character; "" if there is none (serving_default), string [B]',
    "best_text": "the best span, even if the question is more likely unanswerable (serving_default), string [B]",
    "score": f"the sum of the scores of its start and its end, {NO_SPAN:g} if there is no span, float32 [B]",
    "no_answer_probability": "probability that the context does not answer the question (v1.1: 0), float32 [B]",
    "start": "place of the best span: its first character (signature tokens: token), int32 [B]",
    "end": "the character behind it (signature tokens: its last token), int32 [B]",
  }
  row_of_ids: ClassVar[str] = "a window: [CLS] question [SEP] part of the context [SEP], then padding"
  uses_pooler = False
  head_class: ClassVar[type[SpanHead]]
  tokenizer_class = OffsetGraphTokenizer
  tokenizer: OffsetGraphTokenizer

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    assert isinstance(settings.config, SquadConfig)
    self._squad = settings.config
    self.fields = [
      RequestField(QUESTION, "the question"),
      RequestField(CONTEXT, "the text that may answer it, of any length"),
    ]
    self.output = self.head_class(checkpoint.head_weights(self.head), self._squad)

  def windows(self, question: tf.Tensor, context: tf.Tensor) -> ContextWindows:
    """The windows of all examples."""
    return make_windows(
      self.tokenizer.tokenize(question),
      self.tokenizer.tokenize_with_offsets(context),
      max_seq_length=self._settings.max_seq_length,
      max_query_length=self._squad.max_query_length,
      doc_stride=self._squad.doc_stride,
    )

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """The ids of all windows."""
    return self.windows(texts[QUESTION], texts[CONTEXT]).tokens

  def from_text(self, **texts: tf.Tensor) -> AnswerTensors:
    """The best span of all windows of each example."""
    context = tf.strings.unicode_transcode(texts[CONTEXT], "UTF-8", "UTF-8", errors="replace")
    count = tf.size(context)
    windows = self.windows(texts[QUESTION], texts[CONTEXT])
    spans = self._in_parts(windows)
    window = _first_best(spans.score, windows.example, count)  # [B]
    score = tf.gather(spans.score, window)
    begin, end = (
      tf.gather_nd(characters, tf.stack([window, tf.gather(tokens, window)], axis=1))
      for characters, tokens in ((windows.places.begins, spans.start), (windows.places.ends, spans.end))
    )
    is_there = score > NO_SPAN
    begin, end = tf.where(is_there, begin, 0), tf.where(is_there, end, 0)
    text = tf.strings.substr(context, begin, end - begin, unit="UTF8_CHAR")
    null = tf.math.unsorted_segment_min(spans.null, windows.example, count)
    return {
      "answer": tf.where(null > self._squad.null_score_diff_threshold, "", text),
      "best_text": text,
      "score": score,
      "no_answer_probability": tf.sigmoid(null),
      "start": begin,
      "end": end,
    }

  def _in_parts(self, windows: ContextWindows) -> BestSpans:
    """The best span of each window, a few windows at once."""
    num_windows = tf.size(windows.example)

    def some(begin: tf.Tensor, *found: tf.Tensor) -> tuple[tf.Tensor, ...]:
      end = tf.minimum(begin + _WINDOWS_AT_ONCE, num_windows)
      tokens = trim(TokenBatch(*(values[begin:end] for values in windows.tokens)), self._settings.max_seq_length)
      places = windows.places.rows(begin, end, tf.shape(tokens.input_ids)[1])
      spans = self.output(self.encoder.sequence(tokens, UnpaddedLayout(tokens, self._config)), places)
      return end, *(tf.concat(pair, axis=0) for pair in zip(found, spans, strict=True))

    start = (tf.constant(0), *(tf.zeros([0], dtype) for dtype in (tf.int32, tf.int32, tf.float32, tf.float32)))
    shapes = (tf.TensorShape([]), *[tf.TensorShape([None])] * len(BestSpans._fields))
    _, *found = tf.while_loop(
      lambda begin, *_: begin < num_windows, some, start, shape_invariants=shapes, parallel_iterations=1
    )
    return BestSpans(*found)

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """The best span of each window, by its tokens."""
    is_answer = (tokens.segment_ids > 0) & (tokens.input_mask > 0) & (tokens.input_ids != SEP_ID)
    columns = tf.zeros_like(tokens.input_ids) + tf.range(tf.shape(tokens.input_ids)[1])
    spans = self.output(
      self.encoder.sequence(tokens, layout), WindowPositions(is_answer, is_answer, columns, columns + 1)
    )
    return {
      "score": spans.score,
      "no_answer_probability": tf.sigmoid(spans.null),
      "start": spans.start,
      "end": spans.end,
    }

  def how_text_is_cut(self) -> str:
    """A context is not."""
    squad = self._squad
    return (
      f"A context may have any length: it is read in overlapping windows of at most {self._settings.max_seq_length} "
      f"tokens with the question, each {squad.doc_stride} tokens after the one before it (less if fewer fit). A "
      f"question is cut after {squad.max_query_length} tokens, and an answer has at most {squad.max_answer_length}."
    )

  def examples(self) -> list[dict[str, Any]]:
    """A question, and one that the context does not answer."""
    context = (
      "The lighthouse at the end of the pier was built in 1874 by the brothers Hale. It burned down twice, and since "
      "1931 its lamp has been electric."
    )
    return [
      {QUESTION: "Who built the lighthouse?", CONTEXT: context},
      {QUESTION: "How many people live on the island?", CONTEXT: context},
    ]


def _first_best(scores: tf.Tensor, example: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  """scores float32 [W] of windows of examples int32 [W] -> int32 [B]: the best window, the first of equals."""
  best = tf.math.unsorted_segment_max(scores, example, count)
  places = tf.range(tf.size(scores))
  places = tf.where(scores == tf.gather(best, example), places, tf.size(scores))
  return tf.math.unsorted_segment_min(places, example, count)


class ServedSquadV1(_QuestionAnswering):
  """Every question has an answer."""

  head = "squad"
  head_class = V1Head


class ServedSquadV2(_QuestionAnswering):
  """A question may have no answer."""

  head = "squad_v2"
  head_class = V2Head

  def how_text_is_cut(self) -> str:
    """Adds when there is no answer."""
    threshold = self._squad.null_score_diff_threshold
    return super().how_text_is_cut() + (
      f' `answer` is "" where log(p / (1 - p)) of the no_answer_probability p is above {threshold:g} '
      "(null_score_diff_threshold)."
    )
