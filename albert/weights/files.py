"""Weights of any origin under the original's names: our checkpoints and the original's, Hugging Face's, .npz."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from albert.config.model import ModelConfig, load_model_config
from albert.data.manifest import file_sha256
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.runs.metrics_log import log
from albert.weights import arrays as weight_arrays
from albert.weights import checkpoints
from albert.weights.arrays import Array
from albert.weights.names import POOLER, PROJECTION, from_huggingface

FLAG = "--init_checkpoint"
CONFIG_NAMES = ("albert_config.json", "config.json")
# The second is what Google's archives call it.
_VOCABULARY_NAMES = (output_files.VOCABULARY, "30k-clean.model")
# Not weights: the optimizer's moments and the step; constants that transformers saves.
_NOT_WEIGHTS = re.compile(r"(/adam_m|/adam_v|^global_step|\.position_ids|\.token_type_ids)$")
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")
# Copies that transformers may save of tied weights: name -> the one it is tied to.
_TIED = {"predictions.decoder.weight": "albert.embeddings.word_embeddings.weight"}
_TIED_BIAS = ("predictions.decoder.bias", "predictions.bias")


class Entry(NamedTuple):
  """A weight in a file: its name there, its shape under the original's name, and whether its matrix is transposed."""

  source: str
  shape: tuple[int, ...]
  transposed: bool


class WeightFile:
  """The weights at a path. Arrays are read when asked for."""

  def __init__(
    self,
    path: str,
    arrays: Mapping[str, Array],
    entries: Mapping[str, Entry],
    *,
    directory: str,
    is_huggingface: bool,
    flag: str = FLAG,
  ):
    self.path = path
    self._arrays = arrays
    self.entries = dict(entries)
    self.directory = directory
    self.is_huggingface = is_huggingface
    self._flag = flag

  @property
  def has_pooler(self) -> bool:
    """False for weights of a class or a task that has none."""
    return all(name in self.entries for name in POOLER)

  @property
  def names(self) -> list[str]:
    """The original's names of all weights."""
    return list(self.entries)

  def read(self, name: str) -> np.ndarray:
    """A weight by the original's name, float32, in the original's layout.

    Raises:
      UserError: it is empty, holds something else than floating-point numbers, or one that is not finite.
    """
    entry = self.entries[name]
    value = self._arrays[entry.source].read(entry.source, self._flag)
    if not value.size:
      raise UserError(f"{self._flag}={self._arrays[entry.source].file}: {entry.source} is empty: {list(value.shape)}")
    return np.ascontiguousarray(value.T if entry.transposed else value)

  @property
  def config_file(self) -> str | None:
    """The model's config beside the weights, if there is one."""
    found = [files.join(self.directory, name) for name in CONFIG_NAMES]
    return next((path for path in found if files.exists(path)), None)

  def config(self) -> ModelConfig | None:
    """What config_file says."""
    return load_model_config(self.config_file) if self.config_file else None

  @property
  def vocabulary(self) -> str | None:
    """The SentencePiece model beside the weights, or in the directories around their step-N, if there is one."""
    places = [self.directory, *self._directories_around()]
    found = [files.join(place, name) for place in places for name in _VOCABULARY_NAMES]
    return next((path for path in found if files.exists(path)), None)

  def check_vocabulary(self, sha256: str, given: str, *, flag: str = FLAG) -> None:
    """Refuses a vocabulary that is not that of the weights, where the run or a file beside them tells it.

    Sizes do not tell: another vocabulary of the same size gives every embedding another piece.

    Args:
      sha256: of the SentencePiece model that is to be used.
      given: what it is, for the error, such as "--spm_model_file=PATH".
      flag: what the weights were given with.
    Raises:
      UserError: it is another vocabulary.
    """
    run = output_files.read_config(self.run_file) if self.run_file else {}
    where, expected = self.vocabulary or self.run_file, run.get("data", {}).get("vocab_sha256")
    if not expected and self.vocabulary:
      expected = file_sha256(self.vocabulary)
    if expected and expected != sha256:
      raise UserError(
        f"{flag}={self.path}: its vocabulary is {where} (SHA-256 {expected[:12]}...), {given} is another one "
        f"({sha256[:12]}...), so its embeddings belong to other pieces; give the vocabulary of the weights, or weights "
        "that were trained with this vocabulary"
      )

  @property
  def run_file(self) -> str | None:
    """config.json of the run that the weights are of (its task, data, ...), if they are of one."""
    found = [files.join(place, output_files.CONFIG) for place in self._directories_around()]
    return next((path for path in found if files.exists(path)), None)

  def _directories_around(self) -> list[str]:
    """Of a run's step-N: where it is, and the output_dir above."""
    if not re.search(r"(^|/)step-\d+$", self.directory):
      return []
    parent = self.directory.rpartition("/")[0]
    return [parent or ".", parent.rpartition("/")[0] or "."]


