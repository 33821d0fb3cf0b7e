"""The perplexity of a language model."""

from __future__ import annotations

import math


def perplexity(loss: float) -> float:
  """Returns exp(loss). A model that guesses among n tokens has perplexity n.

  Args:
    loss: mean cross entropy of a token, in nats. NaN gives NaN.
  Returns: the perplexity; infinity if it overflows.

  Example:
    >>> perplexity(0.0)
    1.0
  """
  try:
    return math.exp(loss)
  except OverflowError:
    return math.inf
