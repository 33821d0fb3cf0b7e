"""Finds and opens weights in all supported formats, and gives them the names of the original ALBERT code.

The formats are TensorFlow checkpoints (of this project and of the original), safetensors, and PyTorch's files. Finding
weights, and the config, the vocabulary and the run that belong to them, imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.config.model import ModelConfig, load_model_config
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import counted_names
from albert.runs import output_files
from albert.tokenization.vocabulary import find_vocabulary, run_directories, transformer_directory, vocabulary_sha256
from albert.weights import names as weight_names
from albert.weights.arrays import SAFETENSORS_FILE, SAFETENSORS_INDEX_FILE, Array, open_bundle, open_safetensors
from albert.weights.checkpoints import MANIFEST_FILE, WEIGHTS_PREFIX, CheckpointManager, find_damage
from albert.weights.torch_files import open_torch_file

FLAG, RESUME_FLAG = "--init_checkpoint", "--resume_from"
CONFIG_NAMES = ("albert_config.json", "config.json")
# The directory of one checkpoint, or of all checkpoints of a run.
_CHECKPOINT_DIRECTORY = re.compile(r"^(step-\d+|checkpoints)$")
_TORCH_FILE, _TORCH_EXTENSIONS = "pytorch_model.bin", (".bin", ".pt", ".pth")
_INDEX_FILES = (SAFETENSORS_INDEX_FILE, _TORCH_FILE + ".index.json")
# Constants that transformers saves.
_CONSTANTS = (".position_ids", ".token_type_ids")
# transformers may save a tied weight twice: name of the second copy -> name of the weight.
_TIED_BIAS = "predictions.decoder.bias"
_TIED = {"predictions.decoder.weight": "albert.embeddings.word_embeddings.weight", _TIED_BIAS: "predictions.bias"}
# Encoder weights of transformers' AlbertModel, whose names lack the prefix "albert.".
_LACKS_PREFIX = re.compile(r"(embeddings|encoder|pooler)\.")


# Ends of the names of transformers' classes whose outputs have labels.
_LABELED_CLASSES = ("ForSequenceClassification", "ForTokenClassification")
_CLASSIFIER = ("output_weights", "output_bias")


def label_keys(names: Sequence[str], problem_type: str = "") -> dict[str, Any]:
  """Returns the keys of transformers' config.json for outputs with these names. `problem_type` is left out if empty."""
  return {
    "id2label": {str(index): name for index, name in enumerate(names)},
    "label2id": {name: index for index, name in enumerate(names)},
    **({"problem_type": problem_type} if problem_type else {}),
  }


