"""Initializes a model from --init_checkpoint. Weights are matched by name, and each mismatch is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.io import files
from albert.io.wording import counted_names
from albert.runs import output_files
from albert.tokenization.vocabulary import VocabularyId
from albert.weights.files import WeightEntry, WeightFile, open_weights
from albert.weights.names import GROUP_PATTERN, NO_POOLER, POOLER, huggingface_groups_agree

# The names of the sentence head's weights begin with this.
_SENTENCE_HEAD_PREFIX = "cls/seq_relationship/"


def _shallower_name(name: str, num_groups: int, num_source_groups: int) -> str:
  """Returns the name of the weight of a shallower network that initializes the weight `name` of a deeper network.

  The deeper network has n groups of layers, and the shallower one has m. Group g of the deeper network is initialized
  from group floor(g * m / n) of the shallower one.
  """

  def replace_group(match: re.Match[str]) -> str:
    return f"/group_{int(match.group(1)) * num_source_groups // num_groups}/"

  return GROUP_PATTERN.sub(replace_group, name)


def _num_groups(names: Sequence[str], part: str) -> int:
  """The number of groups of layers, counted in the weights whose names contain `part`."""
  matches = [GROUP_PATTERN.search(name) for name in names if part in name]
  return 1 + max((int(match.group(1)) for match in matches if match), default=0)


def _source_names(variables: Sequence[str], checkpoint_names: Sequence[str], *, from_shallower: bool) -> dict[str, str]:
  """Returns name of a variable -> name of the weight in the checkpoint that initializes this variable."""
  source_names = {name: name for name in variables}
  if from_shallower:
    # Attention and feed-forward weights may have different numbers of groups.
    for part in ("/attention_1/", "/ffn_1/", "/LayerNorm/", "/LayerNorm_1/"):
      num_groups, num_source_groups = _num_groups(variables, part), _num_groups(checkpoint_names, part)
      source_names |= {
        name: _shallower_name(name, num_groups, num_source_groups)
        for name in variables
        if part in name and GROUP_PATTERN.search(name)
      }
  return source_names


class _Matches(NamedTuple):
  """The names of variables and weights, by how they match.

  Attributes:
    assigned: variables that get a weight of the checkpoint.
    not_assigned: variables that are missing from the checkpoint, which is allowed. They keep their initial values.
    missing: variables that are missing from the checkpoint, which is an error.
    misshapen: variables with another shape in the checkpoint, each followed by both shapes.
    not_used: weights of the checkpoint that the model does not use, which is an error.
  """

  assigned: list[str]
  not_assigned: list[str]
  missing: list[str]
  misshapen: list[str]
  not_used: list[str]


def _match(
  variables: Mapping[str, tf.Variable],
  entries: Mapping[str, WeightEntry],
  source_names: Mapping[str, str],
  *,
  newly_initialized: Sequence[str],
  ignored: Sequence[str],
) -> _Matches:
  """Matches variables with the weights of a checkpoint."""
  used_names = set(source_names.values())
  not_used = [name for name in entries if name not in used_names and not name.startswith(tuple(ignored))]
  matches = _Matches([], [], [], [], not_used)
  for name, variable in variables.items():
    weight = entries.get(source_names[name])
    if weight is None and name.startswith(tuple(newly_initialized)):
      matches.not_assigned.append(name)
    elif weight is None:
      matches.missing.append(name)
    elif weight.shape != tuple(variable.shape):
      matches.misshapen.append(f"{name} {list(weight.shape)} instead of {list(variable.shape)}")
    else:
      matches.assigned.append(name)
  return matches


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
) -> list[str]:
  """Initializes variables from the weights at a path. Nothing is assigned if there is an error.

  Args:
    path: the value of --init_checkpoint; see albert.weights.files.open_weights.
    variables: the model's variables, by the names of the original.
    newly_initialized: prefixes of variables that may be missing from the checkpoint, such as those of a task's head.
      Such variables keep their initial values.
    ignored: prefixes of weights in the checkpoint that the model need not have, such as the heads of pretraining.
    unused: prefixes of variables that the task does not use, such as the pooler for SQuAD. If the checkpoint has no
      weight with such a prefix, the variables become zeros. When a checkpoint with such a pooler is opened later, the
      pooler counts as missing, because it was not trained (see albert.weights.files.open_weights).
    from_shallower: whether a model with more groups of layers may be initialized from a checkpoint with fewer groups
      (ALBERT, appendix A.1: deeper networks start from shallower ones).
    config: the model's config, or None. If there is a config beside the weights, the fields that the shapes of the
      weights do not determine are compared with it.
    head_settings: settings that must match before the head in the checkpoint is reused (see Task.head_settings); they
      are compared with those of the run that the weights come from.
    vocabulary: the model's vocabulary, which must be that of the weights; None if it is not known.
  Returns:
    The names of the variables that keep their initial values.
  Raises:
    UserError: a variable is missing from the checkpoint or has another shape there, a weight of the checkpoint is not
      used, or the config, the vocabulary or the settings of the head differ. The message names them.
  """
  file = open_weights(path)
  entries = file.entries
  if vocabulary is not None:
    file.check_vocabulary(vocabulary.sha256, vocabulary.name)
  _check_config(path, file, config, from_shallower=from_shallower)
  source_names = _source_names(list(variables), list(entries), from_shallower=from_shallower)
  zero_prefixes = tuple(prefix for prefix in unused if not any(name.startswith(prefix) for name in entries))
  zeroed_names = [name for name in variables if name.startswith(zero_prefixes)]
  other_variables = {name: variable for name, variable in variables.items() if name not in zeroed_names}
  matches = _match(other_variables, entries, source_names, newly_initialized=newly_initialized, ignored=ignored)
  _check_all_match(path, newly_initialized, matches)
  if any(name.startswith(tuple(newly_initialized)) for name in [*matches.assigned, *zeroed_names]):
    _check_head(path, file, head_settings or {})
  for name in zeroed_names:
    variables[name].assign(tf.zeros_like(variables[name]))
  for name in matches.assigned:
    variables[name].assign(file.read(source_names[name]))
  return matches.not_assigned


def _check_all_match(path: str, newly_initialized: Sequence[str], matches: _Matches) -> None:
  """Checks that the weights and the variables of the model match."""
  missing, misshapen = matches.missing, matches.misshapen
  if missing and set(POOLER) <= set(missing) and _belong_to_pooler(missing):
    raise UserError(_missing_pooler_message(path, missing))
  for problem, names in (("lacks", missing), ("has another shape for", misshapen), ("has unused", matches.not_used)):
    if names:
      remedy = "the --albert_config_file or --model of these weights"
      if names is misshapen and all(name.startswith(tuple(newly_initialized)) for name in names):
        remedy = "--fresh_head to initialize the head anew"
      raise UserError(f"--init_checkpoint={path}: {problem} {counted_names(sorted(names), 'weight')}; give {remedy}")


def _belong_to_pooler(names: Sequence[str]) -> bool:
  """Whether all weights belong to the pooler or to the sentence head, which reads the pooler's output."""
  return all(name in POOLER or name.startswith(_SENTENCE_HEAD_PREFIX) for name in names)


