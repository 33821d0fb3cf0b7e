"""Requests that TensorFlow Serving runs when it loads a model, so that the first user does not wait.

The file is TFRecords of PredictionLog, a message of TensorFlow Serving's own. It is written here field by field, in
protobuf's wire format, since tensorflow-serving-api would bring its own TensorFlow along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert.io.protobuf import encode_bytes_field

FILE = "tf_serving_warmup_requests"
DIRECTORY = "assets.extra"


class WarmupRequest(NamedTuple):
  """A call of a signature: the inputs by name; strings as arrays of bytes or str."""

  signature: str
  inputs: Mapping[str, np.ndarray]


def prediction_log(model_name: str, request: WarmupRequest) -> bytes:
  """PredictionLog { predict_log: PredictLog { request: PredictRequest { model_spec, inputs } } }."""
  model_spec = encode_bytes_field(1, model_name.encode()) + encode_bytes_field(3, request.signature.encode())
  predict_request = encode_bytes_field(1, model_spec)
  for name, value in request.inputs.items():
    tensor = tf.make_tensor_proto(value).SerializeToString()
    map_entry = encode_bytes_field(1, name.encode()) + encode_bytes_field(2, tensor)
    predict_request += encode_bytes_field(2, map_entry)  # PredictRequest.inputs
  return encode_bytes_field(6, encode_bytes_field(1, predict_request))


def write_warmup(directory: str, model_name: str, requests: Iterable[WarmupRequest]) -> None:
  """Writes assets.extra/tf_serving_warmup_requests in the directory of a SavedModel."""
  extra = tf.io.gfile.join(directory, DIRECTORY)
  tf.io.gfile.makedirs(extra)
  with tf.io.TFRecordWriter(tf.io.gfile.join(extra, FILE)) as writer:
    for request in requests:
      writer.write(prediction_log(model_name, request))
