"""--init_checkpoint: weights from an earlier run, the original or Hugging Face, matched by name, or an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.tokenization.vocabulary import VocabularyId
from albert.weights.files import WeightFile, find_prefix, open_weights
from albert.weights.names import NO_POOLER, POOLER, huggingface_groups_agree

__all__ = ["find_prefix", "warm_start"]

_SENTENCE_HEAD = "cls/seq_relationship/"
_GROUP = re.compile(r"/group_(\d+)/")


def _shallower_name(name: str, groups: int, source_groups: int) -> str:
  """The source's name of a weight of a deeper network: group g of n starts from group floor(g * m / n) of m."""

  def source_group(match: re.Match[str]) -> str:
    return f"/group_{int(match.group(1)) * source_groups // groups}/"

  return _GROUP.sub(source_group, name)


def _num_groups(names: Sequence[str], half: str) -> int:
  found = [_GROUP.search(name) for name in names if half in name]
  return 1 + max((int(match.group(1)) for match in found if match), default=0)


def warm_start(
  path: str,
  variables: Mapping[str, tf.Variable],
  *,
  fresh: Sequence[str] = (),
  ignored: Sequence[str] = (),
  unused: Sequence[str] = (),
  from_shallower: bool = False,
  config: ModelConfig | None = None,
  head_settings: Mapping[str, Any] | None = None,
  vocabulary: VocabularyId | None = None,
) -> list[str]:
  """Assigns `variables` from the checkpoint at `path`.

  Args:
    path: see albert.weights.files.open_weights.
    variables: the model's, by the original's names.
    fresh: prefixes of variables that may be missing from the checkpoint (a new task head).
    ignored: prefixes of the checkpoint's weights that may go unused (the heads of pretraining).
    unused: prefixes of variables that the task does not use (the pooler of SQuAD). Where the checkpoint has none of
      them they become zeros, so that no later run takes them for trained ones (see albert.weights.files.open_weights).
    from_shallower: a network of more groups takes its groups from the checkpoint's fewer ones
      (ALBERT, section 4.7: deeper networks start from shallower ones).
    config: the model's, to compare with the one beside the weights in what their shapes do not tell.
    head_settings: what the variables under `fresh` depend on (see Task.head_settings), to compare with the run that
      their weights are of.
    vocabulary: the model's, to compare with that of the weights; None where it is not known.
  Returns:
    Names of the variables that keep their initial values (only those under `fresh`).
  Raises:
    UserError: any other variable that is missing, has another shape, or is left over; each is named. Or a
      config beside the weights that contradicts `config`, a run's that contradicts `head_settings`, or another
      vocabulary.
  """
  file = open_weights(path)
  source = file.entries
  if vocabulary is not None:
    file.check_vocabulary(vocabulary.sha256, vocabulary.name)
  _compare_configs(path, file, config, from_shallower=from_shallower)
  sources = {name: name for name in variables}
  if from_shallower:
    for half in ("/attention_1/", "/ffn_1/", "/LayerNorm/", "/LayerNorm_1/"):
      ours, theirs = _num_groups(list(variables), half), _num_groups(list(source), half)
      sources |= {n: _shallower_name(n, ours, theirs) for n in variables if half in n and _GROUP.search(n)}
  zeros = [
    n for prefix in unused if not any(s.startswith(prefix) for s in source) for n in variables if n.startswith(prefix)
  ]
  missing: list[str] = []
  misshapen: list[str] = []
  kept: list[str] = []
  for name, variable in variables.items():
    if name in zeros:
      continue
    if sources[name] not in source:
      (kept if name.startswith(tuple(fresh)) else missing).append(name)
    elif source[sources[name]].shape != tuple(variable.shape):
      misshapen.append(f"{name} {list(source[sources[name]].shape)} instead of {list(variable.shape)}")
  left_over = [n for n in source if n not in set(sources.values()) and not n.startswith(tuple(ignored))]
  for problem, names in (("lacks", missing), ("has another shape for", misshapen), ("has unused", left_over)):
    if names:
      if names is missing and set(POOLER) <= set(missing) and _are_of_pooled_output(missing):
        raise UserError(_without_pooler(path, missing))
      is_head = names is misshapen and all(name.startswith(tuple(fresh)) for name in names)
      remedy = "--fresh_head to leave it behind" if is_head else "the --albert_config_file or --model it was made with"
      raise UserError(
        f"--init_checkpoint={path}: {problem} {len(names)} weights: {', '.join(sorted(names)[:4])}"
        f"{', ...' if len(names) > 4 else ''}; give {remedy}"
      )
  if any(name.startswith(tuple(fresh)) and name not in kept for name in variables):
    _compare_heads(path, file, head_settings or {})
  for name, variable in variables.items():
    if name in zeros:
      variable.assign(tf.zeros_like(variable))
    elif name not in kept:
      variable.assign(file.read(sources[name]))
  return kept


def _are_of_pooled_output(names: Sequence[str]) -> bool:
  return all(name in POOLER or name.startswith(_SENTENCE_HEAD) for name in names)


def _without_pooler(path: str, missing: Sequence[str]) -> str:
  """What is wrong with weights that lack the pooler (and the sentence head), and what to do."""
  is_pretraining = any(name.startswith(_SENTENCE_HEAD) for name in missing)
  more = "; or leave the sentence loss out with --sentence_prediction=none" if is_pretraining else ""
  return f"--init_checkpoint={path}: has {NO_POOLER}{more}"


def _compare_configs(path: str, file: WeightFile, ours: ModelConfig | None, *, from_shallower: bool) -> None:
  theirs = file.config()
  if theirs is None or file.config_file is None:
    return
  if file.is_huggingface and not huggingface_groups_agree(theirs):
    raise UserError(
      f"--init_checkpoint={path}: transformers assigns its {theirs.num_hidden_layers} layers to "
      f"{theirs.num_hidden_groups} groups otherwise than the original; convert it first with python -m albert.convert"
    )
  if ours is None:
    return
  said = files.read_json(file.config_file)
  for key in ("hidden_act", "num_attention_heads", *(() if from_shallower else ("num_hidden_layers",))):
    if key in said and getattr(theirs, key) != getattr(ours, key):
      raise UserError(
        f"--init_checkpoint={path}: {file.config_file} has {key} {getattr(theirs, key)!r}, this model has "
        f"{getattr(ours, key)!r}; give it as --albert_config_file"
      )


def _compare_heads(path: str, file: WeightFile, ours: Mapping[str, Any]) -> None:
  """UserError if the head was trained for another task or other labels: shapes alone do not tell."""
  if file.run_file is None:
    return
  run = output_files.read_config(file.run_file)
  theirs = {"task": run.get("task"), **run.get("data", {})}
  for key, value in ours.items():
    if key in theirs and theirs[key] != value:
      raise UserError(
        f"--init_checkpoint={path}: its head was trained with {key} {theirs[key]!r}, this run has {value!r}; give "
        "--fresh_head to leave it behind"
      )
