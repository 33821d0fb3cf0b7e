"""SentencePiece vocabularies as TensorFlow ops: the ids and offsets of `albert.tokenization.sentence_piece`.

Only the SentencePiece ops are from tensorflow-text. TensorFlow Serving includes them, but not the other ops of
tensorflow-text.

"Written characters" are the characters of the normalized texts that are left after SentencePiece's own normalization,
without spaces and without the characters that it drops. Tokens are consecutive ranges of them.

With keep_accents, SentencePiece itself decomposes characters such as ½. The range of a token that ends within such a
character, such as the 1 of 1⁄2, may end before it here, and includes it in Python.

Legend: B texts, W words of all texts, T tokens (ragged), C characters of all original texts, N written characters of
all texts.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from albert.errors import UserError
from albert.io.protobuf import encode_bytes_field
from albert.tokenization import graph
from albert.tokenization.normalization import replacement
from albert.tokenization.sentence_piece import SentencePieceVocabulary, lengths_with_bytes
from albert.tokenization.vocabulary import WORD_START, TokenizerConfig

# Classes of characters, see _unwritten; 0 for the characters that are written.
_SPACE, _DROPPED = 1, 2
# Added to a serialized model: the pieces of the 256 bytes (field 1: text and type BYTE), and byte_fallback in a second
# trainer_spec (field 2), which protocol buffers merge into the first one.
_BYTE_PIECES = b"".join(
  encode_bytes_field(1, encode_bytes_field(1, b"<0x%02X>" % byte) + b"\x18\x06") for byte in range(256)
) + encode_bytes_field(2, b"\x98\x02\x01")


@functools.cache
def normalization_tables(*, do_lower_case: bool, keep_accents: bool) -> tuple[graph.CodePointTable, graph.Replacements]:
  """Returns the tables of what each character becomes before it is lower-cased, see `normalization.replacement`."""
  switches = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
  return graph.replacement_tables({c: replacement(c, **switches) for c in graph.CODE_POINTS_WITH_PROPERTIES})


class SentencePieceGraphTokenizer(graph.GraphTokenizer):
  """The graph tokenizer of a SentencePiece model.

  Raises:
    UserError: the vocabulary has an export_problem.
  """

  def __init__(self, config: TokenizerConfig):
    super().__init__(config)
    vocabulary = self.reference.vocabulary
    assert isinstance(vocabulary, SentencePieceVocabulary)
    self.sentence_piece = vocabulary
    self._tables = normalization_tables(do_lower_case=config.do_lower_case, keep_accents=config.keep_accents)
    if vocabulary.export_problem:
      raise UserError(vocabulary.export_problem)
    # Without pieces for bytes, SentencePiece joins successive unknown characters to one <unk>, in a time that grows
    # with the square of their number: a megabyte takes minutes. So it gets such pieces, and `_join_unknown` replaces
    # them by <unk>.
    has_bytes = vocabulary.character_bytes.max() >= 0
    model = vocabulary.exact_model if has_bytes else vocabulary.exact_model + _BYTE_PIECES
    self._sentencepiece = tf_text.SentencepieceTokenizer(model, out_type=tf.int32)
    splits = vocabulary.comma_rule.splits
    self._comma_replacements = graph.Replacements(splits.values())
    # For each id, the index of the sequence in _comma_replacements; 0 where the comma rule does not apply.
    self._comma_sequence_indices = np.zeros(len(vocabulary.pieces), np.int32)
    self._comma_sequence_indices[list(splits)] = np.arange(1, len(splits) + 1)

  def normalize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Normalizes texts, string [B], like `Tokenizer.normalize`; returns code points, int32 [B, (characters)]."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf.strings.regex_replace(texts, f"[{graph.WHITE_SPACE}]+", " ")
    texts = tf.strings.regex_replace(texts, "^ | $", "")
    if self.config.convert_quotes:
      texts = tf.strings.regex_replace(texts, "``|''", '"')
    code_points = tf.strings.unicode_decode(texts, "UTF-8")
    index_of, replacements = self._tables
    code_points = replacements(code_points, index_of(code_points.flat_values))
    if self.config.do_lower_case:
      code_points = graph.lower(code_points)
    if whole_tokens := self.sentence_piece.whole_tokens:
      texts = tf.strings.unicode_encode(code_points, "UTF-8")
      texts = tf.strings.regex_replace(texts, whole_tokens, r" \0 ")
      code_points = tf.strings.unicode_decode(texts, "UTF-8")
    return code_points

  def _split_words(self, code_points: tf.RaggedTensor) -> tf.RaggedTensor:
    """Splits normalized texts, int32 [B, (characters)], into words that are encoded alone, string [B, (words)]:
    each text is one word if words are not independent.
    """
    texts = tf.strings.unicode_encode(code_points, "UTF-8")
    if not self.sentence_piece.words_are_independent:
      return tf.RaggedTensor.from_row_splits(texts, tf.range(tf.size(texts, tf.int64) + 1), validate=False)
    # SentencePiece drops a ▁ at the end of a text, so there is no cut after one.
    lines = tf.strings.regex_replace(tf.strings.regex_replace(texts, " ", "\n"), f"{WORD_START}\n+", f"{WORD_START} ")
    return tf.strings.split(lines, sep="\n")

  def _join_unknown(self, ids: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Replaces each sequence of bytes that were added to the model by one <unk>.

    Args:
      ids: int32 [W, (tokens)].

    Returns:
      The new ids, int32 [W, (T)], and the index of the first old token of each and the number of old tokens, [T + 1].
    """
    flat = ids.flat_values
    is_byte = flat >= len(self.sentence_piece.pieces)
    word_indices = ids.value_rowids()
    is_first = tf.where(is_byte, graph.begins_run(is_byte, word_indices[1:] == word_indices[:-1]), True)
    joined = tf.boolean_mask(tf.where(is_byte, self.special_ids.unk, flat), is_first)
    first = tf.concat([tf.boolean_mask(tf.range(tf.size(flat)), is_first), [tf.size(flat)]], axis=0)
    return tf.RaggedTensor.from_row_splits(
      joined, tf.gather(graph.count_before(is_first), ids.row_splits), validate=False
    ), first

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    words = self._split_words(self.normalize(texts))
    ids, _ = self._join_unknown(self._sentencepiece.tokenize(words.flat_values))
    return self._comma_replacements(*self._by_text(ids, words))

  def _by_text(self, ids: tf.RaggedTensor, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Returns the ids of words, int32 [W, (T)], as the ids of texts, int32 [B, (T)], and for each token the index of
    its sequence in the comma rule's replacements.
    """
    splits = tf.gather(ids.row_splits, words.row_splits)
    sequence_indices = tf.gather(tf.constant(self._comma_sequence_indices), ids.flat_values)
    return tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False), sequence_indices


def _ranges_of_tokens(
  written: tuple[tf.Tensor, tf.Tensor, tf.Tensor], first: tf.Tensor, lengths: tf.Tensor, text_indices: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Computes the ranges of tokens in their texts.

  Args:
    written: the ranges and the texts of the written characters, see written_ranges.
    first: int32 [T], index of each token's first written character.
    lengths: int32 [T], number of written characters of each token; 0 for a token of space.
    text_indices: int32 [T], index of each token's text.

  Returns:
    starts, ends: int32 [T].
  """
  # A character that belongs to no text (text index -1) is added before the first one and after the last one. So written
  # character n has index n + 1 here.
  starts, ends, texts = (
    tf.concat([[padding], values, [padding]], axis=0) for values, padding in zip(written, (0, 0, -1), strict=True)
  )
  last_index = tf.minimum(first + lengths, tf.size(texts) - 2)
  first_index = tf.minimum(first + 1, tf.size(texts) - 1)
  # A token of space has no written character. It ends where the character before it ends, and starts where the
  # character after it starts, if these belong to the same text.
  ends = tf.where(tf.gather(texts, last_index) == text_indices, tf.gather(ends, last_index), 0)
  return tf.where(tf.gather(texts, first_index) == text_indices, tf.gather(starts, first_index), ends), ends


@functools.lru_cache(maxsize=1)
def _unwritten(model: bytes) -> graph.CodePointTable:
  """Finds the characters that SentencePiece's normalization does not write.

  Returns:
    A table with _SPACE for characters that it replaces by a space (▁, and for most models also zero-width characters
    such as U+200B), _DROPPED for characters that it drops (control characters), 0 for all others.
  """
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  class_of = {processor.normalize("a a"): _SPACE, processor.normalize("aa"): _DROPPED}
  normalized = processor.normalize([f"a{chr(c)}a" for c in graph.CODE_POINTS_WITH_PROPERTIES])
  normalized_characters = zip(graph.CODE_POINTS_WITH_PROPERTIES, normalized, strict=True)
  return graph.CodePointTable((c, class_of[text]) for c, text in normalized_characters if text in class_of)


class SentencePieceOffsetGraphTokenizer(SentencePieceGraphTokenizer):
  """A SentencePieceGraphTokenizer that also returns the character offsets of tokens.

  Raises:
    UserError: the vocabulary's words are not independent.
  """

  def __init__(self, config: TokenizerConfig):
    super().__init__(config)
    vocabulary = self.sentence_piece
    if not vocabulary.words_are_independent:
      raise UserError(
        f"{vocabulary.file}: has pieces of several words, or was trained with --add_dummy_prefix=false or "
        "--remove_extra_whitespaces=false: a graph cannot compute the offsets of its tokens in a text: train another "
        "vocabulary (data_prep/train_vocab.py)"
      )
    self._unwritten = _unwritten(vocabulary.exact_model)
    lengths = [len(piece) - piece.count(WORD_START) for piece in vocabulary.pieces]
    lengths[vocabulary.special_ids.unk] = 1  # an <unk> stands for at least one character
    # Each byte of a character stands for the character.
    counts = np.where(vocabulary.character_bytes < 0, lengths, 1)
    self._min_lengths = (counts > 0).astype(np.int32)  # 0 for a piece of ▁ only, else 1
    # For each piece that the comma rule replaces: the lengths of the new tokens, and where each starts in the piece.
    splits = [vocabulary.comma_rule.split(vocabulary.pieces[i]) for i in vocabulary.comma_rule.splits]
    sizes = [[len(surface) - surface.count(WORD_START) for surface in surfaces] for _, surfaces in splits]
    num_bytes = [vocabulary.character_bytes[ids] for ids, _ in splits]
    self._comma_lengths = graph.Replacements(
      [np.where(of_bytes < 0, size, 1).tolist() for of_bytes, size in zip(num_bytes, sizes, strict=True)]
    )
    advances = list(map(lengths_with_bytes, num_bytes, sizes))
    self._comma_starts = graph.Replacements([[0, *itertools.accumulate(steps[:-1])] for steps in advances])

  def tokenize_with_offsets(self, texts: tf.Tensor) -> graph.RaggedTokensWithOffsets:
    words = self._split_words(self.normalize(texts))  # [B, (words)]
    # Ids and byte offsets in the word, [W, (tokens)].
    ids, byte_starts, byte_ends = self._sentencepiece.tokenize_with_offsets(words.flat_values)
    ids, first = self._join_unknown(ids)  # [W, (T)]
    # The byte offsets are converted to indices of written characters: from bytes in the word to bytes in all words,
    # then to the index of the written character.
    word_first_bytes = tf.cumsum(tf.strings.length(words.flat_values), exclusive=True)  # [W], bytes before each word
    word_of_token = ids.value_rowids()
    code_points = tf.strings.unicode_decode(words.flat_values, "UTF-8").flat_values
    first_bytes = tf.cumsum(graph.utf8_sizes(code_points), exclusive=True)
    written_first_bytes = tf.boolean_mask(first_bytes, self._unwritten(code_points) == 0)

    def to_characters(byte_offsets: tf.Tensor) -> tf.Tensor:
      byte_positions = tf.gather(word_first_bytes, word_of_token) + tf.cast(byte_offsets, tf.int32)
      return tf.searchsorted(written_first_bytes, byte_positions)

    starts = to_characters(tf.gather(byte_starts.flat_values, first[:-1]))
    ends = to_characters(tf.gather(byte_ends.flat_values, first[1:] - 1))
    # Each byte of a character gets the end of the last one; SentencePiece gives the others an empty range.
    continues = tf.gather(tf.constant(self.sentence_piece.character_bytes), ids.flat_values) == 0
    characters = tf.cumsum(tf.cast(~continues, tf.int32)) - 1  # the same index for all bytes of a character
    ends = tf.gather(tf.math.unsorted_segment_max(ends, characters, tf.size(characters)), characters)
    # If SentencePiece writes several characters for one, tokens may split them. Each token then gets the whole one.
    min_lengths = tf.gather(tf.constant(self._min_lengths), ids.flat_values)
    lengths = tf.maximum(ends - starts, min_lengths)
    # The comma rule replaces each token by a sequence of tokens.
    ids, sequences = self._by_text(ids, words)
    num_new_tokens = tf.gather(tf.constant(self._comma_replacements.lengths), sequences)  # for each token
    starts_in_token = self._comma_starts(ids.with_flat_values(tf.zeros_like(starts)), sequences).flat_values
    starts = tf.repeat(starts, num_new_tokens) + starts_in_token
    lengths = self._comma_lengths(ids.with_flat_values(lengths), sequences).flat_values
    ids = self._comma_replacements(ids, sequences)
    text_indices = tf.cast(ids.value_rowids(), tf.int32)
    starts, ends = _ranges_of_tokens(self._written_ranges(texts), starts, lengths, text_indices)
    return graph.RaggedTokensWithOffsets(ids, ids.with_flat_values(starts), ids.with_flat_values(ends))

  def _written_ranges(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the ranges of what SentencePiece's normalization writes for texts, string [B], see written_ranges."""
    ragged = graph.decode_utf8(texts)
    code_points = ragged.flat_values  # [C]
    index_of, replacements = self._tables
    indices = index_of(code_points)
    counts = tf.where(indices == 0, 1, tf.gather(tf.constant(replacements.lengths), indices))
    if self.config.convert_quotes:  # `` and '' become one character
      counts = tf.where(graph.second_quotes(ragged), 0, counts)
    counts = tf.where(graph.white_space()(code_points) == 0, counts, 0)  # of characters in the normalized text
    in_words = tf.boolean_mask(code_points, counts > 0)
    ragged_words = tf.RaggedTensor.from_row_lengths(in_words, [tf.size(in_words, tf.int64)], validate=False)
    normalized = replacements(ragged_words, index_of(in_words)).flat_values
    classes = self._unwritten(normalized)
    owners = tf.repeat(tf.range(tf.size(counts)), counts)  # the index in `code_points` of each normalized character
    num_written, num_spaces = (
      tf.math.unsorted_segment_sum(tf.cast(classes == value, tf.int32), owners, tf.size(counts))
      for value in (0, _SPACE)
    )
    return graph.written_ranges(ragged, num_written, num_spaces)
