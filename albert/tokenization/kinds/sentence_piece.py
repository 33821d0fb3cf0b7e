"""SentencePiece vocabularies: ALBERT's normalization, a SentencePiece model, then the comma rule.

It needs no libraries but NumPy and sentencepiece: programs that serve exported models may not have TensorFlow, and data
preparation starts many processes that need a tokenizer. `albert/tokenization/in_graph/graph.py` implements the same
tokenizer in TensorFlow ops.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import sentencepiece

from albert.errors import UserError
from albert.io.protobuf import decode_fields
from albert.tokenization.comma_rule import CommaRule
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.exact_scores import LARGEST_EXACT_SUM, with_exact_scores
from albert.tokenization.kinds.base import TokensWithOffsets, Vocabulary
from albert.tokenization.kinds.sentence_piece_offsets import OffsetEncoder
from albert.tokenization.normalization import normalize_text
from albert.tokenization.pieces import SENTENCE_PIECE_IDS, SPECIAL_PIECES, UNK_ID, WORD_START, starts_word

# If `max_part_chars` is at most _MAX_CACHED_CHARS, the ids of this many parts of at most this length are kept.
_MAX_CACHED_PARTS, _MAX_CACHED_CHARS = 1 << 18, 32


class _PartIds(dict[str, list[int]]):
  """Maps parts of normalized texts to their ids; a part is encoded when it is first used."""

  def __init__(self, encode: Callable[[str], list[int]]):
    super().__init__()
    self._encode = encode

  def __missing__(self, part: str) -> list[int]:
    ids = self._encode(part)
    if len(part) <= _MAX_CACHED_CHARS:
      if len(self) >= _MAX_CACHED_PARTS:
        self.clear()
      self[part] = ids
    return ids


class _TrainerOptions(NamedTuple):
  """The options of SentencePiece's trainer that change how text is encoded. A model records them."""

  treat_whitespace_as_suffix: bool
  user_defined_symbols: list[str]
  normalization_rules: str
  add_dummy_prefix: bool
  remove_extra_whitespaces: bool
  escape_whitespaces: bool

  @classmethod
  def from_model(cls, model: bytes) -> _TrainerOptions:
    """Reads them from a serialized ModelProto. Its field 2 is the trainer_spec, field 3 the normalizer_spec."""
    specs = {field.number: list(decode_fields(field.value)) for field in decode_fields(model) if field.number in (2, 3)}
    trainer, normalizer = ({option.number: option.value for option in specs.get(number, ())} for number in (2, 3))
    return cls(
      trainer.get(24, b"\0") != b"\0",
      [option.value.decode() for option in specs.get(2, ()) if option.number == 31],
      normalizer.get(1, b"").decode(),
      *(normalizer.get(number) != b"\0" for number in (3, 4, 5)),
    )

  def check(self, file: str) -> None:
    """Raises a UserError if words cannot be found in text that is encoded with these options."""
    option = ""
    if self.normalization_rules == "user_defined":
      option, reason = "--normalization_rule_tsv", "its rules may change spaces and symbols"
    if not self.escape_whitespaces:
      option, reason = "--escape_whitespaces=false", "its pieces have no ▁ for a space"
    if self.treat_whitespace_as_suffix:
      option, reason = "--treat_whitespace_as_suffix=true", "▁ is the end of a word, not its start"
    if option:
      raise UserError(
        f"{file}: trained with {option}: {reason}, so words cannot be told apart: train the vocabulary without this "
        "option, or with data_prep/train_vocab.py"
      )

  def words_are_independent(self, pieces: Sequence[str]) -> bool:
    """Returns whether SentencePiece gives each word the pieces that it has as a text of its own."""
    return (
      self.add_dummy_prefix
      and self.remove_extra_whitespaces
      and WORD_START in pieces
      and not any(WORD_START in piece[1:] for piece in pieces)
      and not any(WORD_START in symbol for symbol in self.user_defined_symbols)
    )


