"""LAMB and AdamW as in ALBERT's original code, the learning-rate schedule, and gradient clipping."""