@dataclasses.dataclass(frozen=True)
class WeightLocation:
  """The path of weights, and the config, the vocabulary and the run that belong to them. The weights are not read.

  Attributes:
    path: the path as the user gave it; for a run, that of its checkpoint.
    directory: the directory of the weights, which may also hold a config and a vocabulary.
    prefix: the prefix of the files, if the weights are a TensorFlow checkpoint; "" for other formats.
    flag: the flag with which the user gave the path, for errors.
  """

  path: str
  directory: str
  prefix: str = ""
  flag: str = FLAG

  @property
  def config_file(self) -> str | None:
    """The path of the model's config beside the weights; None if there is none."""
    candidates = [files.join(self.directory, name) for name in CONFIG_NAMES]
    return next((path for path in candidates if files.exists(path)), None)

  def config(self) -> ModelConfig | None:
    """The model's config beside the weights; None if there is none."""
    return load_model_config(self.config_file) if self.config_file else None

  @property
  def step(self) -> int | None:
    """The step of a run's checkpoint; None for other weights."""
    match = output_files.STEP_DIRECTORY.match(self.directory.rpartition("/")[2])
    return int(match[1]) if match else None

  def step_to_resume(self, num_train_steps: int) -> int:
    """Returns the step of a run's checkpoint.

    Raises:
      UserError: the weights are not a run's checkpoint, or its step is not below num_train_steps.
    """
    step, source = self.step, f"{self.flag}={self.path}"
    if step is None:
      raise UserError(f"{source}: give one checkpoint of a run, RUN/checkpoints/step-N")
    if step >= num_train_steps:
      raise UserError(f"{source}: has {step} of {num_train_steps} steps: give more --num_train_steps")
    return step

  def require_config(self, given: str | None = None) -> ModelConfig:
    """The model's config: that of the given file, else the one beside the weights. Raises UserError without any.

    Args:
      given: the value of --albert_config_file; None if the command has no such flag.
    """
    if path := given or self.config_file:
      return load_model_config(path)
    remedy = "put it there" if given is None else "give the model's config with --albert_config_file"
    raise UserError(f"{self.flag}={self.path}: has no {' or '.join(CONFIG_NAMES)} beside it: {remedy}")

  @property
  def class_keys(self) -> dict[str, Any]:
    """What the config beside the weights says about their class in transformers; {} if it names none.

    Its keys are architectures and, for a classifier or a tagger, those of label_keys.
    """
    values = files.read_json(self.config_file) if self.config_file else {}
    architecture = next(iter(values.get("architectures") or [""]))
    if not architecture.endswith(_LABELED_CLASSES):
      return {"architectures": [architecture]} if architecture else {}
    names = values.get("id2label") or {str(i): f"LABEL_{i}" for i in range(values.get("num_labels", 2))}
    if not isinstance(names, dict) or {*names} != {str(i) for i in range(len(names))}:
      raise UserError(f"{self.config_file}: id2label is not an object of labels by their ids, from 0: correct it")
    labels = [str(names[str(i)]) for i in range(len(names))]
    return {"architectures": [architecture], **label_keys(labels, values.get("problem_type") or "")}

  @property
  def architecture(self) -> str:
    """The class of transformers that the config beside the weights names; "" if it names none."""
    return next(iter(self.class_keys.get("architectures", [])), "")

  @property
  def labels(self) -> tuple[str, ...]:
    """The names of the outputs of a classifier or tagger from elsewhere, in their order; () if they are not known."""
    return tuple(self.class_keys.get("id2label", {}).values())

  @property
  def vocabulary(self) -> str | None:
    """The path of the vocabulary beside the weights or in the output_dir of their run, if there is one."""
    return find_vocabulary(self.directory)

  def choose_vocabulary(self, given: str) -> str | None:
    """The path of the vocabulary: the given one, else the one that belongs to the weights, if there is one.

    Raises:
      UserError: the given one does not exist, or is not that of the weights.
    """
    if not given:
      return self.vocabulary
    if not files.exists(given):
      raise UserError(f"--spm_model_file={given}: no such file")
    self.check_vocabulary(vocabulary_sha256(given), f"--spm_model_file={given}")
    return given

  @property
  def run_file(self) -> str | None:
    """The path of config.json of the run that the weights come from; None if they are not a checkpoint of a run."""
    candidates = [files.join(directory, output_files.CONFIG) for directory in run_directories(self.directory)]
    return next((path for path in candidates if files.exists(path)), None)

  @property
  def run(self) -> dict[str, Any]:
    """The values of config.json of that run; {} if there is none."""
    return output_files.read_config(self.run_file) if self.run_file else {}

  def check_vocabulary(self, sha256: str, vocabulary_name: str) -> None:
    """Refuses a vocabulary that differs from that of the weights.

    The vocabulary of the weights is known if it is in their directory, or if their run recorded its hash. Otherwise
    nothing is checked. Comparing sizes is not enough: another vocabulary of the same size has other pieces.

    Args:
      sha256: SHA-256 of the vocabulary that is to be used.
      vocabulary_name: the name of that vocabulary in errors, such as "--spm_model_file=PATH".
    Raises:
      UserError: the vocabularies differ.
    """
    source = self.vocabulary or self.run_file
    expected_sha256 = self.run.get("data", {}).get("vocab_sha256")
    if not expected_sha256 and self.vocabulary:
      expected_sha256 = vocabulary_sha256(self.vocabulary)
    if expected_sha256 and expected_sha256 != sha256:
      raise UserError(
        f"{self.flag}={self.path}: its vocabulary is {source} (SHA-256 {expected_sha256[:12]}...), but "
        f"{vocabulary_name} is a different one ({sha256[:12]}...); give the vocabulary of the weights, or other weights"
      )


