"""Stacking: the upper layers of a network get the weights of its lower layers (Gong et al. 2019).

Layers that share their weights need no stacking: a deeper network applies the same weights more often.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from albert.config.model import ModelConfig
from albert.weights.names import GROUP_PATTERN

_ATTENTION_PATTERN = re.compile(r"/(attention_1|LayerNorm)/")


def stacked_sources(names: Iterable[str], config: ModelConfig, depth: int) -> dict[str, str]:
  """Finds the weights that layers above `depth` get from the layers below it.

  Layer i >= depth gets the weights of layer i mod depth. If layers share either the attention or the feed-forward
  network, only the weights that are not shared are copied.

  Args:
    names: names of weights, or of weights and moments, as checkpoints have them.
    config: the model with all its layers.
    depth: number of layers to copy from.
  Returns: name of a weight or moment of a layer above `depth` -> name of the one that is copied to it.
  """
  sources = {}
  for name in names:
    match = GROUP_PATTERN.search(name)
    if match is None:
      continue
    part = "attention" if _ATTENTION_PATTERN.search(name) else "ffn"
    layer = int(match.group(1))
    if config.sharing not in ("all", part) and layer >= depth:
      sources[name] = GROUP_PATTERN.sub(f"/group_{layer % depth}/", name, count=1)
  return sources
