"""Text to ids as ALBERT does it: normalization, SentencePiece, and the comma rule.

Needs no TensorFlow: data preparation starts many processes. `albert/text_ops.py` is the same inside a graph.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sentencepiece

from albert import files
from albert.errors import UserError

PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = 0, 1, 2, 3, 4
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # by id
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


def _ends_in_digit_comma(piece: str) -> bool:
  return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() and not has_newer_characters(piece[-2])


def _starts_word(piece: str) -> bool:
  first = piece[:1]
  if not first:
    return False
  if first == WORD_START or any(low <= ord(first) <= high for low, high in _SCRIPTS_WITHOUT_SPACES):
    return True
  # Punctuation and symbols; an emoji newer than this Python's Unicode is unassigned (Cn) to it.
  category = unicodedata.category(first)
  return category[0] in "PS" or category == "Cn"


class Tokenizer:
  """ALBERT's tokenizer: `normalize_text`, a SentencePiece model, then the comma rule.

  The comma rule: a piece longer than 1 that ends in "," after a digit is encoded again without the comma, so that
  "1999," is `▁1999` `,`. Control symbols never come from text: "[CLS]" in a text is not id 2.

  Pickles as its arguments: another process opens the model again by its path.

  Args:
    model_file: path of the SentencePiece model.
    do_lower_case: as the model was trained.
    convert_quotes: see `normalize_text`.

  Raises:
    UserError: the file is missing, is no SentencePiece model, or lacks the control symbols at ids 0..4.
  """

  def __init__(self, model_file: str, do_lower_case: bool = True, *, convert_quotes: bool = False):
    self.model_file = model_file
    self.do_lower_case = do_lower_case
    self.convert_quotes = convert_quotes
    with files.open_file(model_file) as file:
      self._model = file.read()
    self._processor = _load_processor(model_file, self._model)
    self.sha256 = hashlib.sha256(self._model).hexdigest()
    self.vocab_size = int(self._processor.get_piece_size())
    self.pieces: list[str] = [self._processor.id_to_piece(i) for i in range(self.vocab_size)]
    self._check_special_pieces()
    self._splits = self._comma_splits()
    self._split_ids = frozenset(self._splits)
    # A vocabulary with "," as a piece never has it inside an <unk>, and ids alone decide the comma rule.
    self._ids_decide = self._processor.piece_to_id(",") != UNK_ID

  def __reduce__(self) -> tuple[Any, ...]:
    make = functools.partial(Tokenizer, convert_quotes=self.convert_quotes)
    return make, (self.model_file, self.do_lower_case)

  @property
  def model_bytes(self) -> bytes:
    """The model file's contents."""
    return self._model

  @property
  def comma_splits(self) -> dict[int, list[int]]:
    """Id of a piece that the comma rule splits -> the ids it becomes."""
    return {i: list(ids) for i, ids in self._splits.items()}

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

    So does one that begins with ▁, with punctuation or a symbol, or in a script written without spaces.
    """
    return np.array([_starts_word(piece) for piece in self.pieces])

  def normalize(self, text: str) -> str:
    """See `normalize_text`."""
    return normalize_text(text, do_lower_case=self.do_lower_case, convert_quotes=self.convert_quotes)

  def encode(self, text: str) -> list[int]:
    """Ids of the text, without [CLS] and [SEP]."""
    return self.encode_batch([text])[0]

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Ids of each text, without [CLS] and [SEP]. Much faster than one `encode` a text."""
    normalized = [self.normalize(text) for text in texts]
    batch: list[list[int]] = self._encode_normalized(normalized)
    if not self._ids_decide:
      return [self._split_by_surface(text, ids) for text, ids in zip(normalized, batch, strict=True)]
    unsplit = self._split_ids.isdisjoint
    for index, ids in enumerate(batch):
      if not unsplit(ids):
        batch[index] = [new for old in ids for new in self._splits.get(old, (old,))]
    return batch

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

  def _encode_normalized(self, texts: list[str], out_type: type = int) -> list[list[Any]]:
    # One thread: data preparation runs a process on every core already.
    batch: list[list[Any]] = self._processor.encode(texts, out_type=out_type, num_threads=1)
    return batch

  def _check_special_pieces(self) -> None:
    for i, expected in enumerate(SPECIAL_PIECES):
      found = self.pieces[i] if i < self.vocab_size else "nothing"
      right_kind = self._processor.is_unknown if i == UNK_ID else self._processor.is_control
      if found != expected or not right_kind(i):
        raise UserError(
          f"{self.model_file}: id {i} is {found!r}, not the control symbol {expected!r}: "
          "train the vocabulary with data_prep/train_vocab.py"
        )

  def _id_of(self, surface: str) -> int:
    piece_id = int(self._processor.piece_to_id(surface))
    return UNK_ID if self._processor.is_control(piece_id) else piece_id

  def _split_comma(self, piece: str) -> list[int]:
    """The comma rule for one piece (or surface of an <unk>) that it applies to."""
    surfaces: list[str] = self._encode_normalized([piece[:-1].replace(WORD_START, "")], out_type=str)[0]
    if not piece.startswith(WORD_START) and surfaces[0].startswith(WORD_START):
      surfaces[:1] = [surfaces[0][1:]] if len(surfaces[0]) > 1 else []
    return [self._id_of(surface) for surface in [*surfaces, ","]]

  def _comma_splits(self) -> dict[int, list[int]]:
    candidates = [i for i, piece in enumerate(self.pieces) if _ends_in_digit_comma(piece)]
    return {i: self._split_comma(self.pieces[i]) for i in candidates if not self.is_special[i]}

  def _split_by_surface(self, text: str, ids: list[int]) -> list[int]:
    """The comma rule where "," is no piece: an <unk> may end in digit and comma, which only its text tells."""
    if "," not in text:
      return ids
    split = []
    for i, surface in zip(ids, self._encode_normalized([text], out_type=str)[0], strict=True):
      split += self._split_comma(surface) if _ends_in_digit_comma(surface) else [i]
    return split


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
