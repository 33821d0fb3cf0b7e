"""What a config.json of Hugging Face's transformers means in the original's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from albert.errors import UserError
from albert.io import json_values
from albert.io.json_values import shown

# What transformers takes for fields that its file leaves out, where our own default is another.
_DEFAULTS = {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384}
# Its "gelu" is the exact one; the original's is the tanh approximation, which it calls gelu_new.
_ACTIVATIONS = {"gelu": "gelu_erf", "gelu_python": "gelu_erf", "gelu_new": "gelu", "gelu_fast": "gelu"}
# What its models can have otherwise, and ALBERT cannot.
_FIXED = {"layer_norm_eps": 1e-12, "position_embedding_type": "absolute"}


class _Config(msgspec.Struct):
  model_type: str
  hidden_act: str = "gelu_new"


def is_huggingface(values: Mapping[str, Any]) -> bool:
  """True for the values of a transformers config.json; the original's names no model_type."""
  return "model_type" in values


def in_original_terms(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
  """The fields of an albert_config.json that describe the same model.

  Args:
    values: those of a config.json.
    source: its path, for errors.
  Raises:
    UserError: a model of another type, or one that computes what ALBERT doesn't.
  """
  checked = json_values.convert(source, values, _Config)
  if checked.model_type != "albert":
    raise UserError(f"{source}: model_type is {shown(checked.model_type)}, not 'albert': give the config of an ALBERT")
  for key, value in _FIXED.items():
    if values.get(key, value) != value:
      raise UserError(
        f"{source}: {key} is {shown(values[key])}, ALBERT's is {value!r}: this model cannot be represented here"
      )
  return {**_DEFAULTS, **values, "hidden_act": _ACTIVATIONS.get(checked.hidden_act, checked.hidden_act)}
