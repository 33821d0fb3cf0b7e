"""Tokenization inside a TensorFlow graph, for SavedModels that take text: the ids of `albert.tokenization`.

Of tensorflow-text it needs the SentencePiece ops alone, which TensorFlow Serving has. The rest is core string ops
and tables made from Python's own Unicode data, so that both tokenizers agree on every character whatever release
of ICU TensorFlow was built with. (Noncharacters, such as U+FFFE, which no text may hold, are kept by TensorFlow 2.20
and become U+FFFD in 2.15.)

Shapes: B strings, T tokens (ragged), C characters of all strings, S max_length.
"""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from albert.errors import UserError
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.normalization import decompose, has_newer_characters
from albert.tokenization.tokenizer import CLS_ID, PAD_ID, SEP_ID, WORD_START, Tokenizer

GraphTokenizerType = TypeVar("GraphTokenizerType", bound="GraphTokenizer")

_NUM_CODE_POINTS = 0x110000
_PAGE = 128
_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2
_OTHER, _CASED, _CASE_IGNORABLE = 0, 1, 2
# Planes with characters that decompose or have a case, then the tags and variation selectors of plane 14.
CODE_POINTS_WITH_PROPERTIES = (*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE1000))
# Characters of a run that no piece has, which becomes one <unk>, that SentencePiece is given.
_MAX_UNKNOWN_RUN = 64
_WHITE_SPACE = "".join(rf"\x{{{c:x}}}" for c in range(0x10000) if chr(c).isspace())


