"""Opens weights in all supported formats and gives them the names of the original ALBERT code.

The formats are TensorFlow checkpoints (of this project and of the original), safetensors of Hugging Face, and .npz.
"""

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
from albert.tokenization.vocabulary_files import find_vocabulary, run_directories
from albert.weights import arrays as weight_arrays
from albert.weights import checkpoint_damage
from albert.weights.arrays import Array
from albert.weights.names import POOLER, PROJECTION, from_huggingface

FLAG = "--init_checkpoint"
CONFIG_NAMES = ("albert_config.json", "config.json")
# Arrays that are not weights: the optimizer's moments, the step, and constants that transformers saves.
_NOT_WEIGHTS = re.compile(r"(/adam_m|/adam_v|^global_step|\.position_ids|\.token_type_ids)$")
# The directory of one checkpoint, or of all checkpoints of a run.
_CHECKPOINT_DIRECTORY = re.compile(r"^(step-\d+|checkpoints)$")
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")
# transformers may save a second copy of a tied weight. (Name of the copy, name of the weight.)
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


class WeightFile:
  """The weights at a path. An array is read from disk only when `read` is called.

  Args:
    path: the path as the user gave it, for errors.
    arrays: name in the file -> array.
    entries: name in the original -> how the weight is stored in the file.
    directory: the directory of the weights, in which a config and a vocabulary are looked for.
    is_huggingface: whether the names in the file are those of transformers.
    flag: the flag with which the user gave the path, for errors.
  """

  def __init__(
    self,
    path: str,
    arrays: Mapping[str, Array],
    entries: Mapping[str, WeightEntry],
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

  @property
  def config_file(self) -> str | None:
    """The path of the model's config beside the weights; None if there is none."""
    candidates = [files.join(self.directory, name) for name in CONFIG_NAMES]
    return next((path for path in candidates if files.exists(path)), None)

  def config(self) -> ModelConfig | None:
    """The model's config beside the weights; None if there is none."""
    return load_model_config(self.config_file) if self.config_file else None

  @property
  def vocabulary(self) -> str | None:
    """The path of the SentencePiece model beside the weights or in the output_dir of their run, if there is one."""
    return find_vocabulary(self.directory)

  def check_vocabulary(self, sha256: str, vocabulary_name: str, *, flag: str = FLAG) -> None:
    """Refuses a vocabulary that differs from that of the weights.

    The vocabulary of the weights is known if it lies beside them, or if their run recorded its hash. Otherwise nothing
    is checked. To compare sizes is not enough: another vocabulary of the same size has other pieces.

    Args:
      sha256: SHA-256 of the SentencePiece model that is to be used.
      vocabulary_name: the name of that vocabulary in errors, such as "--spm_model_file=PATH".
      flag: the flag with which the user gave the weights, for errors.
    Raises:
      UserError: the vocabularies differ.
    """
    run = output_files.read_config(self.run_file) if self.run_file else {}
    source = self.vocabulary or self.run_file
    expected = run.get("data", {}).get("vocab_sha256")
    if not expected and self.vocabulary:
      expected = file_sha256(self.vocabulary)
    if expected and expected != sha256:
      raise UserError(
        f"{flag}={self.path}: its vocabulary is {source} (SHA-256 {expected[:12]}...), but {vocabulary_name} is a "
        f"different one ({sha256[:12]}...), so its embeddings belong to other pieces; give the vocabulary of the "
        "weights, or weights that were trained with this vocabulary"
      )

  @property
  def run_file(self) -> str | None:
    """The path of config.json of the run that the weights come from; None if they are not a checkpoint of a run."""
    candidates = [files.join(directory, output_files.CONFIG) for directory in run_directories(self.directory)]
    return next((path for path in candidates if files.exists(path)), None)


def open_weights(path: str, *, flag: str = FLAG) -> WeightFile:
  """Opens the weights at a path.

  Args:
    path: one of
      - a TensorFlow checkpoint of this project or of the original: its prefix, the directory of a single checkpoint
        (such as Google's archives), a step-N directory, or the output_dir of a run, which stands for its newest
        undamaged checkpoint,
      - a Hugging Face directory with model.safetensors,
      - a .safetensors or .npz file.
      The weights may have the original's names, with or without TF-Hub's prefix `module/`, or those of transformers,
      with or without the prefix `albert.`.
    flag: the flag with which the user gave the path, for errors.
  Raises:
    UserError: there are no weights, they are damaged, they are a pickle, or their names are not those of an ALBERT.
  """
  if path.endswith(_PICKLES):
    raise _pickle_error(path, flag)
  if path.endswith(".npz"):
    return _name_weights(path, weight_arrays.open_npz(path, flag), flag)
  if path.endswith(".safetensors") and not files.is_dir(path):
    return _name_weights(path, weight_arrays.open_safetensors(path, flag), flag)
  if files.is_dir(path):
    names = files.listdir(path)
    arrays = weight_arrays.open_safetensors_directory(path, names, flag)
    if arrays is not None:
      return _name_weights(path, arrays, flag, directory=path)
    has_checkpoint = checkpoint_damage.PREFIX + ".index" in names or any(map(_CHECKPOINT_DIRECTORY.match, names))
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles and not has_checkpoint:
      raise _pickle_error(files.join(path, pickles[0]), flag)
  prefix = find_prefix(path, flag=flag)
  return _name_weights(path, weight_arrays.open_bundle(prefix, flag), flag, directory=prefix.rpartition("/")[0] or ".")


def _pickle_error(path: str, flag: str) -> UserError:
  return UserError(
    f"{flag}={path}: is a PyTorch pickle, which can run any code when it is read, so it is not read; give the "
    "model.safetensors of the same model, or make it where that code may run: "
    "AlbertModel.from_pretrained(DIRECTORY).save_pretrained(NEW_DIRECTORY) in transformers"
  )


def _refuse_damaged(directory: str, flag_and_path: str) -> None:
  """Raises UserError if a checkpoint directory is damaged."""
  damage = checkpoint_damage.find_damage(directory)
  if damage:
    raise UserError(f"{flag_and_path}: {damage}; give another checkpoint")


def _find_newest_undamaged(directory: str, flag_and_path: str) -> str | None:
  """Finds the newest undamaged step-N directory in a directory; None if there is none. Warns of damaged ones."""
  names = files.listdir(directory) if files.is_dir(directory) else []
  matches = [match for match in map(output_files.STEP_DIRECTORY.match, names) if match]
  for match in sorted(matches, key=lambda match: int(match[1]), reverse=True):
    checkpoint = files.join(directory, match.string)
    damage = checkpoint_damage.find_damage(checkpoint)
    if damage is None:
      return checkpoint
    log(f"warning: {flag_and_path}: skipped {checkpoint}: {damage}")
  return None


def find_prefix(path: str, *, flag: str = FLAG) -> str:
  """Finds a TensorFlow checkpoint.

  Args:
    path: a checkpoint prefix, a step-N directory, a directory of step-N directories, the output_dir of a run, or a
      directory of one other checkpoint, such as Google's archives. For a run or a directory of step-N directories the
      newest undamaged checkpoint is found, and a warning names the damaged ones.
    flag: the flag with which the user gave the path, for errors.
  Returns:
    The prefix that tf.train.load_checkpoint takes.
  Raises:
    UserError: there is no checkpoint, or it is damaged.
  """
  path = path.removesuffix(".index")
  if files.exists(path + ".index"):
    directory, name = path.rpartition("/")[::2]
    if name == checkpoint_damage.PREFIX and files.exists(files.join(directory or ".", checkpoint_damage.MANIFEST)):
      _refuse_damaged(directory or ".", f"{flag}={path}")
    return path
  if files.exists(files.join(path, checkpoint_damage.PREFIX + ".index")):
    _refuse_damaged(path, f"{flag}={path}")
    return files.join(path, checkpoint_damage.PREFIX)
  for directory in (path, files.join(path, output_files.CHECKPOINTS)):
    newest = _find_newest_undamaged(directory, f"{flag}={path}")
    if newest is not None:
      return files.join(newest, checkpoint_damage.PREFIX)
  indexes = sorted(name for name in (files.listdir(path) if files.is_dir(path) else []) if name.endswith(".index"))
  if len(indexes) == 1:
    return files.join(path, indexes[0].removesuffix(".index"))
  if indexes:
    raise UserError(
      f"{flag}={path}: has several checkpoints ({', '.join(indexes)}): give the path of one, without .index"
    )
  raise UserError(
    f"{flag}={path}: no checkpoint there; give a checkpoint prefix (the part before .index), a step-N directory, "
    "the output_dir of a run, a directory of one checkpoint, a Hugging Face directory with model.safetensors, or a "
    ".safetensors or .npz file"
  )


def _name_weights(path: str, arrays: dict[str, Array], flag: str, directory: str = "") -> WeightFile:
  """Gives the weights among the arrays of a file the names of the original.

  Args:
    path: the path as the user gave it.
    arrays: name in the file -> array. The names are those of the original or of transformers.
    flag: the flag with which the user gave the path.
    directory: the directory of the weights; "" for the one that `path` is in.
  """
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
  directory = directory or path.rpartition("/")[0] or "."
  return WeightFile(path, arrays, entries, directory=directory, is_huggingface=is_huggingface, flag=flag)


def _huggingface_entries(path: str, weights: dict[str, Array], flag: str) -> dict[str, WeightEntry]:
  """Translates the names of transformers.

  Returns:
    Name in the original -> entry. A weight that the original does not have keeps its name.
  """
  # Name with the prefix "albert." for weights of the encoder -> name in the file. Classes without a head leave it out.
  sources = {f"albert.{name}" if _lacks_prefix(name) else name: name for name in weights}
  if len(sources) < len(weights):
    duplicate = next(name for name in weights if f"albert.{name}" in weights)
    raise UserError(f"{flag}={path}: has both {duplicate} and albert.{duplicate}; give a file with one of them")
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
  """Removes the pooler if its kernel is zero: then it was never trained (see the argument `unused` of warm_start)."""
  kernel = entries.get(POOLER[0])
  if kernel is not None and not np.any(weights[kernel.source].read(kernel.source, flag)):
    for name in POOLER:
      entries.pop(name, None)


def _lacks_prefix(name: str) -> bool:
  """Whether a name is that of an encoder weight in AlbertModel, which leaves out the prefix "albert."."""
  return name.startswith(("embeddings.", "encoder.", "pooler."))


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
  for copy, weight in (_TIED_KERNEL, _TIED_BIAS):
    if copy in sources:
      values = [weights[sources[name]].read(sources[name], flag) for name in (copy, weight) if name in sources]
      if len(values) < 2 or not np.array_equal(values[0], values[1]):
        raise UserError(
          f"{flag}={path}: {sources[copy]} differs from {weight}, to which ALBERT ties it (tie_word_embeddings); such "
          "a model cannot be represented here"
        )
      del sources[copy]


def _drop_identity_projection(path: str, entries: dict[str, WeightEntry], weights: dict[str, Array], flag: str) -> None:
  """Removes the projection of the embeddings if E = H, for which the original has none.

  Raises:
    UserError: the projection is not the identity, so a model without it would compute something else.
  """
  kernel, bias = (entries.get(name) for name in PROJECTION)
  if kernel is None or bias is None or len(kernel.shape) != 2 or kernel.shape[0] != kernel.shape[1]:
    return
  kernel_value, bias_value = (weights[entry.source].read(entry.source, flag) for entry in (kernel, bias))
  if not np.array_equal(kernel_value, np.eye(kernel.shape[0])) or np.any(bias_value):
    raise UserError(
      f"{flag}={path}: {kernel.source} projects {kernel.shape[0]} embeddings to as many hidden units and is not the "
      "identity; ALBERT has no projection where E = H, so such a model cannot be represented here"
    )
  for name in PROJECTION:
    del entries[name]
