"""What every kind of vocabulary does: the interface between a Tokenizer and its vocabulary file."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from albert.tokenization.config import TokenizerConfig
from albert.tokenization.pieces import SpecialIds


class TokensWithOffsets(NamedTuple):
  """The T tokens of a text, without [CLS] and [SEP].

  Attributes:
    ids: int32 [T], the ids that `Tokenizer.encode` returns.
    starts, ends: int32 [T], offsets into the text, in characters. Token i stands for text[starts[i]:ends[i]], which
      neither begins nor ends in whitespace. Both arrays are non-decreasing. If one character becomes several tokens
      (½ becomes 1, ⁄ and 2), each of them has the range of that character. A token that stands for a space only (a
      lone ▁) has an empty range: it starts where the next token starts, and ends where the previous token ends. So an
      answer text[starts[i]:ends[j]] whose first or last token is a lone ▁ does not include that space.
  """

  ids: np.ndarray
  starts: np.ndarray
  ends: np.ndarray


class Vocabulary(abc.ABC):
  """A vocabulary and its rules: how text becomes ids, and which pieces start a word.

  `albert.tokenization.kinds.recognition` makes the kind that belongs to a file.

  Attributes:
    kind: name of the kind, as in manifests and config.json.
    keeps_case: whether text is never lower-cased, whatever `config` says.
    config: the file and the normalization.
    sha256: SHA-256 of the file, in hex. It identifies the vocabulary.
    pieces: the V pieces, in order of their ids.
    special_ids: the ids of padding, unknown text, [CLS], [SEP] and [MASK].
  """

  kind: ClassVar[str]
  keeps_case: ClassVar[bool] = False
  config: TokenizerConfig
  sha256: str
  pieces: list[str]
  special_ids: SpecialIds

  @property
  def file(self) -> str:
    """The path of the vocabulary."""
    return self.config.model_file

  @property
  @abc.abstractmethod
  def is_special(self) -> np.ndarray:
    """bool [V]: True for pieces that do not represent text, such as [CLS] and [MASK]."""

  @property
  @abc.abstractmethod
  def word_starts(self) -> np.ndarray:
    """bool [V]: True for pieces that start a word."""

  @abc.abstractmethod
  def normalize(self, text: str) -> str:
    """Normalizes a text, before it is cut into pieces."""

  @abc.abstractmethod
  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Converts texts to lists of ids, without [CLS] and [SEP]."""

  @abc.abstractmethod
  def encode_with_offsets(self, text: str) -> TokensWithOffsets:
    """Converts a text to ids with their character offsets.

    Raises:
      UserError: the vocabulary cannot say which characters a token stands for.
    """

  @abc.abstractmethod
  def decode(self, ids: Sequence[int]) -> str:
    """Converts ids of the vocabulary to text."""

  @abc.abstractmethod
  def piece_texts(self) -> list[str]:
    """Returns the text of each piece without marks of spaces or of continued words, V strings."""

  @property
  @abc.abstractmethod
  def ids_inside_word(self) -> np.ndarray:
    """What replaces the first token of a text that continues a word, such as the text after "[MASK]".

    Returns:
      int32 [V]: for each piece, the id of the same piece without its mark of a word's start; its own id if there is
      no such piece or no such mark; -1 if nothing is left of it.
    """
