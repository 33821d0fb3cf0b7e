"""Tokenizers as TensorFlow ops, for SavedModels that take text: their interface, and what all kinds are made of.

Normalization uses TensorFlow's string ops and tables made from Python's Unicode data. TensorFlow's own normalization
ops are not used, because their Unicode version depends on the TensorFlow release. So the tokenizers in Python and in a
graph treat every character alike. (The only exceptions are noncharacters such as U+FDE0, which are not valid in text:
TensorFlow 2.20 keeps them, 2.15 replaces them by U+FFFD.)

Legend: B texts, T tokens of a text (ragged), C characters of all texts.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert.tokenization.normalization import has_newer_characters
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import SpecialIds, TokenizerConfig, kind_of

NUM_CODE_POINTS = 0x110000
_PAGE_SIZE = 128
# The planes whose characters may decompose or have a case, and the tags and variation selectors of plane 14.
CODE_POINTS_WITH_PROPERTIES = (*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE1000))
_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2
_UNCASED, _CASED, _CASE_IGNORABLE = 0, 1, 2  # classes of characters for the final sigma, see _case_class
# The characters of `str.isspace`, as they are written between the brackets of a regular expression.
WHITE_SPACE = "".join(rf"\x{{{c:x}}}" for c in range(0x10000) if chr(c).isspace())


class RaggedTokensWithOffsets(NamedTuple):
  """The tokens of B texts, without [CLS] and [SEP].

  Attributes:
    ids: int32 [B, (T)].
    starts, ends: int32 [B, (T)], the range of each token in its text, in characters. Bytes that are not UTF-8 count as
      the U+FFFD that `tf.strings.unicode_transcode` replaces them by. For details see
      `albert.tokenization.vocabulary.TokensWithOffsets`.
  """

  ids: tf.RaggedTensor
  starts: tf.RaggedTensor
  ends: tf.RaggedTensor


class GraphTokenizer(tf.Module, abc.ABC):
  """A `Tokenizer` as TensorFlow ops. It gives the same ids.

  An exported module must hold it in an attribute, because it may own resources.

  Args:
    config: the vocabulary and the normalization.

  Attributes:
    config: the argument.
    reference: the `Tokenizer` with the same settings.

  Raises:
    UserError: see `Tokenizer`; or a graph cannot tokenize with this vocabulary.
  """

  def __init__(self, config: TokenizerConfig):
    super().__init__()
    self.config = config
    self.reference = load_tokenizer(config)

  @property
  def special_ids(self) -> SpecialIds:
    """The ids of padding, unknown text, [CLS], [SEP] and [MASK]."""
    return self.reference.special_ids

  @abc.abstractmethod
  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Converts texts to ids, without [CLS] and [SEP], like `Tokenizer.encode`.

    Bytes that are not UTF-8 are replaced by U+FFFD, as in `bytes.decode("utf-8", errors="replace")`.

    Args:
      texts: string [B].

    Returns:
      int32 [B, (T)].
    """

  def tokenize_with_offsets(self, texts: tf.Tensor) -> RaggedTokensWithOffsets:
    """Converts texts, string [B], to ids with their offsets, like `Tokenizer.encode_with_offsets`."""
    raise NotImplementedError(f"{type(self).__name__} was made without offsets")


def make_graph_tokenizer(config: TokenizerConfig, *, with_offsets: bool = False) -> GraphTokenizer:
  """Makes the graph tokenizer of a vocabulary.

  Args:
    config: the vocabulary and the normalization.
    with_offsets: whether `tokenize_with_offsets` is needed.

  Raises:
    UserError: see `Tokenizer`; or a graph cannot tokenize with this vocabulary.
  """
  # These modules import this one.
  from albert.tokenization.byte_bpe_graph import ByteLevelBPEGraphTokenizer
  from albert.tokenization.sentence_piece_graph import SentencePieceGraphTokenizer, SentencePieceOffsetGraphTokenizer
  from albert.tokenization.wordpiece_graph import WordPieceGraphTokenizer

  kinds = {
    "byte_level_bpe": ByteLevelBPEGraphTokenizer,
    "wordpiece": WordPieceGraphTokenizer,
    "sentencepiece": SentencePieceOffsetGraphTokenizer if with_offsets else SentencePieceGraphTokenizer,
  }
  return kinds[kind_of(config.model_file)](config)


