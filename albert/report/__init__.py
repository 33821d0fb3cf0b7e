"""Writes an HTML page about one or more runs (`python -m albert.report --help`). It does not import TensorFlow."""
