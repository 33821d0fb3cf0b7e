"""Directories of the library sentence-transformers: how the states of a text's tokens become its vector.

modules.json lists the parts: the Transformer with its vocabulary, Pooling, and any number of Dense and Normalize. Each
has a folder with its settings and weights. The Transformer may be in the directory itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.io import files
from albert.io.text import format_value
from albert.tokenization.recorded_settings import SENTENCE_SETTINGS, read_tokenizer_config
from albert.tokenization.vocabulary import SENTENCE_PARTS, sentence_parts
from albert.weights.arrays import SAFETENSORS_FILE, open_safetensors
from albert.weights.names import POOLER
from albert.weights.torch_files import open_torch_file

if TYPE_CHECKING:
  import tensorflow as tf

# B texts, S tokens, H hidden size, D size of a vector.

# Values of --pooling: the mean of the last layer over all tokens; or the output of the pooler at [CLS].
POOLINGS = MEAN, POOLED = "mean", "pooled"
# What a Pooling may compute -> the key that says so. Several are concatenated, in this order; newer versions of the
# library list the names in pooling_mode, in any order.
_POOLING_KEYS = {
  "cls": "pooling_mode_cls_token",
  "max": "pooling_mode_max_tokens",
  MEAN: "pooling_mode_mean_tokens",
  "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
}
_REMEDY = "which this project does not follow: compute the vectors with sentence-transformers, or take another model"
_TANH, _IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
_SIZES = ("word_embedding_dimension", "embedding_dimension", "in_features", "out_features", "bias", "max_seq_length")
_OTHERS = ("do_lower_case", "include_prompt", "__version__", "model_type", "prompts", "similarity_fn_name")
# The settings of a directory and its parts -> the values that this project follows; () for any.
_SETTINGS: dict[str, tuple[Any, ...]] = {
  **dict.fromkeys((*_SIZES, *_OTHERS, *_POOLING_KEYS.values()), ()),
  "pooling_mode": (*_POOLING_KEYS,),
  "activation_function": (_TANH, _IDENTITY, "torch.nn.modules.activation.ReLU"),
  "module_input_name": ("sentence_embedding",),
  "module_output_name": ("sentence_embedding", "token_embeddings"),
  "transformer_task": ("feature-extraction",),
  "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
}


@dataclasses.dataclass(frozen=True)
class Part:
  """A part after the Transformer: the name of its class, its settings, and its weights by name."""

  name: str
  settings: dict[str, Any]
  weights: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @property
  def modes(self) -> list[str]:
    """What a Pooling computes, keys of _POOLING_KEYS."""
    modes = self.settings.get("pooling_mode") or [m for m, key in _POOLING_KEYS.items() if self.settings.get(key)]
    return [modes] if isinstance(modes, str) else modes or [MEAN]


@dataclasses.dataclass(frozen=True)
class SentenceVectors:
  """What makes the vector of a text.

  Attributes:
    parts: the parts after the Transformer, in order.
    max_seq_length: the largest number of tokens, [CLS] and [SEP] included; None for the number of positions.
  """

  parts: tuple[Part, ...] = (Part("Pooling", {}),)
  max_seq_length: int | None = None

  def size(self, hidden_size: int) -> int:
    """Returns D, the size of a vector."""
    sizes = [len(part.weights["linear.weight"]) for part in self.parts if part.weights]
    return sizes[-1] if sizes else len(self.parts[0].modes) * hidden_size

  def compute(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Computes vectors, float32 [B, D].

    Args:
      states: the last layer, float32 [B, S, H].
      mask: [B, S], 0 for padding.
    """
    import tensorflow as tf  # takes seconds, and reading a directory needs none

    is_token = tf.expand_dims(mask, 2) > 0
    length = tf.reduce_sum(tf.cast(is_token, tf.float32), axis=1)
    total = tf.reduce_sum(tf.where(is_token, states, 0.0), axis=1)
    pooled = {
      "cls": lambda: states[:, 0],
      "max": lambda: tf.reduce_max(tf.where(is_token, states, states.dtype.min), axis=1),
      MEAN: lambda: total / length,
      "mean_sqrt_len_tokens": lambda: total * tf.math.rsqrt(length),
    }
    x = tf.concat([pooled[mode]() for mode in self.parts[0].modes], axis=1)
    for part in self.parts[1:]:
      if part.weights:  # a Dense
        x = tf.matmul(x, part.weights["linear.weight"], transpose_b=True) + part.weights.get("linear.bias", 0.0)
        activation = part.settings.get("activation_function", _TANH)
        x = x if activation == _IDENTITY else tf.tanh(x) if activation == _TANH else tf.nn.relu(x)
      else:
        x *= tf.math.rsqrt(tf.maximum(tf.reduce_sum(x * x, axis=1, keepdims=True), 1e-24))
    return x


