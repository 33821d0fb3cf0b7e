"""SentencePiece vocabularies: ALBERT's normalization, a SentencePiece model, then the comma rule.

The comma rule of ALBERT's tokenizer makes a comma after a digit a token of its own: a piece of at least two characters
that ends in a digit and "," is encoded again without the comma, and the comma becomes a token. For example, "1999,"
becomes `▁1999` `,`.

SentencePiece adds the log probabilities of a text's pieces in float32. Where two segmentations of a text are almost
equally probable, rounding errors decide between them, and not every release of SentencePiece rounds alike. So the
scores of the model are rounded such that float32 adds them without rounding errors (`with_exact_scores`).

The offsets of a token are the range of characters of the original text that it stands for. A text is changed three
times, and its offsets are followed through each step:
1. `normalize_text` makes the normalized text. It treats each word and each character on its own, so this module can
   compute where each character comes from.
2. SentencePiece applies its own normalization, and reports where each character comes from. The result is called the
   written characters.
3. SentencePiece cuts the written characters into tokens. A token is a range of them; the ▁ that SentencePiece writes
   for a space is not counted.
SentencePiece drops control characters and replaces zero-width characters by a space, so no token contains them. The
ranges of tokens nevertheless include some of them. At the edge of a word (words are separated by whitespace), they
belong to the range of the word's first or last token, so that an answer of whole words is reproduced exactly. Inside a
word, a dropped character belongs to the range of the token before it, and a character that was replaced by a space to
none. If a vocabulary has no piece for a character, but pieces for its bytes (byte fallback), each of these tokens has
the range of the character.

`sentence_piece_graph` implements the same tokenizer in TensorFlow ops.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import sentencepiece

from albert.errors import UserError
from albert.io.protobuf import decode_fields, encode_bytes_field, fields_by_number
from albert.io.text import format_value
from albert.tokenization import normalization
from albert.tokenization.tokenizer_json import encode_piece, read_tokenizer
from albert.tokenization.vocabulary import (
  MAX_CACHED_CHARS,
  WORD_START,
  IdsOfWords,
  TokenizerConfig,
  TokensWithOffsets,
  Vocabulary,
  find_special_ids,
  starts_word,
  written_ranges,
)

# Field numbers of ModelProto, of its pieces, and of its trainer_spec.
_PIECES, _TRAINER_SPEC = 1, 2
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE = 3
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # types of pieces (ModelProto.SentencePiece.Type)
_ENCODED_UNIGRAM_TYPE = b"\x01"  # UNIGRAM of TrainerSpec.ModelType, encoded; a model without a type is a unigram model
_SCORE_UNIT = 2.0**-13
# Multiples of _SCORE_UNIT up to this value are exact in float32, which has 24 significant bits.
_LARGEST_EXACT_SUM = 2.0**24 * _SCORE_UNIT

_find_words = re.compile(r"\S+").finditer


class SentencePieceVocabulary(Vocabulary):
  """`normalize_text`, a SentencePiece model, then the comma rule.

  The ids are those that SentencePiece gives the normalized text, with the comma rule.

  Text never yields special pieces: "[CLS]" in a text does not become their id, whatever type the model gives them.

  If words are independent (see below), a word has the same ids wherever it stands in a text. A TensorFlow graph
  (`sentence_piece_graph`) gives the same ids as this class. Plain SentencePiece does not guarantee
  this. It adds the log probabilities of a text's pieces in float32, and in a long text the rounding error decides
  between segmentations of almost equal score. This class therefore rounds the scores of the model, so that sums over
  short texts are exact (`with_exact_scores`), and encodes a long text in parts. The parts are cut at spaces, which no
  piece contains.
  Only in single words whose scores add up to less than -2048 (hundreds of characters) do rounding errors remain: Python
  and the graph may then choose different pieces of equal score.

  The scores of a BPE model are the ranks of its merges, with a minus. They are so low that each word is a part of its
  own. Encoding many short parts is slow, so the ids of parts that have been met are kept.

  Args:
    config, contents: see Vocabulary.

  Attributes:
    processor: the model with rounded scores.
    exact_model: the same, serialized.
    is_unigram: whether the model is a unigram model.
    user_defined_symbols: pieces that are never cut, besides the special ones.
    words_are_independent: whether each word is encoded on its own. False if a piece contains a space between words, or
      the model was trained with --add_dummy_prefix=false or --remove_extra_whitespaces=false; then a text is never
      encoded in parts.
    whole_tokens: a regular expression for the tokens that stay whole also inside a word, and are then words of their
      own: the added tokens of a tokenizer.json; "" if there are none.
    comma_rule: the comma rule for these pieces.
    max_part_chars: maximum characters of the parts of a text that are encoded on their own.

  Raises:
    UserError: the file is not a SentencePiece model, lacks a special piece, or was trained with an option that hides
      where words begin.
  """

  kind = "sentencepiece"

  def __init__(self, config: TokenizerConfig, contents: Mapping[str, bytes]):
    super().__init__(config, contents)
    ((name, model),) = contents.items()
    is_json = name.endswith(".json")
    whole_tokens: Mapping[str, int] = {}
    if is_json:
      _, model, _, whole_tokens = read_tokenizer(self.file, model)
    # Of several tokens that start at a character, the longest one counts.
    self.whole_tokens = "|".join(map(re.escape, sorted(whole_tokens, key=len, reverse=True)))
    try:
      original = _load_processor(model)
      self.user_defined_symbols, treats_words_alike = _trainer_options(self.file, model)
      if special_pieces := self._find_special_ids(original):
        model = _with_control_pieces(model, special_pieces)
        self.user_defined_symbols = [symbol for symbol in self.user_defined_symbols if symbol not in special_pieces]
      self.exact_model = with_exact_scores(model)
      self.is_unigram = self.exact_model is not model
      self.processor = _load_processor(self.exact_model)
      # The model's normalization changes normal pieces in a text, but no user-defined symbols.
      symbols = {symbol: f"{symbol} {symbol}x" for symbol in self.user_defined_symbols}
      protected = [s for s, text in symbols.items() if original.normalize(text) != self.processor.normalize(text)]
      if protected:
        self.exact_model = with_exact_scores(model, protected)
        self.processor = _load_processor(self.exact_model)
    except UserError:  # of _trainer_options and _find_special_ids
      raise
    except (RuntimeError, ValueError, IndexError, OverflowError, struct.error) as error:
      raise UserError(
        f"{self.file}: not a SentencePiece model: give the .model file that data_prep/train_vocab.py wrote; a "
        "WordPiece vocabulary is recognized by a name that ends in .txt"
      ) from error
    for token, i in whole_tokens.items():
      if self.processor.encode(token) != [i]:
        raise UserError(
          f"{self.file}: the added token {format_value(token)} is changed by the normalizer, so its ids cannot be "
          "reproduced: put the spiece.model of this vocabulary beside it, which is used instead"
        )
    ends_of_pieces = [
      piece[1:] for piece, is_special in zip(self.pieces, self.is_special, strict=True) if not is_special
    ]
    has_space_inside = any(WORD_START in text for text in [*self.user_defined_symbols, *ends_of_pieces])
    self.words_are_independent = treats_words_alike and WORD_START in self.pieces and not has_space_inside
    self.comma_rule = CommaRule(self.processor, [] if is_json else self.pieces, self.is_special)
    if not self.comma_rule.ids_decide:  # a graph would need the text of each <unk>
      problem = '"," is not a piece of this vocabulary, so a model with it cannot be exported'
      self.export_problem = f"{self.file}: {problem}: train another on text with commas, or with the symbol ','"
    scores = [self.processor.get_score(i) for i in range(len(self.pieces))]
    # The score of <unk> is the lowest score minus 10, so the absolute value of any score is at most 10 - min(scores). A
    # part has at most one token for each character and one for the ▁ that SentencePiece puts before it. With this
    # maximum, the sum of its scores is exact.
    self.max_part_chars = max(1, int(_LARGEST_EXACT_SUM / (10 - min(scores))) - 1)
    # A part is as many words as fit in max_part_chars, or a single longer word. SentencePiece drops a ▁ at the end of
    # what it encodes, so a part does not end with a ▁ of the text, unless the text does.
    self._find_parts = re.compile(
      rf"[^ ].{{0,{self.max_part_chars - 1}}}(?:(?<![▁ ])(?= )|\Z)|[^ ]+(?:(?<=▁) +[^ ]+)*", re.DOTALL
    ).findall

  def _find_special_ids(self, processor: sentencepiece.SentencePieceProcessor) -> set[str]:
    """Finds the special ids, and returns the special pieces that are no control symbols, so text may yield them."""
    self.pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    id_of_piece = {piece: i for i, piece in enumerate(self.pieces)} | {"<unk>": processor.unk_id()}
    self.special_ids = find_special_ids(self.file, self.kind, id_of_piece)
    return {self.pieces[i] for i in self.special_ids if not (processor.is_control(i) or processor.is_unknown(i))}

  @functools.cached_property
  def is_special(self) -> np.ndarray:
    """bool [V]: True for control symbols, <unk> and unused pieces, which do not represent text."""
    model = self.processor
    return np.array([model.is_control(i) or model.is_unknown(i) or model.is_unused(i) for i in range(len(self.pieces))])

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
    """Normalizes a text, and puts a space on each side of a token that stays whole."""
    normalized = normalization.normalize_text(text, **self.config.switches())
    return re.sub(self.whole_tokens, r" \g<0> ", normalized) if self.whole_tokens else normalized

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    parts_of_texts: Iterable[list[str]] = (self.split_into_parts(self.normalize(text)) for text in texts)
    if self.max_part_chars <= MAX_CACHED_CHARS:
      ids_of_part = self._ids_of_part.__getitem__
      return [list(itertools.chain.from_iterable(map(ids_of_part, parts))) for parts in parts_of_texts]
    parts_of_texts = list(parts_of_texts)
    parts = list(itertools.chain.from_iterable(parts_of_texts))
    # One thread, because data preparation already runs one process on every core.
    encoded = iter(self.comma_rule.apply(self.processor.encode(parts, out_type=int, num_threads=1), parts))
    return [list(itertools.chain.from_iterable(itertools.islice(encoded, len(parts)))) for parts in parts_of_texts]

  @functools.cached_property
  def _ids_of_part(self) -> IdsOfWords:
    # For a single part it is faster to give the library a string: for a list it starts a thread.
    return IdsOfWords(lambda part: self.comma_rule.apply([self.processor.encode(part, out_type=int)], [part])[0])

  def split_into_parts(self, normalized: str) -> list[str]:
    """Splits a normalized text into the parts that are encoded on their own."""
    if len(normalized) <= self.max_part_chars or not self.words_are_independent:
      return [normalized]
    return self._find_parts(normalized)

  def encode_with_offsets(self, text: str) -> TokensWithOffsets:
    """Each of the pieces of a character's bytes has the range of the character."""
    normalized = normalization.normalize_text(text, **self.config.switches())
    origins = _origins(text, self.config)
    if self.whole_tokens and (spans := [found.span() for found in re.finditer(self.whole_tokens, normalized)]):
      # A space belongs to the first or the last character of its token.
      origins = np.insert(origins, [*itertools.chain(*spans)], origins[np.array(spans) - [0, 1]].ravel())
      normalized = self.normalize(text)
    assert len(origins) == len(normalized), "a character of the normalized text has no origin"
    parts = self.split_into_parts(normalized)
    ids, lengths = self._encode_with_lengths(parts)
    if not ids:
      return TokensWithOffsets.of(ids, *np.zeros((2, 0)))
    positions, is_written = self._written_characters(normalized, parts)
    bounds = np.cumsum([0, *lengths])  # token i stands for the written characters bounds[i] to bounds[i + 1] - 1
    if bounds[-1] != is_written.sum():
      raise UserError(
        f"{self.file}: its pieces for {parts[0][:40]!r} have {bounds[-1]} characters instead of "
        f"{is_written.sum()}, so the offsets of tokens in the text are unknown: give a vocabulary trained by "
        "data_prep/train_vocab.py"
      )
    # A token's range goes from its first written character to its last one.
    starts, ends = written_ranges(text, np.append(origins, len(text))[positions], is_written)
    last_end = ends[-1] if len(ends) else 0
    # A lone ▁ after the last character starts at last_end.
    token_starts = np.append(starts, last_end)[bounds[:-1]]
    # A lone ▁ before the first character ends at 0.
    token_ends = np.append(0, ends)[bounds[1:]]
    # For each token its own index, or, for a byte of a character, the index of the character's last byte.
    last = np.arange(len(ids))
    num_bytes = self.character_bytes[ids]
    for first in np.flatnonzero(num_bytes > 1):
      last[first : first + num_bytes[first]] = first + num_bytes[first] - 1
    return TokensWithOffsets.of(ids, token_starts[last], token_ends[last])

  def _encode_with_lengths(self, parts: list[str]) -> tuple[list[int], list[int]]:
    """Converts the parts of a normalized text to ids, and applies the comma rule.

    Returns:
      The ids of all parts, and the number of characters (without ▁) that each stands for. Of the bytes of a character,
      the last one stands for it, and the others for nothing.
    """
    ids: list[int] = []
    surfaces: list[str] = []
    ids_of_parts = self.processor.encode(parts, out_type=int, num_threads=1)
    surfaces_of_parts = self.processor.encode(parts, out_type=str, num_threads=1)
    for token_id, surface in zip(itertools.chain(*ids_of_parts), itertools.chain(*surfaces_of_parts), strict=True):
      if token_id in self.comma_rule.splits if self.comma_rule.ids_decide else ends_in_digit_comma(surface):
        new_ids, new_surfaces = self.comma_rule.split(surface)
        ids += new_ids
        surfaces += new_surfaces
      else:
        ids.append(token_id)
        surfaces.append(surface)
    lengths = [len(surface) - surface.count(WORD_START) for surface in surfaces]
    return ids, lengths_with_bytes(self.character_bytes[ids], lengths)

  def _written_characters(self, normalized: str, parts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Finds what SentencePiece's own normalization writes for the parts of a normalized text.

    Returns:
      For each character that it writes, and for the end of each part: the position in the normalized text that it comes
      from, int64; and whether it is no space, bool.
    """
    part_starts: list[int] = []
    end = 0
    for part in parts:
      part_starts.append(normalized.index(part, end))
      end = part_starts[-1] + len(part)
    # SentencePiece gives an offset for each character of a part, and one more for the part's end. A space after each
    # part stands for the latter, so that characters and offsets have the same indices.
    written, offsets = zip(*self.processor.normalize(parts, with_offsets=True), strict=True)
    with_part_ends = "".join(f"{part} " for part in written).replace(WORD_START, " ")
    is_written = np.frombuffer(with_part_ends.encode("utf-32-le"), np.uint32) != ord(" ")
    positions = np.fromiter(itertools.chain(*offsets), np.int64) + np.repeat(part_starts, list(map(len, offsets)))
    return positions, is_written

  def decode(self, ids: Sequence[int]) -> str:
    """Control symbols are left out, and <unk> becomes " ⁇ "."""
    return str(self.processor.decode(list(ids)))

  def piece_texts(self) -> list[str]:
    return [piece.replace(WORD_START, " ").strip() for piece in self.pieces]

  @functools.cached_property
  def ids_inside_word(self) -> np.ndarray:
    """The piece without ▁."""
    id_of_piece = {piece: i for i, piece in reversed(list(enumerate(self.pieces)))}  # of equal pieces, the first one
    texts = [piece.removeprefix(WORD_START) for piece in self.pieces]
    return np.array([id_of_piece.get(text, i) if text else -1 for i, text in enumerate(texts)], np.int32)


def _trainer_options(file: str, model: bytes) -> tuple[list[str], bool]:
  """Reads the options of SentencePiece's trainer that change how text is encoded from a serialized ModelProto.

  Returns: the user-defined symbols, and whether each word of a text is encoded as if it were a text of its own.
  Raises:
    UserError: words cannot be found in text that is encoded with these options.
  """
  messages = [(field.number, fields_by_number(field.value)) for field in decode_fields(model) if field.number <= 3]
  specs = dict(messages)
  trainer, normalizer = specs.get(_TRAINER_SPEC, {}), specs.get(3, {})
  hide_words = {
    "--treat_whitespace_as_suffix=true": trainer.get(24, b"\0") != b"\0",  # ▁ is the end of a word, not its start
    "--escape_whitespaces=false": normalizer.get(5) == b"\0",  # the pieces have no ▁ for a space
    "--normalization_rule_tsv": normalizer.get(1) == b"user_defined",  # its rules may change spaces and symbols
  }
  for option, is_used in hide_words.items():
    if is_used:
      raise UserError(f"{file}: trained with {option}, so words cannot be told apart: train the vocabulary without it")
  add_dummy_prefix, remove_extra_whitespaces = (normalizer.get(number) != b"\0" for number in (3, 4))
  pieces = (fields for number, fields in messages if number == _PIECES)
  symbols = [piece[_PIECE_TEXT].decode() for piece in pieces if piece.get(_PIECE_TYPE) == bytes([_USER_DEFINED])]
  return symbols, add_dummy_prefix and remove_extra_whitespaces


def _load_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
  if not model:
    raise ValueError("empty")  # SentencePiece would wait for a model
  return sentencepiece.SentencePieceProcessor(model_proto=model)


def ends_in_digit_comma(piece: str) -> bool:
  """Returns whether the comma rule applies to a piece: it ends in a digit and a comma."""
  return (
    len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() and not normalization.has_newer_characters(piece[-2])
  )


class CommaRule:
  """Applies the comma rule to the ids of a vocabulary.

  Args:
    processor: the SentencePiece model.
    pieces: the V pieces, in order of their ids; none if the rule is not applied, as in transformers 5.
    is_special: bool [V], True for pieces that do not represent text (control symbols, <unk>, unused pieces).

  Attributes:
    ids_decide: whether the ids alone tell to which tokens the rule applies. This is so if "," is a piece, because an
      <unk> then never stands for text with a comma.
    splits: id of a piece to which the rule applies -> the ids that replace it.
    split: `_split` with the results of frequent pieces kept.
  """

  def __init__(self, processor: sentencepiece.SentencePieceProcessor, pieces: Sequence[str], is_special: np.ndarray):
    self._processor = processor
    self._is_special = is_special
    self.split = functools.lru_cache(maxsize=4096)(self._split)
    self._unk_id = processor.unk_id()
    self.ids_decide = not pieces or processor.piece_to_id(",") != self._unk_id
    self.splits: dict[int, list[int]] = {
      i: self._split(piece)[0] for i, piece in enumerate(pieces) if ends_in_digit_comma(piece) and not is_special[i]
    }
    self._ids_with_split = frozenset(self.splits)  # faster than the keys of the dict

  def apply(self, batch: list[list[int]], texts: list[str]) -> list[list[int]]:
    """Applies the rule to the ids of texts.

    Args:
      batch: the ids of each text. The outer list may be changed.
      texts: the normalized texts.

    Returns:
      The new ids of each text.
    """
    if not self.ids_decide:  # an <unk> may stand for a number and ","
      surfaces = self._processor.encode(texts, out_type=str, num_threads=1)
      return [list(itertools.chain(*map(self._apply_by_surface, *pair))) for pair in zip(batch, surfaces, strict=True)]
    for index, ids in enumerate(batch):
      if not self._ids_with_split.isdisjoint(ids):
        batch[index] = [new_id for old_id in ids for new_id in self.splits.get(old_id, (old_id,))]
    return batch

  def _apply_by_surface(self, piece_id: int, surface: str) -> list[int]:
    return self.split(surface)[0] if ends_in_digit_comma(surface) else [piece_id]

  def _split(self, piece: str) -> tuple[list[int], list[str]]:
    """Returns the ids and the texts of the tokens that replace a piece (or the text of an <unk>); the last is ","."""
    surfaces: list[str] = self._processor.encode(piece[:-1].replace(WORD_START, ""), out_type=str)
    # SentencePiece puts ▁ before every text. It is removed if the piece has none.
    if not piece.startswith(WORD_START) and surfaces[0].startswith(WORD_START):
      surfaces[0] = surfaces[0].removeprefix(WORD_START)
      if not surfaces[0]:
        del surfaces[0]
    surfaces.append(",")
    ids = [int(self._processor.piece_to_id(surface)) for surface in surfaces]
    return [self._unk_id if self._is_special[i] else i for i in ids], surfaces


def with_exact_scores(model: bytes, protected: Collection[str] = ()) -> bytes:
  """Rounds the scores of a unigram model to multiples of 2^-13.

  Sums of such scores are exact in float32 up to an absolute value of 2048, which is several hundred pieces. Every
  release of SentencePiece then compares segmentations alike and breaks ties alike. With the English ALBERT vocabulary,
  rounding changes the segmentation of 3 of the 325,000 different words in 80 novels and GLUE. For each of these words,
  the scores of the two best segmentations differ by less than 0.0002.

  User-defined symbols have no stored score: SentencePiece gives them one that is above the scores of other pieces. They
  become normal pieces with this score, rounded.

  Args:
    model: a serialized ModelProto.
    protected: user-defined symbols that stay as they are. Only as such are they safe from the model's normalization.

  Returns:
    The changed model; the same model if it is not a unigram model.

  Raises:
    IndexError, ValueError, struct.error: the model is damaged.
  """
  pieces: list[dict[int, bytes]] = []
  other_fields: list[bytes] = []
  for field in decode_fields(model):
    if field.number == _PIECES:
      pieces.append(fields_by_number(field.value))
      continue
    if field.number == _TRAINER_SPEC:
      model_type = fields_by_number(field.value).get(_MODEL_TYPE, _ENCODED_UNIGRAM_TYPE)
      if model_type != _ENCODED_UNIGRAM_TYPE:
        return model
    other_fields.append(field.encoded)
  return b"".join([*(_with_exact_score(piece, protected) for piece in pieces), *other_fields])


def _with_control_pieces(model: bytes, pieces: Collection[str]) -> bytes:
  """Makes pieces control symbols, which no text yields. A model may have them as user-defined symbols."""
  encoded = {encode_bytes_field(_PIECE_TEXT, piece.encode("utf-8")) for piece in pieces}
  changed = []
  for field in decode_fields(model):
    is_changed = field.number == _PIECES and next(decode_fields(field.value)).encoded in encoded
    # Of two values of a field, the last one counts. 0x18 is the key of the type.
    value = field.value + bytes([0x18, _CONTROL])
    changed.append(encode_bytes_field(_PIECES, value) if is_changed else field.encoded)
  return b"".join(changed)


def _with_exact_score(piece: Mapping[int, bytes], protected: Collection[str]) -> bytes:
  """Returns the field of ModelProto that holds a piece with its score rounded."""
  text, piece_type = piece.get(_PIECE_TEXT, b""), piece.get(_PIECE_TYPE, bytes([_NORMAL]))[0]
  (score,) = struct.unpack("<f", piece.get(_PIECE_SCORE, bytes(4)))
  if text.decode("utf-8") not in protected and piece_type == _USER_DEFINED:
    # The score that SentencePiece 0.2.3 gives a user-defined symbol. Older releases give every symbol -0.1.
    score, piece_type = 0.1 * (len(text) - 1), _NORMAL
  return encode_piece(text, round(score / _SCORE_UNIT) * _SCORE_UNIT, piece_type)


def lengths_with_bytes(character_bytes: np.ndarray, lengths: list[int]) -> list[int]:
  """Returns how many characters each token stands for. The last byte of a character counts 1, its other bytes 0.

  Args:
    character_bytes: int32 [T], the value of `SentencePieceVocabulary.character_bytes` for each token.
    lengths: the number of characters of each token that is no byte.
  """
  bytes_left = 0
  result = []
  for num_bytes, length in zip(character_bytes.tolist(), lengths, strict=True):
    bytes_left = (num_bytes or bytes_left) - 1
    result.append(length if num_bytes < 0 else int(bytes_left == 0))
  return result


@functools.cache
def _num_normalized(*, do_lower_case: bool, keep_accents: bool) -> normalization.CharacterTable:
  """Returns a table with chr(n) for a character that becomes n characters in the normalized text."""

  def number(code_point: int) -> str:
    if chr(code_point).isspace():
      return chr(0)
    return chr(len(normalization.replacement(code_point, do_lower_case=do_lower_case, keep_accents=keep_accents)))

  return normalization.CharacterTable(number)


def _origins(text: str, config: TokenizerConfig) -> np.ndarray:
  """Returns, for each character of the normalized text, the index of the character that it comes from, int64 [C]."""
  table = _num_normalized(do_lower_case=config.do_lower_case, keep_accents=config.keep_accents)
  counts = normalization.character_counts(text, table, convert_quotes=config.convert_quotes)
  counts[[word.end() for word in _find_words(text)][:-1]] = 1  # the whitespace between two words becomes one space
  return np.repeat(np.arange(len(text)), counts)
