"""Metrics: plain functions over NumPy arrays and strings."""
