"""Exports models for serving: SavedModels that take text, TFLite and ONNX (`python -m albert.export --help`)."""
