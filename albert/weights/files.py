"""Opens weights in all supported formats and gives them the names of the original ALBERT code.

The formats are TensorFlow checkpoints (of this project and of the original) and safetensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from albert.errors import UserError
from albert.io import files
from albert.weights import arrays as weight_arrays
from albert.weights.arrays import Array
from albert.weights.bert_names import from_bert, has_bert_names
from albert.weights.location import FLAG, WeightLocation, find_weights
from albert.weights.names import POOLER, PROJECTION, from_huggingface

# Arrays that are not weights: the optimizer's moments, the step, and constants that transformers saves.
_NOT_WEIGHTS = re.compile(
  r"(/adam_m|/adam_v|^global_step|^loss_scale\w*|^time_limit_\w+|\.position_ids|\.token_type_ids)$"
)
# transformers may save a tied weight twice: (name of the second copy, name of the weight).
_TIED_KERNEL = ("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight")
_TIED_BIAS = ("predictions.decoder.bias", "predictions.bias")


class WeightEntry(NamedTuple):
  """How a weight is stored in a file.

  Attributes:
    source: its name in the file.
    shape: its shape in the original's layout.
    is_transposed: whether the file has the transposed matrix.
  """

  source: str
  shape: tuple[int, ...]
  is_transposed: bool


class WeightFile(WeightLocation):
  """The weights at a path. An array is read from disk only when `read` is called.

  Args:
    location: where the weights are.
    arrays: name in the file -> array.
    entries: name in the original -> how the weight is stored in the file.
    is_huggingface: whether the names in the file are those of transformers.
    flag: the flag with which the user gave the path, for errors.
  """

  def __init__(
    self,
    location: WeightLocation,
    arrays: Mapping[str, Array],
    entries: Mapping[str, WeightEntry],
    *,
    is_huggingface: bool,
    flag: str = FLAG,
  ):
    super().__init__(location.path, location.directory, location.prefix)
    self._flag = flag
    self._arrays = arrays
    self.entries = dict(entries)
    self.is_huggingface = is_huggingface

  @property
  def has_pooler(self) -> bool:
    """Whether the weights include a pooler."""
    return all(name in self.entries for name in POOLER)

  @property
  def names(self) -> list[str]:
    """The original's names of all weights."""
    return list(self.entries)

  def read(self, name: str) -> np.ndarray:
    """Reads a weight.

    Args:
      name: its name in the original.
    Returns:
      The weight as float32, in the original's layout.
    Raises:
      UserError: the array is empty, does not hold floating-point numbers, or holds one that is not finite.
    """
    entry = self.entries[name]
    value = self._arrays[entry.source].read(entry.source, self._flag)
    if not value.size:
      raise UserError(f"{self._flag}={self._arrays[entry.source].file}: {entry.source} is empty: {list(value.shape)}")
    return np.ascontiguousarray(value.T if entry.is_transposed else value)


def open_weights(path: str, *, flag: str = FLAG) -> WeightFile:
  """Opens the weights at a path.

  Args:
    path: one of
      - a TensorFlow checkpoint of this project or of the original: its prefix, the directory of a single checkpoint
        (such as Google's archives), a step-N directory, or the output_dir of a run, which stands for its newest
        undamaged checkpoint,
      - a Hugging Face directory with model.safetensors,
      - a .safetensors file.
      The weights may have the original's names, with or without TF-Hub's prefix `module/`, or those of transformers,
      of ALBERT or BERT,
      with or without the prefix `albert.` or `bert.`.
    flag: the flag with which the user gave the path, for errors.
  Raises:
    UserError: there are no weights, they are damaged, they are a pickle, or their names are not those of an ALBERT.
  """
  return open_location(find_weights(path, flag=flag), flag=flag)


def open_location(location: WeightLocation, *, flag: str = FLAG) -> WeightFile:
  """Opens weights that `find_weights` has found: reads their names and shapes.

  Args:
    location: where the weights are.
    flag: the flag with which the user gave the path, for errors.
  Raises:
    UserError: the weights are damaged, or their names are not those of an ALBERT.
  """
  path = location.path
  if location.prefix:
    arrays = weight_arrays.open_bundle(location.prefix, flag)
  else:
    file = files.join(path, weight_arrays.SAFETENSORS_FILE) if files.is_dir(path) else path
    arrays = weight_arrays.open_safetensors(file, flag)
  return _name_weights(location, arrays, flag)


