"""LAMB and AdamW as ALBERT's original code computes them, and the learning-rate schedule."""
