"""Reads the model that is converted. If needed, makes a copy of it in which every layer is a group of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert.config.model import ModelConfig
from albert.tokenization.recorded_settings import tokenizer_config
from albert.tokenization.vocabulary import TokenizerConfig
from albert.weights.arrays import float32_sha256
from albert.weights.files import WeightFile, find_weights, open_location
from albert.weights.names import GROUP_PATTERN, POOLER, encoder_shapes, heads


@dataclasses.dataclass(frozen=True)
class ConvertedModel:
  """A model that is converted to another format.

  Attributes:
    config: its config.
    weights: name in the original -> float32 values, in the original's layout.
    sources: name in the original -> name in the file that was read.
    heads: the names of its heads, keys of albert.weights.names.heads().
    tokenizer_config: its vocabulary, and the settings that it was made with; None if they are not known.
    run: the values of the config.json of its run; {} if the weights do not come from a run.
    class_keys: of a classifier, what transformers' config.json says about it, see WeightLocation.class_keys.
    directory: the directory that it was read from.
  """

  config: ModelConfig
  weights: dict[str, np.ndarray]
  sources: dict[str, str]
  heads: tuple[str, ...]
  tokenizer_config: TokenizerConfig | None
  run: Mapping[str, Any]
  class_keys: Mapping[str, Any]
  directory: str = ""


def report_row(source: str, target: str, value: np.ndarray) -> str:
  """Makes a weight's row of the report: its names before and after the conversion, its shape and its float32_sha256."""
  return f"{source}\t{target}\t{'x'.join(map(str, value.shape))}\t{float32_sha256(value)}\n"


def read_model(path: str, *, albert_config_file: str = "", spm_model_file: str = "") -> ConvertedModel:
  """Reads a model in any format that --init_checkpoint accepts.

  Args:
    path: see albert.weights.files.open_weights.
    albert_config_file: the model's config; empty for the albert_config.json or config.json beside the weights.
    spm_model_file: the vocabulary; empty for the one beside the weights, if there is one.
  Raises:
    UserError: there is no config, a weight is missing, not used, or of another shape than the config says, or see
      albert.tokenization.recorded_settings.tokenizer_config.
  """
  location = find_weights(path)  # a missing file is reported before TensorFlow is imported
  config = location.require_config(albert_config_file)
  vocabulary = location.choose_vocabulary(spm_model_file)
  file = open_location(location)
  file.check_groups(config)
  head_names = _check_weights(file, config, albert_config_file or file.config_file)
  weights = {name: file.read(name) for name in sorted(file.entries)}
  sources = {name: file.entries[name].array.name for name in weights}
  settings = tokenizer_config(vocabulary, file.directory) if vocabulary else None
  class_keys = file.class_keys if "classifier" in head_names else {}
  return ConvertedModel(config, weights, sources, head_names, settings, file.run, class_keys, file.directory)


def _check_weights(file: WeightFile, config: ModelConfig, config_file: str | None) -> tuple[str, ...]:
  """Checks that a file has exactly the weights of a config and of some heads, and returns the names of these heads."""
  has_pooler = any(name in file.entries for name in POOLER)  # some classes of transformers have none
  expected_shapes: dict[str, tuple[int | None, ...]] = {
    name: shape for name, shape in encoder_shapes(config).items() if has_pooler or name not in POOLER
  }
  found_heads = {name: head for name, head in heads(config).items() if not head.shapes.keys().isdisjoint(file.entries)}
  for head in found_heads.values():
    expected_shapes |= head.shapes
  missing, misshapen = file.compare(expected_shapes)
  unmatched = [entry.array.name for name, entry in file.entries.items() if name not in expected_shapes]
  remedy = f"{config_file} is not its config, or it is not an ALBERT model"
  file.refuse("lacks", missing, remedy)
  file.refuse("has unmatched", unmatched, remedy)
  file.refuse("has another shape for", misshapen, remedy)
  return tuple(found_heads)


def expand_sharing(model: ConvertedModel, *, ungroup: bool = False) -> ConvertedModel:
  """Makes a model that the original and transformers can represent, and that computes the same.

  In the original and in transformers, attention and feed-forward weights have the same groups of layers. If they have
  different groups in `model` (`sharing` is not "all"), every layer becomes a group of its own with copies of the
  weights.

  Args:
    model: the model.
    ungroup: whether every layer must be a group of its own.
  Returns: `model` itself if nothing has to change.
  """
  config = model.config
  layers = config.num_hidden_layers
  if config.sharing == "all" and (config.num_hidden_groups == layers or not ungroup):
    return model
  expanded = dataclasses.replace(config, sharing="all", num_hidden_groups=layers)
  origins = {name: name for name in model.weights if not GROUP_PATTERN.search(name)}
  for name in encoder_shapes(expanded):
    if match := GROUP_PATTERN.search(name):
      is_attention = "/attention_1/" in name or "/LayerNorm/" in name
      num_groups = config.num_attention_groups if is_attention else config.num_ffn_groups
      origins[name] = GROUP_PATTERN.sub(f"/group_{int(match[1]) * num_groups // layers}/", name)
  weights = {name: model.weights[origin] for name, origin in origins.items()}
  sources = {name: model.sources[origin] for name, origin in origins.items()}
  return dataclasses.replace(model, config=expanded, weights=weights, sources=sources)
