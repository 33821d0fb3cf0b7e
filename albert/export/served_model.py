"""The base class of all served models: a SavedModel that takes texts or ids and returns named answers.

Each form of serving in `albert.export.forms` is a subclass.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from albert.config.base import Config
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.export.checkpoint import ExportCheckpoint
from albert.export.network.encoder import ServedEncoder
from albert.export.network.token_layout import (
  TokenBatch,
  TokenLayout,
  UnpaddedLayout,
  at_least_one_row,
  check_length,
  normalize_padding,
)
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.graph import GraphTokenizer
from albert.weights.names import NO_POOLER

# B batch, K texts in a field that is a list, S sequence.

# Answers by name. The first dimension of each is the batch.
AnswerTensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class RequestField:
  """One field of a request.

  Attributes:
    name: name of the field in the signature.
    meaning: description for the model card.
    is_list: whether the field is a list of texts, string [B, K], or one text, string [B]. Lists that are shorter than
      the longest one of a batch are padded with "".
  """

  name: str
  meaning: str
  is_list: bool = False


@dataclasses.dataclass(frozen=True)
class ExportSettings:
  """Settings that a served model is built with.

  Attributes:
    config: config of the form's task.
    max_seq_length: maximum number of tokens in a sequence that is made from text.
    tokenizer_config: the vocabulary and how text is normalized.
    dtype: in which the encoder's matrices are stored and multiplied, float32 or bfloat16.
    top_k: number of candidates that a form returns if it ranks candidates.
  """

  config: Config
  max_seq_length: int
  tokenizer_config: TokenizerConfig
  dtype: tf.DType = tf.float32
  top_k: int = 5


class ServedModel(tf.Module, abc.ABC):
  """A model and its text processing in one TensorFlow graph.

  A subclass defines the fields of a request (`fields`), how texts become ids (`encode`), the answers to ids
  (`compute`), and the texts of the model card.

  Args:
    checkpoint: the weights, the model's config and the vocabulary.
    settings: how the model is built.
  Raises:
    UserError: the checkpoint lacks a weight, or a weight has the wrong shape.
  """

  # Name of the head that the checkpoint must hold, a key of albert.weights.names.heads; "" for the encoder alone.
  head: ClassVar[str] = ""
  # Whether the checkpoint must hold the pooler.
  uses_pooler: ClassVar[bool] = True
  # What the model does, for the model card: it continues "An ALBERT model that ".
  summary: str = ""
  # Description of each answer, by name, in the order of the model card.
  answers: ClassVar[Mapping[str, str]] = {}
  # Answers may be padded to the largest answer of the batch. This is the name of the answer that holds the number of
  # real entries, or of the list field that has as many entries; "" if answers are not padded.
  counted_by: ClassVar[str] = ""
  # The fields of a request, in the order of the columns of a tab-separated file.
  fields: Sequence[RequestField]
  # Rank of the ids: 2 for [B, S], or 3 for [B, K, S] if an example has several sequences.
  ids_rank: ClassVar[int] = 2
  # What a sequence of ids consists of, for the model card.
  ids_meaning: ClassVar[str] = "[CLS] text [SEP], or [CLS] first [SEP] second [SEP], then padding"
  tokenizer_class: ClassVar[type[GraphTokenizer]] = GraphTokenizer

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(name="albert")
    self._settings = settings
    self._config = checkpoint.config
    self.tokenizer = self.tokenizer_class.from_config(settings.tokenizer_config)
    self.encoder = ServedEncoder(checkpoint.config, checkpoint.encoder_weights(), settings.dtype)

  @abc.abstractmethod
  def truncation_note(self) -> str:
    """Whole sentences for the model card that say where a text that is too long is cut."""

  @property
  def max_seq_length(self) -> int:
    """Maximum number of tokens in a sequence that is made from text."""
    return self._settings.max_seq_length

  @property
  def max_positions(self) -> int:
    """Maximum number of tokens in a sequence that the model can compute."""
    return self._config.max_position_embeddings

  @classmethod
  def missing_weights(cls, checkpoint: ExportCheckpoint) -> str | None:
    """The reason why the checkpoint's weights are not enough for this form; None if they are."""
    if cls.head and cls.head not in checkpoint.heads:
      heads = f"its heads: {', '.join(checkpoint.heads)}" if checkpoint.heads else "it has none"
      return f"the checkpoint has no {cls.head} head ({heads})"
    if cls.uses_pooler and not checkpoint.file.has_pooler:
      return f"the checkpoint has {NO_POOLER}"
    return None

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Config) -> str | None:
    """The reason why a checkpoint that has the weights still cannot be served in this form; None if it can.

    Args:
      checkpoint: the checkpoint to serve.
      config: config of the form's task.
    """
    del checkpoint, config
    return None

  @abc.abstractmethod
  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """Tokenizes texts.

    Args:
      **texts: the fields of the requests, string [B] or [B, K].
    Returns: ids of rank `ids_rank`.
    """

  def answer_texts(self, **texts: tf.Tensor) -> AnswerTensors:
    """Answers texts: the fields of the requests, string [B] or [B, K]."""
    return self.answer_tokens(self.encode(**texts))

  @abc.abstractmethod
  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """Computes the answers that are numbers.

    Args:
      tokens: ids whose padding normalize_padding has set to zero.
      layout: where the tokens are while they are computed. None computes the padding, too, and uses only ops that
        TFLite and ONNX have; the batch must then have at least one row.
    Returns: float32 or int32 [B, ...] by name.
    """

  def add_text_answers(self, answers: AnswerTensors) -> AnswerTensors:
    """The answers of `compute` and, where the form has any, the answers that are texts."""
    return answers

  @abc.abstractmethod
  def examples(self) -> list[dict[str, Any]]:
    """Example requests for the checks and the model card: a text or a list of texts by the name of each field."""

  def available_answers(self) -> Mapping[str, str]:
    """The entries of `answers` that this checkpoint can give."""
    return self.answers

  def labels(self) -> Sequence[str]:
    """The classes in the order of the answer `probabilities`; () if the form has no classes."""
    return ()

  def answer_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers ids."""
    tokens = check_length(tokens, self._config.max_position_embeddings)
    return self.add_text_answers(self.compute(tokens, UnpaddedLayout(tokens, self._config)))

  def portable_answers(self, tokens: TokenBatch) -> AnswerTensors:
    """The answers of answer_tokens that are numbers, computed with ops that TFLite and ONNX have."""
    count = tf.shape(tokens.input_ids)[0]
    answers = self._compute_portable(TokenBatch(*(at_least_one_row(values) for values in tokens)))
    return {name: values[:count] for name, values in answers.items()}

  def _compute_portable(self, tokens: TokenBatch) -> AnswerTensors:
    return self.compute(normalize_padding(tokens))


def as_token_batch(features: Mapping[str, tf.Tensor]) -> TokenBatch:
  """The dict of `albert.tokenization.graph_packing.pack_single` or pack_pair as a TokenBatch."""
  return TokenBatch(features[INPUT_IDS], features[INPUT_MASK], features[SEGMENT_IDS])
