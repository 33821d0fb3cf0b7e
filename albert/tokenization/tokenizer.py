"""ALBERT's tokenizer: converts text to ids by normalization, SentencePiece and the comma rule.

This module does not import TensorFlow, because data preparation starts many processes that need it.
`albert/tokenization/graph.py` implements the same tokenizer in TensorFlow ops.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import struct
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeVar, overload

import numpy as np
import sentencepiece

from albert.errors import UserError
from albert.io import files
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.exact_scores import LARGEST_EXACT_SUM, with_exact_scores
from albert.tokenization.normalization import has_newer_characters, normalize_text

TokenizerType = TypeVar("TokenizerType", bound="Tokenizer")

PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = 0, 1, 2, 3, 4
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # in order of their ids
WORD_START = "▁"  # U+2581: how SentencePiece writes a space

# First and last code points of scripts that put no spaces between words. A piece of these scripts counts as a word.
_SCRIPTS_WITHOUT_SPACES = (
  (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
  (0x1000, 0x109F),  # Myanmar
  (0x1780, 0x17FF),  # Khmer
  (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
  (0x1A20, 0x1AAF),  # Tai Tham
  (0x2E80, 0x312F),  # CJK radicals and punctuation, Hiragana, Katakana, Bopomofo
  (0x31A0, 0x4DBF),  # Bopomofo and Katakana extensions, CJK extension A
  (0x4E00, 0xA4CF),  # CJK ideographs, Yi
  (0xA980, 0xA9DF),  # Javanese
  (0xF900, 0xFAFF),  # CJK compatibility ideographs
  (0x16FE0, 0x18DFF),  # Tangut, Khitan
  (0x1B000, 0x1B2FF),  # Kana extensions, Nushu
  (0x20000, 0x3FFFF),  # CJK extensions B and later
)


def ends_in_digit_comma(piece: str) -> bool:
  """Returns whether the comma rule applies to a piece: it ends in a digit and a comma."""
  return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() and not has_newer_characters(piece[-2])


def _starts_word(piece: str, is_byte: bool = False) -> bool:
  """See Tokenizer.word_starts. A byte piece is written as "<0xC5>"."""
  if is_byte:
    byte = int(piece[3:5], 16)
    if byte >= 0x80:
      # 0xE3 to 0xE9 are the first bytes of U+3000 to U+9FFF, which are mostly scripts without spaces. Any other byte
      # from 0x80 on continues a word.
      return 0xE3 <= byte <= 0xE9
    piece = chr(byte)
  first = piece[:1]
  if not first:
    return False
  if first == WORD_START or any(low <= ord(first) <= high for low, high in _SCRIPTS_WITHOUT_SPACES):
    return True
  # Punctuation (P*) and symbols (S*). An emoji that is newer than this Python's Unicode data has category Cn.
  category = unicodedata.category(first)
  return category[0] in "PS" or category == "Cn"


class Tokenizer:
  """ALBERT's tokenizer: `normalize_text`, a SentencePiece unigram model, then the comma rule.

  Comma rule: a piece of at least two characters that ends in a digit and "," is encoded again without the comma, which
  becomes a token of its own. For example, "1999," becomes `▁1999` `,`.

  Text never yields control symbols: "[CLS]" in a text does not become id 2.

  A word has the same ids wherever it stands in a text, and the same ids in a TensorFlow graph
  (`albert/tokenization/graph.py`). Plain SentencePiece does not guarantee this: it adds log probabilities along the
  text in float32, and in a long text the rounding error decides between segmentations of almost equal score. This class
  therefore rounds the scores of the model so that sums are exact while they are small (`with_exact_scores`), and
  encodes a long text in parts. It cuts texts at spaces, which no piece contains.

  Pickling stores the config only; unpickling opens the model file again.

  Args:
    model_file: path of the SentencePiece model.
    do_lower_case: whether to lower-case text. It must be as it was when the model was trained.
    convert_quotes: whether to replace `` and '' by ".

  Attributes:
    config: the arguments, as a TokenizerConfig.
    sha256: SHA-256 of the model file, in hex.
    vocab_size: number of pieces, V.
    pieces: the V pieces, in order of their ids.
    exact_model: the serialized model with rounded scores, which this class encodes with.
    words_are_independent: whether each word is encoded on its own. False if a piece contains a space between words;
      then a text is never encoded in parts.
    comma_splits: id of a piece to which the comma rule applies -> the ids that replace it.

  Raises:
    UserError: the file is missing, is not a SentencePiece model, or lacks the control symbols at ids 0 to 4.

  Example:
    >>> tokenizer = Tokenizer("albert_base/spiece.model")
    >>> tokenizer.decode(tokenizer.encode("They drank the pub dry."))
    'they drank the pub dry.'
  """

  def __init__(self, model_file: str, do_lower_case: bool = True, *, convert_quotes: bool = False):
    self.config = TokenizerConfig(model_file, do_lower_case, convert_quotes)
    with files.open_file(model_file) as file:
      model = file.read()
    _load_processor(model_file, model)  # checks that it is a model
    self.sha256 = hashlib.sha256(model).hexdigest()
    try:
      self.exact_model = with_exact_scores(model)
      self._processor = _load_processor(model_file, self.exact_model)
      self.vocab_size = int(self._processor.get_piece_size())
      self.pieces: list[str] = [self._processor.id_to_piece(i) for i in range(self.vocab_size)]
    except (ValueError, IndexError, OverflowError, struct.error) as error:  # damage that SentencePiece accepts
      raise _no_model(model_file) from error
    self._check_special_pieces()
    self.words_are_independent = WORD_START in self.pieces and not any(WORD_START in piece[1:] for piece in self.pieces)
    # If "," is a piece, no <unk> contains a comma, and the ids alone tell where the comma rule applies.
    self._has_comma_piece = self._processor.piece_to_id(",") != UNK_ID
    candidates = [i for i, piece in enumerate(self.pieces) if ends_in_digit_comma(piece) and not self.is_special[i]]
    self.comma_splits: dict[int, list[int]] = {i: self._split_comma(self.pieces[i]) for i in candidates}
    self._comma_ids = frozenset(self.comma_splits)
    scores = [self._processor.get_score(i) for i in range(self.vocab_size)]
    # The score of <unk> is the lowest score minus 10. A part has at most one token for each character and one for the ▁
    # that SentencePiece puts before it, so the sum of its scores is exact.
    self._max_part_chars = max(1, int(LARGEST_EXACT_SUM / (10 - min(scores))) - 1)
    # A part is as many words as fit in _max_part_chars, or a single longer word.
    self._split_into_parts = re.compile(rf"[^ ].{{0,{self._max_part_chars - 1}}}(?= |\Z)|[^ ]+", re.DOTALL).findall

  @classmethod
  def from_config(cls: type[TokenizerType], config: TokenizerConfig) -> TokenizerType:
    """Makes a tokenizer from its settings; `load_tokenizer` also caches it."""
    return cls(config.model_file, config.do_lower_case, convert_quotes=config.convert_quotes)

  def __reduce__(self) -> tuple[object, ...]:
    return type(self).from_config, (self.config,)

  @property
  def model_file(self) -> str:
    """Path of the SentencePiece model."""
    return self.config.model_file

  @functools.cached_property
  def is_special(self) -> np.ndarray:
    """bool [V]: True for control symbols, <unk> and unused pieces, which do not represent text."""
    processor = self._processor
    return np.array(
      [processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i) for i in range(self.vocab_size)]
    )

  @functools.cached_property
  def word_starts(self) -> np.ndarray:
    """bool [V]: True for pieces that start a word.

    These are pieces whose first character is ▁, punctuation, a symbol, or of a script written without spaces. In a
    vocabulary with byte fallback, a byte piece starts a word only if it is ASCII punctuation or the first byte of a CJK
    character.
    """
    return np.array([_starts_word(piece, self._processor.is_byte(i)) for i, piece in enumerate(self.pieces)])

  def normalize(self, text: str) -> str:
    """Normalizes a text with the settings of this tokenizer, see `normalize_text`."""
    return normalize_text(text, do_lower_case=self.config.do_lower_case, convert_quotes=self.config.convert_quotes)

  def encode(self, text: str) -> list[int]:
    """Converts a text to a list of ids, without [CLS] and [SEP]."""
    return self.encode_batch([text])[0]

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Converts texts to lists of ids, without [CLS] and [SEP]. Much faster than calling `encode` for each text."""
    parts: list[str] = []
    ends: list[int] = []
    for text in map(self.normalize, texts):
      if len(text) <= self._max_part_chars or not self.words_are_independent:
        parts.append(text)
      else:
        parts += self._split_into_parts(text)
      ends.append(len(parts))
    encoded = self._encode_parts(parts)
    if len(ends) == len(parts):
      return encoded
    starts = [0, *ends]
    return [
      encoded[start] if end == start + 1 else list(itertools.chain.from_iterable(encoded[start:end]))
      for start, end in itertools.pairwise(starts)
    ]

  def encode_batch_flat(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Converts texts to ids, like `encode_batch`, but returns arrays.

    Returns:
      ids: int32 [T], the ids of all texts, concatenated.
      offsets: int64 [len(texts) + 1]; the ids of text i are ids[offsets[i] : offsets[i + 1]].
    """
    batch = self.encode_batch(texts)
    offsets = np.zeros(len(batch) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, batch), np.int64, len(batch)), out=offsets[1:])
    ids = np.fromiter(itertools.chain.from_iterable(batch), np.int32, int(offsets[-1]))
    return ids, offsets

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Converts ids to text. Control symbols are left out, and <unk> becomes " ⁇ ".

    Raises:
      UserError: an id is outside the vocabulary.
    """
    ids = [int(i) for i in ids]
    for i in ids:
      self.piece(i)
    return str(self._processor.decode(ids))

  def piece(self, piece_id: int) -> str:
    """Returns the piece with this id.

    Raises:
      UserError: the id is outside the vocabulary.
    """
    if not 0 <= piece_id < self.vocab_size:
      raise UserError(
        f"id {piece_id} is outside the {self.vocab_size} pieces of {self.model_file}: "
        "use the vocabulary that the ids were made with"
      )
    return self.pieces[piece_id]

  def _check_special_pieces(self) -> None:
    for i, expected in enumerate(SPECIAL_PIECES):
      piece = self.pieces[i] if i < self.vocab_size else "nothing"
      has_expected_type = self._processor.is_unknown if i == UNK_ID else self._processor.is_control
      if piece != expected or not has_expected_type(i):
        raise UserError(
          f"{self.model_file}: id {i} is {piece!r}, not the control symbol {expected!r}: "
          "train the vocabulary with data_prep/train_vocab.py"
        )

  def _encode_parts(self, parts: list[str]) -> list[list[int]]:
    """Converts normalized texts, or parts of them, to ids and applies the comma rule."""
    # One thread, because data preparation already runs one process on every core.
    batch: list[list[int]] = self._processor.encode(parts, out_type=int, num_threads=1)
    if not self._has_comma_piece:
      surfaces = self._processor.encode(parts, out_type=str, num_threads=1)
      return [self._split_by_surface(*pair) for pair in zip(batch, surfaces, strict=True)]
    has_no_comma_split = self._comma_ids.isdisjoint
    for index, ids in enumerate(batch):
      if not has_no_comma_split(ids):
        batch[index] = [new for old in ids for new in self.comma_splits.get(old, (old,))]
    return batch

  def _split_by_surface(self, ids: list[int], surfaces: list[str]) -> list[int]:
    """Applies the comma rule if "," is not a piece: then an <unk> may stand for text that ends in digit and comma."""
    split = (self._split_comma(s) if ends_in_digit_comma(s) else [i] for i, s in zip(ids, surfaces, strict=True))
    return list(itertools.chain.from_iterable(split))

  def _split_comma(self, piece: str) -> list[int]:
    """Returns the ids that replace a piece (or the text of an <unk>) to which the comma rule applies."""
    ids = [int(self._processor.piece_to_id(surface)) for surface in self._comma_surfaces(piece)]
    return [UNK_ID if self.is_special[i] else i for i in ids]

  def _comma_surfaces(self, piece: str) -> list[str]:
    """Returns the pieces that replace a piece (or the text of an <unk>) by the comma rule; the last one is ","."""
    surfaces: list[str] = self._processor.encode(piece[:-1].replace(WORD_START, ""), out_type=str)
    if not piece.startswith(WORD_START) and surfaces[0].startswith(WORD_START):
      surfaces[:1] = [surfaces[0][1:]] if len(surfaces[0]) > 1 else []
    return [*surfaces, ","]


@overload
def load_tokenizer(config: TokenizerConfig) -> Tokenizer: ...
@overload
def load_tokenizer(config: TokenizerConfig, tokenizer_class: type[TokenizerType]) -> TokenizerType: ...
def load_tokenizer(config: TokenizerConfig, tokenizer_class: type[Tokenizer] = Tokenizer) -> Tokenizer:
  """Returns the tokenizer of a config. The most recently used tokenizers of a process are cached.

  Args:
    config: the vocabulary and the normalization.
    tokenizer_class: Tokenizer, or a subclass of it.

  Raises:
    UserError: see Tokenizer.
  """
  # mypy takes the __hash__ of Tokenizer's instances for that of the class.
  return _load_tokenizer(tokenizer_class, config, files.stat(config.model_file))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4)
def _load_tokenizer(tokenizer_class: type[Tokenizer], config: TokenizerConfig, status: files.Stat) -> Tokenizer:
  del status  # a part of the cache key: a file that has changed is read again
  return tokenizer_class.from_config(config)


def _load_processor(model_file: str, model: bytes) -> sentencepiece.SentencePieceProcessor:
  processor = sentencepiece.SentencePieceProcessor()
  try:
    loaded = bool(model) and processor.LoadFromSerializedProto(model)
  except (RuntimeError, ValueError) as error:
    raise _no_model(model_file) from error
  if not loaded:
    raise _no_model(model_file)
  return processor


def _no_model(model_file: str) -> UserError:
  return UserError(f"{model_file}: not a SentencePiece model: give the .model file that data_prep/train_vocab.py wrote")
