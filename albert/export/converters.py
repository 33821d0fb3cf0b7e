"""The same model for other runtimes: TFLite (LiteRT) and ONNX, made from ids and checked against the SavedModel."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert.errors import RunError, UserError
from albert.export import checks
from albert.export.description import NamedArrays
from albert.export.formats import EXTRA_FORMATS, ONNX, TFLITE, TFLITE_INT8
from albert.export.served_model import ServedModel
from albert.export.signatures import TOKEN_INPUTS, numbers_function
from albert.io import files

Runner = Callable[[NamedArrays], dict[str, np.ndarray]]

# Largest difference of answers in float32 (see checks.largest_difference). Runtimes add in another order: 12 layers of
# 768 units with random weights differ by 1.1e-4. A wrong graph differs by far more.
TOLERANCE = 1e-3
_OPSET = 17
_FILES = {TFLITE: "model.tflite", TFLITE_INT8: "model_int8.tflite", ONNX: "model.onnx"}
_MEANINGS = {
  TFLITE: "TFLite, float32",
  TFLITE_INT8: "TFLite, matrices in int8 with a scale a row, activations quantized as they come",
  ONNX: f"ONNX, float32, opset {_OPSET}",
}


def check_formats(formats: Sequence[str], precision: str) -> None:
  """UserError if a format is unknown, its converter is missing, or the precision is none that it has."""
  unknown = [name for name in formats if name not in EXTRA_FORMATS]
  if unknown:
    raise UserError(f"--formats={unknown[0]}: must be one of {', '.join(EXTRA_FORMATS)}")
  missing = [name for name in ("tf2onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
  if ONNX in formats and missing:
    raise UserError(f"--formats={ONNX} needs {' and '.join(missing)}: pip install 'albert-tf2[onnx]'")
  if formats and precision != "float32":
    raise UserError(f"--formats={','.join(formats)} with --precision={precision}: give --precision=float32")


def write_formats(
  directory: str, model: ServedModel, examples: NamedArrays, expected: Mapping[str, NamedArrays], formats: Sequence[str]
) -> list[str]:
  """Writes the formats beside a SavedModel, and checks them on the batches of checks.id_cases.

  Args:
    directory: of the SavedModel.
    model: the model.
    examples: ids of real texts, by the names of the tokens signature.
    expected: the SavedModel's answers to each batch, by the batch's name.
    formats: of formats.EXTRA_FORMATS.
  Returns: for each a line with its size, and how much its answers differ.
  Raises:
    RunError: it cannot be converted or run, or its answers differ by more than TOLERANCE (of int8: are not finite).
  """
  notes = []
  for name in formats:
    function = numbers_function(model)
    try:
      content = to_onnx(function) if name == ONNX else to_tflite(function, model, is_int8=name == TFLITE_INT8)
      run = onnx_runner(content) if name == ONNX else tflite_runner(content)
    except Exception as error:
      reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
      raise RunError(f"--formats={name}: the converter failed: {reason}") from error
    files.write_atomically(files.join(directory, _FILES[name]), content)
    difference = _check(name, run, model, examples, expected)
    notes.append(
      f"`{_FILES[name]}`: {_MEANINGS[name]}, {len(content) / 1e6:.1f} MB; takes ids as the signature `tokens` does, "
      f"answers in numbers alone; on the examples they differ from the SavedModel's by {difference:.2g} at most"
    )
  return notes


def _check(
  name: str, run: Runner, model: ServedModel, examples: NamedArrays, expected: Mapping[str, NamedArrays]
) -> float:
  """The largest difference from the SavedModel on the examples. RunError if any batch differs by too much."""
  what = f"--formats={name}"
  found = checks.run_cases(run, checks.id_cases(model, examples), what=what)
  differences = {}
  for case, answers in expected.items():
    # What int8 rounds may change which span or option is the best, but not how many masks there are.
    differences[case] = checks.largest_difference(found[case], answers, exact=model.counted_by)
    if not differences[case] < (np.inf if name == TFLITE_INT8 else TOLERANCE):
      raise RunError(f"{what}: for {case} its answers differ from the SavedModel's by {differences[case]:.3g}")
  return differences[checks.EXAMPLES]


def to_tflite(function: Any, model: ServedModel, *, is_int8: bool) -> bytes:
  """A function of signatures.numbers_function as a TFLite model."""
  converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], model)
  if is_int8:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
  return bytes(converter.convert())


def to_onnx(function: Any) -> bytes:
  """A function of signatures.numbers_function as an ONNX model."""
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

  def run(inputs: NamedArrays) -> dict[str, np.ndarray]:
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

  def run(inputs: NamedArrays) -> dict[str, np.ndarray]:
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))

  return run
