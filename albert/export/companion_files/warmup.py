"""Writes the requests that TensorFlow Serving runs when it loads a model, so that the first user does not wait.

The file is a TFRecord file of PredictionLog, a protobuf message of TensorFlow Serving. The message is encoded here
field by field, because the package tensorflow-serving-api depends on a TensorFlow version of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert.io.protobuf import encode_bytes_field

# Where TensorFlow Serving looks for the requests.
WARMUP_DIRECTORY, WARMUP_FILE = "assets.extra", "tf_serving_warmup_requests"


class WarmupRequest(NamedTuple):
  """A call of a signature.

  Attributes:
    signature: name of the signature.
    inputs: arrays by name; texts are arrays of bytes or str.
  """

  signature: str
  inputs: Mapping[str, np.ndarray]


def encode_prediction_log(model_name: str, request: WarmupRequest) -> bytes:
  """Encodes PredictionLog { predict_log: PredictLog { request: PredictRequest { model_spec, inputs } } }.

  The field numbers are those of TensorFlow Serving's prediction_log.proto, predict.proto and model.proto.

  Args:
    model_name: name of the model on the server.
    request: the call.
  Returns: the serialized message.
  """
  model_spec = encode_bytes_field(1, model_name.encode())  # ModelSpec.name
  model_spec += encode_bytes_field(3, request.signature.encode())  # ModelSpec.signature_name
  predict_request = encode_bytes_field(1, model_spec)  # PredictRequest.model_spec
  for name, value in request.inputs.items():
    tensor = tf.make_tensor_proto(value).SerializeToString()
    map_entry = encode_bytes_field(1, name.encode()) + encode_bytes_field(2, tensor)
    predict_request += encode_bytes_field(2, map_entry)  # PredictRequest.inputs
  predict_log = encode_bytes_field(1, predict_request)  # PredictLog.request
  return encode_bytes_field(6, predict_log)  # PredictionLog.predict_log


def write_warmup(directory: str, model_name: str, requests: Iterable[WarmupRequest]) -> None:
  """Writes assets.extra/tf_serving_warmup_requests.

  Args:
    directory: the SavedModel's directory.
    model_name: name of the model on the server.
    requests: the calls that the server runs when it loads the model.
  """
  warmup_directory = tf.io.gfile.join(directory, WARMUP_DIRECTORY)
  tf.io.gfile.makedirs(warmup_directory)
  with tf.io.TFRecordWriter(tf.io.gfile.join(warmup_directory, WARMUP_FILE)) as writer:
    for request in requests:
      writer.write(encode_prediction_log(model_name, request))
