"""Text to ids as ALBERT does it: normalization, SentencePiece, and the comma rule.

Needs no TensorFlow: data preparation starts many processes. `albert/tokenization/graph.py` is the same inside a graph.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import struct
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, overload

import numpy as np
import sentencepiece

from albert.errors import UserError
from albert.io import files
from albert.tokenization.config import TokenizerConfig

TokenizerType = TypeVar("TokenizerType", bound="Tokenizer")

PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = 0, 1, 2, 3, 4
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # by id
_NORMAL, _USER_DEFINED = 1, 4  # SentencePiece's types of pieces
_SCORE_UNIT = 2.0**-13
_LARGEST_EXACT_SUM = 2.0**24 * _SCORE_UNIT  # float32 has 24 bits
WORD_START = "▁"  # U+2581: how SentencePiece writes a space

# Code points that Unicode 14.0 to 15.1 added and that decompose, combine or have a case there. Python 3.10
# (Unicode 13.0) knows nothing of them, so they are kept as they are: every Python gives the same ids.
_ADDED_AFTER_UNICODE_13 = (
  "\u0888-\u089f\u08c9-\u08d2\u0c3c\u0ece\u1715\u180f\u1ac1-\u1ace\u1dfa\u2c2f\u2c5f\ua7c0\ua7c1\ua7d0-\ua7f4"
  "\ufbc2\U00010570-\U000105bc\U00010780-\U000107ba\U00010efd-\U00010eff\U00010f82-\U00010f85"
  "\U00011070-\U00011074\U000110c2\U00011241\U00011f00-\U00011f59\U00013439-\U00013455"
  "\U00016ac0-\U00016ac9\U0001aff0-\U0001affe\U0001cf00-\U0001cf46\U0001df00-\U0001df2a"
  "\U0001e030-\U0001e08f\U0001e2ae\U0001e4eb-\U0001e4f9"
)
_find_newer = re.compile(f"[{_ADDED_AFTER_UNICODE_13}]").search
_split_at_newer = re.compile(f"([{_ADDED_AFTER_UNICODE_13}]+)").split
_replace_non_ascii = re.compile(r"[^\x00-\x7f]+").sub

# Scripts written without spaces between words (first and last code point): each piece may start a word.
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


def has_newer_characters(text: str) -> bool:
  """True if the text has a character that Unicode added after 13.0 and that is therefore kept as it is."""
  return _find_newer(text) is not None


def decompose(code_point: int) -> str:
  """NFKD of one character without its combining characters; "" for a combining character itself.

  Canonical ordering moves combining characters only, and those are dropped: so the normalization of a text is
  that of its characters, one by one. A lone surrogate, which UTF-8 cannot hold, becomes U+FFFD.
  """
  character = chr(code_point)
  if 0xD800 <= code_point <= 0xDFFF:
    return "\ufffd"
  if has_newer_characters(character):
    return character
  return "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))


class _Decompositions(dict[int, str]):
  """Code point -> `decompose` of it, filled as characters are met; for `str.translate`."""

  def __missing__(self, code_point: int) -> str:
    self[code_point] = decompose(code_point)
    return self[code_point]


_DECOMPOSITIONS = _Decompositions()


@functools.lru_cache(maxsize=4096)
def _decompose_run(run: str) -> str:
  return run.translate(_DECOMPOSITIONS)


def _decompose_match(match: re.Match[str]) -> str:
  run = match.group()
  # Western text repeats short runs (quotes, dashes, accents); long ones would only crowd the cache.
  return _decompose_run(run) if len(run) <= 4 else run.translate(_DECOMPOSITIONS)


def _lower(text: str) -> str:
  """`str.lower`, where characters newer than Unicode 13.0 are without case, also as neighbours of a Σ."""
  if not has_newer_characters(text):
    return text.lower()
  parts = _split_at_newer(text)
  parts[::2] = [part.lower() for part in parts[::2]]
  return "".join(parts)


def normalize_text(text: str, *, do_lower_case: bool = True, convert_quotes: bool = False) -> str:
  """Joins on whitespace, decomposes (NFKD), drops combining characters, lower-cases if asked.

  Args:
    text: any string; a lone surrogate becomes U+FFFD.
    do_lower_case: lower-case as `str.lower` does, the final sigma included.
    convert_quotes: also turn `` and '' into ". The original ALBERT does not.
  """
  text = " ".join(text.split())
  if convert_quotes:
    text = text.replace("``", '"').replace("''", '"')
  if text.isascii():
    return text.lower() if do_lower_case else text
  text = _replace_non_ascii(_decompose_match, text)
  return _lower(text) if do_lower_case else text


def ends_in_digit_comma(piece: str) -> bool:
  return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() and not has_newer_characters(piece[-2])


def _starts_word(piece: str, is_byte: bool = False) -> bool:
  if is_byte:  # "<0xC5>"
    byte = int(piece[3:5], 16)
    if byte >= 0x80:  # continues a word; but those that begin U+3000 to U+9FFF are of scripts without spaces
      return 0xE3 <= byte <= 0xE9
    piece = chr(byte)
  first = piece[:1]
  if not first:
    return False
  if first == WORD_START or any(low <= ord(first) <= high for low, high in _SCRIPTS_WITHOUT_SPACES):
    return True
  # Punctuation and symbols; an emoji newer than this Python's Unicode is unassigned (Cn) to it.
  category = unicodedata.category(first)
  return category[0] in "PS" or category == "Cn"


class Tokenizer:
  """ALBERT's tokenizer: `normalize_text`, a SentencePiece unigram model, then the comma rule.

  The comma rule: a piece longer than 1 that ends in "," after a digit is encoded again without the comma, so that
  "1999," is `▁1999` `,`. Control symbols never come from text: "[CLS]" in a text is not id 2.

  SentencePiece sums log probabilities along a text in float32. In a long one rounding decides between segmentations
  that are about as good, and otherwise in one release of it than in another. So scores are used whose sums are exact
  (`with_exact_scores`) as long as they are small, and long texts are encoded in parts, cut at spaces, which no piece
  spans. Then a word has the same ids wherever it stands, and in a graph (`albert/tokenization/graph.py`) too.

  Pickles as its arguments: another process opens the model again by its path.

  Args:
    model_file: path of the SentencePiece model.
    do_lower_case: as the model was trained.
    convert_quotes: see `normalize_text`.

  Raises:
    UserError: the file is missing, is no SentencePiece model, or lacks the control symbols at ids 0..4.
  """

  def __init__(self, model_file: str, do_lower_case: bool = True, *, convert_quotes: bool = False):
    self.config = TokenizerConfig(model_file, do_lower_case, convert_quotes)
    with files.open_file(model_file) as file:
      model = file.read()
    _load_processor(model_file, model)  # refuses what is no model
    self.sha256 = hashlib.sha256(model).hexdigest()
    try:
      #: The model with the scores that this class encodes with.
      self.exact_model = with_exact_scores(model)
      self._processor = _load_processor(model_file, self.exact_model)
      self.vocab_size = int(self._processor.get_piece_size())
      self.pieces: list[str] = [self._processor.id_to_piece(i) for i in range(self.vocab_size)]
    except (ValueError, IndexError, OverflowError, struct.error) as error:  # damage that the library does not mind
      raise _no_model(model_file) from error
    self._check_special_pieces()
    # False for a vocabulary trained to have pieces of several words: then a text is encoded as one.
    self.words_are_independent = WORD_START in self.pieces and not any(WORD_START in piece[1:] for piece in self.pieces)
    # A vocabulary with "," as a piece never has it inside an <unk>, and ids alone decide the comma rule.
    self._ids_decide = self._processor.piece_to_id(",") != UNK_ID
    candidates = [i for i, piece in enumerate(self.pieces) if ends_in_digit_comma(piece) and not self.is_special[i]]
    #: Id of a piece that the comma rule splits -> the ids that it becomes.
    self.comma_splits: dict[int, list[int]] = {i: self._split_comma(self.pieces[i]) for i in candidates}
    self._comma_ids = frozenset(self.comma_splits)
    scores = [self._processor.get_score(i) for i in range(self.vocab_size)]
    # An <unk> costs 10 more than the worst piece. A part has at most a token a character, and ▁ in front.
    self._part_chars = max(1, int(_LARGEST_EXACT_SUM / (10 - min(scores))) - 1)
    self._parts = re.compile(rf"[^ ].{{0,{self._part_chars - 1}}}(?= |\Z)|[^ ]+", re.DOTALL).findall

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
    """bool [V]: control symbols, <unk> and unused pieces, none of which stands for text."""
    processor = self._processor
    return np.array(
      [processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i) for i in range(self.vocab_size)]
    )

  @functools.cached_property
  def word_starts(self) -> np.ndarray:
    """bool [V]: the piece starts a word.

    So does one that begins with ▁, with punctuation or a symbol, or in a script written without spaces. The byte pieces
    of a vocabulary with byte fallback continue a word, unless they are ASCII punctuation or begin a CJK character.
    """
    return np.array([_starts_word(piece, self._processor.is_byte(i)) for i, piece in enumerate(self.pieces)])

  def normalize(self, text: str) -> str:
    """See `normalize_text`."""
    return normalize_text(text, do_lower_case=self.config.do_lower_case, convert_quotes=self.config.convert_quotes)

  def encode(self, text: str) -> list[int]:
    """Ids of the text, without [CLS] and [SEP]."""
    return self.encode_batch([text])[0]

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Ids of each text, without [CLS] and [SEP]. Much faster than one `encode` a text."""
    parts: list[str] = []
    ends: list[int] = []
    for text in map(self.normalize, texts):
      if len(text) <= self._part_chars or not self.words_are_independent:
        parts.append(text)
      else:
        parts += self._parts(text)
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
    """`encode_batch` as arrays.

    Returns:
      ids: int32 [N], the ids of all texts one after the other.
      offsets: int64 [len(texts) + 1]; text i has ids[offsets[i] : offsets[i + 1]].
    """
    batch = self.encode_batch(texts)
    offsets = np.zeros(len(batch) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, batch), np.int64, len(batch)), out=offsets[1:])
    ids = np.fromiter(itertools.chain.from_iterable(batch), np.int32, int(offsets[-1]))
    return ids, offsets

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Text of the ids; control symbols give nothing, <unk> gives " ⁇ ".

    Raises:
      UserError: an id outside of the vocabulary.
    """
    ids = [int(i) for i in ids]
    for i in ids:
      self.piece(i)
    return str(self._processor.decode(ids))

  def piece(self, piece_id: int) -> str:
    """The piece of an id. Raises UserError for an id outside of the vocabulary."""
    if not 0 <= piece_id < self.vocab_size:
      raise UserError(
        f"id {piece_id} is outside of the {self.vocab_size} pieces of {self.model_file}: "
        "use the vocabulary that the ids were made with"
      )
    return self.pieces[piece_id]

  def _check_special_pieces(self) -> None:
    for i, expected in enumerate(SPECIAL_PIECES):
      found = self.pieces[i] if i < self.vocab_size else "nothing"
      right_kind = self._processor.is_unknown if i == UNK_ID else self._processor.is_control
      if found != expected or not right_kind(i):
        raise UserError(
          f"{self.model_file}: id {i} is {found!r}, not the control symbol {expected!r}: "
          "train the vocabulary with data_prep/train_vocab.py"
        )

  def _encode_parts(self, parts: list[str]) -> list[list[int]]:
    """Ids of normalized texts, with the comma rule."""
    # One thread: data preparation runs a process on every core already.
    batch: list[list[int]] = self._processor.encode(parts, out_type=int, num_threads=1)
    if not self._ids_decide:
      surfaces = self._processor.encode(parts, out_type=str, num_threads=1)
      return [self._split_by_surface(*pair) for pair in zip(batch, surfaces, strict=True)]
    unsplit = self._comma_ids.isdisjoint
    for index, ids in enumerate(batch):
      if not unsplit(ids):
        batch[index] = [new for old in ids for new in self.comma_splits.get(old, (old,))]
    return batch

  def _split_by_surface(self, ids: list[int], surfaces: list[str]) -> list[int]:
    """The comma rule where "," is no piece: an <unk> may end in digit and comma, which only its text tells."""
    split = (self._split_comma(s) if ends_in_digit_comma(s) else [i] for i, s in zip(ids, surfaces, strict=True))
    return list(itertools.chain.from_iterable(split))

  def _split_comma(self, piece: str) -> list[int]:
    """The comma rule for one piece (or surface of an <unk>) that it applies to."""
    ids = [int(self._processor.piece_to_id(surface)) for surface in self._comma_surfaces(piece)]
    return [UNK_ID if self.is_special[i] else i for i in ids]

  def _comma_surfaces(self, piece: str) -> list[str]:
    """What the comma rule makes of a piece (or surface of an <unk>): surfaces, the last of which is ","."""
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
  return _load_tokenizer(tokenizer_class.from_config, config, files.stat(config.model_file))


@functools.lru_cache(maxsize=4)
def _load_tokenizer(
  from_config: Callable[[TokenizerConfig], Tokenizer], config: TokenizerConfig, status: files.Stat
) -> Tokenizer:
  del status  # a part of the cache key: a file that has changed is read again
  return from_config(config)


def _varint(message: bytes, start: int) -> tuple[int, int]:
  """(value, end) of the protobuf varint at `start`."""
  value = shift = 0
  while True:
    byte = message[start]
    start += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, start
    shift += 7


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
  """(number, value, whole field) of each field of a protobuf message."""
  start = 0
  while start < len(message):
    key, value = _varint(message, start)
    wire_type = key & 7
    if wire_type == 2:
      length, value = _varint(message, value)
      end = value + length
    else:
      end = _varint(message, value)[1] if wire_type == 0 else value + (8 if wire_type == 1 else 4)
    yield key >> 3, message[value:end], message[start:end]
    start = end


def with_exact_scores(model: bytes) -> bytes:
  """The SentencePiece model with its scores rounded to multiples of 2^-13.

  Sums of such scores up to 2048, some hundred pieces, are exact in float32. So segmentations are compared, and
  equally good ones told apart, alike in every release. In the ALBERT English vocabulary this decides 3 of the
  325,000 different words of 80 novels and GLUE anew, whose best segmentations differ by less than 0.0002.
  User-defined symbols, whose score SentencePiece makes up, become normal pieces with the same score, rounded.
  """
  pieces: list[tuple[bytes, float, int]] = []
  rest = b""
  for number, value, whole in _fields(model):
    if number == 2 and {inner: x for inner, x, _ in _fields(value)}.get(3, b"\x01") != b"\x01":
      return model  # TrainerSpec.model_type: not unigram, whose scores alone are summed
    if number != 1:  # ModelProto.pieces
      rest += whole
      continue
    fields = {inner: inner_value for inner, inner_value, _ in _fields(value)}
    (score,) = struct.unpack("<f", fields.get(2, bytes(4)))
    pieces.append((fields.get(1, b""), score, fields.get(3, b"\x01")[0]))
  normal = [score for _, score, kind in pieces if kind == _NORMAL] or [0.0]
  low, high = min(normal), max(normal)

  def exact_piece(piece: bytes, score: float, kind: int) -> bytes:
    if kind == _USER_DEFINED:
      score, kind = max(low, len(piece.decode("utf-8")) * high - 0.1), _NORMAL
    message = b"\x0a" + _as_varint(len(piece)) + piece
    message += struct.pack("<BfBB", 0x15, round(score / _SCORE_UNIT) * _SCORE_UNIT, 0x18, kind)  # fields 2 and 3
    return b"\x0a" + _as_varint(len(message)) + message

  return b"".join(exact_piece(*piece) for piece in pieces) + rest


def _as_varint(value: int) -> bytes:
  return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _as_varint(value >> 7)


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
