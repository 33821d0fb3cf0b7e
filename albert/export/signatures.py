"""The functions and input arrays of an exported model's signatures: `serving_default` for texts, `tokens` for ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert.data.shard_files.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.export.network.token_layout import TokenBatch
from albert.export.served_model import AnswerTensors, RequestField, ServedModel
from albert.io import json_values

TOKEN_INPUTS = (INPUT_IDS, INPUT_MASK, SEGMENT_IDS)


def text_function(model: ServedModel) -> Any:
  """Makes the concrete function of the signature serving_default.

  Args:
    model: the model to serve.
  Returns: a function of the fields of a request, string [B] or [B, K] -> answers by name.
  """
  specs = {
    field.name: tf.TensorSpec([None, None] if field.is_list else [None], tf.string, name=field.name)
    for field in model.fields
  }

  @tf.function(autograph=False)
  def serving_default(**texts: tf.Tensor) -> AnswerTensors:
    first_field, *other_fields = texts
    for other_field in other_fields:
      message = f"{first_field} and {other_field} differ in length: give the same number of each"
      tf.debugging.assert_equal(tf.shape(texts[first_field])[0], tf.shape(texts[other_field])[0], message=message)
    return model.answer_texts(**texts)

  return serving_default.get_concrete_function(**specs)


def tokens_function(model: ServedModel) -> Any:
  """Makes the concrete function of the signature tokens.

  Args:
    model: the model to serve.
  Returns: a function of input_ids, input_mask and segment_ids, int32 [B, S] or [B, K, S] -> answers by name.
  """
  shape = [None] * model.ids_rank
  specs = {name: tf.TensorSpec(shape, tf.int32, name=name) for name in TOKEN_INPUTS}

  @tf.function(autograph=False)
  def tokens(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> AnswerTensors:
    return model.answer_tokens(TokenBatch(input_ids, input_mask, segment_ids))

  return tokens.get_concrete_function(**specs)


def portable_function(model: ServedModel) -> Any:
  """Makes a function of ids that uses only ops that TFLite and ONNX have, and returns only answers that are numbers.

  Args:
    model: the model to serve.
  Returns: a tf.function of input_ids, input_mask and segment_ids, int32 [B, S] or [B, K, S] -> answers by name.
  """
  shape = [None] * model.ids_rank

  @tf.function(autograph=False, input_signature=[tf.TensorSpec(shape, tf.int32, name=name) for name in TOKEN_INPUTS])
  def numbers(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> AnswerTensors:
    return model.portable_answer_tokens(TokenBatch(input_ids, input_mask, segment_ids))

  return numbers


def token_inputs(model: ServedModel, texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Tokenizes texts as the model does.

  Args:
    model: the model to serve.
    texts: the fields of the requests, string [B] or [B, K] by name.
  Returns: input_ids, input_mask and segment_ids, int32 [B, S] or [B, K, S]; S is the length of the longest sequence.
  """
  tokens = model.encode(**{name: tf.constant(value) for name, value in texts.items()})
  max_length = int(tf.reduce_max(tf.reduce_sum(tokens.input_mask, axis=-1)))
  return {name: values[..., :max_length].numpy() for name, values in tokens._asdict().items()}


def text_inputs(fields: Sequence[RequestField], requests: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
  """Turns requests into the input arrays of serving_default.

  Args:
    fields: the fields of a request.
    requests: a text or a list of texts by the name of each field.
  Returns: arrays of bytes, [B] or [B, K], by the name of each field. Shorter lists are padded with "".
  """
  return {field.name: _make_column([request[field.name] for request in requests], field) for field in fields}


def _make_column(values: Sequence[Any], field: RequestField) -> np.ndarray:
  """The values of one field in all requests as an array, [B] or [B, K]."""
  if not field.is_list:
    return np.array([_to_bytes(text) for text in values], object)
  max_texts = max(map(len, values), default=0)
  column = np.full([len(values), max_texts], b"", object)
  for row, texts in enumerate(values):
    column[row, : len(texts)] = [_to_bytes(text) for text in texts]
  return column


def _to_bytes(text: str | bytes) -> bytes:
  return text if isinstance(text, bytes) else json_values.encode_utf8(text)
