"""What can be exported besides a SavedModel. No TensorFlow, so that `--help` is quick."""

from __future__ import annotations

TFLITE, TFLITE_INT8, ONNX = "tflite", "tflite_int8", "onnx"
EXTRA_FORMATS = (TFLITE, TFLITE_INT8, ONNX)
PRECISIONS = ("float32", "bfloat16")
