"""Metrics of GLUE (functions of NumPy arrays) and of SQuAD (functions of strings)."""
