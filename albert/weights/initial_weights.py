"""The weights that a model starts from: those of --init_checkpoint for a run, and those of a path in Python.

Weights are matched with variables by name, and each mismatch is an error. Nothing is assigned if there is an error.
config.json records which weights a run started from; a hash of their content identifies them, not their path.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.runs import output_files
from albert.tokenization.vocabulary import VocabularyId
from albert.weights.files import FLAG, WeightFile, WeightLocation, find_weights, open_location, open_weights
from albert.weights.names import GROUP_PATTERN, NO_POOLER, POOLER, encoder_shapes, heads

if TYPE_CHECKING:
  import tensorflow as tf

# Keys of config.json.
_PATH_KEY, _SHA256_KEY = "init_checkpoint", "init_checkpoint_sha256"
# In Python, errors begin with this name and the path: "weights=PATH".
_PYTHON_FLAG = "weights"
# What to do in Python if the weights have no pooler. "needed": raise an error. "new": the pooler is newly initialized,
# and a line is logged. "unused": the pooler becomes zeros, since the model does not read it.
POOLER_NEEDED, POOLER_NEW, POOLER_UNUSED = "needed", "new", "unused"
# Fields of the config that do not follow from the shapes of the weights.
FIELDS_NOT_IN_SHAPES = ("num_hidden_layers", "num_attention_heads", "hidden_act", "layer_norm_eps")
# The names of the sentence head's weights begin with this.
_SENTENCE_HEAD_PREFIX = "cls/seq_relationship/"
_ATTENTION = re.compile(r"/(attention_1|LayerNorm)/")


def content_sha256(weights: WeightFile) -> str:
  """Returns the SHA-256 of the names and values of all weights. It does not depend on the file's format or path."""
  digest = hashlib.sha256()
  for name in sorted(weights.entries):
    value = weights.read(name)
    digest.update(f"{name} {value.shape}\n".encode())
    digest.update(np.ascontiguousarray(value, "<f4").tobytes())
  return digest.hexdigest()


def claim_initial_weights(
  output_dir: str,
  init_checkpoint: str,
  vocabulary: VocabularyId | None,
  *,
  from_scratch: bool,
  is_started: bool,
  is_chief: bool = True,
) -> dict[str, Any]:
  """Compares the weights that a command names with those that the run in output_dir started from.

  Args:
    output_dir: the directory of the run.
    init_checkpoint: the weights that the command names, see open_weights; empty if it names none.
    vocabulary: the vocabulary of the task, which the weights of a new run must also have; None if it is not known.
    from_scratch: whether the command asks for random weights.
    is_started: whether the run has already saved something. Then its initial weights are not needed and may be deleted.
    is_chief: whether this process writes config.json. Only this process hashes the weights of a new run.
  Returns:
    The entries of config.json that describe the initial weights.
  Raises:
    UserError: the run started from other weights, or the weights have another vocabulary.
  """
  path = files.join(output_dir, output_files.CONFIG)
  if not is_started or not files.exists(path):
    if not init_checkpoint:
      return {_PATH_KEY: ""}
    weights = open_weights(init_checkpoint)
    if vocabulary is not None:
      weights.check_vocabulary(vocabulary.sha256, vocabulary.name)
    return {_PATH_KEY: init_checkpoint, **({_SHA256_KEY: content_sha256(weights)} if is_chief else {})}
  config = output_files.read_config(path)
  recorded_path = config.get(_PATH_KEY, "")
  if from_scratch and recorded_path:
    start = f"{recorded_path}, not from random weights"
    raise UserError(f"{path}: this run started from {start}: leave out --from_scratch, or give another --output_dir")
  if init_checkpoint in ("", recorded_path):
    return {key: config[key] for key in (_PATH_KEY, _SHA256_KEY) if key in config}
  if not recorded_path:
    raise UserError(
      f"{path}: this run started from random weights, not from --init_checkpoint={init_checkpoint}: leave the flag out "
      "to resume it, or give another --output_dir"
    )
  sha256, recorded_sha256 = content_sha256(open_weights(init_checkpoint)), config.get(_SHA256_KEY, "")
  if sha256 != recorded_sha256:
    raise UserError(
      f"{path}: this run started from {recorded_path} (SHA-256 of the weights {recorded_sha256[:12]}...), but "
      f"--init_checkpoint={init_checkpoint} holds different weights ({sha256[:12]}...): leave the flag out to resume "
      "the run, or give another --output_dir"
    )
  return {_PATH_KEY: init_checkpoint, _SHA256_KEY: sha256}


