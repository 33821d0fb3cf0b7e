"""Names of formats, signatures and files of an export. This module does not import TensorFlow, so `--help` is quick."""

from __future__ import annotations

TFLITE, TFLITE_FLOAT16, TFLITE_INT8 = "tflite", "tflite_float16", "tflite_int8"
ONNX, ONNX_INT8 = "onnx", "onnx_int8"
EXTRA_FORMATS = (TFLITE, TFLITE_FLOAT16, TFLITE_INT8, ONNX, ONNX_INT8)
# The format -> its file beside the SavedModel.
FORMAT_FILES = {
  TFLITE: "model.tflite",
  TFLITE_FLOAT16: "model_float16.tflite",
  TFLITE_INT8: "model_int8.tflite",
  ONNX: "model.onnx",
  ONNX_INT8: "model_int8.onnx",
}
PRECISIONS = ("float32", "bfloat16")
TEXT_SIGNATURE, TOKENS_SIGNATURE = "serving_default", "tokens"
# The file that describes a model for programs, see albert.export.companion_files.description.Description.
DESCRIPTION = "assets.extra/servable.json"
