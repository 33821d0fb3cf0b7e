"""The signatures of a ServedModel: serving_default takes texts, tokens takes ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.export.network.token_layout import TokenBatch
from albert.export.served_model import AnswerTensors, RequestField, ServedModel
from albert.io import json_values

TOKEN_INPUTS = (INPUT_IDS, INPUT_MASK, SEGMENT_IDS)


def text_function(model: ServedModel) -> Any:
  """The concrete function of serving_default."""
  specs = {
    field.name: tf.TensorSpec([None, None] if field.is_list else [None], tf.string, name=field.name)
    for field in model.fields
  }

  @tf.function(autograph=False)
  def serving_default(**texts: tf.Tensor) -> AnswerTensors:
    first, *others = texts
    for other in others:
      message = f"{first} and {other}: give as many of one as of the other"
      tf.debugging.assert_equal(tf.shape(texts[first])[0], tf.shape(texts[other])[0], message=message)
    return model.from_text(**texts)

  return serving_default.get_concrete_function(**specs)


def tokens_function(model: ServedModel) -> Any:
  """The concrete function of tokens."""
  shape = [None] * model.rank_of_ids
  specs = {name: tf.TensorSpec(shape, tf.int32, name=name) for name in TOKEN_INPUTS}

  @tf.function(autograph=False)
  def tokens(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> AnswerTensors:
    return model.from_tokens(TokenBatch(input_ids, input_mask, segment_ids))

  return tokens.get_concrete_function(**specs)


def numbers_function(model: ServedModel) -> Any:
  """A function of ids for other runtimes: answers in numbers alone, in ops that those have."""
  shape = [None] * model.rank_of_ids

  @tf.function(autograph=False, input_signature=[tf.TensorSpec(shape, tf.int32, name=name) for name in TOKEN_INPUTS])
  def numbers(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> AnswerTensors:
    return model.portable_numbers(TokenBatch(input_ids, input_mask, segment_ids))

  return numbers


def token_inputs(model: ServedModel, texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The ids that the model makes of texts, int32 [B, S], without columns of padding alone."""
  tokens = model.encode(**{name: tf.constant(value) for name, value in texts.items()})
  longest = int(tf.reduce_max(tf.reduce_sum(tokens.input_mask, axis=-1)))
  return {name: values[..., :longest].numpy() for name, values in tokens._asdict().items()}


def text_inputs(fields: Sequence[RequestField], requests: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
  """Requests -> arrays of bytes [B] or [B, K], by the names of the fields."""
  return {field.name: _column([request[field.name] for request in requests], field) for field in fields}


def _column(values: Sequence[Any], field: RequestField) -> np.ndarray:
  """The values of a field, lists filled up with ""."""
  if not field.is_list:
    return np.array([_bytes(text) for text in values], object)
  longest = max(map(len, values), default=0)
  column = np.full([len(values), longest], b"", object)
  for row, texts in enumerate(values):
    column[row, : len(texts)] = [_bytes(text) for text in texts]
  return column


def _bytes(text: str | bytes) -> bytes:
  return text if isinstance(text, bytes) else json_values.encoded(text)
