"""The base class of all served models: a SavedModel that takes texts or ids and returns named answers.

Each form in `albert.export.forms` is a subclass.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from albert.config.base import Config
from albert.data.shard_files.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.export.checking.form_evaluations import FormEvaluation
from albert.export.checkpoint import ExportCheckpoint
from albert.export.network.encoder import ServedEncoder
from albert.export.network.token_layout import (
  TokenBatch,
  TokenLayout,
  UnpaddedLayout,
  check_length,
  normalize_padding,
  pad_empty_batch,
)
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.in_graph.recognition import make_graph_tokenizer
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
    is_list: whether the field is a list of texts, string [B, K]; if not, it is one text, string [B]. "" pads the
      shorter lists of a batch.
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
    dtype: dtype in which the encoder's matrices are stored and multiplied, float32 or bfloat16.
    top_k: number of candidates for each mask. Only fill_mask uses it.
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
  # What the model does, in words that follow "An ALBERT model that " in the model card.
  summary: str = ""
  # Description of each answer, by name, in the order of the model card.
  answers: ClassVar[Mapping[str, str]] = {}
  # The rows of an answer may have different numbers of entries. Then they are padded, and counted_by tells a client how
  # many entries of a row are real. It is the name of an answer that holds this number, or of a list field of the
  # request that has as many entries. "" if answers are not padded.
  counted_by: ClassVar[str] = ""
  # The fields of a request, in the order of the columns of a tab-separated file.
  fields: Sequence[RequestField]
  # Rank of the ids: 2 for [B, S], or 3 for [B, K, S] if an example has several sequences.
  ids_rank: int = 2
  # What a sequence of ids consists of, for the model card.
  ids_meaning: str = "[CLS] text [SEP], or [CLS] first [SEP] second [SEP], then padding"
  # Whether the tokenizer must give the character offsets of tokens.
  needs_offsets: ClassVar[bool] = False
  # How the answers become metrics of the form's task; None if it has no metric for them.
  evaluation_class: ClassVar[type[FormEvaluation] | None] = None

  def __init__(self, checkpoint: ExportCheckpoint, settings: ExportSettings):
    super().__init__(name="albert")
    self._settings = settings
    self._config = checkpoint.config
    self.tokenizer = make_graph_tokenizer(settings.tokenizer_config, with_offsets=self.needs_offsets)
    self.encoder = ServedEncoder(checkpoint.config, checkpoint.encoder_weights(), settings.dtype)

  @abc.abstractmethod
  def truncation_note(self) -> str:
    """Full sentences for the model card about how texts that are too long are cut."""

  @property
  def max_seq_length(self) -> int:
    """Maximum number of tokens in a sequence that is made from text."""
    return self._settings.max_seq_length

  @property
  def max_positions(self) -> int:
    """Maximum number of real tokens in a sequence, which is the number of the model's position embeddings."""
    return self._config.max_position_embeddings

  @property
  def hidden_size(self) -> int:
    """Hidden size of the encoder."""
    return self._config.hidden_size

  @classmethod
  def missing_weights(cls, checkpoint: ExportCheckpoint) -> str | None:
    """Describes which weights of this form the checkpoint lacks; None if it has all of them."""
    if cls.head and cls.head not in checkpoint.heads:
      heads = f"its heads: {', '.join(checkpoint.heads)}" if checkpoint.heads else "it has none"
      return f"the checkpoint has no {cls.head} head ({heads})"
    if cls.uses_pooler and not checkpoint.file.has_pooler:
      return f"the checkpoint has {NO_POOLER}"
    return None

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Config) -> str | None:
    """Describes why the settings of a checkpoint's run do not allow this form; None if they do.

    It is called only if the checkpoint has the weights of the form (see missing_weights).

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
      tokens: ids with normalized padding, see normalize_padding.
      layout: how the tokens are arranged in the computation. None stands for PaddedLayout, which computes padding, too,
        but uses only ops that TFLite and ONNX have; the batch must then have at least one row.
    Returns: float32 or int32 [B, ...] by name.
    """

  def add_text_answers(self, answers: AnswerTensors) -> AnswerTensors:
    """Adds the answers that are texts, if the form has any, to the answers of `compute`."""
    return answers

  @abc.abstractmethod
  def examples(self) -> list[dict[str, Any]]:
    """Returns example requests for the checks and the model card: field name -> a text or a list of texts."""

  def available_answers(self) -> Mapping[str, str]:
    """The entries of `answers` that this checkpoint can give."""
    return self.answers

  def labels(self) -> Sequence[str]:
    """The classes in the order of the answer `probabilities`; () if the form has no classes."""
    return ()

  def thresholds(self) -> Mapping[str, float]:
    """Label -> the probability from which on it is predicted, if an example may have several; {} if not."""
    return {}

  def answer_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers ids."""
    tokens = check_length(tokens, self._config.max_position_embeddings)
    return self.add_text_answers(self.compute(tokens, UnpaddedLayout(tokens, self._config)))

  def portable_answer_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers ids like answer_tokens, but uses only ops that TFLite and ONNX have, and returns only numbers."""
    num_rows = tf.shape(tokens.input_ids)[0]
    answers = self._compute_portable(TokenBatch(*(pad_empty_batch(values) for values in tokens)))
    return {name: values[:num_rows] for name, values in answers.items()}

  def _compute_portable(self, tokens: TokenBatch) -> AnswerTensors:
    return self.compute(normalize_padding(tokens))


def as_token_batch(features: Mapping[str, tf.Tensor]) -> TokenBatch:
  """Converts the result of pack_single or pack_pair in `albert.tokenization.in_graph.graph_packing` to a TokenBatch."""
  return TokenBatch(features[INPUT_IDS], features[INPUT_MASK], features[SEGMENT_IDS])
