"""Converts a model to TFLite (LiteRT) and ONNX, also with int8, and compares the answers with the SavedModel's.

The converted models take ids, not text, and return only answers that are numbers.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert.errors import RunError
from albert.export import checks
from albert.export.checks import Candidate, Runner
from albert.export.companion_files import NamedArrays
from albert.export.registry import FORMAT_FILES, ONNX, ONNX_INT8, TFLITE, TFLITE_FLOAT16, TFLITE_INT8
from albert.export.served_model import TOKEN_INPUTS, ServedModel, portable_function
from albert.io import files

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


def write_formats(
  directory: str, model: ServedModel, examples: NamedArrays, expected: Mapping[str, NamedArrays], formats: Sequence[str]
) -> list[Candidate]:
  """Writes the formats beside a SavedModel and checks them on the batches of checks.id_test_batches.

  Args:
    directory: the SavedModel's directory.
    model: the model.
    examples: input_ids, input_mask and segment_ids of the examples, int32 [B, S] or [B, K, S].
    expected: the SavedModel's answers to each batch, by the name of the batch.
    formats: names of `albert.export.registry.EXTRA_FORMATS`.
  Returns: the formats in the same order.
  Raises:
    RunError: a format cannot be converted or run, or its answers differ by more than TOLERANCE. Answers of int8 and
      float16 may differ by any amount, but must be finite.
  """
  function = portable_function(model)  # traced once for all formats
  float_onnx = functools.cache(lambda: convert_to_onnx(function))
  # The word embeddings of a masked language model become two int8 tables, which are together smaller than one float32
  # table: only the product can be quantized with a scale for each column.
  converters: dict[str, Callable[[], bytes]] = {
    ONNX: lambda: share_weights(float_onnx()),
    ONNX_INT8: lambda: quantize_onnx(float_onnx(), model.hidden_size**2),
  }
  written = []
  for name in formats:
    flag = f"--formats={name}"
    try:
      content = converters[name]() if name in converters else to_tflite(function, model, name)
      run = onnx_runner(content) if name in converters else tflite_runner(content)
    except Exception as error:
      reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
      raise RunError(f"{flag}: the converter failed: {reason}") from error
    files.write_atomically(files.join(directory, FORMAT_FILES[name]), content)
    answers_by_batch = checks.run_test_batches(run, checks.id_test_batches(model, examples), function_name=flag)
    tolerance = TOLERANCE if name in _EXACT_FORMATS else np.inf
    differences = {}
    for batch_name, expected_answers in expected.items():
      # Rounded weights may change which span or option is the best, but not the number of masks.
      difference = checks.largest_difference(answers_by_batch[batch_name], expected_answers, exact=model.counted_by)
      if not difference < tolerance:  # also if the difference is NaN
        raise RunError(f"{flag}: for {batch_name}, its answers differ from the SavedModel's by {difference:.3g}")
      differences[batch_name] = difference
    note = (
      f"`{FORMAT_FILES[name]}`: {_FORMAT_NOTES[name]}, {len(content) / 1e6:.1f} MB; takes ids as the signature "
      "`tokens` does and returns only numbers, which differ from the SavedModel's by at most "
      f"{differences[checks.EXAMPLE_BATCH]:.2g} on the examples"
    )
    written.append(Candidate(name, len(content), run, note))
  return written


def to_tflite(function: Any, model: ServedModel, name: str = TFLITE) -> bytes:
  """Converts a function to TFLite.

  Args:
    function: a result of served_model.portable_function.
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
    function: a result of served_model.portable_function.
  Returns: the content of the .onnx file.
  """
  import tf2onnx

  model, _ = tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=_ONNX_OPSET)
  return bytes(model.SerializeToString())


def share_weights(content: bytes) -> bytes:
  """Stores a table of an ONNX model once if the model looks it up, and also multiplies by the transposed table.

  tf2onnx transposes constants when it converts `tf.matmul(x, w, transpose_b=True)`. The masked language model
  multiplies by the word embeddings, which it also looks up, so its file would hold its largest weight twice. The
  product becomes a Gemm with transB, which multiplies matrices only; that of the masked language model is one.
  """
  import onnx

  model = onnx.load_from_string(content)
  graph = model.graph
  matrices = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer if len(tensor.dims) == 2}
  tables = {node.input[0] for node in graph.node if node.op_type == "Gather"} & matrices.keys()
  table_of = {
    name: table
    for name, matrix in matrices.items()
    for table in tables
    if name != table and np.array_equal(matrix, matrices[table].T)
  }
  for node in graph.node:
    if node.op_type == "MatMul" and node.input[1] in table_of:
      node.op_type, node.input[1] = "Gemm", table_of[node.input[1]]
      node.attribute.append(onnx.helper.make_attribute("transB", 1))
  kept = [tensor for tensor in graph.initializer if tensor.name not in table_of]
  del graph.initializer[:]
  graph.initializer.extend(kept)
  return bytes(model.SerializeToString())


def quantize_onnx(content: bytes, min_elements: int) -> bytes:
  """Quantizes the large matrices and the embedding tables of an ONNX model.

  A matrix gets one scale for each of its columns, an embedding table one scale. The activations of a product are
  quantized when it is computed, with one scale for the whole batch. benchmarks/results/quantization_2026-11-23.md
  compares these settings with others.

  Args:
    content: a float32 model, the content of the .onnx file.
    min_elements: smaller matrices and tables stay float32. For H x H, the square of the hidden size, these are the
      embedding projection, which is the most sensitive matrix, and most heads.
  Returns: the content of the .onnx file of the quantized model.
  """
  import onnx
  from onnxruntime.quantization import QuantType, quantize_dynamic
  from onnxruntime.quantization.quant_utils import add_pre_process_metadata

  model = onnx.load_from_string(content)
  large = {tensor.name for tensor in model.graph.initializer if np.prod(tensor.dims) >= min_elements}
  products = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in large]
  # A table that is also used in another way stays float32, so that the file holds it only once.
  large -= {name for node in model.graph.node if node.op_type != "Gather" for name in node.input}
  lookups = [node for node in model.graph.node if node.op_type == "Gather" and node.input[0] in large]
  if not products + lookups:
    return content
  add_pre_process_metadata(model)  # without it, quantize_dynamic logs a warning
  logger = logging.getLogger()
  level = logger.level
  logger.setLevel(logging.ERROR)  # quantize_dynamic warns of tensors that it ignores
  try:
    with tempfile.TemporaryDirectory() as directory:
      float_path, path = (os.path.join(directory, name) for name in ("float32.onnx", "int8.onnx"))
      onnx.save(model, float_path)
      quantize_dynamic(
        float_path,
        path,
        op_types_to_quantize=["MatMul", "Gather"],
        nodes_to_quantize=[node.name for node in products + lookups],
        per_channel=True,
        # The kernels for processors with AVX2 and without VNNI add two products of 8 bits each in 16 bits, and
        # saturate. With weights of 7 bits the sum fits.
        reduce_range=True,
        weight_type=QuantType.QInt8,
      )
      with open(path, "rb") as file:
        return file.read()
  finally:
    logger.setLevel(level)


def tflite_runner(model: bytes) -> Runner:
  """A function that runs a TFLite model, given as the content of its file, on all cores."""
  if importlib.util.find_spec("ai_edge_litert"):  # TensorFlow plans to remove its own interpreter
    from ai_edge_litert.interpreter import Interpreter
  else:
    Interpreter = tf.lite.Interpreter  # this name cannot be imported from tensorflow.lite
  with open(os.devnull, "wb") as null, open(os.dup(2), "wb") as stderr:
    os.dup2(null.fileno(), 2)
    try:
      interpreter = Interpreter(model_content=model, num_threads=os.cpu_count())  # warns that it will be removed
      interpreter.allocate_tensors()  # prints a line about XNNPACK, its kernels
    finally:
      os.dup2(stderr.fileno(), 2)
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
