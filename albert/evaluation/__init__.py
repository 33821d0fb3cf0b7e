"""Evaluation of one model (evaluator.py), and of several as one (ensemble.py)."""
