"""Stores a weight once in an ONNX graph that uses it twice: as it is, and transposed.

tf2onnx transposes constants when it converts `tf.matmul(x, w, transpose_b=True)`. The masked language model multiplies
by the word embeddings, which it also looks up, so its file would hold the largest weight of the model twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Smaller weights are left alone.
_MIN_WEIGHT_BYTES = 1 << 16


def share_transposed_weights(model: Any) -> int:
  """Removes weights that are another weight transposed: a product with such a weight becomes a Gemm with transB.

  Gemm multiplies matrices only, so products of tensors of other ranks are left alone.

  Args:
    model: an onnx.ModelProto, which is changed.

  Returns:
    The number of weights that were removed.
  """
  import onnx

  graph = model.graph
  original_of = _transposed_weights(graph)
  if not original_of:
    return 0
  inferred = onnx.shape_inference.infer_shapes(model).graph
  matrix_names = {value.name for value in inferred.value_info if len(value.type.tensor_type.shape.dim) == 2}
  removed_names = set()
  for name, original in original_of.items():
    users = [node for node in graph.node if name in node.input]
    if original in removed_names or not all(_multiplies_matrix(node, name, matrix_names) for node in users):
      continue
    for node in users:
      node.op_type = "Gemm"
      node.input[1] = original
      node.attribute.append(onnx.helper.make_attribute("transB", 1))
    removed_names.add(name)
  for index in reversed(range(len(graph.initializer))):
    if graph.initializer[index].name in removed_names:
      del graph.initializer[index]
  return len(removed_names)


def _transposed_weights(graph: Any) -> dict[str, str]:
  """Finds pairs of large float32 matrices of which one is the other transposed: the name of each -> the other name."""
  import onnx

  weights = {
    tensor.name: onnx.numpy_helper.to_array(tensor)
    for tensor in graph.initializer
    if tensor.data_type == onnx.TensorProto.FLOAT
    and len(tensor.dims) == 2
    and 4 * np.prod(tensor.dims) >= _MIN_WEIGHT_BYTES
  }
  return {
    name: other
    for name, weight in weights.items()
    for other, other_weight in weights.items()
    if name != other and weight.shape == other_weight.shape[::-1] and np.array_equal(weight, other_weight.T)
  }


def _multiplies_matrix(node: Any, weight_name: str, matrix_names: set[str]) -> bool:
  """Whether a node multiplies one of the named matrices by the named weight."""
  return bool(node.op_type == "MatMul" and node.input[0] in matrix_names and node.input[1] == weight_name)
