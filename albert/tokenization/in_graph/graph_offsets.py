"""Offsets of SentencePiece tokens as TensorFlow ops: the results of `albert.tokenization.kinds.sentence_piece_offsets`.

"Written characters" are the characters of the normalized texts that are left after SentencePiece's own normalization,
without spaces and without the characters that it drops. Tokens are consecutive ranges of them.

With keep_accents, SentencePiece itself decomposes characters such as ½. The range of a token that ends within such a
character, such as the 1 of 1⁄2, may end before it here, and includes it in Python.

Legend: B texts, T tokens, C characters of all original texts, W words of all texts, N written characters of all texts.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
import sentencepiece
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.in_graph.base import RaggedTokensWithOffsets
from albert.tokenization.in_graph.code_points import CODE_POINTS_WITH_PROPERTIES, CodePointTable, Replacements
from albert.tokenization.in_graph.graph import SentencePieceGraphTokenizer, normalization_tables
from albert.tokenization.kinds.sentence_piece_offsets import lengths_with_bytes
from albert.tokenization.pieces import UNK_ID, WORD_START

# Classes of characters, see _unwritten; 0 for the characters that are written.
_SPACE, _DROPPED = 1, 2
_QUOTES = (ord("`"), ord("'"))


class _Origins(NamedTuple):
  """The origins of the written characters in the original texts.

  Attributes:
    starts, ends: int32 [N], range of each character's origin in its text.
    text_indices: int32 [N], index of each character's text.
  """

  starts: tf.Tensor
  ends: tf.Tensor
  text_indices: tf.Tensor

  def of_tokens(self, first: tf.Tensor, lengths: tf.Tensor, text_indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the ranges of tokens in their texts.

    Args:
      first: int32 [T], index of each token's first written character.
      lengths: int32 [T], number of written characters of each token; 0 for a token of space.
      text_indices: integers [T], index of each token's text.

    Returns:
      starts, ends: int32 [T].
    """
    # A character that belongs to no text (text index -1) is added before the first one and after the last one. So
    # written character n has index n + 1 in the padded origins.
    padded = _Origins(_pad(self.starts, 0), _pad(self.ends, 0), _pad(self.text_indices, -1))
    token_texts = tf.cast(text_indices, tf.int32)
    last_index = tf.minimum(first + lengths, tf.size(self.text_indices))
    # A token of space has no written character. It ends where the character before it ends, and starts where the
    # character after it starts, if these belong to the same text.
    ends = tf.where(tf.gather(padded.text_indices, last_index) == token_texts, tf.gather(padded.ends, last_index), 0)
    first_index = tf.minimum(first + 1, tf.size(self.text_indices) + 1)
    starts = tf.where(
      tf.gather(padded.text_indices, first_index) == token_texts, tf.gather(padded.starts, first_index), ends
    )
    return starts, ends


def _pad(values: tf.Tensor, padding: int) -> tf.Tensor:
  """Adds a value before the first and after the last of some values."""
  return tf.concat([[padding], values, [padding]], axis=0)


class _WordCharacters(NamedTuple):
  """Characters of the original texts that are not whitespace. Every tensor is int32, with one value a character.

  Attributes:
    text_indices: index of the character's text.
    word_indices: index of its word among the words of all texts.
    starts, ends: its range in its text.
    counts: number of written characters that it becomes.
  """

  text_indices: tf.Tensor
  word_indices: tf.Tensor
  starts: tf.Tensor
  ends: tf.Tensor
  counts: tf.Tensor

  def select(self, is_selected: tf.Tensor) -> _WordCharacters:
    """Returns some of the characters. `is_selected`: bool, one value a character."""
    return _WordCharacters(*(tf.boolean_mask(values, is_selected) for values in self))


@functools.cache
def _white_space() -> CodePointTable:
  """Returns a table with 1 for whitespace characters."""
  return CodePointTable.from_items((c, 1) for c in range(0x10000) if chr(c).isspace())


