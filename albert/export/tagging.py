"""Serves the taggers of `albert.tasks.tagging`. The graph cuts texts into words and windows, and decodes the tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from albert.export.checkpoint import ExportCheckpoint, SelectedForm
from albert.export.companion_files import NamedArrays, RequestField
from albert.export.network import TokenBatch, TokenLayout, UnpaddedLayout, cut_into_windows, gather_clipped, map_windows
from albert.export.served_model import AnswerTensors, ServedModel, load_linear_head, log_of
from albert.tasks.tagging.files import TaggingData
from albert.tasks.tagging.schemes import SCHEMES, Scheme
from albert.tokenization.words_graph import RaggedWords, split_words

# B texts, W windows of all texts, S tokens of a window, L words of the longest text, T words of all texts, N spans of
# all texts, C tags.

TEXT = "text"


class WordSpans(NamedTuple):
  """The spans of all texts, in order.

  Attributes:
    first_words, last_words: int32 [N], indices among the words of all texts.
    types: string [N].
    log_probabilities: float64 [N], the sum of those of the words' tags.
  """

  first_words: tf.Tensor
  last_words: tf.Tensor
  types: tf.Tensor
  log_probabilities: tf.Tensor


class TagDecoder:
  """Finds the most probable tags that a scheme allows, and their spans, as `best_tags` does.

  Args:
    scheme: how tags mark spans.
    tags: all tags, in the order of the logits. The first one is O, if the scheme has it.
  """

  def __init__(self, scheme: Scheme, tags: Sequence[str]):
    self._costs = np.where(scheme.transitions(tags), 0.0, -np.inf)  # [C, C]
    self._types = [scheme.parts(tag)[1] for tag in tags]
    self._is_outside = np.array([not span_type for span_type in self._types])
    # Whether the tag begins a span: it may follow an O.
    self._begins = (self._costs[0] == 0.0) & ~self._is_outside

  def best_tags(self, log_probabilities: tf.RaggedTensor) -> tf.Tensor:
    """Finds the tags of all words, int32 [T], from their log probabilities, float32 [B, (words), C]."""
    num_texts = tf.cast(log_probabilities.nrows(), tf.int32)
    num_tags = len(self._types)
    lengths = tf.cast(log_probabilities.row_lengths(), tf.int32)
    # At least one word, because tf.scan needs one.
    max_length = tf.maximum(tf.reduce_max(tf.concat([lengths, [1]], axis=0)), 1)
    scores = tf.cast(log_probabilities.to_tensor(shape=[None, None, num_tags]), tf.float64)
    scores = tf.pad(scores, [[0, 0], [0, max_length - tf.shape(scores)[1]], [0, 0]])
    is_word = tf.sequence_mask(lengths, max_length)  # [B, L]
    costs = tf.constant(self._costs, tf.float64)
    same = tf.tile(tf.range(num_tags)[tf.newaxis], [num_texts, 1])

    def step(state: tuple[tf.Tensor, tf.Tensor], word: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
      (previous, _), (emission, is_real) = state, word
      paths = previous[:, :, tf.newaxis] + costs  # [B, C, C]
      is_real = is_real[:, tf.newaxis]
      new_scores = tf.where(is_real, tf.reduce_max(paths, axis=1) + emission, previous)
      return new_scores, tf.where(is_real, tf.argmax(paths, axis=1, output_type=tf.int32), same)

    # Before the first word, there is the first tag.
    first = tf.tile(tf.constant([[0.0] + [-np.inf] * (num_tags - 1)], tf.float64), [num_texts, 1])
    all_scores, previous_tags = tf.scan(
      step, (tf.transpose(scores, [1, 0, 2]), tf.transpose(is_word)), initializer=(first, same)
    )
    last = tf.argmax(all_scores[-1] + costs[:, 0], axis=1, output_type=tf.int32)  # [B]
    # The tag before each word, from the last word to the first one.
    before = tf.scan(
      lambda tag, tags_before: tf.gather(tags_before, tag, batch_dims=1), previous_tags, initializer=last, reverse=True
    )  # [L, B]
    tags = tf.concat([before[1:], last[tf.newaxis]], axis=0)
    return tf.boolean_mask(tf.transpose(tags), is_word)

  def spans(self, log_probabilities: tf.RaggedTensor) -> WordSpans:
    """Finds the spans of all texts from the log probabilities of the words' tags, float32 [B, (words), C]."""
    tags = self.best_tags(log_probabilities)
    of_tags = tf.cast(tf.gather(log_probabilities.flat_values, tags, batch_dims=1), tf.float64)
    begins = tf.gather(tf.constant(self._begins), tags)
    is_in_span = ~tf.gather(tf.constant(self._is_outside), tags)
    words = tf.range(tf.size(tags))
    span_indices = tf.boolean_mask(tf.cumsum(tf.cast(begins, tf.int32)) - 1, is_in_span)
    first_words = tf.boolean_mask(words, begins)
    num_spans = tf.size(first_words)
    return WordSpans(
      first_words,
      tf.math.unsorted_segment_max(tf.boolean_mask(words, is_in_span), span_indices, num_spans),
      tf.gather(tf.constant(self._types), tf.gather(tags, first_words)),
      tf.math.unsorted_segment_sum(tf.boolean_mask(of_tags, is_in_span), span_indices, num_spans),
    )


