"""Names in an export, and what can be exported besides a SavedModel. No TensorFlow, so that `--help` is quick."""

from __future__ import annotations

TFLITE, TFLITE_INT8, ONNX = "tflite", "tflite_int8", "onnx"
EXTRA_FORMATS = (TFLITE, TFLITE_INT8, ONNX)
PRECISIONS = ("float32", "bfloat16")
TEXT_SIGNATURE, TOKENS_SIGNATURE = "serving_default", "tokens"
# What a program that calls the model must know (see description.Description).
DESCRIPTION = "assets.extra/servable.json"