class CodePointTable:
  """Maps code points to integers, most of them to 0.

  The value of code point c is pages[page_of[c // 128] * 128 + c % 128]. Equal pages are stored once.

  Args:
    items: pairs of a code point and its value.
  """

  def __init__(self, items: Iterable[tuple[int, int]]):
    table = np.zeros(NUM_CODE_POINTS, np.int32)
    for code_point, value in items:
      table[code_point] = value
    pages, page_of = np.unique(table.reshape(-1, _PAGE_SIZE), axis=0, return_inverse=True)
    self._page_of, self._pages = page_of.reshape(-1).astype(np.int32), pages.reshape(-1).astype(np.int32)

  def __call__(self, code_points: tf.Tensor) -> tf.Tensor:
    """Looks up code points, int32 of any shape."""
    page = tf.gather(tf.constant(self._page_of), code_points // _PAGE_SIZE)
    return tf.gather(tf.constant(self._pages), page * _PAGE_SIZE + code_points % _PAGE_SIZE)


class Replacements:
  """Sequences of values that replace single values.

  Args:
    rows: the sequences 1, 2, ... Sequence 0 stands for "keep the value".

  Attributes:
    lengths: int32 [number of sequences].
  """

  def __init__(self, rows: Iterable[list[int]]):
    sequences = [[0], *rows]
    self.lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    # The values of all sequences, concatenated, and the index of the first one of each sequence.
    self._targets = np.array([value for sequence in sequences for value in sequence], np.int32)
    self._starts = np.cumsum(self.lengths, dtype=np.int32) - self.lengths

  def __call__(self, values: tf.RaggedTensor, sequence_indices: tf.Tensor) -> tf.RaggedTensor:
    """Replaces each value by a sequence.

    Args:
      values: int32 [B, (number of values)].
      sequence_indices: int32 [number of all values], the index of the sequence that replaces each value.

    Returns:
      int32 [B, (number of new values)].
    """
    flat = values.flat_values
    # The pool holds the targets, and then the values themselves. Each value becomes a range of the pool: the targets of
    # its sequence, or the value itself.
    pool = tf.concat([tf.constant(self._targets), flat], axis=0)
    own_position = tf.size(self._targets) + tf.range(tf.size(flat))
    starts = tf.where(sequence_indices == 0, own_position, tf.gather(tf.constant(self._starts), sequence_indices))
    indices = tf.ragged.range(starts, starts + tf.gather(tf.constant(self.lengths), sequence_indices))
    splits = tf.gather(indices.row_splits, values.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.gather(pool, indices.flat_values), splits, validate=False)


def replacement_tables(texts: Mapping[int, str]) -> tuple[CodePointTable, Replacements]:
  """Makes the tables of characters, given as code points, and the texts that replace them.

  Returns:
    The index of each code point's text in the replacements (0 if it stays the same), and the replacements.
  """
  index_of: dict[str, int] = {}
  items = [(c, index_of.setdefault(text, len(index_of) + 1)) for c, text in texts.items() if text != chr(c)]
  return CodePointTable(items), Replacements([list(map(ord, text)) for text in index_of])


@functools.cache
def white_space() -> CodePointTable:
  """Returns a table with 1 for whitespace characters."""
  return CodePointTable((c, 1) for c in range(0x10000) if chr(c).isspace())


def decode_utf8(texts: tf.Tensor) -> tf.RaggedTensor:
  """Returns the code points of texts, string [B], as int32 [B, (characters)]."""
  return tf.strings.unicode_decode(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace"), "UTF-8")


def utf8_sizes(code_points: tf.Tensor) -> tf.Tensor:
  """Returns the number of bytes of each character in UTF-8, int32 [C]."""
  return 1 + sum(tf.cast(code_points >= first, tf.int32) for first in (0x80, 0x800, 0x10000))


def shift(values: tf.Tensor, steps: int, filler: int | bool) -> tf.Tensor:
  """Returns the value `steps` positions before each one, or after it if `steps` is negative; `filler` at the ends."""
  if steps < 0:
    return tf.concat([values, [filler] * -steps], axis=0)[-steps:]
  return tf.concat([[filler] * steps, values], axis=0)[: tf.size(values)]


def count_before(flags: tf.Tensor) -> tf.Tensor:
  """Returns how many flags before each one, and of all, are true, int64 [C + 1]. `flags`: bool [C]."""
  return tf.concat([[0], tf.cumsum(tf.cast(flags, tf.int64))], axis=0)


def begins_run(flags: tf.Tensor, same_group: tf.Tensor) -> tf.Tensor:
  """Returns which characters begin a run of true flags in a group (a text, a word), bool [C].

  Args:
    flags: bool [C].
    same_group: bool [C - 1], whether a character and the next one are in the same group.
  """
  # Cut to the number of characters, because concat returns one value even if there are none.
  return flags & ~tf.concat([[False], flags[:-1] & same_group], axis=0)[: tf.size(flags)]


def ends_run(flags: tf.Tensor, same_group: tf.Tensor) -> tf.Tensor:
  """Returns which characters end a run of true flags in a group, see begins_run."""
  return flags & ~tf.concat([flags[1:] & same_group, [False]], axis=0)[: tf.size(flags)]


def find_runs(flags: tf.Tensor, same_group: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Finds the R runs of true flags in groups, such as the words of texts. For the arguments see begins_run.

  Returns:
    indices: int32 [C], for a character of a run, the index of the run.
    starts, ends: int32 [R], the range of each run, counted in characters of all texts.
  """
  begins, positions = begins_run(flags, same_group), tf.range(tf.size(flags))
  ends = tf.boolean_mask(positions, ends_run(flags, same_group)) + 1
  return tf.cumsum(tf.cast(begins, tf.int32)) - 1, tf.boolean_mask(positions, begins), ends


def index_in_run(begins: tf.Tensor) -> tf.Tensor:
  """Returns the position of each character in its run, int32 [C]. `begins`: whether a run begins there, bool [C]."""
  positions = tf.range(tf.size(begins))
  starts = tf.concat([[0], tf.boolean_mask(positions, begins)], axis=0)
  return positions - tf.gather(starts, tf.cumsum(tf.cast(begins, tf.int32)))


def second_quotes(code_points: tf.RaggedTensor) -> tf.Tensor:
  """Returns which characters of texts, int32 [B, (characters)], are the second quote of a pair, `` or '', bool [C]."""
  flat, text_indices = code_points.flat_values, code_points.value_rowids()
  same_run = (flat[1:] == flat[:-1]) & (text_indices[1:] == text_indices[:-1])
  is_second = index_in_run(begins_run(tf.ones_like(flat, tf.bool), same_run)) % 2 == 1
  return is_second & ((flat == ord("`")) | (flat == ord("'")))


def written_ranges(
  code_points: tf.RaggedTensor, num_written: tf.Tensor, num_spaces: tf.Tensor | int = 0
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Returns the range of its text that each written character of texts stands for.

  A dropped character counts as part of the written one before it in its word. At the edges of a word, characters that
  are dropped or replaced by spaces count as part of the nearest written one.

  Args:
    code_points: the texts, int32 [B, (characters)]. Their words are what lies between whitespace.
    num_written, num_spaces: int32 [C], how many characters and how many spaces are written for each character.

  Returns:
    starts, ends, text_indices: int32 [N], the range of each written character and its text.
  """
  text_indices = tf.cast(code_points.value_rowids(), tf.int32)
  is_in_word = white_space()(code_points.flat_values) == 0
  words, word_starts, word_ends = find_runs(is_in_word, text_indices[1:] == text_indices[:-1])
  # Each of these characters ends where the next one begins.
  positions = tf.reshape(tf.where(num_written + num_spaces > 0), [-1])
  next_positions = tf.concat([positions[1:], [0]], axis=0)[: tf.size(positions)]
  is_written = tf.gather(num_written, positions) > 0
  positions, next_positions = (tf.boolean_mask(values, is_written) for values in (positions, next_positions))
  counts, words, text_indices = (tf.gather(values, positions) for values in (num_written, words, text_indices))
  same_word = words[1:] == words[:-1]
  all_true = tf.ones_like(words, tf.bool)
  is_first, is_last = begins_run(all_true, same_word), ends_run(all_true, same_word)
  starts = tf.where(is_first, tf.gather(word_starts, words), tf.cast(positions, tf.int32))
  ends = tf.where(is_last, tf.gather(word_ends, words), tf.cast(next_positions, tf.int32))
  shift = tf.gather(tf.cast(code_points.row_starts(), tf.int32), text_indices)  # from all texts to the text
  starts, ends, text_indices = (tf.repeat(values, counts) for values in (starts - shift, ends - shift, text_indices))
  return starts, ends, text_indices


def starts_with_space(texts: tf.Tensor) -> tf.Tensor:
  """Returns whether each text starts with whitespace, as `str.isspace` defines it.

  Args:
    texts: string [B], UTF-8.

  Returns:
    bool [B]; False for an empty text.
  """
  return tf.strings.regex_full_match(texts, f"(?s)[{WHITE_SPACE}].*")


def _case_class(character: str) -> int:
  """Returns the class of a character in Unicode's Final_Sigma rule, which `str.lower` implements.

  Σ becomes ς if, leaving out case-ignorable characters, the character before it is cased and the one after it is not.
  """
  if has_newer_characters(character):
    return _UNCASED
  if f"{character}Σ".lower()[-1] == "ς":
    return _CASED
  return _CASE_IGNORABLE if f"A{character}Σ".lower()[-1] == "ς" else _UNCASED


@functools.cache
def _cases() -> tuple[CodePointTable, CodePointTable]:
  """Returns two tables of all code points: the lower-case code point minus the code point, and the `_case_class`."""
  characters = [chr(c) for c in CODE_POINTS_WITH_PROPERTIES]
  lower_cases = ((c, c.lower()) for c in characters if not has_newer_characters(c))
  # Only İ has a lower case of two characters. It cannot occur here: it has been replaced.
  deltas = ((ord(c), ord(lower) - ord(c)) for c, lower in lower_cases if lower != c and len(lower) == 1)
  classes = ((ord(c), _case_class(c)) for c in characters)
  return CodePointTable(deltas), CodePointTable(classes)


def lower(code_points: tf.RaggedTensor) -> tf.RaggedTensor:
  """Lower-cases texts, given as code points [B, (characters)]. Σ at the end of a word becomes ς."""
  delta_of, class_of = _cases()
  flat = code_points.flat_values  # [C]
  classes = class_of(flat)
  # A Σ is at the end of a word if a cased character is before it and none after it. Case-ignorable characters do not
  # count, so they are left out here.
  positions = tf.reshape(tf.where(classes != _CASE_IGNORABLE), [-1])
  text_indices = tf.gather(code_points.value_rowids(), positions)
  is_cased = tf.gather(classes, positions) == _CASED
  same_text = text_indices[1:] == text_indices[:-1]
  is_last = ends_run(is_cased, same_text) & ~begins_run(is_cased, same_text)
  is_final = (tf.gather(flat, positions) == _SIGMA) & is_last
  final_positions = tf.boolean_mask(positions, is_final)
  lowered = tf.tensor_scatter_nd_update(
    flat + delta_of(flat), final_positions[:, tf.newaxis], tf.fill(tf.shape(final_positions), _FINAL_SIGMA)
  )
  return code_points.with_flat_values(lowered)
