"""The same model for other runtimes: TFLite (LiteRT) and ONNX, made from ids and checked against the SavedModel."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert import files
from albert.errors import RunError, UserError
from albert.export.formats import ONNX, TFLITE, TFLITE_INT8
from albert.export.servable import Servable
from albert.export.signatures import TOKEN_INPUTS, numbers_function

Arrays = Mapping[str, np.ndarray]
Runner = Callable[[Arrays], dict[str, np.ndarray]]

# Largest difference of answers in float32; they are computed in another order.
TOLERANCE = 1e-4
_OPSET = 17
_FILES = {TFLITE: "model.tflite", TFLITE_INT8: "model_int8.tflite", ONNX: "model.onnx"}
_MEANINGS = {
  TFLITE: "TFLite, float32",
  TFLITE_INT8: "TFLite, matrices in int8 with a scale a row, activations quantized as they come",
  ONNX: f"ONNX, float32, opset {_OPSET}",
}


def check_installed(formats: Sequence[str]) -> None:
  """UserError if a format's converter is missing."""
  missing = [name for name in ("tf2onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
  if ONNX in formats and missing:
    raise UserError(f"--formats={ONNX} needs {' and '.join(missing)}: pip install 'albert-tf2[onnx]'")


def write_formats(directory: str, servable: Servable, inputs: Arrays, formats: Sequence[str]) -> list[str]:
  """Writes the formats beside a SavedModel, and checks them on the inputs.

  Args:
    directory: of the SavedModel.
    servable: the model.
    inputs: ids of real texts, by the names of the tokens signature.
    formats: of formats.EXTRA_FORMATS.
  Returns: for each a line with its size, and how much its answers differ.
  Raises:
    RunError: it cannot be converted, or its answers differ by more than TOLERANCE (of int8: are not finite).
  """
  notes = []
  for name in formats:
    function = numbers_function(servable)
    try:
      model = _to_onnx(function) if name == ONNX else _to_tflite(function, servable, is_int8=name == TFLITE_INT8)
    except Exception as error:
      raise RunError(f"--formats={name}: the converter failed: {str(error).strip().splitlines()[-1]}") from error
    path = files.join(directory, _FILES[name])
    files.write_atomically(path, model)
    run = onnx_runner(model) if name == ONNX else tflite_runner(model)
    difference = max(_difference(run(batch), function, batch, name) for batch in _batches(inputs))
    if not difference < (np.inf if name == TFLITE_INT8 else TOLERANCE):
      raise RunError(f"--formats={name}: its answers differ from the SavedModel's by {difference:.3g}")
    notes.append(
      f"`{_FILES[name]}`: {_MEANINGS[name]}, {len(model) / 1e6:.1f} MB; takes ids as the signature `tokens` does, "
      f"answers in numbers alone; on the examples they differ from the SavedModel's by {difference:.2g} at most"
    )
  return notes


def _to_tflite(function: Any, servable: Servable, *, is_int8: bool) -> bytes:
  converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], servable)
  if is_int8:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
  return bytes(converter.convert())


def _to_onnx(function: Any) -> bytes:
  import tf2onnx

  model, _ = tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=_OPSET)
  return bytes(model.SerializeToString())


def tflite_runner(model: bytes) -> Runner:
  """A function that runs a TFLite model."""
  if importlib.util.find_spec("ai_edge_litert"):  # TensorFlow's own interpreter is to go
    from ai_edge_litert.interpreter import Interpreter
  else:
    Interpreter = tf.lite.Interpreter  # tensorflow.lite has no such name to import
  interpreter = Interpreter(model_content=model)
  signature = next(iter(interpreter.get_signature_list()))

  def run(inputs: Arrays) -> dict[str, np.ndarray]:
    for detail in interpreter.get_input_details():
      name = next(name for name in TOKEN_INPUTS if name in detail["name"])
      interpreter.resize_tensor_input(detail["index"], inputs[name].shape)
    return dict(interpreter.get_signature_runner(signature)(**inputs))

  return run


def onnx_runner(model: bytes) -> Runner:
  """A function that runs an ONNX model."""
  import onnxruntime

  session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
  names = [output.name for output in session.get_outputs()]

  def run(inputs: Arrays) -> dict[str, np.ndarray]:
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))

  return run


def _batches(inputs: Arrays) -> Iterator[Arrays]:
  """All examples at once, and each one without padding."""
  yield inputs
  for row, mask in enumerate(inputs["input_mask"]):
    length = int(mask.sum(axis=-1).max())
    yield {name: values[row : row + 1, ..., :length] for name, values in inputs.items()}


def _difference(found: Mapping[str, np.ndarray], function: Any, batch: Arrays, name: str) -> float:
  """The largest difference of an answer that is no whole number; infinite if a shape or a name differs."""
  expected = {key: value.numpy() for key, value in function(*(tf.constant(batch[key]) for key in TOKEN_INPUTS)).items()}
  if {key: value.shape for key, value in found.items()} != {key: value.shape for key, value in expected.items()}:
    raise RunError(f"--formats={name}: it answers {sorted(found)} in other shapes than the SavedModel")
  floats = [key for key, value in expected.items() if value.dtype == np.float32]
  return max(float(np.abs(found[key] - expected[key]).max(initial=0.0)) for key in floats)