class WeightEntry(NamedTuple):
  """A weight in a file. It is read from disk only when `read` is called.

  Attributes:
    array: the array in the file; array.name is its name there.
    is_transposed: whether the file has the transposed matrix.
    order: the numbers of the rows in the order in which they are read; () for the order of the file.
  """

  array: Array
  is_transposed: bool = False
  order: Sequence[int] = ()

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape in the original's layout."""
    return self.array.shape[::-1] if self.is_transposed else self.array.shape

  def read(self) -> np.ndarray:
    """Reads the weight as float32, in the original's layout. See Array.read."""
    value = self.array.read()
    if self.order:
      value = value[list(self.order)]
    return np.ascontiguousarray(value.T if self.is_transposed else value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightFile(WeightLocation):
  """The weights at a path.

  Attributes:
    entries: name in the original -> the weight.
  """

  entries: Mapping[str, WeightEntry]

  @property
  def has_pooler(self) -> bool:
    """Whether the weights include a pooler."""
    return all(name in self.entries for name in weight_names.POOLER)

  def read(self, name: str) -> np.ndarray:
    """Reads the weight of a name in the original, see WeightEntry.read."""
    return self.entries[name].read()

  def with_labels(self, labels: Sequence[str]) -> WeightFile:
    """Returns these weights with the outputs of a classifier from elsewhere in the order of a task's labels.

    If its config has other labels, the outputs keep their order, and a warning gives both.
    """
    found = self.labels
    if sorted(labels) != sorted(found):
      if len(labels) == len(found) and not found[0].startswith("LABEL_"):
        line = f"warning: {self.path}: the labels {', '.join(found)} of its head become {', '.join(labels)}"
        log(f"{line}: if that is wrong, train with --fresh_head")
      return self
    order = [found.index(label) for label in labels]
    head = {name: self.entries[name]._replace(order=order) for name in _CLASSIFIER if name in self.entries}
    return dataclasses.replace(self, entries={**self.entries, **head})

  def compare(
    self, shapes: Mapping[str, tuple[int | None, ...]], sources: Mapping[str, str] | None = None
  ) -> tuple[list[str], list[str]]:
    """Compares the weights with the shapes that a model needs.

    Args:
      shapes: name in the model -> shape. None as a length stands for any length.
      sources: name in the model -> name of the weight, for names that differ.
    Returns:
      missing: the names of the weights that are missing.
      misshapen: a text for each weight of another shape: its name and both shapes.
    """
    missing, misshapen = [], []
    for name, expected in shapes.items():
      entry = self.entries.get((sources or {}).get(name, name))
      if entry is None:
        missing.append(name)
      elif len(entry.shape) != len(expected) or any(
        length not in (None, actual) for length, actual in zip(expected, entry.shape, strict=True)
      ):
        misshapen.append(f"{name} {list(entry.shape)} instead of {list(expected)}")
    return missing, misshapen

  def refuse(self, problem: str, names: Iterable[str], remedy: str) -> None:
    """Raises a UserError that names weights with a problem, unless there are none."""
    if names := sorted(names):
      raise UserError(f"{self.flag}={self.path}: {problem} {counted_names(names, 'weight')}; {remedy}")

  def check_groups(self, config: ModelConfig) -> None:
    """Refuses weights of transformers if it assigns the layers to groups in another way than the original."""
    is_huggingface = not any("/" in entry.array.name for entry in self.entries.values())
    if is_huggingface and not weight_names.huggingface_groups_agree(config):
      raise UserError(
        f"{self.flag}={self.path}: transformers assigns {config.num_hidden_layers} layers to "
        f"{config.num_hidden_groups} groups in another way than the original, so its weights cannot be used here; give "
        "weights whose number of groups divides the number of layers"
      )


def find_weights(path: str, *, flag: str = FLAG, select: str = "newest") -> WeightLocation:
  """Finds the weights at a path without opening them. Imports no TensorFlow.

  Args:
    path, flag: see `open_weights`.
    select: "newest" or "best" checkpoint of a run; "" for the run's own --select_checkpoint.
  Raises:
    UserError: there are no weights, they are in a format that is not read, or a checkpoint with a manifest is damaged.
  """
  path = transformer_directory(path.rstrip("/") or path)
  names = files.listdir(path) if files.is_dir(path) else []
  if output_files.RUNS in names:
    best_run = output_files.read_runs(files.join(path, output_files.RUNS))["best_run"]
    return find_weights(files.join(path, best_run), flag=flag, select=select)
  if SAFETENSORS_FILE in names:
    return WeightLocation(path, path, flag=flag)
  if path.endswith((".safetensors", *_TORCH_EXTENSIONS)) and not files.is_dir(path):
    if not files.exists(path):
      raise UserError(f"{flag}={path}: no such file")
    return WeightLocation(path, path.rpartition("/")[0] or ".", flag=flag)
  if WEIGHTS_PREFIX + ".index" not in names and not any(map(_CHECKPOINT_DIRECTORY.match, names)):
    if _TORCH_FILE in names:
      return WeightLocation(files.join(path, _TORCH_FILE), path, flag=flag)
    if not {*_INDEX_FILES}.isdisjoint(names):
      raise UserError(
        f"{flag}={path}: its weights are in several files; save them as one, in transformers: "
        'save_pretrained(NEW_DIRECTORY, max_shard_size="100GB")'
      )
    if others := [name for name in (path, *names) if name.endswith((".h5", ".msgpack"))]:
      raise UserError(
        f"{flag}={path}: {others[0]} is a file of Keras or Flax: convert it in transformers 4, with the model's class: "
        "AlbertModel.from_pretrained(DIRECTORY, from_tf=True or from_flax=True).save_pretrained(NEW_DIRECTORY)"
      )
  path, prefix = _find_checkpoint(path, flag, select)
  return WeightLocation(path, prefix.rpartition("/")[0] or ".", prefix, flag)


def _find_checkpoint(path: str, flag: str, select: str) -> tuple[str, str]:
  """Finds a TensorFlow checkpoint. Returns its path, and the prefix that tf.train.load_checkpoint takes."""
  # A prefix, which need not be that of a checkpoint of this project, or a step-N directory.
  stem = path.removesuffix(".index")
  for prefix in (stem, files.join(stem, WEIGHTS_PREFIX)):
    if files.exists(prefix + ".index"):
      directory, _, name = prefix.rpartition("/")
      is_ours = name == WEIGHTS_PREFIX and (prefix != stem or files.exists(files.join(directory or ".", MANIFEST_FILE)))
      if is_ours and (damage := find_damage(directory or ".")):
        raise UserError(f"{flag}={path}: {damage}; give another checkpoint")
      return path, prefix
  # A directory of step-N directories, or the output_dir of a run.
  run_directory, run_file = files.join(path, output_files.CHECKPOINTS), files.join(path, output_files.CONFIG)
  if not select and files.is_dir(run_directory) and files.exists(run_file):
    select = output_files.read_config(run_file).get("train", {}).get("select_checkpoint", "")
  for directory in (path, run_directory):
    if files.is_dir(directory):
      manager = CheckpointManager(directory, keep=1, model_config=ModelConfig())
      if checkpoint := manager.select(select):
        return checkpoint.path, checkpoint.prefix
      if manager.steps():
        raise UserError(
          f"{flag}={path}: all its checkpoints are damaged, as the warnings say: restore one, or train again"
        )
  # A directory with another checkpoint.
  names = files.listdir(path) if files.is_dir(path) else []
  index_files = sorted(name for name in names if name.endswith(".index"))
  if len(index_files) == 1:
    return path, files.join(path, index_files[0].removesuffix(".index"))
  if index_files:
    raise UserError(
      f"{flag}={path}: has several checkpoints ({', '.join(index_files)}): give the path of one, without .index"
    )
  remedy = files.hub_remedy(path) or (
    "give a checkpoint's prefix (the part before .index) or directory, the output_dir of a run, a Hugging Face "
    "directory with model.safetensors or pytorch_model.bin, or such a file"
  )
  if flag == RESUME_FLAG:
    remedy = "give one checkpoint of a run, RUN/checkpoints/step-N"
  raise UserError(f"{flag}={path}: no checkpoint there; {remedy}")


def open_weights(path: str, *, flag: str = FLAG) -> WeightFile:
  """Opens the weights at a path.

  Args:
    path: one of
      - a TensorFlow checkpoint of this project or of the original: its prefix, the directory of a single checkpoint
        (such as Google's archives), a step-N directory, or the output_dir of a run, which stands for its newest
        undamaged checkpoint,
      - the output_dir of several runs (--num_runs), which stands for the best run,
      - a Hugging Face directory with model.safetensors or pytorch_model.bin,
      - a .safetensors file, or a file that torch.save wrote.
      The weights may have the original's names, with or without TF-Hub's prefix `module/`, or those of transformers,
      of ALBERT or BERT, with or without the prefix `albert.` or `bert.`.
    flag: the flag with which the user gave the path, for errors.
  Raises:
    UserError: there are no weights, they are damaged, or their names are not those of an ALBERT.
  """
  return open_location(find_weights(path, flag=flag))


def open_location(location: WeightLocation) -> WeightFile:
  """Opens weights that `find_weights` has found: reads their names and shapes.

  Raises:
    UserError: the weights are damaged, or their names are not those of an ALBERT.
  """
  arrays, source = open_arrays(location), f"{location.flag}={location.path}"
  weights = {name: array for name, array in arrays.items() if _is_weight(name, arrays)}
  if not weights:
    raise UserError(f"{source}: holds no weights; give another file")
  if any("/" in name for name in weights):
    original = weight_names.original_norms(name.removeprefix("module/") for name in weights)
    arrays = _rename(source, weights, lambda name: original[name.removeprefix("module/")])
    entries = {name: WeightEntry(array) for name, array in arrays.items()}
  else:
    entries = _huggingface_entries(source, weights)
  # A pooler whose kernel is zero was never trained (see argument `unused` of warm_start).
  kernel = entries.get(weight_names.POOLER[0])
  if kernel is not None and not np.any(kernel.read()):
    entries = {name: entry for name, entry in entries.items() if name not in weight_names.POOLER}
  if weight_names.OUTPUT_SCALE in entries:
    entries = _with_scaled_head(entries)
  return WeightFile(**vars(location), entries=entries)


def open_arrays(location: WeightLocation) -> dict[str, Array]:
  """Opens the arrays of weights that `find_weights` has found. Returns them by their names in the file."""
  path = location.path
  if location.prefix:
    return open_bundle(location.prefix, location.flag)
  if path.endswith(_TORCH_EXTENSIONS) and not files.is_dir(path):
    return open_torch_file(path, location.flag)
  return open_safetensors(files.join(path, SAFETENSORS_FILE) if files.is_dir(path) else path, location.flag)


def _is_weight(name: str, arrays: Mapping[str, Array]) -> bool:
  """Whether an array is a weight: no constant of transformers, no state of a run, and no slot of an optimizer.

  State, such as the step, is scalar. The name of a slot contains that of its variable: x/kernel/Adam_1, or, as Keras
  writes it, training/Adam/x/kernel/m or Adam/m/x/kernel.
  """
  if "." in name:  # a name of transformers
    return not name.endswith(_CONSTANTS)
  parts = name.split("/")
  if not arrays[name].shape or any("/".join(parts[:end]) in arrays for end in range(1, len(parts))):
    return False
  inner_names = ("/".join(parts[start:end]) for end in range(3, len(parts) + 1) for start in range(1, end - 1))
  same_shape = (inner in arrays and arrays[inner].shape == arrays[name].shape for inner in inner_names)
  return parts[0] == "module" or not any(same_shape)


def _with_scaled_head(entries: Mapping[str, WeightEntry]) -> dict[str, WeightEntry]:
  """Multiplies the head of a regression by its output_scale: then its output is in the unit of the labels."""
  deviation, mean = entries[weight_names.OUTPUT_SCALE].read()
  weights, bias = entries["output_weights"].array, entries["output_bias"].array
  scaled = {
    "output_weights": dataclasses.replace(weights, read_raw=lambda: weights.read_raw() * deviation),
    "output_bias": dataclasses.replace(bias, read_raw=lambda: bias.read_raw() * deviation + mean),
  }
  others = {name: entry for name, entry in entries.items() if name != weight_names.OUTPUT_SCALE}
  return others | {name: WeightEntry(array) for name, array in scaled.items()}


def _rename(source: str, weights: Mapping[str, Array], new_name: Callable[[str], str]) -> dict[str, Array]:
  """Renames arrays. Raises a UserError if two of them get the same name."""
  renamed: dict[str, Array] = {}
  for name, array in weights.items():
    other = renamed.setdefault(new_name(name), array)
    if other is not array:
      raise UserError(f"{source}: has both {other.name} and {name}; give a file with one of them")
  return renamed


def _huggingface_entries(source: str, weights: Mapping[str, Array]) -> dict[str, WeightEntry]:
  """Name in the original -> entry, of weights of transformers. Those that the original lacks keep their names."""
  # By their names in transformers' AlbertForPreTraining. Files of classes without a head lack the prefix "albert.".
  if weight_names.has_bert_names(weights):
    arrays = _rename(source, weights, weight_names.from_bert)
  else:
    arrays = _rename(source, weights, lambda name: f"albert.{name}" if _LACKS_PREFIX.match(name) else name)
  # The second copies of tied weights are left out.
  for copy, weight in _TIED.items():
    if copy not in arrays:
      continue
    if copy == _TIED_BIAS:  # some files have only the copy
      arrays.setdefault(weight, arrays[copy])
    if weight not in arrays or not np.array_equal(arrays[copy].read(), arrays[weight].read()):
      raise UserError(
        f"{source}: {arrays[copy].name} differs from {weight}, to which ALBERT ties it (tie_word_embeddings); such a "
        "model cannot be represented here"
      )
    del arrays[copy]
  if not any(map(weight_names.from_huggingface, arrays)):
    raise UserError(
      f"{source}: none of its {len(weights)} arrays has a name of ALBERT's (one is {min(weights)!r}); give another file"
    )
  entries: dict[str, WeightEntry] = {}
  for name, array in arrays.items():
    original = weight_names.from_huggingface(name)
    if original is None:
      entries[array.name] = WeightEntry(array)  # the callers report it as an unused weight
    else:
      entries[original.name] = WeightEntry(array, original.is_transposed)
  _drop_identity_projection(source, entries)
  return entries


def _drop_identity_projection(source: str, entries: dict[str, WeightEntry]) -> None:
  """Removes the projection of the embeddings if E = H. In this case, the original has no projection."""
  kernel, bias = (entries.get(name) for name in weight_names.PROJECTION)
  if kernel is None or bias is None or len(kernel.shape) != 2 or kernel.shape[0] != kernel.shape[1]:
    return
  if not np.array_equal(kernel.read(), np.eye(kernel.shape[0])) or np.any(bias.read()):
    raise UserError(
      f"{source}: {kernel.array.name} projects {kernel.shape[0]} embeddings to as many hidden units and is not the "
      "identity; ALBERT has no projection where E = H, so such a model cannot be represented here"
    )
  for name in weight_names.PROJECTION:
    del entries[name]
