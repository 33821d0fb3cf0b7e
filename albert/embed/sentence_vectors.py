"""Directories of the library sentence-transformers: how the states of a text's tokens become its vector.

modules.json lists the parts: the Transformer with its vocabulary, Pooling, and any number of Dense and Normalize. Each
has a folder with its settings and weights. The Transformer may be in the directory itself.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.errors import UserError
from albert.io import files
from albert.io.text import format_value
from albert.tokenization.recorded_settings import SENTENCE_SETTINGS, read_tokenizer_config
from albert.tokenization.vocabulary import SENTENCE_PARTS, sentence_parts
from albert.weights.arrays import SAFETENSORS_FILE
from albert.weights.files import find_weights, open_arrays

if TYPE_CHECKING:
  import tensorflow as tf

# B texts, S tokens, H hidden size, D size of a vector.

# Values of --pooling: the mean of the last layer over all tokens; or the output of the pooler at [CLS].
POOLINGS = MEAN, POOLED = "mean", "pooled"
# What a Pooling may compute -> the key that says so. Several are concatenated, in this order; newer versions of the
# library have a list of the names instead, pooling_mode, in the order of the vectors.
_POOLING_KEYS = {
  "cls": "pooling_mode_cls_token",
  "max": "pooling_mode_max_tokens",
  MEAN: "pooling_mode_mean_tokens",
  "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
}
_REMEDY = "which this project does not follow: compute the vectors with sentence-transformers, or take another model"
_TANH, _IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
# Settings of a directory and its parts that may have any value: they are read elsewhere, or change no vector.
_FREE_SETTINGS = {
  *("word_embedding_dimension", "embedding_dimension", "in_features", "out_features", "bias", "max_seq_length"),
  *("do_lower_case", "include_prompt", "__version__", "model_type", "prompts", "similarity_fn_name"),
  *_POOLING_KEYS.values(),
}
# The other settings that are followed -> their possible values.
_VALUES: dict[str, tuple[Any, ...]] = {
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
    modes = self.settings.get("pooling_mode") or []
    if isinstance(modes, str):
      return [modes]
    return modes or [mode for mode, key in _POOLING_KEYS.items() if self.settings.get(key)] or [MEAN]


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
        if activation != _IDENTITY:
          x = tf.tanh(x) if activation == _TANH else tf.nn.relu(x)
      else:  # Normalize
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
  for root in (directory, directory.rpartition("/")[0] or "."):
    found = sentence_parts(root)
    if found and found[0][1] == directory:
      break
  else:
    return None
  _read_settings(files.join(root, "config_sentence_transformers.json"))
  names = [path.rpartition(".")[2] if path.startswith("sentence_transformers.") else path for path, _ in found]
  if names[:2] != ["Transformer", "Pooling"] or not {*names[2:]} <= {"Dense", "Normalize"}:
    raise UserError(f"{files.join(root, SENTENCE_PARTS)}: the parts are {', '.join(names)}, {_REMEDY}")
  parts = []
  for name, (_, folder) in zip(names[1:], found[1:], strict=True):
    weights = {}
    if name == "Dense":
      arrays = open_arrays(find_weights(folder, flag=flag))
      weights = {key: array.read() for key, array in arrays.items()}
    parts.append(Part(name, _read_settings(files.join(folder, "config.json")), weights))
  limit = _read_settings(files.join(directory, SENTENCE_SETTINGS)).get("max_seq_length")
  return SentenceVectors(tuple(parts), limit or read_tokenizer_config(directory).get("model_max_length"))


def _read_settings(file: str) -> dict[str, Any]:
  """Returns the settings in a file; {} if there is none. Raises UserError for one that this project does not follow."""
  settings = files.read_json(file) if files.exists(file) else {}
  for key, value in settings.items():
    values = value if isinstance(value, list) else [value]
    unknown = [value for value in values if value and value not in _VALUES.get(key, ())]
    if unknown and key not in _FREE_SETTINGS:
      raise UserError(f"{file}: {key} is {format_value(unknown[0])}, {_REMEDY}")
  return settings


def write_sentence_vectors(directory: str, vectors: SentenceVectors) -> None:
  """Adds the files of sentence-transformers that make vectors to a directory of transformers."""
  from safetensors.numpy import save

  modules = []
  transformer = Part("Transformer", {"max_seq_length": vectors.max_seq_length})
  for index, part in enumerate([transformer, *vectors.parts]):
    path, settings_file = (f"{index}_{part.name}", "config.json") if index else ("", SENTENCE_SETTINGS)
    class_name = f"sentence_transformers.models.{part.name}"
    modules.append({"idx": index, "name": str(index), "path": path, "type": class_name})
    folder = files.join(directory, path)
    files.makedirs(folder)
    files.write_json(files.join(folder, settings_file), part.settings)
    if part.weights:
      files.write_atomically(files.join(folder, SAFETENSORS_FILE), save(part.weights))
  files.write_atomically(files.join(directory, SENTENCE_PARTS), json.dumps(modules, indent=2))
