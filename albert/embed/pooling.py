"""How the states of a text's tokens become one embedding."""

from __future__ import annotations

# The mean of the last layer over all tokens; the output of the pooler at [CLS].
MEAN, POOLED = "mean", "pooled"
POOLINGS = (MEAN, POOLED)