class ServedTagger(ServedModel):
  """Serves a tagger: the spans of a text, with their types."""

  head = "classifier"
  uses_pooler = False
  summary = "finds spans of words in a text, such as names"
  counted_by = "num_spans"
  answers: ClassVar[Mapping[str, str]] = {
    "num_spans": "number of spans, int32 [B]",
    "label": "type of each span, string [B, N]",
    "span": "text of each span, string [B, N]",
    "start": "index of its first character, int32 [B, N]",
    "end": "index after its last character, int32 [B, N]",
    "probability": "the product of the probabilities of its words' tags, float32 [B, N]",
  }
  ids_meaning = (
    "one window: [CLS] part of the text [SEP], then padding. The answer is tag_probabilities, float32 [B, S, C]: the "
    "probability of each tag, in the order of assets/labels.txt, 0 at padding. That of the first token of a word counts"
  )

  def __init__(self, checkpoint: ExportCheckpoint, form: SelectedForm):
    super().__init__(checkpoint, form)
    data = TaggingData(form.config)
    data.find_labels()
    self.task_config = data.config
    self.fields = [RequestField(TEXT, "the text, of any length")]
    self.labels = data.tags
    owner = f"--scheme={data.scheme.name} with --labels={self.task_config.labels}"
    self.output = load_linear_head(checkpoint, self.labels, owner, " tags: give those it was trained with")
    self.decoder = TagDecoder(data.scheme, self.labels)

  def _cut_into_windows(self, words: RaggedWords) -> tuple[TokenBatch, tf.Tensor]:
    """The windows of texts, [W, S], and for each token the index of the word that begins with it, int32 [W, S].

    The index is that among the words of all texts. It is -1 if no word begins with the token, or if another window has
    more context around it.
    """
    pieces = self.tokenizer.tokenize(words.spaced())  # [T, (pieces)]
    of_texts = tf.RaggedTensor.from_row_splits(
      pieces.flat_values, tf.gather(pieces.row_splits, words.words.row_splits), validate=False
    )
    has_pieces = pieces.row_lengths() > 0
    # For each piece, the index of the word that begins with it, or -1.
    word_indices = tf.cast(tf.boolean_mask(tf.range(pieces.nrows()), has_pieces), tf.int32)
    first_pieces = tf.boolean_mask(pieces.row_starts(), has_pieces)
    words_of_pieces = tf.tensor_scatter_nd_update(
      tf.fill([tf.size(pieces.flat_values)], -1), first_pieces[:, tf.newaxis], word_indices
    )
    windows = cut_into_windows(
      of_texts,
      max_seq_length=self.max_seq_length,
      doc_stride=self.task_config.doc_stride,
      special_ids=self.tokenizer.special_ids,
    )
    words_of_tokens = tf.where(windows.has_most_context, gather_clipped(words_of_pieces, windows.indices), -1)
    return windows.tokens, words_of_tokens

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """The ids of all windows, int32 [W, S]."""
    return self._cut_into_windows(split_words(texts[TEXT], self.task_config.word_rule))[0]

  def answer_texts(self, **texts: tf.Tensor) -> AnswerTensors:
    """Finds the spans of texts."""
    words = split_words(texts[TEXT], self.task_config.word_rule)
    tokens, words_of_tokens = self._cut_into_windows(words)
    log_probabilities = self._log_probabilities(tokens, words_of_tokens, tf.size(words.words.flat_values))
    spans = self.decoder.spans(words.words.with_flat_values(log_probabilities))
    starts = tf.gather(words.starts.flat_values, spans.first_words)
    ends = tf.gather(words.ends.flat_values, spans.last_words)
    rows = tf.gather(tf.cast(words.words.value_rowids(), tf.int32), spans.first_words)
    num_texts = tf.size(texts[TEXT], tf.int64)

    def by_text(values: tf.Tensor) -> tf.Tensor:
      """Values of all spans -> [B, N], with 0 or "" as padding."""
      return tf.RaggedTensor.from_value_rowids(values, tf.cast(rows, tf.int64), num_texts, validate=False).to_tensor()

    return {
      "num_spans": tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, tf.cast(num_texts, tf.int32)),
      "label": by_text(spans.types),
      "span": by_text(words.texts_of(rows, starts, ends)),
      "start": by_text(starts),
      "end": by_text(ends),
      "probability": by_text(tf.cast(tf.exp(spans.log_probabilities), tf.float32)),
    }

  def _log_probabilities(self, windows: TokenBatch, words: tf.Tensor, num_words: tf.Tensor) -> tf.Tensor:
    """The log probabilities of the tags of all words, float32 [T, C]; 0 for words without pieces."""

    def compute(tokens: TokenBatch, word_indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      log_probabilities = tf.nn.log_softmax(self._logits(tokens, UnpaddedLayout(tokens, self._config)))
      is_word = word_indices >= 0
      return tf.boolean_mask(word_indices, is_word), tf.boolean_mask(log_probabilities, is_word)

    num_tags = len(self.labels)
    no_results = (tf.zeros([0], tf.int32), tf.zeros([0, num_tags]))
    indices, values = map_windows(compute, windows, words, max_seq_length=self.max_seq_length, no_results=no_results)
    return tf.tensor_scatter_nd_update(tf.zeros([num_words, num_tags]), indices[:, tf.newaxis], values)

  def _logits(self, tokens: TokenBatch, layout: TokenLayout) -> tf.Tensor:
    """The logits of the tags at each token, float32 [W, S, C]."""
    return self.output(self.encoder.sequence_output(tokens, layout))

  def compute(self, tokens: TokenBatch, layout: TokenLayout) -> AnswerTensors:
    """The words are not known here, so the answer has the tags of all tokens."""
    is_token = tf.expand_dims(tf.cast(tokens.input_mask, tf.float32), 2)
    return {"tag_probabilities": tf.nn.softmax(self._logits(tokens, layout)) * is_token}

  @classmethod
  def training_outputs(cls, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    return {"log_probabilities": log_of(answers["tag_probabilities"])}

  def truncation_note(self) -> str:
    config = self.task_config
    return (
      f"A text may have any length: it is read in overlapping windows of at most {self.max_seq_length} "
      f"tokens, each {config.doc_stride} tokens after the one before it. Words are divided by the rule "
      f"{config.word_rule!r} (word_rule), and their tags follow the scheme {SCHEMES[config.scheme].name}."
    )

  def examples(self) -> list[dict[str, Any]]:
    return [{TEXT: "Anna Hale flew to New York on Monday."}, {TEXT: "In Berlin, Peter met John Smith."}]
