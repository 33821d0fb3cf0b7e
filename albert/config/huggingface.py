"""Translates a model's config between the original's albert_config.json and transformers' config.json.

transformers' config.json may be that of an ALBERT or of a BERT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from albert.errors import UserError
from albert.io import json_values
from albert.io.text import format_value

# model_type -> the defaults of transformers' config that differ from those of ModelConfig.
_HUGGINGFACE_DEFAULTS: dict[str, dict[str, Any]] = {
  "albert": {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
  "bert": {
    "vocab_size": 30522,
    "hidden_size": 768,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
  },
}
# hidden_act of ModelConfig -> the name in transformers. Both use the name "gelu", for different functions: in the
# original it is the tanh approximation, in transformers the exact GELU.
ACTIVATION_NAMES = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}
# More names of these functions in transformers -> hidden_act of ModelConfig.
_ACTIVATION_SYNONYMS = {"gelu_python": "gelu_erf", "gelu_fast": "gelu"}
_OUR_ACTIVATION_NAMES = {theirs: ours for ours, theirs in ACTIVATION_NAMES.items()} | _ACTIVATION_SYNONYMS
# Settings of transformers that have only one possible value here.
_REQUIRED_VALUES = {
  "layer_norm_eps": 1e-12,
  "position_embedding_type": "absolute",
  "is_decoder": False,
  "add_cross_attention": False,
}


class _Config(msgspec.Struct):
  """The keys of a config.json whose types are checked here; ModelConfig checks the others."""

  model_type: str
  hidden_act: str = ""  # only its type is checked


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
    UserError: the model is neither an ALBERT nor a BERT, or has a setting that cannot be represented here.
  """
  checked = json_values.convert(source, values, _Config)
  if checked.model_type not in _HUGGINGFACE_DEFAULTS:
    raise UserError(
      f"{source}: model_type is {format_value(checked.model_type)}, not 'albert' or 'bert': give the config of an "
      "ALBERT or a BERT"
    )
  for key, value in _REQUIRED_VALUES.items():
    if values.get(key, value) != value:
      raise UserError(
        f"{source}: {key} is {format_value(values[key])}, but ALBERT's is {value!r}: this model cannot be represented "
        "here"
      )
  config = {"hidden_act": "gelu_new", **_HUGGINGFACE_DEFAULTS[checked.model_type], **values}
  config["hidden_act"] = _OUR_ACTIVATION_NAMES.get(config["hidden_act"], config["hidden_act"])
  return config if checked.model_type == "albert" else _from_bert_config(config)


def to_bert_config(values: Mapping[str, Any]) -> dict[str, Any]:
  """Translates the values of a transformers config of an ALBERT to one of a BERT without shared layers."""
  left_out = ("embedding_size", "num_hidden_groups", "inner_group_num", "bos_token_id", "eos_token_id")
  config = {name: value for name, value in values.items() if name not in left_out}
  config["classifier_dropout"] = config.pop("classifier_dropout_prob")
  return config | {"model_type": "bert"}


def _from_bert_config(values: dict[str, Any]) -> dict[str, Any]:
  """Translates a config of a BERT, with all its defaults, to one of an ALBERT whose layers share nothing."""
  classifier_dropout = values.get("classifier_dropout")
  if classifier_dropout is None:
    classifier_dropout = values["hidden_dropout_prob"]
  return values | {
    "embedding_size": values["hidden_size"],
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "sharing": "none",
    "classifier_dropout_prob": classifier_dropout,
  }