def _missing_pooler_message(path: str, missing: Sequence[str]) -> str:
  """The error message for weights without a pooler, and perhaps without a sentence head."""
  is_pretraining = any(name.startswith(_SENTENCE_HEAD_PREFIX) for name in missing)
  other_remedy = "; or train without the sentence loss, with --sentence_prediction=none" if is_pretraining else ""
  return f"--init_checkpoint={path}: has {NO_POOLER}{other_remedy}"


def _check_config(path: str, file: WeightFile, config: ModelConfig | None, *, from_shallower: bool) -> None:
  """Refuses weights whose config differs from the model's in a field that does not affect the shapes of weights."""
  file_config = file.config()
  if file_config is None or file.config_file is None:
    return
  if file.is_huggingface and not huggingface_groups_agree(file_config):
    raise UserError(
      f"--init_checkpoint={path}: transformers assigns its {file_config.num_hidden_layers} layers to "
      f"{file_config.num_hidden_groups} groups in another way than the original; convert it first with "
      "python -m albert.convert"
    )
  if config is None:
    return
  keys_in_file = files.read_json(file.config_file)
  compared_keys = ["hidden_act", "num_attention_heads"]
  if not from_shallower:
    compared_keys.append("num_hidden_layers")
  for key in compared_keys:
    if key in keys_in_file and getattr(file_config, key) != getattr(config, key):
      raise UserError(
        f"--init_checkpoint={path}: {file.config_file} has {key} {getattr(file_config, key)!r}, this model has "
        f"{getattr(config, key)!r}; give that file as --albert_config_file"
      )


def _check_head(path: str, file: WeightFile, head_settings: Mapping[str, Any]) -> None:
  """Refuses a head that was trained for another task or other labels, even if its weights have the right shapes."""
  if file.run_file is None:
    return
  run = output_files.read_config(file.run_file)
  run_settings = {"task": run.get("task"), **run.get("data", {})}
  for key, value in head_settings.items():
    if key in run_settings and run_settings[key] != value:
      raise UserError(
        f"--init_checkpoint={path}: its head was trained with {key} {run_settings[key]!r}, this run has {value!r}; "
        "give --fresh_head to initialize the head anew"
      )
