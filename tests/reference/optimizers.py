"""LAMB, AdamW and the clip of the global norm in NumPy float64, from the formulas of the papers:

Kingma and Ba 2015 (Adam); Loshchilov and Hutter 2019 (AdamW); You et al. 2020 (LAMB).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

Array = np.ndarray


def clip_by_global_norm(
  gradients: Mapping[str, Array], limit: float, row_squares: Mapping[str, float] | None = None
) -> dict[str, Array]:
  """Scales gradients so that the norm of all of them together is at most `limit`.

  Args:
    gradients: the gradients by name.
    limit: the greatest norm.
    row_squares: for some tables, the sum of the squares of the gradient's rows, one for each token. It takes the place
      of the squared norm of the table's gradient, in which rows of the same token are added up.
  """
  rows = row_squares or {}
  norm = np.sqrt(sum(rows.get(name, (g.astype(np.float64) ** 2).sum()) for name, g in gradients.items()))
  return {name: g * min(1.0, limit / norm) for name, g in gradients.items()}


class Optimizer:
  """LAMB, or AdamW with `rescale` False. Names that match `exclude` are neither decayed nor rescaled."""

  def __init__(
    self,
    weights: Mapping[str, Array],
    *,
    rescale: bool,
    decay: float = 0.01,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    bias_correction: bool = False,
    exclude: tuple[str, ...] = ("LayerNorm", "bias"),
  ):
    self.weights = {name: np.asarray(w, np.float64) for name, w in weights.items()}
    self.rescale, self.decay, self.epsilon = rescale, decay, epsilon
    self.beta_1, self.beta_2 = beta_1, beta_2
    self.bias_correction, self.exclude = bias_correction, exclude
    self.m = {name: np.zeros_like(w) for name, w in self.weights.items()}
    self.v = {name: np.zeros_like(w) for name, w in self.weights.items()}
    self.steps = 0

  def step(self, gradients: Mapping[str, Array], learning_rate: float) -> None:
    """Updates `weights` once."""
    self.steps += 1
    for name, g in gradients.items():
      w = self.weights[name]
      self.m[name] = self.beta_1 * self.m[name] + (1 - self.beta_1) * g
      self.v[name] = self.beta_2 * self.v[name] + (1 - self.beta_2) * g**2
      m, v = self.m[name], self.v[name]
      if self.bias_correction:
        m, v = m / (1 - self.beta_1**self.steps), v / (1 - self.beta_2**self.steps)
      update = m / (np.sqrt(v) + self.epsilon)
      ratio = 1.0
      if not any(re.search(pattern, name) for pattern in self.exclude):
        update = update + self.decay * w
        norms = np.linalg.norm(w), np.linalg.norm(update)
        if self.rescale and min(norms) > 0:
          ratio = norms[0] / norms[1]
      self.weights[name] = w - learning_rate * ratio * update
