"""The tokenizer as TensorFlow ops, for SavedModels that take text. It gives the same ids as `Tokenizer`.

Only the SentencePiece ops are from tensorflow-text. TensorFlow Serving includes them, but not the other ops of
tensorflow-text. Normalization uses TensorFlow's string ops and tables made from Python's Unicode data. TensorFlow's own
normalization ops are not used, because their Unicode version depends on the TensorFlow release. So both tokenizers
treat every character alike. (The only exceptions are noncharacters such as U+FDE0, which are not valid in text:
TensorFlow 2.20 keeps them, 2.15 replaces them by U+FFFD.)

Legend: B texts, T tokens of a text (ragged), C characters of all texts.
"""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from albert.errors import UserError
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.normalization import decompose, has_newer_characters
from albert.tokenization.tokenizer import WORD_START, Tokenizer

GraphTokenizerType = TypeVar("GraphTokenizerType", bound="GraphTokenizer")

_NUM_CODE_POINTS = 0x110000
_PAGE_SIZE = 128
_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2
_UNCASED, _CASED, _CASE_IGNORABLE = 0, 1, 2  # classes of characters for the final sigma, see _case_class
# The planes whose characters may decompose or have a case, and the tags and variation selectors of plane 14.
CODE_POINTS_WITH_PROPERTIES = (*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE1000))
# A run of characters that are in no piece becomes one <unk>. It is shortened to this length before SentencePiece.
_MAX_UNKNOWN_RUN_LENGTH = 64
_WHITE_SPACE = "".join(rf"\x{{{c:x}}}" for c in range(0x10000) if chr(c).isspace())


