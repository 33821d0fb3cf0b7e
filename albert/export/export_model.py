"""Exports one model: selects its form, builds and checks it, writes it to a staging directory, and renames that one."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from albert.errors import RunError, UserError
from albert.export import checks, companion_files, other_formats, registry
from albert.export.checkpoint import ExportCheckpoint, FoundCheckpoint, SelectedForm, open_checkpoint, select_form
from albert.export.checks import QualityCheck, array_function
from albert.export.companion_files import NamedArrays, text_inputs
from albert.export.registry import TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.export.served_model import ServedModel, text_function, token_inputs, tokens_function
from albert.io import files, local_files
from albert.io.progress import log
from albert.io.protobuf import encode_bytes_field
from albert.runs import output_files
from albert.tokenization.vocabulary import read_vocabulary_files

LABELS = "labels.txt"
# Where TensorFlow Serving looks for the requests that it runs when it loads a model.
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
# The ops that an exported graph may contain: ops of TensorFlow itself, and tensorflow-text's ops of tokenizers. The
# standard server of TensorFlow Serving contains the kernels of both (`SUPPORTED_TENSORFLOW_OPS` in its
# model_servers/BUILD). Every op is listed by name, so an export fails if a newer TensorFlow writes an op into the graph
# that older servers do not have.
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


def export_model(
  checkpoint: str | FoundCheckpoint,
  output_dir: str,
  *,
  task: str = "",
  name: str = "",
  version: int = 0,
  settings: Mapping[str, Any] | None = None,
  precision: str = "float32",
  top_k: int = 5,
  formats: tuple[str, ...] = (),
  eval_file: str = "",
  max_metric_drop: float | None = None,
) -> str:
  """Writes a SavedModel to output_dir/name/version.

  All files are written to a staging directory, which is renamed when they are complete and checked. A server that
  watches `output_dir/name` never sees an incomplete model.

  Args:
    checkpoint: the result of `albert.export.checkpoint.find_checkpoint`, or a path that it takes.
    output_dir: directory of all models.
    task: the form in which the model is served, a name of `albert.export.registry.FORMS`; "" for the form that fits
      the task of the run.
    name: name of the model; "" for the name of the form.
    version: a version number that does not exist yet; 0 for the greatest existing version plus one.
    settings: values by name for fields of the task's config and for the text settings. They replace the run's values.
    precision: dtype of the encoder's matrices and their products, float32 or bfloat16.
    top_k: number of candidates for each mask.
    formats: names of `albert.export.registry.EXTRA_FORMATS` to write besides the SavedModel.
    eval_file: data in the format that the evaluation of the task reads. On it, the metric of each exported model is
      compared with the metric of the float32 model. "" to measure nothing.
    max_metric_drop: the largest accepted drop of the metric; None for 0.01, or 1.0 if the metric is in percent.
  Returns: the directory of the new version.
  Raises:
    UserError: an argument is wrong, the checkpoint cannot be served in this form, the version exists, the metric drops
      by too much, or eval_file cannot be read.
    RunError: the model fails for a request of `albert.export.checks`, a converter cannot write a format, the
      answers of a format differ from the SavedModel's, or writing fails.
  """
  registry.check_formats(formats, precision)
  registry.check_evaluation(eval_file, max_metric_drop)
  opened_checkpoint = open_checkpoint(checkpoint)
  form = select_form(opened_checkpoint, task, settings or {})
  form = dataclasses.replace(form, precision=precision, top_k=top_k)
  name = name or form.name
  target = registry.version_directory(output_dir, name, version)
  output_files.check_writable(os.path.dirname(target))
  quality_check = QualityCheck(form, opened_checkpoint, eval_file, max_metric_drop) if eval_file else None
  log(f"exporting {opened_checkpoint.file.path} as {form.name} to {target}")
  model = form.model_class(opened_checkpoint, form)
  files.remove_leftovers(os.path.dirname(target))
  staging = files.staging_path(target)
  try:
    with files.convert_errors(target):  # errors of TensorFlow name the target instead of the staging directory
      _write_model(staging, name, opened_checkpoint, form, model, formats, quality_check)
    local_files.sync_tree(staging)
    return _rename_staging(staging, target, output_dir, name, version)
  except BaseException:
    files.discard(staging)
    raise


def _rename_staging(staging: str, target: str, output_dir: str, name: str, version: int) -> str:
  """Renames the staging directory to `target`, or to the next version if another process has created `target`."""
  while True:
    try:
      if not files.exists(target):
        files.replace(staging, target)
        return target
    except (UserError, RunError):
      if not files.exists(target):
        raise
    target = registry.version_directory(output_dir, name, version)


def _write_model(
  directory: str,
  name: str,
  checkpoint: ExportCheckpoint,
  form: SelectedForm,
  model: ServedModel,
  formats: tuple[str, ...],
  quality_check: QualityCheck | None,
) -> None:
  """Checks the model and writes all files of a version to `directory`."""
  functions = {TEXT_SIGNATURE: text_function(model), TOKENS_SIGNATURE: tokens_function(model)}
  requests = model.examples()
  texts = text_inputs(model.fields, requests)
  inputs = {TEXT_SIGNATURE: texts, TOKENS_SIGNATURE: token_inputs(model, texts)}
  answers_by_batch = checks.check_signatures(functions, model, inputs)
  contents = read_vocabulary_files(checkpoint.vocabulary)
  if model.labels:
    contents[LABELS] = "".join(f"{label}\n" for label in model.labels).encode()
  with tempfile.TemporaryDirectory() as assets_dir:
    for asset, content in contents.items():
      files.write_atomically(os.path.join(assets_dir, asset), content)
    model.assets = [tf.saved_model.Asset(os.path.join(assets_dir, asset)) for asset in contents]
    tf.saved_model.save(model, directory, signatures=functions)
  if unknown_ops := sorted(graph_ops(directory) - ALLOWED_OPS):
    raise RunError(
      f"{directory}: the graph has {', '.join(unknown_ops)}, which TensorFlow Serving may not support: export with the "
      "TensorFlow that constraints/default.txt pins, or add the op to ALLOWED_OPS in albert/export/export_model.py if "
      "the server supports it"
    )
  _write_warmup(directory, name, inputs)
  answers = {signature: array_function(function)(inputs[signature]) for signature, function in functions.items()}
  companion_files.write_examples(directory, inputs, answers)
  if formats:
    log(f"converting it to {', '.join(formats)}")
  written_formats = other_formats.write_formats(directory, model, inputs[TOKENS_SIGNATURE], answers_by_batch, formats)
  description = companion_files.describe_model(name, form, model, checkpoint)
  if quality_check:
    log(f"measuring the quality on {quality_check.eval_file}")
    description["quality"] = quality_check.run(directory, functions[TOKENS_SIGNATURE], written_formats)
  with_hashes = companion_files.add_hashes(directory, description)
  files.write_json(files.join(directory, companion_files.DESCRIPTION), with_hashes)
  first_inputs = text_inputs(model.fields, requests[:1])
  example = (first_inputs, array_function(functions[TEXT_SIGNATURE])(first_inputs))
  notes = [written.note for written in written_formats]
  card = companion_files.format_model_card(description, model, checkpoint, example, notes)
  files.write_atomically(files.join(directory, "README.md"), card)


def graph_ops(directory: str) -> set[str]:
  """The names of all ops in a SavedModel, including the ops inside its functions."""
  model = saved_model_pb2.SavedModel()
  model.ParseFromString(files.read(os.path.join(directory, "saved_model.pb")))
  ops = set()
  for meta_graph in model.meta_graphs:
    ops |= {node.op for node in meta_graph.graph_def.node}
    ops |= {node.op for function in meta_graph.graph_def.library.function for node in function.node_def}
    ops -= {function.signature.name for function in meta_graph.graph_def.library.function}
  return ops


def _write_warmup(directory: str, model_name: str, inputs: Mapping[str, NamedArrays]) -> None:
  """Writes a request to each signature to WARMUP_FILE, a TFRecord file of TensorFlow Serving's PredictionLog.

  The message PredictionLog { predict_log: PredictLog { request: PredictRequest { model_spec, inputs } } } is encoded
  here field by field, because the package tensorflow-serving-api depends on a TensorFlow version of its own. The field
  numbers are those of TensorFlow Serving's prediction_log.proto, predict.proto and model.proto.
  """
  path = tf.io.gfile.join(directory, WARMUP_FILE)
  tf.io.gfile.makedirs(os.path.dirname(path))
  with tf.io.TFRecordWriter(path) as writer:
    for signature, values in inputs.items():
      model_spec = encode_bytes_field(1, model_name.encode())  # ModelSpec.name
      model_spec += encode_bytes_field(3, signature.encode())  # ModelSpec.signature_name
      predict_request = encode_bytes_field(1, model_spec)  # PredictRequest.model_spec
      for name, value in values.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        map_entry = encode_bytes_field(1, name.encode()) + encode_bytes_field(2, tensor)
        predict_request += encode_bytes_field(2, map_entry)  # PredictRequest.inputs
      predict_log = encode_bytes_field(1, predict_request)  # PredictLog.request
      writer.write(encode_bytes_field(6, predict_log))  # PredictionLog.predict_log