def open_weights(path: str, *, flag: str = FLAG) -> WeightFile:
  """The weights that `path` means.

  Args:
    path: a tensor bundle of ours or of the original (its prefix, a step-N directory, or the output_dir of a
      run, which means its newest checkpoint); a Hugging Face directory with model.safetensors; a .safetensors
      or .npz file. Names may be the original's, with or without TF-Hub's `module/`, or those of transformers,
      with or without `albert.`.
    flag: what the user gave the path with, for errors.
  Raises:
    UserError: nothing there, damage, a pickle, names that are not ALBERT's.
  """
  if path.endswith(_PICKLES):
    raise _pickle_error(path, flag)
  if path.endswith(".npz"):
    return _named(path, weight_arrays.open_npz(path, flag), flag)
  if path.endswith(".safetensors") and not files.is_dir(path):
    return _named(path, weight_arrays.open_safetensors(path, flag), flag)
  if files.is_dir(path):
    names = files.listdir(path)
    tensors = weight_arrays.safetensors_in(path, names, flag)
    if tensors is not None:
      return _named(path, tensors, flag, directory=path)
    is_run = checkpoints.PREFIX + ".index" in names or any(re.match(r"^(step-\d+|checkpoints)$", n) for n in names)
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles and not is_run:
      raise _pickle_error(files.join(path, pickles[0]), flag)
  prefix = find_prefix(path, flag=flag)
  return _named(path, weight_arrays.open_bundle(prefix, flag), flag, directory=prefix.rpartition("/")[0] or ".")


def _pickle_error(path: str, flag: str) -> UserError:
  return UserError(
    f"{flag}={path}: is a PyTorch pickle, which can run any code when it is read, so it is not read; give the "
    "model.safetensors of the same model, or make it where that code may run: "
    "AlbertModel.from_pretrained(DIRECTORY).save_pretrained(NEW_DIRECTORY) in transformers"
  )


def _refuse_damaged(directory: str, where: str) -> None:
  damage = checkpoints.find_damage(directory)
  if damage:
    raise UserError(f"{where}: {damage}; give another checkpoint")


def find_prefix(path: str, *, flag: str = FLAG) -> str:
  """The tensor bundle that `path` means: a prefix, a checkpoint directory, or a run's output_dir (its newest).

  Raises:
    UserError: nothing there, or a checkpoint that does not verify.
  """
  path = path.removesuffix(".index")
  if files.exists(path + ".index"):
    directory, name = path.rpartition("/")[::2]
    if name == checkpoints.PREFIX and files.exists(files.join(directory or ".", checkpoints.MANIFEST)):
      _refuse_damaged(directory or ".", f"{flag}={path}")
    return path
  if files.exists(files.join(path, checkpoints.PREFIX + ".index")):
    _refuse_damaged(path, f"{flag}={path}")
    return files.join(path, checkpoints.PREFIX)
  for directory in (path, files.join(path, "checkpoints")):
    steps = [n for n in files.listdir(directory) if re.match(r"^step-\d+$", n)] if files.is_dir(directory) else []
    for name in sorted(steps, key=lambda n: int(n[5:]), reverse=True):
      damage = checkpoints.find_damage(files.join(directory, name))
      if damage is None:
        return files.join(directory, name, checkpoints.PREFIX)
      log(f"warning: {flag}={path}: skipped {files.join(directory, name)}: {damage}")
  raise UserError(
    f"{flag}={path}: no checkpoint there; give a checkpoint prefix (the part before .index), a step-N directory, "
    "the output_dir of a run, a Hugging Face directory with model.safetensors, or a .safetensors or .npz file"
  )


