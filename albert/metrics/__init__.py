"""Metrics of classification, regression, tagging and probabilities (NumPy arrays), and of SQuAD (strings)."""