def warm_start(
  path: str,
  variables: Mapping[str, tf.Variable],
  *,
  newly_initialized: Sequence[str] = (),
  ignored: Sequence[str] = (),
  unused: Sequence[str] = (),
  from_shallower: bool = False,
  config: ModelConfig | None = None,
  head_settings: Mapping[str, Any] | None = None,
  vocabulary: VocabularyId | None = None,
  labels: Sequence[str] = (),
) -> list[str]:
  """Initializes variables from the weights of --init_checkpoint. Nothing is assigned if there is an error.

  Args:
    path: the value of --init_checkpoint; see albert.weights.files.open_weights.
    variables: the model's variables, by the names of the original.
    newly_initialized: prefixes of variables that may be missing from the checkpoint, such as those of a task's head.
      Such variables keep their initial values.
    ignored: prefixes of weights in the checkpoint that the model need not have, such as the heads of pretraining.
    unused: prefixes of variables that the task does not use, such as the pooler for SQuAD. If the checkpoint has no
      weight with such a prefix, the variables become zeros. When a checkpoint with such a pooler is opened later, the
      pooler counts as missing, because it was not trained (see albert.weights.files.open_location).
    from_shallower: whether a model with more groups of layers may be initialized from a checkpoint with fewer groups
      (ALBERT, appendix A.1: deeper networks start from shallower ones).
    config: the model's config, or None. If there is a config beside the weights, the fields that the shapes of the
      weights do not determine are compared with it.
    head_settings: settings that must match before the head in the checkpoint is reused (see Task.head_settings); they
      are compared with those of the run that the weights come from.
    vocabulary: the model's vocabulary, which must be that of the weights; None if it is not known.
    labels: the labels of the task's outputs, see WeightFile.with_labels.
  Returns:
    The names of the variables that keep their initial values.
  Raises:
    UserError: a variable is missing from the checkpoint or has another shape there, a weight of the checkpoint is not
      used, or the config, the vocabulary or the settings of the head differ. The message names them.
  """
  file = open_weights(path).with_labels(labels)
  if vocabulary is not None:
    file.check_vocabulary(vocabulary.sha256, vocabulary.name)
  recorded = set(files.read_json(file.config_file)) if file.config_file else set()
  if config_of_file := file.config():
    file.check_groups(config_of_file)
  recorded -= {"num_hidden_layers"} if from_shallower else set()
  compared = [key for key in FIELDS_NOT_IN_SHAPES if key in recorded]
  check_config(file, config, compared, "give that file as --albert_config_file")

  # Which variables get which weights.
  sources = {name: name for name in variables}
  if from_shallower:
    sources |= _sources_in_shallower(list(variables), list(file.entries))
  zero_prefixes = tuple(prefix for prefix in unused if not any(name.startswith(prefix) for name in file.entries))
  zeroed = [name for name in variables if name.startswith(zero_prefixes)]
  shapes = {name: tuple(variable.shape) for name, variable in variables.items() if name not in zeroed}
  missing, misshapen = file.compare(shapes, sources)
  head_prefixes = tuple(newly_initialized)
  not_assigned = [name for name in missing if name.startswith(head_prefixes)]
  assigned = [name for name in shapes if name not in not_assigned]

  # Mismatches.
  missing = [name for name in missing if name not in not_assigned]
  # The sentence head reads the pooler's output.
  if set(POOLER) <= set(missing) and all(name.startswith((*POOLER, _SENTENCE_HEAD_PREFIX)) for name in missing):
    has_head = any(name.startswith(_SENTENCE_HEAD_PREFIX) for name in missing)
    other_remedy = "; or train without the sentence loss, with --sentence_prediction=none" if has_head else ""
    raise UserError(f"--init_checkpoint={path}: has {NO_POOLER}{other_remedy}")
  remedy = "give the --albert_config_file or --model of these weights"
  file.refuse("lacks", missing, remedy)
  is_head = all(name.startswith(head_prefixes) for name in misshapen)
  file.refuse(
    "has another shape for", misshapen, "give --fresh_head to initialize the head anew" if is_head else remedy
  )
  used = set(sources.values())
  file.refuse(
    "has unused", [name for name in file.entries if name not in used and not name.startswith(tuple(ignored))], remedy
  )
  if any(name.startswith(head_prefixes) for name in [*assigned, *zeroed]):
    check_head(file, head_settings or {})

  for name in zeroed:
    variables[name].assign(np.zeros(tuple(variables[name].shape), np.float32))
  for name in assigned:
    variables[name].assign(file.read(sources[name]))
  return not_assigned


