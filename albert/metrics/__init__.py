"""Metrics: functions of NumPy arrays (GLUE) and of strings (SQuAD)."""
