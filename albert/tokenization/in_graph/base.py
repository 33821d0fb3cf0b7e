"""What a tokenizer in a TensorFlow graph does, whatever the kind of its vocabulary."""

from __future__ import annotations

import abc
from typing import NamedTuple

import tensorflow as tf

from albert.tokenization.config import TokenizerConfig
from albert.tokenization.pieces import SpecialIds
from albert.tokenization.tokenizer import Tokenizer

# B texts, T tokens of a text (ragged).


class RaggedTokensWithOffsets(NamedTuple):
  """The tokens of B texts, without [CLS] and [SEP].

  Attributes:
    ids: int32 [B, (T)].
    starts, ends: int32 [B, (T)], the range of each token in its text, in characters. Bytes that are not UTF-8 count as
      the U+FFFD that `tf.strings.unicode_transcode` replaces them by. For details see
      `albert.tokenization.kinds.base.TokensWithOffsets`.
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
    self.reference = Tokenizer.from_config(config)

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
