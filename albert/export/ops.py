"""The ops that an exported graph may contain: ops of TensorFlow itself, and tensorflow-text's ops of tokenizers.

The standard server of TensorFlow Serving contains the kernels of both (`SUPPORTED_TENSORFLOW_OPS` in its
model_servers/BUILD). Every op is listed by name, so an export fails if a newer TensorFlow writes an op into the graph
that older servers do not have.
"""

from __future__ import annotations

import os

from tensorflow.core.protobuf import saved_model_pb2

from albert.errors import RunError
from albert.io import files

ALLOWED_OPS = frozenset({
  "AddV2", "All", "Any", "ArgMax", "Assert", "AssignVariableOp", "BatchMatMulV2", "BiasAdd", "BroadcastTo", "Cast",
  "ConcatV2", "Const", "Cumsum", "DecodeRaw", "DenseBincount", "DisableCopyOnRead", "Equal", "Erf", "Exp",
  "ExpandDims", "FastWordpieceTokenizeWithOffsets", "Fill", "FloorDiv", "FloorMod", "GatherNd", "GatherV2", "Greater",
  "GreaterEqual", "Identity", "If", "Less", "LessEqual", "LogSoftmax", "LogicalAnd", "LogicalNot", "LogicalOr",
  "LowerBound", "MatMul", "Max", "Maximum", "Mean", "MergeV2Checkpoints", "Minimum", "Mul", "Neg", "NoOp", "NotEqual",
  "OnesLike", "Pack", "Pad", "PadV2", "PartitionedCall", "Placeholder", "Prod", "RaggedGather", "RaggedRange",
  "RaggedTensorToTensor", "Range", "ReadVariableOp", "RealDiv", "ReduceJoin", "Relu", "Reshape", "ResourceGather",
  "RestoreV2", "Rsqrt", "SaveV2", "ScatterNd", "Select", "SelectV2", "SentencepieceOp", "SentencepieceTokenizeOp",
  "SentencepieceTokenizeWithOffsetsOp", "Shape", "ShardedFilename", "Sigmoid", "Size", "Softmax", "Square", "Squeeze",
  "StatefulPartitionedCall", "StatelessIf", "StatelessWhile", "StaticRegexFullMatch", "StaticRegexReplace",
  "StridedSlice", "StringJoin", "StringLength", "StringSplitV2", "Sub", "Substr", "Sum", "Tanh",
  "TensorListFromTensor", "TensorListGetItem", "TensorListReserve", "TensorListSetItem", "TensorListStack",
  "TensorScatterUpdate", "Tile", "TopKV2", "Transpose", "UnicodeDecode", "UnicodeEncode", "UnicodeTranscode",
  "Unique", "Unpack", "UnsortedSegmentJoin", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentSum",
  "UpperBound", "VarHandleOp", "VarIsInitializedOp", "Where", "While", "ZerosLike",
})  # fmt: skip


def graph_ops(directory: str) -> set[str]:
  """The names of all ops in a SavedModel, including the ops inside its functions.

  Args:
    directory: the SavedModel's directory.
  """
  model = saved_model_pb2.SavedModel()
  with files.open_file(os.path.join(directory, "saved_model.pb")) as file:
    model.ParseFromString(file.read())
  ops = set()
  for meta_graph in model.meta_graphs:
    ops |= {node.op for node in meta_graph.graph_def.node}
    ops |= {node.op for function in meta_graph.graph_def.library.function for node in function.node_def}
    ops -= {function.signature.name for function in meta_graph.graph_def.library.function}
  return ops


def check_ops(directory: str) -> None:
  """Checks that a SavedModel contains only ALLOWED_OPS.

  Args:
    directory: the SavedModel's directory.
  Raises:
    RunError: the graph has another op.
  """
  unknown = sorted(graph_ops(directory) - ALLOWED_OPS)
  if unknown:
    raise RunError(
      f"{directory}: the graph has {', '.join(unknown)}, which TensorFlow Serving may not support: export "
      "with the TensorFlow that constraints/default.txt pins, or add the op to ALLOWED_OPS in albert/export/ops.py if "
      "the server supports it"
    )
