"""The model that a conversion reads and writes, and its form with one group of layers per layer."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable

import numpy as np

from albert.config.model import ModelConfig, load_model_config
from albert.data.manifest import file_sha256
from albert.errors import UserError
from albert.io import files
from albert.weights.files import FLAG, WeightFile, open_weights
from albert.weights.names import POOLER, encoder_shapes, heads, huggingface_group, huggingface_groups_agree

_GROUP = re.compile(r"/group_(\d+)/")


@dataclasses.dataclass(frozen=True)
class ConvertedModel:
  """A model that is converted to another format.

  Attributes:
    config: its config.
    weights: name in the original -> float32 values, in the original's layout.
    sources: name in the original -> name in the file that was read.
    heads: the names of its heads, keys of albert.weights.names.heads().
    vocabulary: the path of its vocabulary; None if it is not known.
  """

  config: ModelConfig
  weights: dict[str, np.ndarray]
  sources: dict[str, str]
  heads: tuple[str, ...]
  vocabulary: str | None


@dataclasses.dataclass(frozen=True)
class ReportLine:
  """A line of the report: a weight's name before and after the conversion, its shape, and the SHA-256 of its bytes."""

  source: str
  target: str
  shape: tuple[int, ...]
  sha256: str


def report_line(source: str, target: str, value: np.ndarray) -> ReportLine:
  """Makes the line of a weight. The hashed bytes are float32, little-endian, in row-major order."""
  data = np.ascontiguousarray(value, "<f4").tobytes()
  return ReportLine(source, target, value.shape, hashlib.sha256(data).hexdigest())


def read_model(path: str, *, albert_config_file: str = "", spm_model_file: str = "") -> ConvertedModel:
  """Reads a model in any format that --init_checkpoint accepts.

  Args:
    path: see albert.weights.files.open_weights.
    albert_config_file: the model's config; empty: the albert_config.json or config.json beside the weights.
    spm_model_file: the vocabulary; empty: the spiece.model beside the weights, if there is one.
  Raises:
    UserError: there is no config, or a weight is missing, not used, or of another shape than the config says.
  """
  file = open_weights(path)
  config_file = albert_config_file or file.config_file
  if not config_file:
    raise UserError(
      f"{FLAG}={path}: has no albert_config.json or config.json beside it; give its config with --albert_config_file"
    )
  if spm_model_file and not files.exists(spm_model_file):
    raise UserError(f"--spm_model_file={spm_model_file}: no such file")
  if spm_model_file:
    file.check_vocabulary(file_sha256(spm_model_file), f"--spm_model_file={spm_model_file}")
  config = load_model_config(config_file)
  found_heads = _check(file, config, config_file)
  weights = {name: file.read(name) for name in sorted(file.names)}
  sources = {name: file.entries[name].source for name in weights}
  model = ConvertedModel(config, weights, sources, found_heads, spm_model_file or file.vocabulary)
  if file.is_huggingface and not huggingface_groups_agree(config):

    def group(layer: int) -> int:
      return huggingface_group(layer, config)

    return _regrouped(model, group, group)
  return model


def _check(file: WeightFile, config: ModelConfig, config_file: str) -> tuple[str, ...]:
  """The names of the heads in the file. It must have exactly the weights of the config and of these heads."""
  expected: dict[str, tuple[int | None, ...]] = {**encoder_shapes(config)}
  if not any(name in file.entries for name in POOLER):
    expected = {name: shape for name, shape in expected.items() if name not in POOLER}  # some transformers classes
  found = []
  for name, head in heads(config).items():
    if any(weight in file.entries for weight in head.shapes):
      found.append(name)
      expected |= head.shapes
  missing = sorted(set(expected) - set(file.entries))
  unmatched = sorted(file.entries[name].source for name in set(file.entries) - set(expected))
  misshapen = [
    f"{name} {list(file.entries[name].shape)} instead of {list(shape)}"
    for name, shape in sorted(expected.items())
    if name in file.entries and not _fits(file.entries[name].shape, shape)
  ]
  problems = (("lacks", missing), ("has unmatched", unmatched), ("has another shape for", misshapen))
  for problem, names in problems:
    if names:
      raise UserError(
        f"{FLAG}={file.path}: {problem} {len(names)} weights: {', '.join(names[:4])}"
        f"{', ...' if len(names) > 4 else ''}; {config_file} is not its config, or it is not an ALBERT model"
      )
  return tuple(found)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
  return len(shape) == len(wanted) and all(b is None or a == b for a, b in zip(shape, wanted, strict=True))


def expand_sharing(model: ConvertedModel, *, for_huggingface: bool = False) -> ConvertedModel:
  """Makes a model that the original and transformers can express, and that computes the same.

  They have the same groups of layers for attention and feed-forward weights. If `model` has different ones (`sharing`
  is not "all"), every layer becomes a group, with copies of the shared weights.

  Args:
    model: the model.
    for_huggingface: whether the groups must also be those that transformers computes.
  """
  config = model.config
  layers = config.num_hidden_layers
  if config.sharing == "all" and (not for_huggingface or huggingface_groups_agree(config)):
    return model
  return _regrouped(
    model,
    lambda layer: layer * config.num_attention_groups // layers,
    lambda layer: layer * config.num_ffn_groups // layers,
  )


def _regrouped(
  model: ConvertedModel, attention_group: Callable[[int], int], ffn_group: Callable[[int], int]
) -> ConvertedModel:
  """Makes every layer a group, with copies of the weights of the groups that the functions give for it."""
  config = dataclasses.replace(model.config, sharing="all", num_hidden_groups=model.config.num_hidden_layers)
  origins = {name: name for name in model.weights if not _GROUP.search(name)}
  for name in encoder_shapes(config):
    match = _GROUP.search(name)
    if match:
      layer = int(match.group(1))
      is_attention = "/attention_1/" in name or "/LayerNorm/" in name
      group = attention_group(layer) if is_attention else ffn_group(layer)
      origins[name] = _GROUP.sub(f"/group_{group}/", name)
  return dataclasses.replace(
    model,
    config=config,
    weights={name: model.weights[origin] for name, origin in origins.items()},
    sources={name: model.sources[origin] for name, origin in origins.items()},
  )