class SentencePieceVocabulary(Vocabulary):
  """`normalize_text`, a SentencePiece model, then the comma rule.

  The ids are those that SentencePiece gives the normalized text, with the comma rule.

  The comma rule makes a comma after a digit a token of its own: "1999," becomes `▁1999` `,`.

  Text never yields control symbols: "[CLS]" in a text does not become id 2.

  If words are independent (see below), a word has the same ids wherever it stands in a text. A TensorFlow graph
  (`albert/tokenization/in_graph/graph.py`) gives the same ids as this class. Plain SentencePiece does not guarantee
  this. It adds the log probabilities of a text's pieces in float32, and in a long text the rounding error decides
  between segmentations of almost equal score. This class therefore rounds the scores of the model, so that sums over
  short texts are exact (`with_exact_scores`), and encodes a long text in parts. The parts are cut at spaces, which no
  piece contains.
  Only in single words whose scores add up to less than -2048 (hundreds of characters) do rounding errors remain: Python
  and the graph may then choose different pieces of equal score.

  The scores of a BPE model are the ranks of its merges, with a minus. They are so low that each word is a part of its
  own. Encoding many short parts is slow, so the ids of parts that have been met are kept.

  Args:
    config: the file and the normalization.
    model: the contents of the file.

  Attributes:
    processor: the model with rounded scores.
    exact_model: the same, serialized.
    words_are_independent: whether each word is encoded on its own. False if a piece contains a space between words, or
      the model was trained with --add_dummy_prefix=false or --remove_extra_whitespaces=false; then a text is never
      encoded in parts.
    comma_rule: the comma rule for these pieces.
    max_part_chars: maximum characters of the parts of a text that are encoded on their own.

  Raises:
    UserError: the file is not a SentencePiece model, lacks the control symbols at ids 0 to 4, or was trained with an
      option that hides where words begin.
  """

  kind = "sentencepiece"
  special_ids = SENTENCE_PIECE_IDS

  def __init__(self, config: TokenizerConfig, model: bytes):
    self.config = config
    original = _load_processor(config.model_file, model)
    self.sha256 = hashlib.sha256(model).hexdigest()
    try:
      options = _TrainerOptions.from_model(model)
      self.exact_model = with_exact_scores(model)
      self.processor = _load_processor(config.model_file, self.exact_model)
      self.pieces = [self.processor.id_to_piece(i) for i in range(self.processor.get_piece_size())]
      # The model's normalization changes normal pieces in a text, but no user-defined symbols.
      symbols = {symbol: f"{symbol} {symbol}x" for symbol in options.user_defined_symbols}
      protected = [s for s, text in symbols.items() if original.normalize(text) != self.processor.normalize(text)]
      if protected:
        self.exact_model = with_exact_scores(model, protected)
        self.processor = _load_processor(config.model_file, self.exact_model)
    except (ValueError, IndexError, OverflowError, struct.error) as error:  # damage that SentencePiece accepts
      raise _not_a_model_error(config.model_file) from error
    self._check_special_pieces()
    options.check(self.file)
    self.words_are_independent = options.words_are_independent(self.pieces)
    self.comma_rule = CommaRule(self.processor, self.pieces, self.is_special)
    scores = [self.processor.get_score(i) for i in range(len(self.pieces))]
    # The score of <unk> is the lowest score minus 10, so the absolute value of any score is at most 10 - min(scores). A
    # part has at most one token for each character and one for the ▁ that SentencePiece puts before it. With this
    # maximum, the sum of its scores is exact.
    self.max_part_chars = max(1, int(LARGEST_EXACT_SUM / (10 - min(scores))) - 1)
    # A part is as many words as fit in max_part_chars, or a single longer word. SentencePiece drops a ▁ at the end of
    # what it encodes, so a part does not end with a ▁ of the text, unless the text does.
    self._find_parts = re.compile(
      rf"[^ ].{{0,{self.max_part_chars - 1}}}(?:(?<![▁ ])(?= )|\Z)|[^ ]+(?:(?<=▁) +[^ ]+)*", re.DOTALL
    ).findall

  @functools.cached_property
  def is_special(self) -> np.ndarray:
    """bool [V]: True for control symbols, <unk> and unused pieces, which do not represent text."""
    processor = self.processor
    return np.array(
      [processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i) for i in range(len(self.pieces))]
    )

  @functools.cached_property
  def word_starts(self) -> np.ndarray:
    """bool [V]: True for pieces that start a word.

    These are pieces whose first character is ▁, punctuation, a symbol, or of a script written without spaces. In a
    vocabulary with byte fallback, a byte piece starts a word only if it is ASCII punctuation or the first byte of a CJK
    character. So the bytes of a character are never in different words.
    """
    return np.array([starts_word(piece, self.processor.is_byte(i)) for i, piece in enumerate(self.pieces)])

  @functools.cached_property
  def character_bytes(self) -> np.ndarray:
    """int32 [V]: for the piece of a byte, the number of bytes of a character that begins with it; else -1.

    It is 0 for a byte with which no character begins.
    """
    sizes = np.full(len(self.pieces), -1, np.int32)
    for i, piece in enumerate(self.pieces):
      if self.processor.is_byte(i):
        byte = int(piece[3:5], 16)
        sizes[i] = 1 if byte < 0x80 else 2 * (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
    return sizes

  def normalize(self, text: str) -> str:
    """See Vocabulary and `normalize_text`."""
    return normalize_text(text, **self.config.switches())

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """See Vocabulary."""
    texts_parts = (self.split_into_parts(self.normalize(text)) for text in texts)
    if self.max_part_chars <= _MAX_CACHED_CHARS:
      ids_of_part = self._ids_of_part.__getitem__
      return [list(itertools.chain.from_iterable(map(ids_of_part, parts))) for parts in texts_parts]
    parts: list[str] = []
    ends = [0]
    for text_parts in texts_parts:
      parts += text_parts
      ends.append(len(parts))
    # One thread, because data preparation already runs one process on every core.
    encoded: list[list[int]] = self.processor.encode(parts, out_type=int, num_threads=1)
    encoded = self.comma_rule.apply(encoded, parts)
    return [
      encoded[start] if end - start == 1 else list(itertools.chain.from_iterable(encoded[start:end]))
      for start, end in itertools.pairwise(ends)
    ]

  @functools.cached_property
  def _ids_of_part(self) -> _PartIds:
    # For a single part it is faster to give the library a string: for a list it starts a thread.
    return _PartIds(lambda part: self.comma_rule.apply([self.processor.encode(part, out_type=int)], [part])[0])

  def split_into_parts(self, normalized: str) -> list[str]:
    """Splits a normalized text into the parts that are encoded on their own."""
    if len(normalized) <= self.max_part_chars or not self.words_are_independent:
      return [normalized]
    return self._find_parts(normalized)

  @functools.cached_property
  def _offset_encoder(self) -> OffsetEncoder:
    return OffsetEncoder(self)

  def encode_with_offsets(self, text: str) -> TokensWithOffsets:
    """See Vocabulary. Each of the pieces of a character's bytes has the range of the character."""
    return self._offset_encoder.encode(text)

  def decode(self, ids: Sequence[int]) -> str:
    """See Vocabulary. Control symbols are left out, and <unk> becomes " ⁇ "."""
    return str(self.processor.decode(list(ids)))

  def piece_texts(self) -> list[str]:
    """See Vocabulary."""
    return [piece.replace(WORD_START, " ").strip() for piece in self.pieces]

  @functools.cached_property
  def ids_inside_word(self) -> np.ndarray:
    """See Vocabulary. The piece without ▁."""
    id_of_piece: dict[str, int] = {}
    for piece_id, piece in enumerate(self.pieces):
      id_of_piece.setdefault(piece, piece_id)  # of equal pieces, the first one is used
    ids = []
    for piece_id, piece in enumerate(self.pieces):
      without_start = piece.removeprefix(WORD_START)
      ids.append(id_of_piece.get(without_start, piece_id) if without_start else -1)
    return np.array(ids, np.int32)

  def _check_special_pieces(self) -> None:
    """Raises a UserError if the ids 0 to 4 are not the control symbols."""
    for i, expected_piece in enumerate(SPECIAL_PIECES):
      piece = self.pieces[i] if i < len(self.pieces) else "nothing"
      has_expected_type = self.processor.is_unknown if i == UNK_ID else self.processor.is_control
      if piece != expected_piece or not has_expected_type(i):
        raise UserError(
          f"{self.file}: id {i} is {piece!r}, not the control symbol {expected_piece!r}: "
          "train the vocabulary with data_prep/train_vocab.py"
        )


def _load_processor(model_file: str, model: bytes) -> sentencepiece.SentencePieceProcessor:
  processor = sentencepiece.SentencePieceProcessor()
  try:
    is_loaded = bool(model) and processor.LoadFromSerializedProto(model)
  except (RuntimeError, ValueError) as error:
    raise _not_a_model_error(model_file) from error
  if not is_loaded:
    raise _not_a_model_error(model_file)
  return processor


def _not_a_model_error(model_file: str) -> UserError:
  return UserError(
    f"{model_file}: not a SentencePiece model: give the .model file that data_prep/train_vocab.py wrote; a WordPiece "
    "vocabulary is recognized by a name that ends in .txt"
  )
