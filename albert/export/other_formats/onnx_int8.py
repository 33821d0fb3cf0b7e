"""Quantizes an ONNX model to int8, with onnxruntime's dynamic quantization.

benchmarks/results/quantization_2026-11-23.md compares these settings with others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import onnx


def quantize_onnx(content: bytes, min_elements: int) -> bytes:
  """Quantizes the large matrices and the embedding tables of an ONNX model.

  A matrix gets one scale for each of its columns, an embedding table one scale. The activations of a product are
  quantized when it is computed, with one scale for the whole batch.

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
  nodes = _nodes_to_quantize(model, min_elements)
  if not nodes:
    return content
  add_pre_process_metadata(model)  # without it, quantize_dynamic logs a warning
  with tempfile.TemporaryDirectory() as directory, _without_warnings():
    float_path, path = (os.path.join(directory, name) for name in ("float32.onnx", "int8.onnx"))
    onnx.save(model, float_path)
    quantize_dynamic(
      float_path,
      path,
      op_types_to_quantize=["MatMul", "Gather"],
      nodes_to_quantize=nodes,
      per_channel=True,
      # The kernels for processors with AVX2 and without VNNI add two products of 8 bits each in 16 bits, and saturate.
      # With weights of 7 bits the sum fits.
      reduce_range=True,
      weight_type=QuantType.QInt8,
    )
    with open(path, "rb") as file:
      return file.read()


def _nodes_to_quantize(model: onnx.ModelProto, min_elements: int) -> list[str]:
  """The names of the products with a constant matrix, and of the lookups in a constant table, that are large enough.

  A table that is also used in another way stays float32, so that the file holds it only once.
  """
  large = {tensor.name for tensor in model.graph.initializer if np.prod(tensor.dims) >= min_elements}
  products = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in large]
  lookups = [node for node in model.graph.node if node.op_type == "Gather" and node.input[0] in large]
  used_otherwise = {name for node in model.graph.node if node.op_type != "Gather" for name in node.input}
  return [node.name for node in (*products, *(node for node in lookups if node.input[0] not in used_otherwise))]


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
  """Within this context, the root logger prints only errors: quantize_dynamic warns of tensors that it ignores."""
  logger = logging.getLogger()
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(level)
