"""Which Servable a checkpoint becomes, and with which settings: the run's own, overridden by flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from albert.config.base import Config, from_dict
from albert.errors import UserError
from albert.export.servable import Servable, Settings
from albert.export.source import FLAG, Source
from albert.tasks import registry

DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16}


class Choice(NamedTuple):
  """What is exported: the name of the form (--task), its class, and how it is made."""

  name: str
  servable: type[Servable]
  settings: Settings


def choose(
  source: Source, task: str, flags: Mapping[str, Any], *, precision: str = "float32", top_k: int = 5
) -> Choice:
  """The form that `task` names, or that the run's own task has.

  Args:
    source: the checkpoint.
    task: a name of registry.exports(); "" for the one that fits the run.
    flags: fields of the task's config, and of the text, that the user gives.
    precision: float32 or bfloat16.
    top_k: see Settings.
  Raises:
    UserError: none or several fit, the one that is asked for does not, or a value is out of range.
  """
  forms = registry.exports()
  if task and task not in forms:
    raise UserError(f"--task={task}: must be one of {', '.join(forms)}")
  if task:
    choice = _fitting(source, task, flags, precision, top_k)
    if isinstance(choice, str):
      raise UserError(f"--task={task}: {FLAG}={source.file.path}: {choice}")
    return choice
  if source.task is None:
    raise UserError(f"--task is missing, and {FLAG}={source.file.path} belongs to no run: give {', '.join(forms)}")
  own = [name for name, (owner, _) in forms.items() if owner == source.task]
  choices = {name: _fitting(source, name, flags, precision, top_k) for name in own}
  fitting = [choice for choice in choices.values() if not isinstance(choice, str)]
  if len(fitting) == 1:
    return fitting[0]
  if fitting:
    names = ", ".join(choice.name for choice in fitting)
    raise UserError(f"--task is missing: {FLAG}={source.file.path} can be served as {names}; give one")
  why = "; ".join(f"{name}: {reason}" for name, reason in choices.items()) or f"nothing serves {source.task}"
  raise UserError(f"{FLAG}={source.file.path} cannot be served: {why}")


def _fitting(source: Source, name: str, flags: Mapping[str, Any], precision: str, top_k: int) -> Choice | str:
  """The form of that name, or why the checkpoint cannot be served so."""
  _, form = registry.exports()[name]
  reason: str | None = registry.load(form.location).missing_head(source)
  if reason is None:
    choice = _choice(source, name, flags, precision, top_k)
    reason = choice.servable.objection(source, choice.settings.config)
  return reason or choice


def _choice(source: Source, name: str, flags: Mapping[str, Any], precision: str, top_k: int) -> Choice:
  owner, form = registry.exports()[name]
  values = dict(source.run.get("data", {})) | {key: value for key, value in flags.items() if value is not None}
  longest = source.config.max_position_embeddings
  max_seq_length = int(values.get("max_seq_length") or longest)
  if max_seq_length > longest:
    raise UserError(f"--max_seq_length={max_seq_length}: the model has {longest} positions: give at most that")
  settings = Settings(
    config=_task_config(registry.TASKS[owner].config_class, values | {"max_seq_length": max_seq_length}, source),
    max_seq_length=max_seq_length,
    do_lower_case=bool(values.get("do_lower_case", True)),
    convert_quotes=bool(values.get("convert_quotes", False)),
    dtype=DTYPES[precision],
    top_k=top_k,
  )
  return Choice(name, registry.load(form.location), settings)


def _task_config(config_class: type[Config], values: Mapping[str, Any], source: Source) -> Config:
  """The config of the form's task. Of a run of another task (embeddings of a classifier) it has what both have."""
  known = {field.name for field in dataclasses.fields(config_class)}
  return from_dict(config_class, {k: v for k, v in values.items() if k in known}, source=source.file.path)