def _name_weights(location: WeightLocation, arrays: dict[str, Array], flag: str) -> WeightFile:
  """Gives the weights among the arrays of a file the names of the original."""
  path = location.path
  weights = {name: array for name, array in arrays.items() if not _NOT_WEIGHTS.search(name)}
  if not weights:
    raise UserError(f"{flag}={path}: holds no weights; give another file")
  is_huggingface = not any("/" in name for name in weights)
  if is_huggingface:
    entries = _huggingface_entries(path, weights, flag)
  else:
    entries = {
      name.removeprefix("module/"): WeightEntry(name, array.shape, is_transposed=False)
      for name, array in weights.items()
    }
    if len(entries) < len(weights):
      duplicate = next(name for name in weights if not name.startswith("module/") and f"module/{name}" in weights)
      raise UserError(f"{flag}={path}: has both {duplicate} and module/{duplicate}; give a file with one of them")
  _drop_untrained_pooler(entries, weights, flag)
  return WeightFile(location, arrays, entries, is_huggingface=is_huggingface, flag=flag)


def _huggingface_entries(path: str, weights: dict[str, Array], flag: str) -> dict[str, WeightEntry]:
  """Translates transformers' names of weights to those of the original.

  Returns:
    Name in the original -> entry. A weight that the original does not have keeps its name.
  """
  # Name in transformers' ALBERT, with the prefix "albert." of encoder weights -> name in the file. Files of classes
  # without a head leave out this prefix.
  translate = from_bert if has_bert_names(weights) else _with_prefix
  sources = {translate(name): name for name in weights}
  if len(sources) < len(weights):
    other, duplicate = next((name, sources[translate(name)]) for name in weights if sources[translate(name)] != name)
    raise UserError(f"{flag}={path}: has both {other} and {duplicate}; give a file with one of them")
  _drop_tied(path, sources, weights, flag)
  if not any(from_huggingface(name) for name in sources):
    raise UserError(
      f"{flag}={path}: none of its {len(weights)} arrays has a name of ALBERT's (one is named "
      f"{min(weights, default='')!r}); "
      "give another file"
    )
  entries: dict[str, WeightEntry] = {}
  for name, source in sources.items():
    original = from_huggingface(name)
    shape = weights[source].shape
    if original is None:
      entries[source] = WeightEntry(source, shape, is_transposed=False)  # the callers report it as an unused weight
    else:
      original_shape = shape[::-1] if original.is_transposed else shape
      entries[original.name] = WeightEntry(source, original_shape, original.is_transposed)
  _drop_identity_projection(path, entries, weights, flag)
  return entries


def _drop_untrained_pooler(entries: dict[str, WeightEntry], weights: dict[str, Array], flag: str) -> None:
  """Removes the pooler if its kernel is zero. Such a pooler was never trained (see argument `unused` of warm_start)."""
  kernel_name, _ = POOLER
  kernel = entries.get(kernel_name)
  if kernel is not None and not np.any(weights[kernel.source].read(kernel.source, flag)):
    for name in POOLER:
      entries.pop(name, None)


def _with_prefix(name: str) -> str:
  """Adds the prefix "albert." to the name of an encoder weight that lacks it, as in AlbertModel."""
  return f"albert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def _drop_tied(path: str, sources: dict[str, str], weights: dict[str, Array], flag: str) -> None:
  """Removes the second copies of tied weights, after checking that both copies are equal.

  Args:
    path: the path as the user gave it.
    sources: name in transformers -> name in the file. The copies are removed from this dict.
    weights: name in the file -> array.
    flag: the flag with which the user gave the path.
  """
  bias_copy, bias = _TIED_BIAS
  if bias_copy in sources and bias not in sources:
    sources[bias] = sources.pop(bias_copy)

  def read(name: str) -> np.ndarray:
    return weights[sources[name]].read(sources[name], flag)

  for copy, weight in (_TIED_KERNEL, _TIED_BIAS):
    if copy not in sources:
      continue
    if weight not in sources or not np.array_equal(read(copy), read(weight)):
      raise UserError(
        f"{flag}={path}: {sources[copy]} differs from {weight}, to which ALBERT ties it (tie_word_embeddings); such "
        "a model cannot be represented here"
      )
    del sources[copy]


def _drop_identity_projection(path: str, entries: dict[str, WeightEntry], weights: dict[str, Array], flag: str) -> None:
  """Removes the projection of the embeddings if E = H. In this case, the original has no projection."""
  kernel_name, bias_name = PROJECTION
  kernel, bias = entries.get(kernel_name), entries.get(bias_name)
  if kernel is None or bias is None or len(kernel.shape) != 2 or kernel.shape[0] != kernel.shape[1]:
    return
  kernel_value = weights[kernel.source].read(kernel.source, flag)
  bias_value = weights[bias.source].read(bias.source, flag)
  if not np.array_equal(kernel_value, np.eye(kernel.shape[0])) or np.any(bias_value):
    raise UserError(
      f"{flag}={path}: {kernel.source} projects {kernel.shape[0]} embeddings to as many hidden units and is not the "
      "identity; ALBERT has no projection where E = H, so such a model cannot be represented here"
    )
  for name in PROJECTION:
    del entries[name]
