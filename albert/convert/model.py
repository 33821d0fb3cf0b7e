"""Reads the model that is converted. If needed, makes a copy of it in which every layer is a group of its own."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from albert.config.model import ModelConfig, load_model_config
from albert.errors import UserError
from albert.io import files
from albert.io.wording import counted_names
from albert.runs import output_files
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.recorded_settings import tokenizer_config
from albert.tokenization.vocabulary_files import vocabulary_sha256
from albert.weights.files import WeightFile, open_location
from albert.weights.location import FLAG, find_weights
from albert.weights.names import (
  GROUP_PATTERN,
  POOLER,
  encoder_shapes,
  heads,
  huggingface_group,
  huggingface_groups_agree,
)


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
  """

  config: ModelConfig
  weights: dict[str, np.ndarray]
  sources: dict[str, str]
  heads: tuple[str, ...]
  tokenizer_config: TokenizerConfig | None
  run: Mapping[str, Any]

  @property
  def vocabulary(self) -> str | None:
    """The path of its vocabulary; None if it is not known."""
    return self.tokenizer_config.model_file if self.tokenizer_config else None


@dataclasses.dataclass(frozen=True)
class ReportLine:
  """A line of the report: a weight's name before and after the conversion, its shape, and the SHA-256 of its bytes."""

  source: str
  target: str
  shape: tuple[int, ...]
  sha256: str


def report_line(source: str, target: str, value: np.ndarray) -> ReportLine:
  """Makes the line of a weight. The hashed bytes are float32, little-endian, in row-major order."""
  float32_bytes = np.ascontiguousarray(value, "<f4").tobytes()
  return ReportLine(source, target, value.shape, hashlib.sha256(float32_bytes).hexdigest())


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
  config_file = albert_config_file or location.config_file
  if not config_file:
    raise UserError(
      f"{FLAG}={path}: has no albert_config.json or config.json beside it; give its config with --albert_config_file"
    )
  if spm_model_file and not files.exists(spm_model_file):
    raise UserError(f"--spm_model_file={spm_model_file}: no such file")
  if spm_model_file:
    location.check_vocabulary(vocabulary_sha256(spm_model_file), f"--spm_model_file={spm_model_file}")
  config = load_model_config(config_file)
  file = open_location(location)
  head_names = _check_weights(file, config, config_file)
  weights = {name: file.read(name) for name in sorted(file.names)}
  sources = {name: file.entries[name].source for name in weights}
  vocabulary = spm_model_file or file.vocabulary
  settings = tokenizer_config(vocabulary, file.directory) if vocabulary else None
  run = output_files.read_config(file.run_file) if file.run_file else {}
  model = ConvertedModel(config, weights, sources, head_names, settings, run)
  if file.is_huggingface and not huggingface_groups_agree(config):

    def group_of(layer: int) -> int:
      return huggingface_group(layer, config)

    return _ungroup(model, group_of, group_of)
  return model


def _check_weights(file: WeightFile, config: ModelConfig, config_file: str) -> tuple[str, ...]:
  """Checks that a file has exactly the weights of a config and of some heads, and returns the names of these heads."""
  expected_shapes: dict[str, tuple[int | None, ...]] = {**encoder_shapes(config)}
  if not any(name in file.entries for name in POOLER):
    # Some classes of transformers have no pooler.
    expected_shapes = {name: shape for name, shape in expected_shapes.items() if name not in POOLER}
  head_names = []
  for name, head in heads(config).items():
    if any(weight in file.entries for weight in head.shapes):
      head_names.append(name)
      expected_shapes |= head.shapes
  missing_names = sorted(set(expected_shapes) - set(file.entries))
  unmatched_names = sorted(file.entries[name].source for name in set(file.entries) - set(expected_shapes))
  misshapen = [
    f"{name} {list(file.entries[name].shape)} instead of {list(shape)}"
    for name, shape in sorted(expected_shapes.items())
    if name in file.entries and not _fits(file.entries[name].shape, shape)
  ]
  problems = (("lacks", missing_names), ("has unmatched", unmatched_names), ("has another shape for", misshapen))
  for problem, names in problems:
    if names:
      raise UserError(
        f"{FLAG}={file.path}: {problem} {counted_names(names, 'weight')}; {config_file} is not its config, or it is "
        "not an ALBERT model"
      )
  return tuple(head_names)


def _fits(shape: tuple[int, ...], expected_shape: tuple[int | None, ...]) -> bool:
  """Whether a shape is the expected one, in which None stands for any length."""
  return len(shape) == len(expected_shape) and all(
    expected is None or length == expected for length, expected in zip(shape, expected_shape, strict=True)
  )


def expand_sharing(model: ConvertedModel, *, for_huggingface: bool = False, for_bert: bool = False) -> ConvertedModel:
  """Makes a model that the original and transformers can represent, and that computes the same.

  In the original and in transformers, attention and feed-forward weights have the same groups of layers. If they have
  different groups in `model` (`sharing` is not "all"), every layer becomes a group of its own with copies of the
  weights.

  Args:
    model: the model.
    for_huggingface: whether layers must belong to the groups to which transformers assigns them.
    for_bert: whether every layer must be a group of its own.
  Returns:
    `model` itself if nothing has to change.
  """
  config = model.config
  layers = config.num_hidden_layers
  is_bert = config.num_hidden_groups == layers
  if config.sharing == "all" and (is_bert if for_bert else not for_huggingface or huggingface_groups_agree(config)):
    return model
  return _ungroup(
    model,
    lambda layer: layer * config.num_attention_groups // layers,
    lambda layer: layer * config.num_ffn_groups // layers,
  )


def _ungroup(
  model: ConvertedModel, attention_group: Callable[[int], int], ffn_group: Callable[[int], int]
) -> ConvertedModel:
  """Makes every layer a group of its own, with copies of the weights that it shares in `model`."""
  config = dataclasses.replace(model.config, sharing="all", num_hidden_groups=model.config.num_hidden_layers)
  origins = {name: name for name in model.weights if not GROUP_PATTERN.search(name)}
  for name in encoder_shapes(config):
    match = GROUP_PATTERN.search(name)
    if match:
      layer = int(match.group(1))
      is_attention = "/attention_1/" in name or "/LayerNorm/" in name
      group = attention_group(layer) if is_attention else ffn_group(layer)
      origins[name] = GROUP_PATTERN.sub(f"/group_{group}/", name)
  return dataclasses.replace(
    model,
    config=config,
    weights={name: model.weights[origin] for name, origin in origins.items()},
    sources={name: model.sources[origin] for name, origin in origins.items()},
  )
