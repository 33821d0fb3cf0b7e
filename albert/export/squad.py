"""Serves the question-answering models that `albert.tasks.squad` trains. The graph cuts long contexts into windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from albert.data.schema import INPUT_IDS
from albert.export import network
from albert.export.checkpoint import ExportCheckpoint, SelectedForm
from albert.export.companion_files import NamedArrays, RequestField
from albert.export.network import TokenBatch, TokenLayout, UnpaddedLayout, Weights
from albert.export.served_model import AnswerTensors, ServedModel, log_odds_of
from albert.models.squad_heads import most_probable_positions
from albert.tasks.squad.flags import SquadConfig
from albert.tokenization.packing_graph import first_tokens

# B batch, W windows of all examples, S sequence, H hidden size, K starts and M ends for each start in the beam search,
# L maximum length of an answer.

QUESTION, CONTEXT = "question", "context"
# The score of a span that is not allowed.
NO_SPAN = -1e30
# The log odds of "no answer" in v1.1, where every question has one: their sigmoid is 0. For -1e30, the sigmoid of
# TensorFlow Lite is not a number on processors with AVX-512.
_HAS_ANSWER = -1e3


class WindowPositions(NamedTuple):
  """Where answers may be, and the character offsets of the tokens. All tensors have the shape [W, S].

  Attributes:
    is_context: bool, whether the token belongs to the context, so that an answer may contain it.
    may_start: bool, whether an answer may start at this token. Windows overlap; an answer may start at a token only in
      the window that shows the most context around it.
    char_starts, char_ends: int32, character offsets of the token in its context.
  """

  is_context: tf.Tensor
  may_start: tf.Tensor
  char_starts: tf.Tensor
  char_ends: tf.Tensor


class BestSpans(NamedTuple):
  """The best span of each window. All tensors have the shape [W].

  Attributes:
    start, end: positions of its first and its last token, int32.
    score: its score, float32; NO_SPAN if the window has no allowed span.
    null_odds: log odds that the question has no answer in this window, float32.
  """

  start: tf.Tensor
  end: tf.Tensor
  score: tf.Tensor
  null_odds: tf.Tensor


class V1Head(tf.Module):
  """Scores start and end independently. See `albert.tasks.squad.nbest.find_answers`."""

  def __init__(self, weights: Weights, config: SquadConfig):
    super().__init__(name="squad")
    self._config = config
    self.output = network.LinearHead(weights, "cls/squad/")

  def __call__(self, x: tf.Tensor, positions: WindowPositions) -> BestSpans:
    """Selects the best span of each window from the output of the last layer, float32 [W, S, H]."""
    start_logits, end_logits = tf.unstack(self.output(x), num=2, axis=-1)  # [W, S]
    length, max_answer_length = tf.shape(end_logits)[1], self._config.max_answer_length
    starts = tf.expand_dims(tf.range(length), 1)
    # The L possible ends for each start, [S, L]. Ends after the last token repeat the last token.
    ends = tf.minimum(starts + tf.expand_dims(tf.range(max_answer_length), 0), length - 1)
    scores = tf.expand_dims(start_logits, 2) + tf.gather(end_logits, ends, axis=1)  # [W, S, L]
    no_offsets = tf.zeros_like(scores, tf.int32)
    no_null = tf.fill([tf.shape(x)[0]], _HAS_ANSWER)
    return _select_spans(scores, starts + no_offsets, ends + no_offsets, positions, max_answer_length, no_null)


class V2Head(tf.Module):
  """Scores the end given the start, and whether there is an answer.

  See `albert.models.squad_heads.SquadV2Head` and `albert.tasks.squad.nbest.find_answers`.
  """

  def __init__(self, weights: Weights, config: SquadConfig):
    super().__init__(name="squad")
    self._config = config
    self.start = network.Dense(weights, "start_logits/dense")
    self.end_0 = network.Dense(weights, "end_logits/dense_0")
    self.end_norm = network.LayerNorm(weights, "end_logits/LayerNorm")
    self.end_1 = network.Dense(weights, "end_logits/dense_1")
    self.null_0 = network.Dense(weights, "answer_class/dense_0")
    self.null_1 = network.make_constant(weights["answer_class/dense_1/kernel"], "null_1")

  def __call__(self, x: tf.Tensor, positions: WindowPositions) -> BestSpans:
    # [CLS] is scored, too: it stands for the answer of unanswerable questions.
    is_cls = tf.expand_dims(tf.range(tf.shape(x)[1]) == 0, 0)
    is_scored = positions.is_context | is_cls
    start_logits = tf.where(is_scored, tf.squeeze(self.start(x), 2), NO_SPAN)
    start_scores, starts = most_probable_positions(start_logits, self._config.start_n_top)  # [W, K]
    scores_and_ends = [self._best_ends(x, is_scored, starts[:, k]) for k in range(self._config.start_n_top)]
    end_scores = tf.stack([scores for scores, _ in scores_and_ends], axis=1)  # [W, K, M]
    ends = tf.stack([positions_of_ends for _, positions_of_ends in scores_and_ends], axis=1)  # [W, K, M]
    starts = tf.expand_dims(starts, 2) + tf.zeros_like(ends)  # [W, K, M]
    # The expected start and [CLS] tell whether the question has an answer in the window.
    expected_start = tf.squeeze(tf.matmul(tf.expand_dims(tf.nn.softmax(start_logits), 1), x), 1)  # [W, H]
    hidden = tf.tanh(self.null_0(tf.concat([expected_start, x[:, 0]], axis=1)))
    null_odds = tf.squeeze(tf.matmul(hidden, self.null_1), 1)
    scores = tf.expand_dims(start_scores, 2) + end_scores
    return _select_spans(scores, starts, ends, positions, self._config.max_answer_length, null_odds)

  def _best_ends(self, x: tf.Tensor, is_scored: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The best ends given one start per window, int32 [W]: log probabilities and positions, [W, M] each."""
    hidden_size = x.shape[2]
    start_state = tf.gather(x, starts, batch_dims=1)  # [W, H]
    # end_0 takes the outputs at an end and at the start, concatenated. The product with the start's half of the matrix
    # is the same for all ends, so it is computed only once.
    end_kernel, start_kernel = self.end_0.kernel[:hidden_size], self.end_0.kernel[hidden_size:]
    start_term = tf.expand_dims(tf.matmul(start_state, start_kernel) + self.end_0.bias, 1)
    end_term = tf.reshape(tf.matmul(tf.reshape(x, [-1, hidden_size]), end_kernel), tf.shape(x))
    end_logits = tf.squeeze(self.end_1(self.end_norm(tf.tanh(end_term + start_term))), 2)
    return most_probable_positions(tf.where(is_scored, end_logits, NO_SPAN), self._config.end_n_top)