def _sources_in_shallower(variables: Sequence[str], weights: Sequence[str]) -> dict[str, str]:
  """Returns name of a variable -> name of the weight of a shallower network that initializes it.

  The deeper network has n groups of layers, and the shallower one has m. Group g of the deeper network is initialized
  from group floor(g * m / n) of the shallower one.
  """
  sources: dict[str, str] = {}
  # Attention and feed-forward weights may have different numbers of groups.
  for part in ("/attention_1/", "/ffn_1/", "/LayerNorm/", "/LayerNorm_1/"):
    groups, source_groups = (
      {name: int(match[1]) for name in names if part in name and (match := GROUP_PATTERN.search(name))}
      for names in (variables, weights)
    )
    n, m = (1 + max(numbers.values(), default=0) for numbers in (groups, source_groups))
    sources |= {name: GROUP_PATTERN.sub(f"/group_{group * m // n}/", name) for name, group in groups.items()}
  return sources


def stacked_sources(names: Iterable[str], config: ModelConfig, depth: int) -> dict[str, str]:
  """Finds the weights that layers above `depth` get from the layers below it (stacking, Gong et al. 2019).

  Layer i >= depth gets the weights of layer i mod depth. If layers share either the attention or the feed-forward
  network, only the weights that are not shared are copied.

  Args:
    names: names of weights, or of weights and moments, as checkpoints have them.
    config: the model with all its layers.
    depth: number of layers to copy from.
  Returns: name of a weight or moment of a layer above `depth` -> name of the one that is copied to it.
  """
  sources = {}
  for name in names:
    match = GROUP_PATTERN.search(name)
    if match is None:
      continue
    part = "attention" if _ATTENTION.search(name) else "ffn"
    layer = int(match[1])
    if config.sharing not in ("all", part) and layer >= depth:
      sources[name] = GROUP_PATTERN.sub(f"/group_{layer % depth}/", name, count=1)
  return sources


def check_config(file: WeightLocation, config: ModelConfig | None, compared: Iterable[str], remedy: str) -> None:
  """Refuses weights if the config beside them differs from the model's in one of the fields to compare."""
  found = file.config()
  for key in compared if config and found else ():
    value, found_value = getattr(config, key), getattr(found, key)
    if value != found_value:
      raise UserError(
        f"{file.flag}={file.path}: {file.config_file} has {key} {found_value!r}, this model has {value!r}; {remedy}"
      )


