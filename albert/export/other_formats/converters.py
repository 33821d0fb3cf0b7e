"""Converts a model to TFLite (LiteRT) and ONNX, and compares the answers with those of the SavedModel.

The converted models take ids, not text, and return only answers that are numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert.errors import RunError
from albert.export.checking import checks
from albert.export.companion_files.description import NamedArrays
from albert.export.formats import FORMAT_FILES, ONNX, ONNX_INT8, TFLITE, TFLITE_FLOAT16, TFLITE_INT8
from albert.export.other_formats.onnx_int8 import quantize_onnx
from albert.export.other_formats.onnx_weights import share_transposed_weights
from albert.export.served_model import ServedModel
from albert.export.signatures import TOKEN_INPUTS, portable_function
from albert.io import files

# Runs a converted model on a batch of ids.
Runner = Callable[[NamedArrays], dict[str, np.ndarray]]

# Largest accepted difference from the float32 answers of the SavedModel, see checks.largest_difference. Runtimes add
# numbers in different orders: the answers of 12 layers of 768 units with random weights differ by 1.1e-4. An error in
# the graph makes a far larger difference. Other formats than these two round the weights; how much this changes the
# answers depends on the weights.
TOLERANCE = 1e-3
_EXACT_FORMATS = (TFLITE, ONNX)
_ONNX_OPSET = 17
_FORMAT_NOTES = {
  TFLITE: "TFLite, float32",
  TFLITE_FLOAT16: "TFLite, weights stored as float16 and computed as float32",
  TFLITE_INT8: "TFLite, int8 matrices with one scale for each row, activations quantized dynamically",
  ONNX: f"ONNX, float32, opset {_ONNX_OPSET}",
  ONNX_INT8: "ONNX, int8 embeddings, int8 matrices with one scale for each column, activations quantized dynamically",
}


@dataclasses.dataclass(frozen=True)
class WrittenFormat:
  """A converted model that was written beside the SavedModel.

  Attributes:
    name: its name in `albert.export.formats.EXTRA_FORMATS`.
    num_bytes: size of its file.
    difference: largest difference of its answers to the examples from the SavedModel's (see checks.largest_difference).
    run: runs it.
  """

  name: str
  num_bytes: int
  difference: float
  run: Runner

  @property
  def note(self) -> str:
    """A line for the model card."""
    return (
      f"`{FORMAT_FILES[self.name]}`: {_FORMAT_NOTES[self.name]}, {self.num_bytes / 1e6:.1f} MB; takes ids as the "
      "signature `tokens` does and returns only numbers, which differ from the SavedModel's by at most "
      f"{self.difference:.2g} on the examples"
    )


def write_formats(
  directory: str, model: ServedModel, examples: NamedArrays, expected: Mapping[str, NamedArrays], formats: Sequence[str]
) -> list[WrittenFormat]:
  """Writes the formats beside a SavedModel and checks them on the batches of checks.id_test_batches.

  Args:
    directory: the SavedModel's directory.
    model: the model.
    examples: input_ids, input_mask and segment_ids of the examples, int32 [B, S] or [B, K, S].
    expected: the SavedModel's answers to each batch, by the name of the batch.
    formats: names of `albert.export.formats.EXTRA_FORMATS`.
  Returns: the formats in the same order.
  Raises:
    RunError: a format cannot be converted or run, or its answers differ by more than TOLERANCE. Answers of int8 and
      float16 may differ by any amount, but must be finite.
  """
  function = portable_function(model)  # traced once for all formats
  float_onnx = functools.cache(lambda: convert_to_onnx(function))
  written = []
  for name in formats:
    try:
      content = _convert(name, model, function, float_onnx)
      run = onnx_runner(content) if name in (ONNX, ONNX_INT8) else tflite_runner(content)
    except Exception as error:
      reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
      raise RunError(f"--formats={name}: the converter failed: {reason}") from error
    files.write_atomically(files.join(directory, FORMAT_FILES[name]), content)
    difference = _compare_with_saved_model(name, run, model, examples, expected)
    written.append(WrittenFormat(name, len(content), difference, run))
  return written


def _convert(name: str, model: ServedModel, function: Any, float_onnx: Callable[[], bytes]) -> bytes:
  """Converts a model to a format. `function` is its portable function, and `float_onnx` returns it as ONNX."""
  if name == ONNX:
    return share_weights(float_onnx())
  if name == ONNX_INT8:
    # The word embeddings of a masked language model become two int8 tables, which are together smaller than one float32
    # table: only the product can be quantized with a scale for each column.
    return quantize_onnx(float_onnx(), model.hidden_size**2)
  return to_tflite(function, model, name)


def _compare_with_saved_model(
  name: str, run: Runner, model: ServedModel, examples: NamedArrays, expected: Mapping[str, NamedArrays]
) -> float:
  """The largest difference from the SavedModel on the examples. Raises RunError if any batch differs by too much."""
  flag = f"--formats={name}"
  answers_by_batch = checks.run_test_batches(run, checks.id_test_batches(model, examples), function_name=flag)
  tolerance = TOLERANCE if name in _EXACT_FORMATS else np.inf
  differences = {}
  for batch_name, expected_answers in expected.items():
    # Rounded weights may change which span or option is the best, but not the number of masks.
    difference = checks.largest_difference(answers_by_batch[batch_name], expected_answers, exact=model.counted_by)
    if not difference < tolerance:  # also if the difference is NaN
      raise RunError(f"{flag}: for {batch_name}, its answers differ from the SavedModel's by {difference:.3g}")
    differences[batch_name] = difference
  return differences[checks.EXAMPLE_BATCH]


def to_tflite(function: Any, model: ServedModel, name: str = TFLITE) -> bytes:
  """Converts a function to TFLite.

  Args:
    function: a result of signatures.portable_function.
    model: the model that the function belongs to.
    name: tflite, tflite_float16 or tflite_int8.
  Returns: the content of the .tflite file.
  """
  converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], model)
  if name != TFLITE:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]  # int8 matrices, unless other types are named
  if name == TFLITE_FLOAT16:
    converter.target_spec.supported_types = [tf.float16]
  return bytes(converter.convert())


def convert_to_onnx(function: Any) -> bytes:
  """Converts a function to ONNX, in float32. Weights that are also used transposed are stored twice: see share_weights.

  Args:
    function: a result of signatures.portable_function.
  Returns: the content of the .onnx file.
  """
  import tf2onnx

  model, _ = tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=_ONNX_OPSET)
  return bytes(model.SerializeToString())


def share_weights(content: bytes) -> bytes:
  """Stores weights of an ONNX model once that are used as they are, and transposed."""
  import onnx

  model = onnx.load_from_string(content)
  share_transposed_weights(model)
  return bytes(model.SerializeToString())


def tflite_runner(model: bytes) -> Runner:
  """A function that runs a TFLite model, given as the content of its file, on all cores."""
  if importlib.util.find_spec("ai_edge_litert"):  # TensorFlow plans to remove its own interpreter
    from ai_edge_litert.interpreter import Interpreter
  else:
    Interpreter = tf.lite.Interpreter  # this name cannot be imported from tensorflow.lite
  interpreter = Interpreter(model_content=model, num_threads=os.cpu_count())
  signature = next(iter(interpreter.get_signature_list()))

  def run(inputs: NamedArrays) -> dict[str, np.ndarray]:
    for detail in interpreter.get_input_details():
      name = next(name for name in TOKEN_INPUTS if name in detail["name"])
      interpreter.resize_tensor_input(detail["index"], inputs[name].shape)
    return dict(interpreter.get_signature_runner(signature)(**inputs))

  return run


def onnx_runner(model: bytes) -> Runner:
  """A function that runs an ONNX model, given as the content of its file, on all cores."""
  import onnxruntime

  session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
  names = [output.name for output in session.get_outputs()]

  def run(inputs: NamedArrays) -> dict[str, np.ndarray]:
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))

  return run