@dataclasses.dataclass(frozen=True)
class CodePointTable:
  """An integer for each code point, 0 for most: `pages[page_of[c // 128] * 128 + c % 128]`."""

  page_of: np.ndarray
  pages: np.ndarray

  @classmethod
  def from_items(cls, items: Iterable[tuple[int, int]]) -> CodePointTable:
    table = np.zeros(_NUM_CODE_POINTS, np.int32)
    for code_point, value in items:
      table[code_point] = value
    return cls.from_array(table)

  @classmethod
  def from_array(cls, table: np.ndarray) -> CodePointTable:
    """Of a value for each of the 0x110000 code points."""
    pages, page_of = np.unique(table.reshape(-1, _PAGE), axis=0, return_inverse=True)
    return cls(page_of.reshape(-1).astype(np.int32), pages.reshape(-1).astype(np.int32))

  def __call__(self, code_points: tf.Tensor) -> tf.Tensor:
    page = tf.gather(tf.constant(self.page_of), code_points // _PAGE)
    return tf.gather(tf.constant(self.pages), page * _PAGE + code_points % _PAGE)


@dataclasses.dataclass(frozen=True)
class Replacements:
  """Sequences that take the place of values. Row 0 stands for "keep the value"; row r has
  `targets[starts[r] : starts[r] + lengths[r]]`."""

  targets: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray

  @classmethod
  def from_rows(cls, rows: Iterable[list[int]]) -> Replacements:
    sequences = [[0], *rows]
    lengths = np.array([len(row) for row in sequences], np.int32)
    targets = np.array([value for row in sequences for value in row], np.int32)
    return cls(targets, np.cumsum(lengths, dtype=np.int32) - lengths, lengths)

  def __call__(self, values: tf.RaggedTensor, rows: tf.Tensor) -> tf.RaggedTensor:
    """`values` (int32) with each one replaced by the sequence of its row; `rows` goes with the flat values."""
    flat = values.flat_values
    kept = tf.size(self.targets) + tf.range(tf.size(flat))
    starts = tf.where(rows == 0, kept, tf.gather(tf.constant(self.starts), rows))
    pool = tf.concat([tf.constant(self.targets), flat], axis=0)
    indices = tf.ragged.range(starts, starts + tf.gather(tf.constant(self.lengths), rows))
    splits = tf.gather(indices.row_splits, values.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.gather(pool, indices.flat_values), splits, validate=False)


@functools.cache
def _decompositions() -> tuple[CodePointTable, Replacements]:
  """For each code point its row of replacements, which are those of `albert.tokenization.decompose`."""
  rows: dict[str, int] = {}
  items: list[tuple[int, int]] = []
  for code_point in CODE_POINTS_WITH_PROPERTIES:
    replacement = decompose(code_point)
    if replacement != chr(code_point):
      items.append((code_point, rows.setdefault(replacement, len(rows) + 1)))
  return CodePointTable.from_items(items), Replacements.from_rows([list(map(ord, text)) for text in rows])


def decomposed(code_points: tf.Tensor) -> tf.Tensor:
  """The characters, int32 [any number], that the characters [C] decompose to."""
  row_of, replacements = _decompositions()
  splits = tf.stack([tf.zeros_like(tf.size(code_points)), tf.size(code_points)])
  ragged = tf.RaggedTensor.from_row_splits(code_points, tf.cast(splits, tf.int64), validate=False)
  return replacements(ragged, row_of(code_points)).flat_values


def _case_class(character: str) -> int:
  """What a character is to a neighbouring Σ, as `str.lower` (Unicode's Final_Sigma) sees it."""
  if has_newer_characters(character):
    return _OTHER
  if f"{character}Σ".lower()[-1] == "ς":
    return _CASED
  return _CASE_IGNORABLE if f"A{character}Σ".lower()[-1] == "ς" else _OTHER


@functools.cache
def _cases() -> tuple[CodePointTable, CodePointTable]:
  """For each code point: lower-case code point minus itself; its class for the final sigma."""
  characters = [chr(c) for c in CODE_POINTS_WITH_PROPERTIES]
  lower = ((c, c.lower()) for c in characters if not has_newer_characters(c))
  # İ alone has a longer lower case, and it never comes here: it decomposes to I.
  deltas = ((ord(c), ord(low) - ord(c)) for c, low in lower if low != c and len(low) == 1)
  classes = ((ord(c), _case_class(c)) for c in characters)
  return CodePointTable.from_items(deltas), CodePointTable.from_items(classes)


def _lower(code_points: tf.RaggedTensor) -> tf.RaggedTensor:
  """Lower case of each character; Σ becomes ς after a letter at the end of a word."""
  delta_of, class_of = _cases()
  flat = code_points.flat_values  # [C]
  classes = class_of(flat)
  # Neighbours are looked for past case-ignorable characters: these are left out here.
  places = tf.reshape(tf.where(classes != _CASE_IGNORABLE), [-1])
  rows = tf.gather(code_points.value_rowids(), places)
  is_cased = tf.gather(classes, places) == _CASED
  same_row = rows[1:] == rows[:-1]
  after_cased = tf.concat([[False], is_cased[:-1] & same_row], axis=0)[: tf.size(places)]
  before_cased = tf.concat([is_cased[1:] & same_row, [False]], axis=0)[: tf.size(places)]
  is_final = (tf.gather(flat, places) == _SIGMA) & after_cased & ~before_cased
  final_places = tf.boolean_mask(places, is_final)
  lowered = tf.tensor_scatter_nd_update(
    flat + delta_of(flat), final_places[:, tf.newaxis], tf.fill(tf.shape(final_places), _FINAL_SIGMA)
  )
  return code_points.with_flat_values(lowered)


@functools.lru_cache(maxsize=4)
def _unknown_characters(model: bytes) -> CodePointTable:
  """1 for characters of which a run of any length is one <unk> to this SentencePiece model, whatever is around it.

  No piece has such a character, the model's normalization leaves it as it is, and it is no part of what Unicode
  composes. There are none in a model that writes unknown characters as bytes.
  """
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  table = np.ones(_NUM_CODE_POINTS, np.int32)
  size = processor.get_piece_size()
  if any(processor.is_byte(i) for i in range(size)):
    return CodePointTable.from_array(np.zeros_like(table))
  known = set(map(ord, "".join(processor.id_to_piece(i) for i in range(size)))) | {ord(" "), ord(WORD_START)}
  for code_point in CODE_POINTS_WITH_PROPERTIES:
    parts = unicodedata.decomposition(chr(code_point)).split()
    if len(parts) > 1 and not parts[0].startswith("<"):
      known.update(int(part, 16) for part in parts)
  known.update(range(0x1100, 0x1200))  # Hangul is composed by arithmetic
  before, behind = processor.normalize("a b a").split("b")  # with what the model puts around a text and for spaces
  between = [f"a {chr(c)} a" for c in CODE_POINTS_WITH_PROPERTIES]
  written = zip(CODE_POINTS_WITH_PROPERTIES, processor.normalize(between), strict=True)
  known.update(c for c, text in written if text != f"{before}{chr(c)}{behind}")
  table[list(known)] = 0
  return CodePointTable.from_array(table)


def starts_with_space(texts: tf.Tensor) -> tf.Tensor:
  """bool [B]: `text[0].isspace()` of texts [B] that are UTF-8; False for an empty one."""
  return tf.strings.regex_full_match(texts, f"(?s)[{_WHITE_SPACE}].*")


class GraphTokenizer(tf.Module):
  """`albert.tokenization.Tokenizer` as graph ops. Track it by the exported module: it holds the SentencePiece model.

  Args:
    model_file, do_lower_case, convert_quotes: as `Tokenizer` takes them.

  Raises:
    UserError: as `Tokenizer`; also if "," is no piece, since the comma rule then needs the text of <unk>.
  """

  def __init__(self, model_file: str, do_lower_case: bool = True, *, convert_quotes: bool = False):
    super().__init__()
    tokenizer = Tokenizer(model_file, do_lower_case, convert_quotes=convert_quotes)
    if "," not in tokenizer.pieces:
      raise UserError(
        f'{model_file}: "," is no piece of this vocabulary, which a graph cannot tokenize as ALBERT does: '
        "train it on text with commas, or with a comma in --user_defined_symbols"
      )
    #: The same outside a graph.
    self.reference = tokenizer
    self.config = tokenizer.config
    self._sentencepiece = tf_text.SentencepieceTokenizer(tokenizer.exact_model, out_type=tf.int32)
    splits = tokenizer.comma_splits
    self._comma_replacements = Replacements.from_rows(splits.values())
    self._unknown = _unknown_characters(tokenizer.exact_model)
    self._comma_row = np.zeros(tokenizer.vocab_size, np.int32)
    self._comma_row[list(splits)] = np.arange(1, len(splits) + 1)

  @classmethod
  def from_config(cls: type[GraphTokenizerType], config: TokenizerConfig) -> GraphTokenizerType:
    """Makes a tokenizer from its settings."""
    return cls(config.model_file, config.do_lower_case, convert_quotes=config.convert_quotes)

  def normalize(self, texts: tf.Tensor) -> tf.Tensor:
    """Normalized texts [B], equal to `Tokenizer.normalize`.

    Bytes that are no UTF-8 become U+FFFD, as `bytes.decode("utf-8", errors="replace")` makes them.
    """
    return tf.strings.unicode_encode(self._normalized(texts), "UTF-8")

  def _normalized(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Code points of the normalized texts [B, (characters)]."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf.strings.regex_replace(texts, f"[{_WHITE_SPACE}]+", " ")
    texts = tf.strings.regex_replace(texts, "^ | $", "")
    if self.config.convert_quotes:
      texts = tf.strings.regex_replace(texts, "``|''", '"')
    code_points = tf.strings.unicode_decode(texts, "UTF-8")
    row_of, replacements = _decompositions()
    code_points = replacements(code_points, row_of(code_points.flat_values))
    if self.config.do_lower_case:
      code_points = _lower(code_points)
    return code_points

  def _shortened(self, code_points: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """The same tokens' characters with long runs of unknown ones cut, and which are kept, bool [C].

    The time that SentencePiece's op takes grows with the square of such a run's length: minutes for a megabyte.
    """
    flat = code_points.flat_values
    is_unknown = self._unknown(flat) > 0
    rows = code_points.value_rowids()
    continues = is_unknown[1:] & is_unknown[:-1] & (rows[1:] == rows[:-1])
    begins = tf.concat([[True], ~continues], axis=0)[: tf.size(flat)]
    places = tf.range(tf.size(flat))
    inside = places - tf.gather(tf.boolean_mask(places, begins), tf.cumsum(tf.cast(begins, tf.int32)) - 1)
    is_kept = inside < _MAX_UNKNOWN_RUN
    kept = tf.concat([[0], tf.cumsum(tf.cast(is_kept, tf.int64))], axis=0)
    splits = tf.gather(kept, code_points.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.boolean_mask(flat, is_kept), splits, validate=False), is_kept

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Ids [B, (T)] (int32) of the texts [B], without [CLS] and [SEP], equal to `Tokenizer.encode`."""
    texts = tf.strings.unicode_encode(self._shortened(self._normalized(texts))[0], "UTF-8")
    if self.reference.words_are_independent:
      words = tf.strings.split(texts, sep=" ")  # [B, (words)]
      ids = self._sentencepiece.tokenize(words.flat_values)
      splits = tf.gather(ids.row_splits, words.row_splits)
      ids = tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False)
    else:
      ids = self._sentencepiece.tokenize(texts)
    rows = tf.gather(tf.constant(self._comma_row), ids.flat_values)
    return self._comma_replacements(ids, rows)


def first_tokens(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
  """At most the first `lengths` [B] (or a scalar) ids of each row."""
  starts = tf.cast(ids.row_starts(), lengths.dtype)
  kept = tf.minimum(tf.cast(ids.row_lengths(), lengths.dtype), lengths)
  indices = tf.ragged.range(starts, starts + kept)
  return indices.with_flat_values(tf.gather(ids.flat_values, indices.flat_values))


def last_tokens(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
  """At most the last `lengths` [B] (or a scalar) ids of each row."""
  limits = tf.cast(ids.row_limits(), lengths.dtype)
  kept = tf.minimum(tf.cast(ids.row_lengths(), lengths.dtype), lengths)
  indices = tf.ragged.range(limits - kept, limits)
  return indices.with_flat_values(tf.gather(ids.flat_values, indices.flat_values))


def _pack(segments: list[tf.RaggedTensor], max_length: int) -> dict[str, tf.Tensor]:
  """[CLS] segment [SEP] segment [SEP] ..., padded to [B, S]; the segments must fit."""
  column = tf.ones_like(segments[0].row_lengths(), tf.int32)[:, tf.newaxis]  # [B, 1]
  ids: list[Any] = [column * CLS_ID]
  segment_ids: list[Any] = [column * 0]
  for index, segment in enumerate(segments):
    ids += [tf.cast(segment, tf.int32), column * SEP_ID]
    segment_ids += [tf.zeros_like(segment, tf.int32) + index, column * index]
  packed = tf.concat(ids, axis=1)

  def dense(values: tf.RaggedTensor, padding: int) -> tf.Tensor:
    return values.to_tensor(padding, shape=[None, max_length])

  return {
    "input_ids": dense(packed, PAD_ID),
    "input_mask": dense(tf.ones_like(packed), 0),
    "segment_ids": dense(tf.concat(segment_ids, axis=1), 0),
  }


def _budget(max_length: int, num_segments: int) -> int:
  budget = max_length - 1 - num_segments
  if budget < num_segments:
    raise UserError(f"max_length={max_length}: too short for [CLS], {num_segments} segments and [SEP] after each")
  return budget


def pack_single(ids: tf.RaggedTensor, max_length: int) -> dict[str, tf.Tensor]:
  """[CLS] ids [SEP], with the ids cut to fit.

  Args:
    ids: integers [B, (T)].
    max_length: S.

  Returns:
    input_ids, input_mask (1 where no padding) and segment_ids (all 0), int32 [B, S].
  """
  budget = tf.constant(_budget(max_length, 1), tf.int64)
  return _pack([first_tokens(ids, budget)], max_length)


def pack_pair(ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor, max_length: int) -> dict[str, tf.Tensor]:
  """[CLS] a [SEP] b [SEP]. While they don't fit, the longer one loses its last token (b, if equally long).

  Args:
    ids_a, ids_b: integers [B, (T)].
    max_length: S.

  Returns:
    input_ids, input_mask (1 where no padding) and segment_ids (0 through the first [SEP], 1 through the second),
    int32 [B, S].
  """
  budget = _budget(max_length, 2)
  length_a, length_b = ids_a.row_lengths(), ids_b.row_lengths()
  kept_a = tf.minimum(length_a, tf.maximum(budget - length_b, (budget + 1) // 2))
  kept_b = tf.minimum(length_b, budget - kept_a)
  return _pack([first_tokens(ids_a, kept_a), first_tokens(ids_b, kept_b)], max_length)