def _named(path: str, arrays: dict[str, Array], flag: str, directory: str = "") -> WeightFile:
  """Finds out whose names these are."""
  weights = {name: array for name, array in arrays.items() if not _NOT_WEIGHTS.search(name)}
  if not weights:
    raise UserError(f"{flag}={path}: holds no weights; give another file")
  is_huggingface = not any("/" in name for name in weights)
  if is_huggingface:
    entries = _huggingface_entries(path, weights, flag)
  else:
    entries = {n.removeprefix("module/"): Entry(n, a.shape, False) for n, a in weights.items()}
    if len(entries) < len(weights):
      double = next(n for n in weights if not n.startswith("module/") and f"module/{n}" in weights)
      raise UserError(f"{flag}={path}: has both {double} and module/{double}; give a file with one of them")
  _drop_untrained_pooler(entries, weights, flag)
  directory = directory or path.rpartition("/")[0] or "."
  return WeightFile(path, arrays, entries, directory=directory, is_huggingface=is_huggingface, flag=flag)


def _huggingface_entries(path: str, weights: dict[str, Array], flag: str) -> dict[str, Entry]:
  full = {n if n.startswith("albert.") or not _is_of_encoder(n) else f"albert.{n}": n for n in weights}
  if len(full) < len(weights):
    double = next(n for n in weights if f"albert.{n}" in weights)
    raise UserError(f"{flag}={path}: has both {double} and albert.{double}; give a file with one of them")
  _drop_tied(path, full, weights, flag)
  if not any(from_huggingface(name) for name in full):
    raise UserError(
      f"{flag}={path}: none of its {len(weights)} arrays has a name of ALBERT's (one is {min(weights, default='')!r}); "
      "give another file"
    )
  entries: dict[str, Entry] = {}
  for name, source in full.items():
    ours = from_huggingface(name)
    shape = weights[source].shape
    if ours is None:
      entries[source] = Entry(source, shape, False)  # what asks for weights will say that this one is left over
    else:
      entries[ours.name] = Entry(source, shape[::-1] if ours.transposed else shape, ours.transposed)
  _drop_identity_projection(path, entries, weights, flag)
  return entries


def _drop_untrained_pooler(entries: dict[str, Entry], weights: dict[str, Array], flag: str) -> None:
  """A run of a task without a pooler, started from weights without one, keeps zeros in its place (see warm_start)."""
  kernel = entries.get(POOLER[0])
  if kernel is not None and not np.any(weights[kernel.source].read(kernel.source, flag)):
    for name in POOLER:
      entries.pop(name, None)


def _is_of_encoder(name: str) -> bool:
  return name.startswith(("embeddings.", "encoder.", "pooler."))


def _drop_tied(path: str, full: dict[str, str], weights: dict[str, Array], flag: str) -> None:
  copy, bias = _TIED_BIAS
  if copy in full and bias not in full:
    full[bias] = full.pop(copy)
  for name, tied in (*_TIED.items(), _TIED_BIAS):
    if name in full:
      values = [weights[full[n]].read(full[n], flag) for n in (name, tied) if n in full]
      if len(values) < 2 or not np.array_equal(values[0], values[1]):
        raise UserError(
          f"{flag}={path}: {full[name]} differs from {tied}, which ALBERT ties it to (tie_word_embeddings); such a "
          "model cannot be represented here"
        )
      del full[name]


def _drop_identity_projection(path: str, entries: dict[str, Entry], weights: dict[str, Array], flag: str) -> None:
  """transformers projects even where E = H; the original has no such variables then."""
  kernel, bias = (entries.get(name) for name in PROJECTION)
  if kernel is None or bias is None or len(kernel.shape) != 2 or kernel.shape[0] != kernel.shape[1]:
    return
  projection, offset = (weights[entry.source].read(entry.source, flag) for entry in (kernel, bias))
  if not np.array_equal(projection, np.eye(kernel.shape[0])) or np.any(offset):
    raise UserError(
      f"{flag}={path}: {kernel.source} projects {kernel.shape[0]} embeddings to as many hidden units and is not the "
      "identity; ALBERT has no projection where E = H, so such a model cannot be represented here"
    )
  for name in PROJECTION:
    del entries[name]
