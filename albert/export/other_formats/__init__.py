"""Exports in other formats than SavedModel: TFLite and ONNX, also with smaller numbers."""
