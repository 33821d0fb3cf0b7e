"""Weights in files: variable names, checkpoints, and the formats of other libraries."""