def read_sentence_vectors(directory: str, flag: str) -> SentenceVectors | None:
  """Reads how sentence-transformers makes vectors with a model; None if the model is not one of this library.

  Args:
    directory: the directory of the Transformer.
    flag: the flag with which the user gave it, for errors.
  Raises:
    UserError: there is a part or a setting that this project does not follow, or a file is missing or damaged.
  """
  roots = (directory, directory.rpartition("/")[0] or ".")
  root = next((root for root in roots if any(folder == directory for _, folder in sentence_parts(root)[:1])), None)
  if root is None:
    return None
  _read_settings(files.join(root, "config_sentence_transformers.json"))
  parts = []
  for index, (path, folder) in enumerate(sentence_parts(root)):
    name = path.removeprefix("sentence_transformers.").rpartition(".")[2]
    if name not in (("Transformer",), ("Pooling",), ("Dense", "Normalize"))[min(index, 2)]:
      raise UserError(f"{files.join(root, SENTENCE_PARTS)}: part {index} is {path}, {_REMEDY}")
    settings = _read_settings(files.join(folder, "config.json" if index else SENTENCE_SETTINGS))
    weights = {}
    if name == "Dense":
      file, torch_file = (files.join(folder, name) for name in (SAFETENSORS_FILE, "pytorch_model.bin"))
      arrays = open_torch_file(torch_file, flag) if files.exists(torch_file) else open_safetensors(file, flag)
      weights = {key: array.read() for key, array in arrays.items()}
    parts.append(Part(name, settings, weights))
  limit = parts[0].settings.get("max_seq_length") or read_tokenizer_config(directory).get("model_max_length")
  return SentenceVectors(tuple(parts[1:]), limit)


def _read_settings(file: str) -> dict[str, Any]:
  """Returns the settings in a file; {} if there is none. Raises UserError for one that this project does not follow."""
  settings = files.read_json(file) if files.exists(file) else {}
  for key, values in settings.items():
    for value in values if isinstance(values, list) else [values]:
      if value and (key not in _SETTINGS or (_SETTINGS[key] and value not in _SETTINGS[key])):
        raise UserError(f"{file}: {key} is {format_value(value)}, {_REMEDY}")
  return settings


def write_sentence_vectors(
  directory: str, config: ModelConfig, weights: Mapping[str, np.ndarray], pooling: str, vectors: SentenceVectors | None
) -> None:
  """Adds the files of sentence-transformers to a directory of transformers.

  Args:
    directory, config, weights: the directory, and its model's config and weights.
    pooling: one of POOLINGS; or "" for `vectors` or, without them, the mean.
    vectors: what makes the vectors so far, if the model is one of sentence-transformers.
  """
  from safetensors.numpy import save

  size = config.hidden_size
  if pooling or vectors is None:
    mode = "cls" if pooling == POOLED else MEAN
    settings: dict[str, Any] = {"word_embedding_dimension": size, _POOLING_KEYS[mode]: True}
    parts = [Part("Pooling", settings)]
    if pooling == POOLED:  # the pooler is a Dense
      kernel, bias = (weights[name] for name in POOLER)
      settings = {"in_features": size, "out_features": size, "bias": True, "activation_function": _TANH}
      parts.append(Part("Dense", settings, {"linear.weight": np.ascontiguousarray(kernel.T), "linear.bias": bias}))
    limit = vectors.max_seq_length if vectors else None
    vectors = SentenceVectors(tuple(parts), limit or config.max_position_embeddings)
  modules = []
  transformer = Part("Transformer", {"max_seq_length": vectors.max_seq_length})
  for index, part in enumerate([transformer, *vectors.parts]):
    path, class_name = f"{index}_{part.name}" if index else "", f"sentence_transformers.models.{part.name}"
    modules.append({"idx": index, "name": str(index), "path": path, "type": class_name})
    files.makedirs(files.join(directory, path))
    files.write_json(files.join(directory, path, "config.json" if index else SENTENCE_SETTINGS), part.settings)
    if part.weights:
      files.write_atomically(files.join(directory, path, SAFETENSORS_FILE), save(part.weights))
  files.write_atomically(files.join(directory, SENTENCE_PARTS), json.dumps(modules, indent=2))
