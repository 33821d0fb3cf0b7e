"""Names of formats, signatures and files of an export. This module does not import TensorFlow, so `--help` is quick."""

from __future__ import annotations

TFLITE, TFLITE_INT8, ONNX = "tflite", "tflite_int8", "onnx"
EXTRA_FORMATS = (TFLITE, TFLITE_INT8, ONNX)
PRECISIONS = ("float32", "bfloat16")
TEXT_SIGNATURE, TOKENS_SIGNATURE = "serving_default", "tokens"
# The file that describes a model for programs, see albert.export.description.Description.
DESCRIPTION = "assets.extra/servable.json"