def _select_spans(
  scores: tf.Tensor,
  starts: tf.Tensor,
  ends: tf.Tensor,
  positions: WindowPositions,
  max_answer_length: int,
  null_odds: tf.Tensor,
) -> BestSpans:
  """Selects the best span of each window that an answer may be, from candidates and their scores, [W, K, M] each."""
  num_windows, num_starts, num_ends = tf.unstack(tf.shape(scores))
  scores, starts, ends = (tf.reshape(values, [num_windows, num_starts * num_ends]) for values in (scores, starts, ends))

  def at(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    return tf.gather(values, indices, batch_dims=1)

  is_span = at(positions.may_start, starts) & at(positions.is_context, ends)
  is_span &= (ends >= starts) & (ends - starts < max_answer_length)
  # A span must have at least one character; a token that is only a space has none.
  is_span &= at(positions.char_ends, ends) > at(positions.char_starts, starts)
  scores = tf.where(is_span, scores, NO_SPAN)
  best = tf.argmax(scores, axis=1, output_type=tf.int32)
  return BestSpans(at(starts, best), at(ends, best), tf.reduce_max(scores, axis=1), null_odds)


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
  head_class: ClassVar[type[V1Head] | type[V2Head]]
  needs_offsets = True
  best_metric_value = 100.0

  def __init__(self, checkpoint: ExportCheckpoint, form: SelectedForm):
    super().__init__(checkpoint, form)
    self.fields = [
      RequestField(QUESTION, "the question"),
      RequestField(CONTEXT, "the text that may answer it, of any length"),
    ]
    self.output = self.head_class(checkpoint.head_weights(self.head), self.task_config)

  def _cut_into_windows(self, question: tf.Tensor, context: tf.Tensor) -> tuple[network.TextWindows, WindowPositions]:
    """The windows of questions and contexts, string [B] each, and where answers may be in them."""
    tokens = self.tokenizer.tokenize_with_offsets(context)
    max_query_length = tf.constant(self.task_config.max_query_length, tf.int64)
    windows = network.cut_into_windows(
      tokens.ids,
      max_seq_length=self.max_seq_length,
      doc_stride=self.task_config.doc_stride,
      special_ids=self.tokenizer.special_ids,
      questions=first_tokens(self.tokenizer.tokenize(question), max_query_length),
    )
    starts, ends = (
      tf.where(windows.is_text, network.gather_clipped(offsets.flat_values, windows.indices), 0)
      for offsets in (tokens.starts, tokens.ends)
    )
    return windows, WindowPositions(windows.is_text, windows.has_most_context, starts, ends)

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """The ids of all windows, int32 [W, S]."""
    return self._cut_into_windows(texts[QUESTION], texts[CONTEXT])[0].tokens

  def answer_texts(self, **texts: tf.Tensor) -> AnswerTensors:
    """Answers texts with the best span among all windows of each example."""
    # The same replacement as in the tokenizer, so that its character offsets are offsets into this text.
    context = tf.strings.unicode_transcode(texts[CONTEXT], "UTF-8", "UTF-8", errors="replace")
    num_examples = tf.size(context)
    windows, positions = self._cut_into_windows(texts[QUESTION], texts[CONTEXT])
    spans = self._best_spans(windows.tokens, positions)
    score = tf.math.unsorted_segment_max(spans.score, windows.example, num_examples)  # [B]
    # Of the windows of an example with this score, the first.
    window_numbers = tf.where(
      spans.score == tf.gather(score, windows.example), tf.range(tf.size(spans.score)), tf.size(spans.score)
    )
    best_window = tf.math.unsorted_segment_min(window_numbers, windows.example, num_examples)
    has_span = score > NO_SPAN

    def character_offset(offsets: tf.Tensor, token_positions: tf.Tensor) -> tf.Tensor:
      """The offset of one token of each example's best window, 0 without a span: [W, S], [W] -> [B]."""
      indices = tf.stack([best_window, tf.gather(token_positions, best_window)], axis=1)
      return tf.where(has_span, tf.gather_nd(offsets, indices), 0)

    char_start = character_offset(positions.char_starts, spans.start)
    char_end = character_offset(positions.char_ends, spans.end)
    text = tf.strings.substr(context, char_start, char_end - char_start, unit="UTF8_CHAR")
    # A question has an answer if one of its windows has one.
    null_odds = tf.math.unsorted_segment_min(spans.null_odds, windows.example, num_examples)
    return {
      "answer": tf.where(null_odds > self.task_config.null_score_diff_threshold, "", text),
      "best_text": text,
      "score": score,
      "no_answer_probability": tf.sigmoid(null_odds),
      "start": char_start,
      "end": char_end,
    }

  def _best_spans(self, windows: TokenBatch, positions: WindowPositions) -> BestSpans:
    """The best span of each window."""

    def compute(tokens: TokenBatch, *positions: tf.Tensor) -> BestSpans:
      outputs = self.encoder.sequence_output(tokens, UnpaddedLayout(tokens, self._config))
      return self.output(outputs, WindowPositions(*positions))

    no_ints, no_floats = tf.zeros([0], tf.int32), tf.zeros([0], tf.float32)
    no_spans = BestSpans(start=no_ints, end=no_ints, score=no_floats, null_odds=no_floats)
    spans = network.map_windows(compute, windows, *positions, max_seq_length=self.max_seq_length, no_results=no_spans)
    return BestSpans(*spans)

  def compute(self, tokens: TokenBatch, layout: TokenLayout) -> AnswerTensors:
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

  @classmethod
  def metric_names(cls, task: Any) -> Sequence[str]:
    return (task.best_metric, "exact")

  def truncation_note(self) -> str:
    config = self.task_config
    return (
      f"A context may have any length: it is read in overlapping windows of at most {self.max_seq_length} "
      f"tokens with the question, each {config.doc_stride} tokens after the one before it (or fewer, if fewer fit). A "
      f"question is cut after {config.max_query_length} tokens, and an answer has at most {config.max_answer_length}."
    )

  def examples(self) -> list[dict[str, Any]]:
    context = (
      "The lighthouse at the end of the pier was built in 1874 by the brothers Hale. It burned down twice, and since "
      "1931 its lamp has been electric."
    )
    return [
      {QUESTION: "Who built the lighthouse?", CONTEXT: context},
      {QUESTION: "How many people live on the island?", CONTEXT: context},
    ]


class ServedSquadV1(_QuestionAnswering):
  """SQuAD v1.1: every question has an answer."""

  head = "squad"
  head_class = V1Head
  evaluation_settings: ClassVar[Mapping[str, Any]] = {"version_2_with_negative": False}

  @classmethod
  def training_outputs(cls, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    """See ServedModel.training_outputs: all logits are -inf except those of the best span's start and end."""
    rows = np.arange(len(answers["start"]))
    start_logits, end_logits = np.full([2, *batch[INPUT_IDS].shape], -np.inf)
    start_logits[rows, answers["start"]] = answers["score"]
    end_logits[rows, answers["end"]] = 0.0  # the score is the sum of both
    return {"start_logits": start_logits, "end_logits": end_logits}


class ServedSquadV2(_QuestionAnswering):
  """SQuAD v2.0: a question may have no answer."""

  head = "squad_v2"
  head_class = V2Head
  evaluation_settings: ClassVar[Mapping[str, Any]] = {"version_2_with_negative": True}

  @classmethod
  def training_outputs(cls, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    """See ServedModel.training_outputs: the best span is the only result of the beam search."""
    return {
      "start_log_probs": answers["score"][:, None],
      "start_positions": answers["start"][:, None],
      "end_log_probs": np.zeros([len(answers["score"]), 1, 1]),
      "end_positions": answers["end"][:, None, None],
      "null_logits": log_odds_of(answers["no_answer_probability"]),
    }

  def truncation_note(self) -> str:
    """See ServedModel.truncation_note; also says when `answer` is empty."""
    threshold = self.task_config.null_score_diff_threshold
    return super().truncation_note() + (
      f' `answer` is "" where log(p / (1 - p)) of the no_answer_probability p is above {threshold:g} '
      "(null_score_diff_threshold)."
    )