@functools.lru_cache(maxsize=1)
def _unwritten(model: bytes) -> CodePointTable:
  """Finds the characters that SentencePiece's normalization does not write.

  Returns:
    A table with _SPACE for characters that it replaces by a space (▁, and for most models also zero-width characters
    such as U+200B), _DROPPED for characters that it drops (control characters), 0 for all others.
  """
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  class_of = {processor.normalize("a a"): _SPACE, processor.normalize("aa"): _DROPPED}
  normalized = processor.normalize([f"a{chr(c)}a" for c in CODE_POINTS_WITH_PROPERTIES])
  normalized_characters = zip(CODE_POINTS_WITH_PROPERTIES, normalized, strict=True)
  return CodePointTable.from_items((c, class_of[text]) for c, text in normalized_characters if text in class_of)


class SentencePieceOffsetGraphTokenizer(SentencePieceGraphTokenizer):
  """A SentencePieceGraphTokenizer that also returns the character offsets of tokens.

  Args: see GraphTokenizer.

  Raises:
    UserError: see GraphTokenizer; also if the vocabulary's words are not independent.
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
    self._tables = normalization_tables(do_lower_case=config.do_lower_case, keep_accents=config.keep_accents)
    lengths = [len(piece) - piece.count(WORD_START) for piece in vocabulary.pieces]
    lengths[UNK_ID] = 1  # an <unk> stands for at least one character
    # Each byte of a character stands for the character.
    counts = np.where(vocabulary.character_bytes < 0, lengths, 1)
    self._min_lengths = (counts > 0).astype(np.int32)  # 0 for a piece of ▁ only, else 1
    # For each piece that the comma rule replaces: the lengths of the new tokens, and where each starts in the piece.
    splits = vocabulary.comma_rule.splits.values()
    self._comma_lengths = Replacements.from_rows([counts[ids].tolist() for ids in splits])
    advances = [lengths_with_bytes(vocabulary.character_bytes[ids], counts[ids].tolist()) for ids in splits]
    self._comma_starts = Replacements.from_rows([[0, *itertools.accumulate(steps[:-1])] for steps in advances])

  def tokenize_with_offsets(self, texts: tf.Tensor) -> RaggedTokensWithOffsets:
    """Converts texts, string [B], to ids with their offsets, like `Tokenizer.encode_with_offsets`."""
    words = self._split_words(self._to_normalized_code_points(texts))  # [B, (words)]
    # Ids and byte offsets in the word, [W, (tokens)].
    ids, byte_starts, byte_ends = self._sentencepiece.tokenize_with_offsets(words.flat_values)
    ids, first = self._join_unknown(ids)  # [W, (T)]
    # The byte offsets are converted to indices of written characters: from bytes in the word to bytes in all words,
    # then to the index of the written character.
    word_first_bytes = tf.cumsum(tf.strings.length(words.flat_values), exclusive=True)  # [W], bytes before each word
    word_of_token = ids.value_rowids()
    code_points = tf.strings.unicode_decode(words.flat_values, "UTF-8").flat_values
    written_first_bytes = tf.boolean_mask(_first_bytes(code_points), self._unwritten(code_points) == 0)

    def to_characters(byte_offsets: tf.Tensor) -> tf.Tensor:
      byte_positions = tf.gather(word_first_bytes, word_of_token) + tf.cast(byte_offsets, tf.int32)
      return tf.searchsorted(written_first_bytes, byte_positions)

    starts = to_characters(tf.gather(byte_starts.flat_values, first[:-1]))
    ends = to_characters(tf.gather(byte_ends.flat_values, first[1:] - 1))
    ends = self._share_ends_of_characters(ids.flat_values, ends)
    # If SentencePiece writes several characters for one, tokens may split them. Each token then gets the whole one.
    min_lengths = tf.gather(tf.constant(self._min_lengths), ids.flat_values)
    lengths = tf.maximum(ends - starts, min_lengths)
    ids, starts, lengths = self._apply_comma_rule(*self._by_text(ids, words), starts, lengths)
    starts, ends = self._origins(texts).of_tokens(starts, lengths, ids.value_rowids())
    return RaggedTokensWithOffsets(ids, ids.with_flat_values(starts), ids.with_flat_values(ends))

  def _share_ends_of_characters(self, ids: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Gives each byte of a character the end of the last one. SentencePiece gives the others an empty range.

    Args:
      ids: int32 [T].
      ends: int32 [T], the end of each token.
    """
    continues = tf.gather(tf.constant(self.sentence_piece.character_bytes), ids) == 0
    characters = tf.cumsum(tf.cast(~continues, tf.int32)) - 1  # the same index for all bytes of a character
    return tf.gather(tf.math.unsorted_segment_max(ends, characters, tf.size(characters)), characters)

  def _apply_comma_rule(
    self, ids: tf.RaggedTensor, sequence_indices: tf.Tensor, starts: tf.Tensor, lengths: tf.Tensor
  ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
    """Applies the comma rule to tokens.

    Args:
      ids: int32 [B, (T)].
      sequence_indices: int32 [T], index of the sequence that replaces each token.
      starts: int32 [T], index of each token's first written character.
      lengths: int32 [T], number of written characters of each token.

    Returns:
      The new ids, starts and lengths.
    """
    num_new_tokens = tf.gather(tf.constant(self._comma_replacements.lengths), sequence_indices)  # for each token
    starts_in_token = self._comma_starts(ids.with_flat_values(tf.zeros_like(ids.flat_values)), sequence_indices)
    new_starts = tf.repeat(starts, num_new_tokens) + starts_in_token.flat_values
    new_lengths = self._comma_lengths(ids.with_flat_values(lengths), sequence_indices).flat_values
    return self._comma_replacements(ids, sequence_indices), new_starts, new_lengths

  def _origins(self, texts: tf.Tensor) -> _Origins:
    """Computes the origins of the written characters of texts, string [B]."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    ragged = tf.strings.unicode_decode(texts, "UTF-8")
    code_points = ragged.flat_values  # [C]
    text_indices = tf.cast(ragged.value_rowids(), tf.int32)
    positions = tf.range(tf.size(code_points)) - tf.gather(tf.cast(ragged.row_starts(), tf.int32), text_indices)
    # The words of the texts, and the word of each character.
    is_in_word = tf.logical_not(_white_space()(code_points) > 0)
    same_text = text_indices[1:] == text_indices[:-1]
    begins_word = is_in_word & tf.logical_not(_previous_flag(is_in_word, same_text))
    ends_word = is_in_word & tf.logical_not(_next_flag(is_in_word, same_text))
    word_starts = tf.boolean_mask(positions, begins_word)  # [W]
    word_ends = tf.boolean_mask(positions, ends_word) + 1
    word_indices = tf.cumsum(tf.cast(begins_word, tf.int32)) - 1  # [C]
    num_written, num_spaces = self._count_written(code_points, is_in_word, same_text)
    characters = _WordCharacters(text_indices, word_indices, positions, positions, num_written)  # ends are set below
    characters = characters.select(num_written + num_spaces > 0)
    # A dropped character counts as part of the character before it in its word, so each remaining character ends where
    # the next one begins.
    next_starts = tf.concat([characters.starts[1:], [0]], axis=0)[: tf.size(characters.starts)]
    characters = characters._replace(ends=next_starts).select(characters.counts > 0)
    # At the edges of a word, dropped characters and characters that are replaced by a space count as part of the
    # nearest written character.
    same_word = characters.word_indices[1:] == characters.word_indices[:-1]
    all_true = tf.ones_like(characters.word_indices, tf.bool)
    is_first = tf.logical_not(_previous_flag(all_true, same_word))
    is_last = tf.logical_not(_next_flag(all_true, same_word))
    starts = tf.where(is_first, tf.gather(word_starts, characters.word_indices), characters.starts)
    ends = tf.where(is_last, tf.gather(word_ends, characters.word_indices), characters.ends)
    return _Origins(*(tf.repeat(values, characters.counts) for values in (starts, ends, characters.text_indices)))

  def _count_written(
    self, code_points: tf.Tensor, is_in_word: tf.Tensor, same_text: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Counts what SentencePiece's normalization writes for each character of the original texts.

    Args:
      code_points: int32 [C].
      is_in_word: bool [C], False for whitespace.
      same_text: bool [C - 1], whether a character and the next one are in the same text.

    Returns:
      The numbers of written characters and of spaces, int32 [C].
    """
    counts = tf.where(is_in_word, self._normalized_counts(code_points, same_text), 0)
    index_of, replacements = self._tables
    in_words = tf.boolean_mask(code_points, counts > 0)
    splits = tf.stack([tf.zeros_like(tf.size(in_words)), tf.size(in_words)])
    ragged = tf.RaggedTensor.from_row_splits(in_words, tf.cast(splits, tf.int64), validate=False)
    normalized = replacements(ragged, index_of(in_words)).flat_values
    classes = self._unwritten(normalized)
    owners = tf.repeat(tf.range(tf.size(counts)), counts)  # the index in `code_points` of each normalized character
    num_written = tf.math.unsorted_segment_sum(tf.cast(classes == 0, tf.int32), owners, tf.size(counts))
    num_spaces = tf.math.unsorted_segment_sum(tf.cast(classes == _SPACE, tf.int32), owners, tf.size(counts))
    return num_written, num_spaces

  def _normalized_counts(self, code_points: tf.Tensor, same_text: tf.Tensor) -> tf.Tensor:
    """Returns how many characters of the normalized text each character becomes, int32 [C].

    With convert_quotes, `` and '' become one character: the first quote counts 1, the second one 0.
    """
    index_of, replacements = self._tables
    indices = index_of(code_points)
    counts = tf.where(indices == 0, 1, tf.gather(tf.constant(replacements.lengths), indices))
    if not self.config.convert_quotes:
      return counts
    positions = tf.range(tf.size(code_points))
    same_run = (code_points[1:] == code_points[:-1]) & same_text
    begins_run = tf.logical_not(_previous_flag(tf.ones_like(code_points, tf.bool), same_run))
    run_indices = tf.cumsum(tf.cast(begins_run, tf.int32)) - 1
    index_in_run = positions - tf.gather(tf.boolean_mask(positions, begins_run), run_indices)
    is_quote = (code_points == _QUOTES[0]) | (code_points == _QUOTES[1])
    return tf.where(is_quote & (index_in_run % 2 == 1), 0, counts)


def _previous_flag(flags: tf.Tensor, same_group: tf.Tensor) -> tf.Tensor:
  """Returns the flag of the character before each one, bool [C]; False for the first character of a group.

  Args:
    flags: bool [C].
    same_group: bool [C - 1], whether a character and the next one are in the same group (a text, a word or a run).
  """
  return tf.concat([[False], flags[:-1] & same_group], axis=0)[: tf.size(flags)]


def _next_flag(flags: tf.Tensor, same_group: tf.Tensor) -> tf.Tensor:
  """Returns the flag of the character after each one, bool [C]; False for the last character of a group.

  Args: see _previous_flag.
  """
  return tf.concat([flags[1:] & same_group, [False]], axis=0)[: tf.size(flags)]


def _first_bytes(code_points: tf.Tensor) -> tf.Tensor:
  """Returns the index of the first byte of each character in UTF-8, int32 [characters]."""
  # UTF-8 takes 1 byte below U+0080, 2 below U+0800, 3 below U+10000, else 4.
  sizes = 1 + sum(tf.cast(code_points >= limit, tf.int32) for limit in (0x80, 0x800, 0x10000))
  return tf.cumsum(sizes, exclusive=True)
