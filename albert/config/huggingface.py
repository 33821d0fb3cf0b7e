"""Translates a model's config between the original's albert_config.json and transformers' config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from albert.errors import UserError
from albert.io import json_values
from albert.io.json_values import format_value

# The defaults of transformers' AlbertConfig that differ from those of ModelConfig.
_HUGGINGFACE_DEFAULTS = {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384}
# hidden_act of ModelConfig -> the name in transformers. Both use the name "gelu", for different functions: in the
# original it is the tanh approximation, in transformers the exact GELU.
ACTIVATION_NAMES = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}
# More names of these functions in transformers -> hidden_act of ModelConfig.
_ACTIVATION_SYNONYMS = {"gelu_python": "gelu_erf", "gelu_fast": "gelu"}
_OUR_ACTIVATION_NAMES = {theirs: ours for ours, theirs in ACTIVATION_NAMES.items()} | _ACTIVATION_SYNONYMS
# Settings of transformers that have only one possible value here.
_REQUIRED_VALUES = {"layer_norm_eps": 1e-12, "position_embedding_type": "absolute"}


class _Config(msgspec.Struct):
  """The keys of a config.json whose types are checked here; ModelConfig checks the others."""

  model_type: str
  hidden_act: str = "gelu_new"


def is_huggingface(values: Mapping[str, Any]) -> bool:
  """Whether a config is one of transformers: only those have the key model_type."""
  return "model_type" in values


def from_huggingface_config(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
  """Translates a transformers config to the keys and values of albert_config.json.

  Args:
    values: the content of a config.json.
    source: its path, for errors.
  Returns:
    The content of an albert_config.json for the same model. Keys that ModelConfig does not have are kept.
  Raises:
    UserError: the model is not an ALBERT, or has a setting that cannot be represented here.
  """
  checked = json_values.convert(source, values, _Config)
  if checked.model_type != "albert":
    raise UserError(
      f"{source}: model_type is {format_value(checked.model_type)}, not 'albert': give the config of an ALBERT"
    )
  for key, value in _REQUIRED_VALUES.items():
    if values.get(key, value) != value:
      raise UserError(
        f"{source}: {key} is {format_value(values[key])}, but ALBERT's is {value!r}: this model cannot be represented "
        "here"
      )
  return {
    **_HUGGINGFACE_DEFAULTS,
    **values,
    "hidden_act": _OUR_ACTIVATION_NAMES.get(checked.hidden_act, checked.hidden_act),
  }
