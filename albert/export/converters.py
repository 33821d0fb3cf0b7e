"""Converts a model to TFLite (LiteRT) and ONNX, and compares the answers with those of the SavedModel.

The converted models take ids, not text, and return only answers that are numbers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert.errors import RunError
from albert.export import checks
from albert.export.description import NamedArrays
from albert.export.formats import ONNX, TFLITE, TFLITE_INT8
from albert.export.onnx_weights import share_transposed_weights
from albert.export.served_model import ServedModel
from albert.export.signatures import TOKEN_INPUTS, portable_function
from albert.io import files

# Runs a converted model on a batch of ids.
Runner = Callable[[NamedArrays], dict[str, np.ndarray]]

# Largest accepted difference from the float32 answers of the SavedModel, see checks.largest_difference. Runtimes add
# numbers in different orders: the answers of 12 layers of 768 units with random weights differ by 1.1e-4. An error in
# the graph makes a far larger difference.
TOLERANCE = 1e-3
_ONNX_OPSET = 17
_FILE_NAMES = {TFLITE: "model.tflite", TFLITE_INT8: "model_int8.tflite", ONNX: "model.onnx"}
_FORMAT_NOTES = {
  TFLITE: "TFLite, float32",
  TFLITE_INT8: "TFLite, int8 matrices with one scale for each row, activations quantized dynamically",
  ONNX: f"ONNX, float32, opset {_ONNX_OPSET}",
}


def write_formats(
  directory: str, model: ServedModel, examples: NamedArrays, expected: Mapping[str, NamedArrays], formats: Sequence[str]
) -> list[str]:
  """Writes the formats beside a SavedModel and checks them on the batches of checks.id_test_batches.

  Args:
    directory: the SavedModel's directory.
    model: the model.
    examples: input_ids, input_mask and segment_ids of the examples, int32 [B, S] or [B, K, S].
    expected: the SavedModel's answers to each batch, by the name of the batch.
    formats: names of `albert.export.formats.EXTRA_FORMATS`.
  Returns: for each format a line for the model card, with the file's size and the difference of the answers.
  Raises:
    RunError: a format cannot be converted or run, or its answers differ by more than TOLERANCE. Answers of int8 may
      differ by any amount, but must be finite.
  """
  notes = []
  for name in formats:
    function = portable_function(model)
    try:
      content = to_onnx(function) if name == ONNX else to_tflite(function, model, is_int8=name == TFLITE_INT8)
      run = onnx_runner(content) if name == ONNX else tflite_runner(content)
    except Exception as error:
      reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
      raise RunError(f"--formats={name}: the converter failed: {reason}") from error
    files.write_atomically(files.join(directory, _FILE_NAMES[name]), content)
    difference = _compare_with_saved_model(name, run, model, examples, expected)
    notes.append(
      f"`{_FILE_NAMES[name]}`: {_FORMAT_NOTES[name]}, {len(content) / 1e6:.1f} MB; takes ids as the signature "
      "`tokens` does and returns only numbers, which differ from the SavedModel's by at most "
      f"{difference:.2g} on the examples"
    )
  return notes


def _compare_with_saved_model(
  name: str, run: Runner, model: ServedModel, examples: NamedArrays, expected: Mapping[str, NamedArrays]
) -> float:
  """The largest difference from the SavedModel on the examples. Raises RunError if any batch differs by too much."""
  flag = f"--formats={name}"
  answers_by_batch = checks.run_test_batches(run, checks.id_test_batches(model, examples), function_name=flag)
  tolerance = np.inf if name == TFLITE_INT8 else TOLERANCE
  differences = {}
  for batch_name, expected_answers in expected.items():
    # Rounding to int8 may change which span or option is the best, but not the number of masks.
    difference = checks.largest_difference(answers_by_batch[batch_name], expected_answers, exact=model.counted_by)
    if not difference < tolerance:  # also if the difference is NaN
      raise RunError(f"{flag}: for {batch_name}, its answers differ from the SavedModel's by {difference:.3g}")
    differences[batch_name] = difference
  return differences[checks.EXAMPLE_BATCH]


def to_tflite(function: Any, model: ServedModel, *, is_int8: bool) -> bytes:
  """Converts a function to TFLite.

  Args:
    function: a result of signatures.portable_function.
    model: the model that the function belongs to.
    is_int8: whether matrices are quantized to int8.
  Returns: the content of the .tflite file.
  """
  converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], model)
  if is_int8:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
  return bytes(converter.convert())


def to_onnx(function: Any) -> bytes:
  """Converts a function to ONNX.

  Args:
    function: a result of signatures.portable_function.
  Returns: the content of the .onnx file.
  """
  import tf2onnx

  model, _ = tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=_ONNX_OPSET)
  share_transposed_weights(model)
  return bytes(model.SerializeToString())


def tflite_runner(model: bytes) -> Runner:
  """A function that runs a TFLite model, given as the content of its file."""
  if importlib.util.find_spec("ai_edge_litert"):  # TensorFlow plans to remove its own interpreter
    from ai_edge_litert.interpreter import Interpreter
  else:
    Interpreter = tf.lite.Interpreter  # this name cannot be imported from tensorflow.lite
  interpreter = Interpreter(model_content=model)
  signature = next(iter(interpreter.get_signature_list()))

  def run(inputs: NamedArrays) -> dict[str, np.ndarray]:
    for detail in interpreter.get_input_details():
      name = next(name for name in TOKEN_INPUTS if name in detail["name"])
      interpreter.resize_tensor_input(detail["index"], inputs[name].shape)
    return dict(interpreter.get_signature_runner(signature)(**inputs))

  return run


def onnx_runner(model: bytes) -> Runner:
  """A function that runs an ONNX model, given as the content of its file."""
  import onnxruntime

  session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
  names = [output.name for output in session.get_outputs()]

  def run(inputs: NamedArrays) -> dict[str, np.ndarray]:
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))

  return run