@dataclasses.dataclass(frozen=True)
class CodePointTable:
  """Maps code points to integers, most of them to 0.

  The value of code point c is pages[page_of[c // 128] * 128 + c % 128]. Equal pages are stored once.

  Attributes:
    page_of: int32 [number of code points / 128], index of the page of each block of 128 code points.
    pages: int32 [128 * number of different pages], the values of all pages, concatenated.
  """

  page_of: np.ndarray
  pages: np.ndarray

  @classmethod
  def from_items(cls, items: Iterable[tuple[int, int]]) -> CodePointTable:
    """Makes a table from pairs (code point, value)."""
    table = np.zeros(_NUM_CODE_POINTS, np.int32)
    for code_point, value in items:
      table[code_point] = value
    return cls.from_array(table)

  @classmethod
  def from_array(cls, table: np.ndarray) -> CodePointTable:
    """Makes a table from the values of all 0x110000 code points, int32 [0x110000]."""
    pages, page_of = np.unique(table.reshape(-1, _PAGE_SIZE), axis=0, return_inverse=True)
    return cls(page_of.reshape(-1).astype(np.int32), pages.reshape(-1).astype(np.int32))

  def __call__(self, code_points: tf.Tensor) -> tf.Tensor:
    """Looks up code points, int32 of any shape."""
    page = tf.gather(tf.constant(self.page_of), code_points // _PAGE_SIZE)
    return tf.gather(tf.constant(self.pages), page * _PAGE_SIZE + code_points % _PAGE_SIZE)


@dataclasses.dataclass(frozen=True)
class Replacements:
  """Sequences of values that replace single values.

  Sequence r consists of targets[starts[r] : starts[r] + lengths[r]]. Sequence 0 stands for "keep the value".

  Attributes:
    targets: int32 [sum of lengths], the values of all sequences, concatenated.
    starts, lengths: int32 [number of sequences].
  """

  targets: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray

  @classmethod
  def from_rows(cls, rows: Iterable[list[int]]) -> Replacements:
    """Makes replacements from the sequences 1, 2, ...; sequence 0 is added."""
    sequences = [[0], *rows]
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    targets = np.array([value for sequence in sequences for value in sequence], np.int32)
    return cls(targets, np.cumsum(lengths, dtype=np.int32) - lengths, lengths)

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
    pool = tf.concat([tf.constant(self.targets), flat], axis=0)
    own_position = tf.size(self.targets) + tf.range(tf.size(flat))
    starts = tf.where(sequence_indices == 0, own_position, tf.gather(tf.constant(self.starts), sequence_indices))
    indices = tf.ragged.range(starts, starts + tf.gather(tf.constant(self.lengths), sequence_indices))
    splits = tf.gather(indices.row_splits, values.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.gather(pool, indices.flat_values), splits, validate=False)


@functools.cache
def _decompositions() -> tuple[CodePointTable, Replacements]:
  """Returns the decompositions of all characters (see normalization.decompose).

  Returns:
    The index of each code point's decomposition in the replacements (0 if it has none), and the replacements.
  """
  index_of: dict[str, int] = {}  # decomposition -> its index in the replacements
  items: list[tuple[int, int]] = []
  for code_point in CODE_POINTS_WITH_PROPERTIES:
    replacement = decompose(code_point)
    if replacement != chr(code_point):
      items.append((code_point, index_of.setdefault(replacement, len(index_of) + 1)))
  return CodePointTable.from_items(items), Replacements.from_rows([list(map(ord, text)) for text in index_of])


def decompose_all(code_points: tf.Tensor) -> tf.Tensor:
  """Decomposes characters, int32 [C]; returns all decompositions, concatenated, int32 [number of new characters]."""
  decomposition_index, replacements = _decompositions()
  splits = tf.stack([tf.zeros_like(tf.size(code_points)), tf.size(code_points)])
  ragged = tf.RaggedTensor.from_row_splits(code_points, tf.cast(splits, tf.int64), validate=False)
  return replacements(ragged, decomposition_index(code_points)).flat_values


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
  # Only İ has a lower case of two characters. It cannot occur here, because it has been decomposed to I.
  deltas = ((ord(c), ord(lower) - ord(c)) for c, lower in lower_cases if lower != c and len(lower) == 1)
  classes = ((ord(c), _case_class(c)) for c in characters)
  return CodePointTable.from_items(deltas), CodePointTable.from_items(classes)


def _lower(code_points: tf.RaggedTensor) -> tf.RaggedTensor:
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
  # Cut to the number of positions, because concat returns one value even if there are none.
  after_cased = tf.concat([[False], is_cased[:-1] & same_text], axis=0)[: tf.size(positions)]
  before_cased = tf.concat([is_cased[1:] & same_text, [False]], axis=0)[: tf.size(positions)]
  is_final = (tf.gather(flat, positions) == _SIGMA) & after_cased & ~before_cased
  final_positions = tf.boolean_mask(positions, is_final)
  lowered = tf.tensor_scatter_nd_update(
    flat + delta_of(flat), final_positions[:, tf.newaxis], tf.fill(tf.shape(final_positions), _FINAL_SIGMA)
  )
  return code_points.with_flat_values(lowered)


@functools.lru_cache(maxsize=4)
def _unknown_characters(model: bytes) -> CodePointTable:
  """Finds the characters of which a sequence of any length becomes one <unk>, whatever text is around it.

  Such a character is in no piece, the model's normalization does not change it, and Unicode composes it with no other
  character. A model that writes unknown characters as bytes has no such characters.

  Args:
    model: a serialized SentencePiece model.

  Returns:
    A table with 1 for these characters.
  """
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  table = np.ones(_NUM_CODE_POINTS, np.int32)
  size = processor.get_piece_size()
  if any(processor.is_byte(i) for i in range(size)):
    return CodePointTable.from_array(np.zeros_like(table))
  # First the characters in pieces:
  excluded = set(map(ord, "".join(processor.id_to_piece(i) for i in range(size)))) | {ord(" "), ord(WORD_START)}
  # Characters that Unicode composes with others; unicodedata does not list the compositions of Hangul letters:
  excluded.update(range(0x1100, 0x1200))
  for code_point in CODE_POINTS_WITH_PROPERTIES:
    parts = unicodedata.decomposition(chr(code_point)).split()
    if len(parts) > 1 and not parts[0].startswith("<"):
      excluded.update(int(part, 16) for part in parts)
  # Characters that the model's normalization changes:
  before, after = processor.normalize("a b a").split("b")
  normalized = processor.normalize([f"a {chr(c)} a" for c in CODE_POINTS_WITH_PROPERTIES])
  for code_point, text in zip(CODE_POINTS_WITH_PROPERTIES, normalized, strict=True):
    if text != f"{before}{chr(code_point)}{after}":
      excluded.add(code_point)
  table[list(excluded)] = 0
  return CodePointTable.from_array(table)


def starts_with_space(texts: tf.Tensor) -> tf.Tensor:
  """Returns whether each text starts with whitespace, as `str.isspace` defines it.

  Args:
    texts: string [B], UTF-8.

  Returns:
    bool [B]; False for an empty text.
  """
  return tf.strings.regex_full_match(texts, f"(?s)[{_WHITE_SPACE}].*")


class GraphTokenizer(tf.Module):
  """`Tokenizer` as TensorFlow ops.

  An exported module must hold it in an attribute, because it owns the SentencePiece model as a resource.

  Args:
    model_file, do_lower_case, convert_quotes: see `Tokenizer`.

  Attributes:
    config: the arguments, as a TokenizerConfig.
    reference: the `Tokenizer` with the same arguments.

  Raises:
    UserError: see `Tokenizer`; also if "," is not a piece, because the comma rule then needs the text of each <unk>.
  """

  def __init__(self, model_file: str, do_lower_case: bool = True, *, convert_quotes: bool = False):
    super().__init__()
    tokenizer = Tokenizer(model_file, do_lower_case, convert_quotes=convert_quotes)
    if "," not in tokenizer.pieces:
      raise UserError(
        f'{model_file}: "," is not a piece of this vocabulary, so a graph cannot apply the comma rule: '
        "train it on text with commas, or with a comma in --user_defined_symbols"
      )
    self.reference = tokenizer
    self.config = tokenizer.config
    self._sentencepiece = tf_text.SentencepieceTokenizer(tokenizer.exact_model, out_type=tf.int32)
    splits = tokenizer.comma_splits
    self._comma_replacements = Replacements.from_rows(splits.values())
    self._unknown_characters = _unknown_characters(tokenizer.exact_model)
    # For each id, the index of the sequence in _comma_replacements; 0 where the comma rule does not apply.
    self._comma_sequence_indices = np.zeros(tokenizer.vocab_size, np.int32)
    self._comma_sequence_indices[list(splits)] = np.arange(1, len(splits) + 1)

  @classmethod
  def from_config(cls: type[GraphTokenizerType], config: TokenizerConfig) -> GraphTokenizerType:
    """Makes a tokenizer from its settings."""
    return cls(config.model_file, config.do_lower_case, convert_quotes=config.convert_quotes)

  def normalize(self, texts: tf.Tensor) -> tf.Tensor:
    """Normalizes texts, string [B], like `Tokenizer.normalize`.

    Bytes that are not UTF-8 are replaced by U+FFFD, as in `bytes.decode("utf-8", errors="replace")`.
    """
    return tf.strings.unicode_encode(self._to_normalized_code_points(texts), "UTF-8")

  def _to_normalized_code_points(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Normalizes texts, string [B]; returns code points, int32 [B, (characters)]."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf.strings.regex_replace(texts, f"[{_WHITE_SPACE}]+", " ")
    texts = tf.strings.regex_replace(texts, "^ | $", "")
    if self.config.convert_quotes:
      texts = tf.strings.regex_replace(texts, "``|''", '"')
    code_points = tf.strings.unicode_decode(texts, "UTF-8")
    decomposition_index, replacements = _decompositions()
    code_points = replacements(code_points, decomposition_index(code_points.flat_values))
    if self.config.do_lower_case:
      code_points = _lower(code_points)
    return code_points

  def _shorten_unknown_runs(self, code_points: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Shortens long runs of characters that together become one <unk>. The ids stay the same.

    The time of the SentencePiece op grows with the square of the length of such a run: a megabyte takes minutes.

    Args:
      code_points: int32 [B, (characters)].

    Returns:
      The remaining characters, int32 [B, (characters)], and which characters remain, bool [C].
    """
    flat = code_points.flat_values
    is_unknown = self._unknown_characters(flat) > 0
    text_indices = code_points.value_rowids()
    continues_run = is_unknown[1:] & is_unknown[:-1] & (text_indices[1:] == text_indices[:-1])
    starts_run = tf.concat([[True], ~continues_run], axis=0)[: tf.size(flat)]
    positions = tf.range(tf.size(flat))
    # For each character, the position of the first character of its run. The cumsum counts the runs up to it.
    run_starts = tf.gather(tf.boolean_mask(positions, starts_run), tf.cumsum(tf.cast(starts_run, tf.int32)) - 1)
    is_kept = positions - run_starts < _MAX_UNKNOWN_RUN_LENGTH
    num_kept = tf.concat([[0], tf.cumsum(tf.cast(is_kept, tf.int64))], axis=0)
    splits = tf.gather(num_kept, code_points.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.boolean_mask(flat, is_kept), splits, validate=False), is_kept

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Converts texts to ids, without [CLS] and [SEP], like `Tokenizer.encode`.

    Args:
      texts: string [B].

    Returns:
      int32 [B, (T)].
    """
    shortened, _ = self._shorten_unknown_runs(self._to_normalized_code_points(texts))
    texts = tf.strings.unicode_encode(shortened, "UTF-8")
    if self.reference.words_are_independent:
      words = tf.strings.split(texts, sep=" ")  # [B, (words)]
      ids = self._sentencepiece.tokenize(words.flat_values)
      splits = tf.gather(ids.row_splits, words.row_splits)
      ids = tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False)
    else:
      ids = self._sentencepiece.tokenize(texts)
    sequence_indices = tf.gather(tf.constant(self._comma_sequence_indices), ids.flat_values)
    return self._comma_replacements(ids, sequence_indices)
