"""Requests that TensorFlow Serving runs when it loads a model, so that the first user does not wait.

The file is TFRecords of PredictionLog, a message of TensorFlow Serving's own. It is written here field by field, in
protobuf's wire format, since tensorflow-serving-api would bring its own TensorFlow along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

FILE = "tf_serving_warmup_requests"
DIRECTORY = "assets.extra"


class WarmupRequest(NamedTuple):
  """A call of a signature: the inputs by name; strings as arrays of bytes or str."""

  signature: str
  inputs: Mapping[str, np.ndarray]


def _field(number: int, payload: bytes) -> bytes:
  """A field of bytes, a text or a message: its key (wire type 2), its length, itself."""
  return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
  groups = []
  while value >= 0x80:
    groups.append(value & 0x7F | 0x80)
    value >>= 7
  return bytes([*groups, value])


def prediction_log(model_name: str, request: WarmupRequest) -> bytes:
  """PredictionLog { predict_log: PredictLog { request: PredictRequest { model_spec, inputs } } }."""
  model_spec = _field(1, model_name.encode()) + _field(3, request.signature.encode())
  predict_request = _field(1, model_spec)
  for name, value in request.inputs.items():
    tensor = tf.make_tensor_proto(value).SerializeToString()
    predict_request += _field(2, _field(1, name.encode()) + _field(2, tensor))  # an entry of the map of inputs
  return _field(6, _field(1, predict_request))


def write_warmup(directory: str, model_name: str, requests: Iterable[WarmupRequest]) -> None:
  """Writes assets.extra/tf_serving_warmup_requests in the directory of a SavedModel."""
  extra = tf.io.gfile.join(directory, DIRECTORY)
  tf.io.gfile.makedirs(extra)
  with tf.io.TFRecordWriter(tf.io.gfile.join(extra, FILE)) as writer:
    for request in requests:
      writer.write(prediction_log(model_name, request))
