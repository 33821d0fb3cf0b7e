"""Embeddings of texts as NumPy arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from albert.data.examples import cut_warning
from albert.embed.sentence_vectors import MEAN, POOLED, POOLINGS, SentenceVectors, read_sentence_vectors
from albert.errors import UserError
from albert.io.files import AnyPath
from albert.io.progress import log
from albert.models.encoder import Encoder
from albert.tokenization.packing import pack_single, padded
from albert.tokenization.recorded_settings import find_tokenizer_config
from albert.tokenization.tokenizer import (
  MAX_UNKNOWN_SHARE,
  Tokenizer,
  check_texts,
  load_tokenizer,
  unknown_share,
  unknown_warnings,
)
from albert.weights.initial_weights import open_pretrained
from albert.weights.names import NO_POOLER

# N texts, B texts of a batch, S sequence, H hidden.

# More batches than this are computed with a traced graph. Tracing albert_base takes as long as about this many batches,
# and a graph, whose operations TensorFlow fuses, needs a quarter less time for a batch.
_MAX_UNTRACED_BATCHES = 8
# Texts that are searched for unknown characters if many tokens are unknown.
_NUM_SAMPLES = 100


def encode(
  texts: Iterable[str],
  encoder: AnyPath | Encoder,
  *,
  tokenizer: Tokenizer | None = None,
  pooling: str | None = None,
  max_length: int | None = None,
  batch_size: int = 32,
) -> np.ndarray:
  """Computes an embedding of each text.

  An exported model of the form `embeddings` gives the same embeddings, up to rounding errors of float32.

  Args:
    texts: N texts, or one. They are computed in batches of texts of similar length.
    encoder: the path of the weights, see Encoder.from_pretrained; or an Encoder, so that several calls read the weights
      only once.
    tokenizer: the tokenizer of the weights; None for the one that is stored beside them. It is required if `encoder` is
      an Encoder.
    pooling: "mean", the mean of the last layer over all tokens, including [CLS] and [SEP]; or "pooled", the output of
      the pooler at [CLS], which the sentence heads read. None: the pooling that a directory of sentence-transformers
      records; "mean" for other weights.
    max_length: largest number of tokens of a text, [CLS] and [SEP] included; longer texts are cut. None: the limit that
      a directory of sentence-transformers records; for other weights, the number of position embeddings.
    batch_size: B, texts that are computed at a time.

  Returns:
    float32 [N, H], in the order of the texts; a Pooling or Dense of sentence-transformers may change H.

  Raises:
    UserError: the weights or the vocabulary cannot be read, a text is no string, the encoder's weights have no pooler
      for "pooled", or the tokenizer has more pieces than the encoder.

  Example:
    >>> import albert
    >>> vectors = albert.encode(["They drank the pub dry.", "A short one."], encoder="downloads/albert_base")
    >>> print(vectors.shape[0], vectors.dtype)
    2 float32
  """
  text_encoder = TextEncoder(
    encoder, tokenizer=tokenizer, pooling=pooling, max_length=max_length, batch_size=batch_size
  )
  vectors = text_encoder.encode(texts)
  text_encoder.log_warnings("texts", "max_length")
  return vectors


class TextEncoder:
  """Computes embeddings of texts, for several lists of texts.

  Args:
    encoder, tokenizer, pooling, max_length, batch_size: see `encode`.

  Attributes:
    hidden_size: the size of an embedding.
  """

  def __init__(
    self,
    encoder: AnyPath | Encoder,
    *,
    tokenizer: Tokenizer | None = None,
    pooling: str | None = None,
    max_length: int | None = None,
    batch_size: int = 32,
  ):
    if pooling not in (None, *POOLINGS):
      raise UserError(f"pooling is {pooling!r}: give {MEAN!r} or {POOLED!r}")
    if batch_size < 1:
      raise UserError(f"batch_size is {batch_size}: give at least 1")
    self._encoder, self._tokenizer, vectors = _load(encoder, tokenizer, pooling)
    self._pooling, self._vectors = pooling, vectors if pooling is None else SentenceVectors()
    positions = self._encoder.config.max_position_embeddings
    self._max_length = max_length or min(vectors.max_seq_length or positions, positions)
    self._batch_size = batch_size
    self._traced_embed: Callable[..., tf.Tensor] | None = None
    self.hidden_size = self._vectors.size(self._encoder.config.hidden_size)
    # Of each call of `encode`: the tokens that each text loses, and the share of <unk>; texts of one with many <unk>.
    self._cut_tokens: list[np.ndarray] = []
    self._unknown_shares: list[float] = []
    self._samples: list[str] = []

  def encode(self, texts: Iterable[str], on_batch: Callable[[int], None] = lambda num_texts: None) -> np.ndarray:
    """Computes an embedding of each text, in batches of texts of similar length.

    Args:
      texts: N texts.
      on_batch: is called after each batch with its number of texts.

    Returns:
      float32 [N, H], in the order of the texts.

    Raises:
      UserError: one of the texts is no string.
    """
    texts = check_texts(texts, "texts")
    encoded = self._tokenizer.encode_batch_flat(texts)
    ids, lengths = pack_single(encoded, self._max_length, self._tokenizer.special_ids)
    self._cut_tokens.append(np.diff(encoded[1]) + 2 - lengths)  # [CLS] and [SEP] are no tokens of the text
    self._unknown_shares.append(unknown_share(self._tokenizer, ids))
    if self._unknown_shares[-1] > MAX_UNKNOWN_SHARE:
      self._samples = texts[:_NUM_SAMPLES]
    embeddings = np.zeros([len(lengths), self.hidden_size], np.float32)
    starts = np.cumsum(lengths) - lengths  # index in `ids` of each text's first token
    longest_first = np.argsort(-lengths, kind="stable")  # so a batch that is too large for the memory fails at once
    embed = self._traced_embed or self._embed
    if self._traced_embed is None and len(longest_first) > _MAX_UNTRACED_BATCHES * self._batch_size:
      signature = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tf.TensorSpec([None, None], tf.int32))
      self._traced_embed = embed = tf.function(self._embed, input_signature=[signature])
    for batch_start in range(0, len(longest_first), self._batch_size):
      text_indices = longest_first[batch_start : batch_start + self._batch_size]
      batch_ids = np.concatenate([ids[starts[index] : starts[index] + lengths[index]] for index in text_indices])
      batch = padded(batch_ids, lengths[text_indices])
      embeddings[text_indices] = embed({name: tf.constant(values) for name, values in batch.items()}).numpy()
      on_batch(len(text_indices))
    return embeddings

  def log_warnings(self, source: str, limit: str) -> None:
    """Logs warnings if the texts of all calls of `encode` were cut off, or have characters that the vocabulary lacks.

    Args:
      source: the texts, for the warnings.
      limit: the name of the argument or flag for the largest length.
    """
    cut_tokens, length = np.concatenate(self._cut_tokens), self._max_length
    positions = self._encoder.config.max_position_embeddings
    remedy = f"give {limit}={positions}" if length < positions else "divide them, since the model has no more positions"
    share = float(np.mean(self._unknown_shares))
    if np.any(cut_tokens):
      log(cut_warning(source, cut_tokens, f"{limit}={length}", remedy))
    for line in unknown_warnings(source, share, self._tokenizer, self._samples):
      log(line)

  def _embed(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """Computes the embeddings of one batch, float32 [B, H], from inputs of int32 [B, S]."""
    if self._pooling == POOLED:
      no_positions = inputs["input_ids"][:, :0]  # the pooled output needs [CLS] only
      return tf.cast(self._encoder(inputs, training=False, positions=no_positions).pooled_output, tf.float32)
    states = tf.cast(self._encoder(inputs, training=False).sequence_output, tf.float32)  # [B, S, H]
    return self._vectors.compute(states, inputs["input_mask"])


def _load(
  encoder: AnyPath | Encoder, tokenizer: Tokenizer | None, pooling: str | None
) -> tuple[Encoder, Tokenizer, SentenceVectors]:
  """Loads the encoder, the tokenizer and what makes the vectors if a path is given. See `encode` for the arguments."""
  vectors = None
  if isinstance(encoder, str | os.PathLike):
    tokenizer = tokenizer or load_tokenizer(find_tokenizer_config(encoder))
    file = open_pretrained(encoder).file
    vectors = read_sentence_vectors(file.directory, file.flag)
    if pooling == POOLED and not file.has_pooler:
      raise UserError(f"weights={encoder}: has {NO_POOLER}; or give pooling={MEAN!r}")
    encoder = Encoder.from_pretrained(encoder)
  if not isinstance(encoder, Encoder):
    raise UserError(
      f"encoder is a {type(encoder).__name__}: give an Encoder (a model has one as model.encoder), or a path"
    )
  if tokenizer is None:
    raise UserError("an Encoder does not know its vocabulary: give tokenizer=Tokenizer.from_pretrained(path) too")
  if tokenizer.vocab_size > encoder.config.vocab_size:
    sizes = f"{tokenizer.vocab_size} pieces, the encoder {encoder.config.vocab_size}"
    raise UserError(f"{tokenizer.model_file} has {sizes}: give the vocabulary of the encoder's weights")
  return encoder, tokenizer, vectors or SentenceVectors()
