"""ALBERT's tokenizer: converts text to ids by normalization, SentencePiece and the comma rule.

It needs no libraries but NumPy and sentencepiece: programs that serve exported models may not have TensorFlow, and data
preparation starts many processes that need a tokenizer. `albert/tokenization/in_graph/graph.py` implements the same
tokenizer in TensorFlow ops.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
import struct
from collections.abc import Iterable, Sequence
from typing import TypeVar, overload

import numpy as np
import sentencepiece

from albert.errors import UserError
from albert.io import files
from albert.io.json_text import format_value
from albert.tokenization.comma_rule import CommaRule
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.exact_scores import LARGEST_EXACT_SUM, with_exact_scores
from albert.tokenization.normalization import normalize_text
from albert.tokenization.packing import pack_pair, pack_single, padded
from albert.tokenization.pieces import (
  CLS_ID,
  MASK_ID,
  PAD_ID,
  SEP_ID,
  SPECIAL_PIECES,
  UNK_ID,
  WORD_START,
  starts_word,
)
from albert.tokenization.vocabulary_files import find_tokenizer_config

__all__ = [
  "CLS_ID",
  "MASK_ID",
  "PAD_ID",
  "SEP_ID",
  "SPECIAL_PIECES",
  "UNK_ID",
  "WORD_START",
  "Tokenizer",
  "load_tokenizer",
]

TokenizerType = TypeVar("TokenizerType", bound="Tokenizer")


class Tokenizer:
  """ALBERT's tokenizer: `normalize_text`, a SentencePiece unigram model, then the comma rule.

  The comma rule makes a comma after a digit a token of its own: "1999," becomes `▁1999` `,`.

  Text never yields control symbols: "[CLS]" in a text does not become id 2.

  A word has the same ids wherever it stands in a text, and the same ids in a TensorFlow graph
  (`albert/tokenization/in_graph/graph.py`). Plain SentencePiece does not guarantee this. It adds the log probabilities
  of a text's pieces in float32, and in a long text the rounding error decides between segmentations of almost equal
  score. This class therefore rounds the scores of the model, so that sums over short texts are exact
  (`with_exact_scores`), and encodes a long text in parts. The parts are cut at spaces, which no piece contains.

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
    >>> import albert
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> tokenizer.decode(tokenizer.encode("They drank the pub dry."))
    'they drank the pub dry.'
    >>> batch = tokenizer(["They drank the pub dry.", "A short one."])
    >>> sorted(batch)
    ['input_ids', 'input_mask', 'segment_ids']
    >>> batch["input_ids"].shape == batch["input_mask"].shape == batch["segment_ids"].shape
    True
  """

  def __init__(self, model_file: files.AnyPath, do_lower_case: bool = True, *, convert_quotes: bool = False):
    model_file = str(model_file)
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
      raise _not_a_model_error(model_file) from error
    self._check_special_pieces()
    self.words_are_independent = WORD_START in self.pieces and not any(WORD_START in piece[1:] for piece in self.pieces)
    self._comma_rule = CommaRule(self._processor, self.pieces, self.is_special)
    self.comma_splits = self._comma_rule.splits
    scores = [self._processor.get_score(i) for i in range(self.vocab_size)]
    # The score of <unk> is the lowest score minus 10, so the absolute value of any score is at most 10 - min(scores). A
    # part has at most one token for each character and one for the ▁ that SentencePiece puts before it. With this
    # maximum, the sum of its scores is exact.
    self._max_part_chars = max(1, int(LARGEST_EXACT_SUM / (10 - min(scores))) - 1)
    # A part is as many words as fit in _max_part_chars, or a single longer word.
    self._split_into_parts = re.compile(rf"[^ ].{{0,{self._max_part_chars - 1}}}(?= |\Z)|[^ ]+", re.DOTALL).findall

  @classmethod
  def from_config(cls: type[TokenizerType], config: TokenizerConfig) -> TokenizerType:
    """Makes a tokenizer from its settings; `load_tokenizer` also caches it."""
    return cls(config.model_file, config.do_lower_case, convert_quotes=config.convert_quotes)

  @classmethod
  def from_pretrained(
    cls: type[TokenizerType],
    path: files.AnyPath,
    *,
    do_lower_case: bool | None = None,
    convert_quotes: bool | None = None,
  ) -> TokenizerType:
    """Makes the tokenizer of pretrained weights.

    Args:
      path: where the weights are: a directory from Google or Hugging Face, the output_dir of a run, one of its step-N
        directories, the prefix of a checkpoint, or the directory of an exported model; or the path of the vocabulary
        itself. The vocabulary there is called spiece.model or 30k-clean.model.
      do_lower_case: whether text is lower-cased; None for what the exported model (servable.json), the run
        (config.json) or Hugging Face's tokenizer_config.json say, and True if none of these files exists.
      convert_quotes: whether `` and '' are replaced by "; None for what the exported model or the run says, and False
        if there is neither.

    Returns:
      The tokenizer.

    Raises:
      UserError: there is no vocabulary, or it cannot be used.

    Example:
      >>> import albert
      >>> albert.Tokenizer.from_pretrained("downloads/albert_base").encode("[CLS]")[0] == 2
      False
    """
    config = find_tokenizer_config(path)
    if do_lower_case is not None:
      config = dataclasses.replace(config, do_lower_case=do_lower_case)
    if convert_quotes is not None:
      config = dataclasses.replace(config, convert_quotes=convert_quotes)
    return cls.from_config(config)

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
    return np.array([starts_word(piece, self._processor.is_byte(i)) for i, piece in enumerate(self.pieces)])

  def normalize(self, text: str) -> str:
    """Normalizes a text with the settings of this tokenizer, see `normalize_text`."""
    return normalize_text(text, do_lower_case=self.config.do_lower_case, convert_quotes=self.config.convert_quotes)

  def __call__(
    self, texts: Iterable[str], text_pairs: Iterable[str] | None = None, *, max_length: int = 512
  ) -> dict[str, np.ndarray]:
    """Converts texts, or pairs of texts, to a padded batch, the input of the encoder.

    A sequence is `[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]`. Too long sequences are cut as in fine-tuning: a
    single text is cut at its end; in a pair, the last token of the longer text is removed until both fit.

    Args:
      texts: N texts.
      text_pairs: the second texts of N pairs; None for single texts.
      max_length: largest number of tokens in a sequence, [CLS] and [SEP] included.

    Returns:
      input_ids, input_mask and segment_ids, int32 [N, S], where S is the length of the longest sequence. The mask is 1
      for tokens and 0 for padding; segment_ids are 1 for the second text and its [SEP], 0 elsewhere.

    Raises:
      UserError: texts is a single string, one of the texts is no string, the numbers of texts and pairs differ, or
        max_length leaves no room for text.

    Example:
      >>> import albert
      >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
      >>> batch = tokenizer(["Who drank it?"], ["They drank the pub dry."], max_length=10)
      >>> batch["input_ids"].shape
      (1, 10)
      >>> int(batch["input_ids"][0, 0]), int(batch["segment_ids"][0, -1])
      (2, 1)
    """
    ids, offsets = self.encode_texts_flat(texts)
    if text_pairs is None:
      return padded(*pack_single((ids, offsets), max_length))
    pair_ids, pair_offsets = self.encode_texts_flat(text_pairs, "text_pairs")
    if len(offsets) != len(pair_offsets):
      raise UserError(f"{len(offsets) - 1} texts, but {len(pair_offsets) - 1} text_pairs: give one for each text")
    return padded(*pack_pair((ids, offsets), (pair_ids, pair_offsets), max_length))

  def encode_texts_flat(self, texts: Iterable[str], name: str = "texts") -> tuple[np.ndarray, np.ndarray]:
    """Converts texts to ids, like `encode_batch_flat`, after checking that they are a list of strings.

    Args:
      texts: the texts, as the user gave them.
      name: the name of this argument in errors.

    Raises:
      UserError: `texts` is a single string, or one of the texts is no string.
    """
    return self.encode_batch_flat(check_texts(texts, name))

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
    if len(ends) == len(parts):  # each text is one part
      return encoded
    return [list(itertools.chain.from_iterable(encoded[start:end])) for start, end in itertools.pairwise([0, *ends])]

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
    """Raises a UserError if the ids 0 to 4 are not the control symbols."""
    for i, expected_piece in enumerate(SPECIAL_PIECES):
      piece = self.pieces[i] if i < self.vocab_size else "nothing"
      has_expected_type = self._processor.is_unknown if i == UNK_ID else self._processor.is_control
      if piece != expected_piece or not has_expected_type(i):
        raise UserError(
          f"{self.model_file}: id {i} is {piece!r}, not the control symbol {expected_piece!r}: "
          "train the vocabulary with data_prep/train_vocab.py"
        )

  def _encode_parts(self, parts: list[str]) -> list[list[int]]:
    """Converts normalized texts, or parts of them, to ids and applies the comma rule."""
    # One thread, because data preparation already runs one process on every core.
    batch: list[list[int]] = self._processor.encode(parts, out_type=int, num_threads=1)
    return self._comma_rule.apply(batch, parts)


def check_texts(texts: Iterable[str], name: str) -> list[str]:
  """Returns the texts as a list.

  Raises:
    UserError: `texts` is a single string, or one of the texts is no string.
  """
  if isinstance(texts, str | bytes):
    raise UserError(f"{name} is the single text {format_value(texts)}: give a list of texts")
  text_list = list(texts)
  for index, text in enumerate(text_list):
    if not isinstance(text, str):
      raise UserError(f"{name}[{index}] is {format_value(text)}, of type {type(text).__name__}: give texts only")
  return text_list


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
def _load_tokenizer(tokenizer_class: type[Tokenizer], config: TokenizerConfig, metadata: files.Stat) -> Tokenizer:
  del metadata  # a part of the cache key: a file that has changed is read again
  return tokenizer_class.from_config(config)


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
  return UserError(f"{model_file}: not a SentencePiece model: give the .model file that data_prep/train_vocab.py wrote")
