"""Layer-wise learning-rate decay: lower layers get smaller learning rates (Howard and Ruder 2018, section 3.2)."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence

from albert.errors import UserError
from albert.weights.names import GROUP_PATTERN

# Finite float32 numbers are below 2**128.
_MAX_FLOAT32_EXPONENT = 128
# Prefixes of the weights below the layers: the embeddings and their projection.
_EMBEDDING_PREFIXES = ("bert/embeddings/", "bert/encoder/embedding_hidden_mapping_in/")


def layerwise_factors(names: Iterable[str], decay: float) -> dict[str, float]:
  """Computes the factor of each weight's learning rate.

  Layers that share weights have one factor. With G groups of layers, the embeddings get decay ** (G + 1), group g
  (from 0) gets decay ** (G - g), and the pooler and the heads get 1. If the layers share only their attention or only
  their feed-forward network, G is the number of layers, and shared weights get the factor of their uppermost layer.

  Args:
    names: names of the weights in the original's checkpoints.
    decay: ratio of the factor of a group to the factor of the group above it.

  Returns:
    Name -> factor.

  Raises:
    UserError: the factor of the embeddings overflows float32.
  """
  depths = _depths(list(names))
  # The exponent of the embeddings.
  max_exponent = 1 + max((depth for depth in depths.values() if depth is not None), default=0)
  if decay > 1 and max_exponent * math.log2(decay) >= _MAX_FLOAT32_EXPONENT:
    raise UserError(
      f"--layerwise_learning_rate_decay={decay:g}: its power {max_exponent}, the factor of the lowest layers, "
      "overflows float32: give a smaller value (1 for no decay)"
    )
  return {name: 1.0 if depth is None else decay ** (max_exponent - depth) for name, depth in depths.items()}


def _depths(names: Sequence[str]) -> dict[str, int | None]:
  """Name -> 0 for the embeddings, g + 1 for weights up to group g of G, and None for weights above the layers."""
  depths: dict[str, int | None] = {name: 0 if name.startswith(_EMBEDDING_PREFIXES) else None for name in names}
  matches = {name: match for name in names if (match := GROUP_PATTERN.search(name))}
  # The number of sets of each weight: G, or fewer if groups share it.
  num_sets = collections.Counter(GROUP_PATTERN.sub("/", name) for name in matches)
  for name, match in matches.items():
    # Layer i of L uses set floor(i * sets / L) of the weight, so the uppermost layer of a set is found by rounding up.
    next_set = int(match.group(1)) + 1
    depths[name] = math.ceil(next_set * max(num_sets.values()) / num_sets[GROUP_PATTERN.sub("/", name)])
  return depths
