"""Layer-wise decay of the learning rate: the lower a layer, the slower it learns (Howard and Ruder 2018)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from albert.errors import UserError

_GROUP = re.compile(r"/group_(\d+)/")
# Finite float32 numbers are below 2**128.
_FLOAT32_EXPONENT = 128
_BOTTOM = ("bert/embeddings/", "bert/encoder/embedding_hidden_mapping_in/")


def layerwise_factors(names: Iterable[str], decay: float) -> dict[str, float]:
  """Factor of the learning rate of each weight.

  Layers that share their weights are one: with G groups the embeddings get decay ** (G + 1), group g
  (from 0) gets decay ** (G - g), and the pooler and the heads 1.

  Args:
    names: the weights by the original's names.
    decay: factor from one group to the one below it.
  Raises:
    UserError: the factor of the lowest layers overflows float32.
  """
  depths = {name: _depth(name) for name in names}
  top = 2 + max((depth for depth in depths.values() if depth is not None), default=0)
  if decay > 1 and (top - 1) * math.log2(decay) >= _FLOAT32_EXPONENT:
    raise UserError(
      f"--layerwise_learning_rate_decay={decay:g}: its power {top - 1}, the factor of the lowest layers, overflows "
      "float32: give a smaller one (1: no decay)"
    )
  return {name: 1.0 if depth is None else decay ** (top - 1 - depth) for name, depth in depths.items()}


def _depth(name: str) -> int | None:
  if name.startswith(_BOTTOM):
    return 0
  match = _GROUP.search(name)
  return int(match.group(1)) + 1 if match else None
