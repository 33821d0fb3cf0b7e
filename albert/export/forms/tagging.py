"""Serves the taggers of `albert.tasks.tagging`. The graph cuts texts into words, and long texts into windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from albert.config.base import Config
from albert.errors import UserError
from albert.export.checking.form_evaluations import TaggingEvaluation
from albert.export.checkpoint import FLAG, ExportCheckpoint
from albert.export.forms.windows import cut_contexts, gather_clipped, has_most_context, row_starts
from albert.export.network.heads import LinearHead
from albert.export.network.tag_decoding import TagDecoder
from albert.export.network.token_layout import TokenBatch, TokenLayout, UnpaddedLayout, check_length
from albert.export.served_model import AnswerTensors, ExportSettings, RequestField, ServedModel
from albert.io.wording import counted
from albert.tasks.glue.flags import parse_labels
from albert.tasks.tagging.data import TaggingConfig, with_labels
from albert.tasks.tagging.schemes import SCHEMES
from albert.tokenization.in_graph.graph_words import RaggedWords, split_words
from albert.tokenization.pieces import SpecialIds

# B texts, W windows of all texts, S tokens of a window, T words of all texts, C tags.

TEXT = "text"
# Number of windows that are computed at once. It bounds the memory that a long text needs.
_WINDOWS_AT_ONCE = 16
_NUM_SPECIAL_TOKENS = 2  # a window is [CLS] part of the text [SEP]


class WordWindows(NamedTuple):
  """The windows of texts, in order.

  Attributes:
    tokens: ids, mask and segments of the tokens, [W, S].
    words: int32 [W, S], the index among the words of all texts of the word that begins at the token; -1 if no word
      begins there, or if another window has more context around it.
  """

  tokens: TokenBatch
  words: tf.Tensor


class ServedTagger(ServedModel):
  """Serves a tagger: the spans of a text, with their types."""

  head = "classifier"
  uses_pooler = False
  evaluation_class = TaggingEvaluation
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

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(checkpoint, settings)
    assert isinstance(settings.config, TaggingConfig)
    self._tagging_config = with_labels(settings.config)
    self.fields = [RequestField(TEXT, "the text, of any length")]
    scheme = SCHEMES[self._tagging_config.scheme]
    self._tags = scheme.tags(parse_labels(self._tagging_config.labels, minimum=1))
    weights = checkpoint.head_weights(self.head)
    num_outputs = len(weights["output_bias"])
    if num_outputs != len(self._tags):
      raise UserError(
        f"{FLAG}={checkpoint.file.path}: its head has {counted(num_outputs, 'output')}, but --scheme={scheme.name} "
        f"with --labels={self._tagging_config.labels} has {len(self._tags)} tags: give those it was trained with"
      )
    self.output = LinearHead(weights)
    self.decoder = TagDecoder(scheme, self._tags)

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Config) -> str | None:
    """See ServedModel.incompatibility: a classifier of texts has a head with the same name."""
    reason = super().incompatibility(checkpoint, config)
    if reason is None and checkpoint.task not in (None, "tagging"):
      return f"its run belongs to the task {checkpoint.task}, not tagging"
    return reason

  def labels(self) -> Sequence[str]:
    """The tags."""
    return self._tags

  def cut_into_windows(self, words: RaggedWords) -> WordWindows:
    """Tokenizes words and makes the windows of texts, at least one for each text."""
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
    return make_windows(
      of_texts,
      words_of_pieces,
      max_seq_length=self._settings.max_seq_length,
      doc_stride=self._tagging_config.doc_stride,
      special_ids=self.tokenizer.special_ids,
    )

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """The ids of all windows, int32 [W, S]."""
    return self.cut_into_windows(split_words(texts[TEXT], self._tagging_config.word_rule)).tokens

  def answer_texts(self, **texts: tf.Tensor) -> AnswerTensors:
    """Finds the spans of texts."""
    words = split_words(texts[TEXT], self._tagging_config.word_rule)
    log_probabilities = self._log_probabilities(self.cut_into_windows(words), tf.size(words.words.flat_values))
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

  def _log_probabilities(self, windows: WordWindows, num_words: tf.Tensor) -> tf.Tensor:
    """The log probabilities of the tags of all words, float32 [T, C]; 0 for words without pieces.

    They are computed _WINDOWS_AT_ONCE windows at a time.
    """
    num_windows = tf.shape(windows.words)[0]

    def compute_next(begin: tf.Tensor, results: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      end = tf.minimum(begin + _WINDOWS_AT_ONCE, num_windows)
      tokens = check_length(
        TokenBatch(*(values[begin:end] for values in windows.tokens)), self._settings.max_seq_length
      )
      word_indices = windows.words[begin:end, : tf.shape(tokens.input_ids)[1]]
      log_probabilities = tf.nn.log_softmax(self._logits(tokens, UnpaddedLayout(tokens, self._config)))
      is_word = word_indices >= 0
      updated = tf.tensor_scatter_nd_update(
        results, tf.boolean_mask(word_indices, is_word)[:, tf.newaxis], tf.boolean_mask(log_probabilities, is_word)
      )
      return end, updated

    _, results = tf.while_loop(
      lambda begin, _: begin < num_windows,
      compute_next,
      (tf.constant(0), tf.zeros([num_words, len(self._tags)])),
      shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, len(self._tags)])),
      parallel_iterations=1,
    )
    return results

  def _logits(self, tokens: TokenBatch, layout: TokenLayout | None) -> tf.Tensor:
    """The logits of the tags at each token, float32 [W, S, C]."""
    return self.output(self.encoder.sequence_output(tokens, layout))

  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """See ServedModel.compute. The words are not known here, so the answer has the tags of all tokens."""
    is_token = tf.expand_dims(tf.cast(tokens.input_mask, tf.float32), 2)
    return {"tag_probabilities": tf.nn.softmax(self._logits(tokens, layout)) * is_token}

  def truncation_note(self) -> str:
    """See ServedModel.truncation_note."""
    config = self._tagging_config
    return (
      f"A text may have any length: it is read in overlapping windows of at most {self._settings.max_seq_length} "
      f"tokens, each {config.doc_stride} tokens after the one before it. Words are divided by the rule "
      f"{config.word_rule!r} (word_rule), and their tags follow the scheme {config.scheme}."
    )

  def examples(self) -> list[dict[str, Any]]:
    """See ServedModel.examples."""
    return [{TEXT: "Anna Hale flew to New York on Monday."}, {TEXT: "In Berlin, Peter met John Smith."}]


def make_windows(
  pieces: tf.RaggedTensor,
  words_of_pieces: tf.Tensor,
  *,
  max_seq_length: int,
  doc_stride: int,
  special_ids: SpecialIds,
) -> WordWindows:
  """Makes the windows of texts, as `albert.tasks.tagging.features.TaggingFeaturizer` does.

  Args:
    pieces: ids, int32 [B, (pieces)].
    words_of_pieces: int32 [all pieces], the index of the word that begins with the piece, or -1.
    max_seq_length, doc_stride: see TaggingFeaturizer.
    special_ids: the ids of [CLS] and [SEP].
  """
  lengths = tf.cast(pieces.row_lengths(), tf.int32)
  parts = cut_contexts(lengths, tf.fill(tf.shape(lengths), max_seq_length - _NUM_SPECIAL_TOKENS), doc_stride)
  window_lengths = parts.length + _NUM_SPECIAL_TOKENS
  columns = tf.range(tf.reduce_max(tf.concat([window_lengths, [1]], axis=0)))[tf.newaxis, :]  # [1, S]
  offset_in_part = columns - 1 + tf.zeros_like(window_lengths)[:, tf.newaxis]  # [W, S]
  offset_from_end = columns - window_lengths[:, tf.newaxis]  # -1 at [SEP]
  is_text = (offset_in_part >= 0) & (offset_from_end < -1)
  indices = (tf.gather(row_starts(pieces), parts.example) + parts.start)[:, tf.newaxis] + offset_in_part
  ids = tf.where(is_text, gather_clipped(pieces.flat_values, indices), special_ids.sep)
  ids = tf.where(columns == 0, special_ids.cls, ids)
  mask = tf.cast(offset_from_end < 0, tf.int32)
  has_most = is_text & has_most_context(indices, offset_in_part, parts.length[:, tf.newaxis], is_text)
  words = tf.where(has_most, gather_clipped(words_of_pieces, indices), -1)
  return WordWindows(TokenBatch(ids * mask, mask, tf.zeros_like(mask)), words)
