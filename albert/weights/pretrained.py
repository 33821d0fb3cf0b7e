"""Loads pretrained weights into a Keras layer or model. Each mismatch is an error, and a missing head is logged."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.io import files
from albert.io.wording import counted_names
from albert.runs import output_files
from albert.runs.metrics_log import log
from albert.weights import checkpoints
from albert.weights.files import WeightFile, open_weights
from albert.weights.names import NO_POOLER, POOLER, encoder_shapes, heads, huggingface_groups_agree

if TYPE_CHECKING:
  import tensorflow as tf

# Errors begin with this name and the path: "weights=PATH". Errors of commands begin with the name of a flag instead.
FLAG = "weights"
# What to do if the weights have no pooler. "needed": raise an error. "new": the pooler is newly initialized, and a line
# is logged. "unused": the pooler becomes zeros, since the model does not read it.
POOLER_NEEDED, POOLER_NEW, POOLER_UNUSED = "needed", "new", "unused"
# Fields of the config that do not follow from the shapes of the weights.
_FIELDS_NOT_IN_SHAPES = ("hidden_act", "num_attention_heads", "num_hidden_layers")


class Pretrained(NamedTuple):
  """Weights that are open, and the config of their model."""

  file: WeightFile
  config: ModelConfig


def open_pretrained(path: files.AnyPath, config: ModelConfig | None = None) -> Pretrained:
  """Opens weights and finds their config.

  Args:
    path: see `albert.weights.files.open_weights`. The output_dir of several runs (--num_runs) stands for the best run.
      The setting --select_checkpoint of a run selects its newest or its best checkpoint.
    config: the model's config; None for the one beside the weights.

  Raises:
    UserError: there are no weights, they are damaged, they have no config, or `config` differs from theirs.
  """
  path = selected_checkpoint(os.fspath(path), flag=FLAG)
  file = open_weights(path, flag=FLAG)
  recorded = file.config()
  if config is None:
    if recorded is None:
      raise UserError(f"{FLAG}={path}: has no albert_config.json beside it: give the model's config (config=...)")
    config = recorded
  elif recorded is not None:
    for name in _FIELDS_NOT_IN_SHAPES:
      value, recorded_value = getattr(config, name), getattr(recorded, name)
      if value != recorded_value:
        raise UserError(
          f"{FLAG}={path}: {file.config_file} has {name} {recorded_value!r}, the given config has {value!r}"
        )
  if file.is_huggingface and not huggingface_groups_agree(config):
    raise UserError(
      f"{FLAG}={path}: transformers assigns its {config.num_hidden_layers} layers to {config.num_hidden_groups} groups "
      "in another way than this project: convert it first: python -m albert.convert --format=albert"
    )
  return Pretrained(file, config)


def selected_checkpoint(path: str, select: str = "", *, flag: str) -> str:
  """Finds the checkpoint to use for the output_dir of a run, or of several runs (then of the best one).

  Args:
    path: an output_dir, or anything else.
    select: "newest" or "best" checkpoint of a run; "" for the run's own --select_checkpoint.
    flag: the name with which errors begin, before the path.

  Returns:
    The step-N directory. If `path` is not an output_dir, `path` without a slash at its end.

  Raises:
    UserError: the run has no undamaged checkpoint.
  """
  path = path.rstrip("/") or path
  runs_file = files.join(path, output_files.RUNS)
  if files.exists(runs_file):
    path = files.join(path, output_files.read_runs(runs_file)["best_run"])
  directory = files.join(path, output_files.CHECKPOINTS)
  if not files.is_dir(directory):
    return path
  config_file = files.join(path, output_files.CONFIG)
  config = output_files.read_config(config_file) if files.exists(config_file) else {}
  select = select or config.get("train", {}).get("select_checkpoint", "newest")
  manager = checkpoints.CheckpointManager(directory, keep=1, model_config=ModelConfig())
  checkpoint, skip_messages = manager.best_or_latest() if select == "best" else manager.latest()
  if checkpoint is None:
    raise UserError(
      f"{flag}={path}: no checkpoint that verifies{': ' + skip_messages[0] if skip_messages else ''}; train first"
    )
  return checkpoint.path


def num_classes_of(pretrained: Pretrained) -> int | None:
  """The number of classes of the classifier in the weights; None if they have none."""
  entry = pretrained.file.entries.get("output_weights")
  return entry.shape[0] if entry else None


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
  file = pretrained.file
  if not file.has_pooler and on_missing_pooler == POOLER_NEEDED:
    raise UserError(f"{FLAG}={file.path}: has {NO_POOLER}")
  new_parts = {f"{head} head": names for head, names in _new_heads(pretrained, head_names, is_forced=new_heads).items()}
  if not file.has_pooler and on_missing_pooler == POOLER_NEW:
    new_parts["pooler"] = set(POOLER)
  zeroed_names = set(POOLER) if not file.has_pooler and on_missing_pooler == POOLER_UNUSED else set()
  not_in_file = zeroed_names.union(*new_parts.values())
  assigned = {name: variable for name, variable in variables.items() if name not in not_in_file}
  _check_match(pretrained, assigned, variables)
  for name, variable in assigned.items():
    variable.assign(file.read(name))
  if zeroed_names:
    import tensorflow as tf

    for name in zeroed_names:
      variables[name].assign(tf.zeros_like(variables[name]))
  if new_parts:
    log(f"{file.path}: newly initialized, so to be trained before use: {', '.join(new_parts)}")


def _new_heads(pretrained: Pretrained, head_names: Sequence[str], *, is_forced: bool) -> dict[str, set[str]]:
  """Finds the heads that the weights lack, or takes all heads if `is_forced`.

  Returns:
    Name of each newly initialized head -> the names of its variables.
  """
  all_heads = heads(pretrained.config)
  new_heads = {}
  for head in head_names:
    names = set(all_heads[head].shapes)
    if is_forced or not names & set(pretrained.file.entries):
      new_heads[head] = names
  return new_heads


def _check_match(pretrained: Pretrained, variables: Mapping[str, tf.Variable], all_variables: Iterable[str]) -> None:
  """Checks that weights and variables have the same names and shapes."""
  file, config = pretrained
  entries = file.entries
  known_names = {*all_variables, *encoder_shapes(config)}
  for head in heads(config).values():
    known_names |= set(head.shapes)
  misshapen = [
    f"{name} {list(entries[name].shape)} instead of {list(variable.shape)}"
    for name, variable in variables.items()
    if name in entries and entries[name].shape != tuple(variable.shape)
  ]
  problems = {
    "lacks": [name for name in variables if name not in entries],
    "has another shape for": misshapen,
    "has unknown": [name for name in entries if name not in known_names],
  }
  for problem, names in problems.items():
    if names:
      is_head = not any(name.startswith("bert/") for name in names)
      remedy = "give new_heads=True to initialize the head anew" if is_head else "give the config of these weights"
      raise UserError(f"{FLAG}={file.path}: {problem} {counted_names(sorted(names), 'weight')}; {remedy}")
