"""What a SavedModel answers with: text or ids in, named answers out. Each head has a subclass."""

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
from albert.export.network.token_layout import TokenBatch, TokenLayout, UnpaddedLayout, real_tokens, trim, with_a_row
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.graph import GraphTokenizer
from albert.weights.names import NO_POOLER

# B batch, K texts of one field, S sequence.

AnswerTensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class RequestField:
  """A text that a request gives.

  Attributes:
    name: in the signature.
    meaning: for the model card.
    is_list: True for [B, K] strings, False for [B]. Of lists of different lengths the shorter end in "".
  """

  name: str
  meaning: str
  is_list: bool = False


@dataclasses.dataclass(frozen=True)
class ExportSettings:
  """How a model is exported.

  Attributes:
    config: the task's config, as its run had it and as the flags have it.
    max_seq_length: longer texts are cut to it.
    tokenizer_config: the vocabulary and how text is normalized.
    dtype: of the matrices.
    top_k: how many candidates to give, where there are many.
  """

  config: Config
  max_seq_length: int
  tokenizer_config: TokenizerConfig
  dtype: tf.DType = tf.float32
  top_k: int = 5


class ServedModel(tf.Module, abc.ABC):
  """A model with its text processing.

  Args:
    source: where its weights are.
    settings: how it is made.
  """

  # The head that the checkpoint must hold, as models.weight_names calls it; "" for the encoder alone.
  head: ClassVar[str] = ""
  # Whether it cannot do without the pooler.
  uses_pooler: ClassVar[bool] = True
  # What it does, for the model card.
  summary: str = ""
  # Name of an answer -> what it is, in the order of the card.
  answers: ClassVar[Mapping[str, str]] = {}
  # The answer, or the field of lists, that says how many entries of each answer are real; "" if all are.
  counted_by: ClassVar[str] = ""
  # The fields of a request, in the order of the columns of a file.
  fields: Sequence[RequestField]
  # Dimensions of the ids: [B, S], or [B, K, S] where an example has several sequences.
  rank_of_ids: ClassVar[int] = 2
  # What a sequence of ids is, for the model card.
  row_of_ids: ClassVar[str] = "[CLS] text [SEP], or [CLS] first [SEP] second [SEP], then padding"
  tokenizer_class: ClassVar[type[GraphTokenizer]] = GraphTokenizer

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(name="albert")
    self._settings = settings
    self._config = checkpoint.config
    self.tokenizer = self.tokenizer_class.from_config(settings.tokenizer_config)
    self.encoder = ServedEncoder(checkpoint.config, checkpoint.encoder_weights(), settings.dtype)

  @abc.abstractmethod
  def how_text_is_cut(self) -> str:
    """What becomes of text that is too long, for the model card: whole sentences."""

  @property
  def max_seq_length(self) -> int:
    """Tokens of the sequences that texts become."""
    return self._settings.max_seq_length

  @property
  def longest_sequence(self) -> int:
    """Tokens of the longest sequence that the model takes."""
    return self._config.max_position_embeddings

  @classmethod
  def missing_weights(cls, checkpoint: ExportCheckpoint) -> str | None:
    """What the checkpoint lacks to be served so; None if it has it."""
    if cls.head and cls.head not in checkpoint.heads:
      has = f"its heads: {', '.join(checkpoint.heads)}" if checkpoint.heads else "it has none"
      return f"the checkpoint has no {cls.head} head ({has})"
    if cls.uses_pooler and not checkpoint.file.has_pooler:
      return f"the checkpoint has {NO_POOLER}"
    return None

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Config) -> str | None:
    """Why a checkpoint with this head cannot be served so; None if it can."""
    del checkpoint, config
    return None

  @abc.abstractmethod
  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """Ids of texts, string [B] or [B, K] by the names of the fields."""

  def from_text(self, **texts: tf.Tensor) -> AnswerTensors:
    """Answers to texts, string [B] or [B, K] by the names of the fields."""
    return self.from_tokens(self.encode(**texts))

  @abc.abstractmethod
  def compute(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> AnswerTensors:
    """Answers in numbers, float32 or int32 [B, ...], to ids as real_tokens gives them.

    Without a layout it is done in ops that other runtimes have, which need at least one row.
    """

  def describe(self, answers: AnswerTensors) -> AnswerTensors:
    """The answers with those in words added."""
    return answers

  @abc.abstractmethod
  def examples(self) -> list[dict[str, Any]]:
    """Requests to try: texts (or lists of them) by the names of the fields."""

  def given_answers(self) -> Mapping[str, str]:
    """Those of `answers` that this checkpoint gives."""
    return self.answers

  def labels(self) -> Sequence[str]:
    """The classes, in the order of the probabilities; () if there are none."""
    return ()

  def from_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers to ids."""
    tokens = trim(tokens, self._config.max_position_embeddings)
    return self.describe(self.compute(tokens, UnpaddedLayout(tokens, self._config)))

  def portable_numbers(self, tokens: TokenBatch) -> AnswerTensors:
    """The answers of from_tokens in numbers alone, in ops that other runtimes have."""
    count = tf.shape(tokens.input_ids)[0]
    answers = self._compute_padded(TokenBatch(*(with_a_row(values) for values in tokens)))
    return {name: values[:count] for name, values in answers.items()}

  def _compute_padded(self, tokens: TokenBatch) -> AnswerTensors:
    return self.compute(real_tokens(tokens))


def as_token_batch(packed: Mapping[str, tf.Tensor]) -> TokenBatch:
  """What text_ops.pack_single and pack_pair give."""
  return TokenBatch(packed[INPUT_IDS], packed[INPUT_MASK], packed[SEGMENT_IDS])
