"""The names of BERT's weights in Hugging Face's transformers, beside those of its ALBERT. Imports no TensorFlow.

A BERT is an ALBERT whose embeddings have the size of the hidden states, and whose layers share nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Module of BERT -> module of ALBERT.
_MODULES = {
  "bert.pooler.dense": "albert.pooler",
  "cls.predictions.transform.dense": "predictions.dense",
  "cls.predictions.transform.LayerNorm": "predictions.LayerNorm",
  "cls.predictions.decoder": "predictions.decoder",
  "cls.predictions": "predictions",
  "cls.seq_relationship": "sop_classifier.classifier",
  **{
    f"bert.embeddings.{name}": f"albert.embeddings.{name}"
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
  },
}
# The same for the modules of a layer.
_LAYER_MODULES = {
  "attention.self.query": "attention.query",
  "attention.self.key": "attention.key",
  "attention.self.value": "attention.value",
  "attention.output.dense": "attention.dense",
  "attention.output.LayerNorm": "attention.LayerNorm",
  "intermediate.dense": "ffn",
  "output.dense": "ffn_output",
  "output.LayerNorm": "full_layer_layer_norm",
}
_BERT_MODULES = {albert: bert for bert, albert in _MODULES.items()}
_BERT_LAYER_MODULES = {albert: bert for bert, albert in _LAYER_MODULES.items()}
_BERT_LAYER = re.compile(r"^bert\.encoder\.layer\.(\d+)\.(.+)$")
_ALBERT_LAYER = re.compile(r"^albert\.encoder\.albert_layer_groups\.(\d+)\.albert_layers\.0\.(.+)$")
_IS_BERT = re.compile(r"^(bert\.|(bert\.)?encoder\.layer\.\d+\.)")
# The names of LayerNorm's parameters in old files, such as that of bert-base-uncased.
_OLD_PARAMETERS = {"gamma": "weight", "beta": "bias"}


def has_bert_names(names: Iterable[str]) -> bool:
  """Returns whether some of the names are those of a BERT."""
  return any(map(_IS_BERT.match, names))


def from_bert(name: str) -> str:
  """Translates a name of transformers' BERT, with or without the prefix `bert.`, to its name in transformers' ALBERT.

  Args:
    name: the name of a weight. If BERT has no such weight, it is returned as it is.
  """
  full_name = f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
  module, _, parameter = full_name.rpartition(".")
  parameter = _OLD_PARAMETERS.get(parameter, parameter)
  layer = _BERT_LAYER.match(module)
  if layer and layer[2] in _LAYER_MODULES:
    return f"albert.encoder.albert_layer_groups.{layer[1]}.albert_layers.0.{_LAYER_MODULES[layer[2]]}.{parameter}"
  return f"{_MODULES[module]}.{parameter}" if module in _MODULES else name


def to_bert(name: str) -> str:
  """Translates a name of transformers' ALBERT to its name in transformers' BERT.

  Args:
    name: the name of a weight of a model whose layers have one block each and share nothing. The names of heads that
      both classes have stay the same.
  """
  module, _, parameter = name.rpartition(".")
  layer = _ALBERT_LAYER.match(module)
  if layer:
    return f"bert.encoder.layer.{layer[1]}.{_BERT_LAYER_MODULES[layer[2]]}.{parameter}"
  return f"{_BERT_MODULES[module]}.{parameter}" if module in _BERT_MODULES else name