def check_head(file: WeightFile, head_settings: Mapping[str, Any]) -> None:
  """Refuses a head that was trained for another task or other labels, even if its weights have the right shapes."""
  run = file.run
  run_settings = {"task": run.get("task"), **run.get("data", {})} if run else {}
  for key, value in head_settings.items():
    if key in run_settings and run_settings[key] != value:
      remedy = "give --fresh_head to initialize the head anew" if file.flag == FLAG else f"give the same {key}"
      raise UserError(
        f"{file.flag}={file.path}: its head was trained with {key} {run_settings[key]!r}, not {value!r}; {remedy}"
      )


class Pretrained(NamedTuple):
  """Weights that are open, and the config of their model."""

  file: WeightFile
  config: ModelConfig


def open_pretrained(path: files.AnyPath, config: ModelConfig | None = None) -> Pretrained:
  """Opens weights and finds their config.

  Args:
    path: see `albert.weights.files.open_weights`. The setting --select_checkpoint of a run selects its newest or its
      best checkpoint.
    config: the model's config; None for the one beside the weights.

  Raises:
    UserError: there are no weights, they are damaged, they have no config, or `config` differs from theirs.
  """
  file = open_location(find_weights(os.fspath(path), flag=_PYTHON_FLAG, select=""))
  check_config(file, config, FIELDS_NOT_IN_SHAPES, "give that config")
  config = config or file.config()
  if config is None:
    raise UserError(f"{_PYTHON_FLAG}={path}: has no albert_config.json beside it: give the model's config (config=...)")
  file.check_groups(config)
  return Pretrained(file, config)


def load_pretrained(
  pretrained: Pretrained,
  variables: Mapping[str, tf.Variable],
  *,
  head_names: Sequence[str] = (),
  new_heads: bool = False,
  on_missing_pooler: str = POOLER_NEEDED,
) -> None:
  """Assigns weights to variables of the same names. Nothing is assigned if there is an error.

  Args:
    pretrained: the weights.
    variables: all variables of the layer or model, by the names of the original.
    head_names: the heads of the model, by their names in `albert.weights.names.heads`. A head that the weights lack
      keeps its initial values, and a line is logged.
    new_heads: whether the heads keep their initial values in any case.
    on_missing_pooler: POOLER_NEEDED, POOLER_NEW or POOLER_UNUSED.

  Raises:
    UserError: a weight is missing, has another shape, or belongs to no known part of the model.
  """
  file, all_heads = pretrained.file, heads(pretrained.config)
  if not file.has_pooler and on_missing_pooler == POOLER_NEEDED:
    raise UserError(f"{_PYTHON_FLAG}={file.path}: has {NO_POOLER}")
  # Name of a newly initialized part -> the names of its variables.
  new_parts = {
    f"{head} head": set(all_heads[head].shapes)
    for head in head_names
    if new_heads or not set(all_heads[head].shapes) & set(file.entries)
  }
  if not file.has_pooler and on_missing_pooler == POOLER_NEW:
    new_parts["pooler"] = set(POOLER)
  zeroed = POOLER if not file.has_pooler and on_missing_pooler == POOLER_UNUSED else ()
  not_in_file = set(zeroed).union(*new_parts.values())
  assigned = {name: variable for name, variable in variables.items() if name not in not_in_file}

  missing, misshapen = file.compare({name: tuple(variable.shape) for name, variable in assigned.items()})
  known = {*variables, *encoder_shapes(pretrained.config)}.union(*(head.shapes for head in all_heads.values()))
  unknown = [name for name in file.entries if name not in known]
  for problem, names in (("lacks", missing), ("has another shape for", misshapen), ("has unknown", unknown)):
    is_head = not any(name.startswith("bert/") for name in names)
    remedy = "give new_heads=True to initialize the head anew" if is_head else "give the config of these weights"
    file.refuse(problem, names, remedy)

  for name, variable in assigned.items():
    variable.assign(file.read(name))
  for name in zeroed:
    variables[name].assign(np.zeros(tuple(variables[name].shape), np.float32))
  if new_parts:
    log(f"{file.path}: newly initialized, so to be trained before use: {', '.join(new_parts)}")
