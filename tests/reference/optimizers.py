"""LAMB, AdamW and clipping by the global norm in NumPy float64.

The formulas are those of Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW) and You et al. 2020 (LAMB).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

Array = np.ndarray


def clip_by_global_norm(
  gradients: Mapping[str, Array], limit: float, table_squares: Mapping[str, float] | None = None
) -> dict[str, Array]:
  """Scales gradients so that the norm of all of them together is at most `limit`.

  Args:
    gradients: the gradients by name.
    limit: the greatest norm.
    table_squares: name of an embedding table -> squared norm that counts for its gradient. It is that of the sparse
      gradient: a token that occurs several times in a batch has several rows, which are not added up first.
  """
  squares = {name: (gradient.astype(np.float64) ** 2).sum() for name, gradient in gradients.items()}
  norm = np.sqrt(sum((squares | dict(table_squares or {})).values()))
  return {name: gradient * min(1.0, limit / norm) for name, gradient in gradients.items()}


class Optimizer:
  """LAMB or AdamW.

  Args:
    weights: the weights by name.
    rescale: True for LAMB, which multiplies each update by |weight| / |update|. False for AdamW.
    decay: weight decay.
    beta_1, beta_2, epsilon: as in Adam.
    bias_correction: whether the moments are corrected as in Adam.
    exclude: patterns of names of weights that are neither decayed nor rescaled.
  """

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
    exclude: tuple[str, ...] = ("LayerNorm", "layer_norm", "bias"),
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
    for name, gradient in gradients.items():
      weight = self.weights[name]
      self.m[name] = self.beta_1 * self.m[name] + (1 - self.beta_1) * gradient
      self.v[name] = self.beta_2 * self.v[name] + (1 - self.beta_2) * gradient**2
      m, v = self.m[name], self.v[name]
      if self.bias_correction:
        m, v = m / (1 - self.beta_1**self.steps), v / (1 - self.beta_2**self.steps)
      update = m / (np.sqrt(v) + self.epsilon)
      trust_ratio = 1.0
      if not any(re.search(pattern, name) for pattern in self.exclude):
        update = update + self.decay * weight
        weight_norm, update_norm = np.linalg.norm(weight), np.linalg.norm(update)
        if self.rescale and weight_norm > 0 and update_norm > 0:
          trust_ratio = float(weight_norm / update_norm)
      self.weights[name] = weight - learning_rate * trust_ratio * update
