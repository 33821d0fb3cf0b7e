"""Selects the form in which a checkpoint is served, and its settings: the settings of the run, overridden by flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from albert.config.base import Config, from_dict
from albert.errors import UserError
from albert.export.arguments import check_form
from albert.export.checkpoint import FLAG, ExportCheckpoint
from albert.export.registry import FORMS
from albert.export.served_model import ExportSettings, ServedModel
from albert.tasks import registry as task_registry
from albert.tokenization.recorded_settings import SETTINGS, tokenizer_config

DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16}


class SelectedForm(NamedTuple):
  """The form in which a checkpoint will be served.

  Attributes:
    name: its name in `albert.export.registry.FORMS`.
    model_class: the class that serves it.
    settings: how the model is built.
  """

  name: str
  model_class: type[ServedModel]
  settings: ExportSettings


def select_form(
  checkpoint: ExportCheckpoint,
  name: str,
  overrides: Mapping[str, Any],
  *,
  precision: str = "float32",
  top_k: int = 5,
) -> SelectedForm:
  """Selects the form called `name`, or without a name the only form that fits the checkpoint.

  Args:
    checkpoint: the checkpoint to export.
    name: a name of FORMS, or "" for the one that fits the task of the checkpoint's run.
    overrides: values by name for fields of the task's config and for the text settings. They replace the run's
      values; None keeps the run's value.
    precision: float32 or bfloat16.
    top_k: number of candidates for each mask.
  Returns: the form with its settings.
  Raises:
    UserError: the form is unknown or does not fit the checkpoint, no form fits, several fit, or a value is out of
      range.
  """
  check_form(name)
  if name:
    form_or_reason = _try_form(checkpoint, name, overrides, precision, top_k)
    if isinstance(form_or_reason, str):
      raise UserError(f"--task={name}: {FLAG}={checkpoint.file.path}: {form_or_reason}")
    return form_or_reason
  if checkpoint.task is None:
    raise UserError(
      f"--task is missing, and {FLAG}={checkpoint.file.path} belongs to no run: give one of {', '.join(FORMS)}"
    )
  names = [name for name, form in FORMS.items() if form.task == checkpoint.task]
  fitting_forms: list[SelectedForm] = []
  reasons: list[str] = []  # why the other forms do not fit
  for form_name in names:
    form_or_reason = _try_form(checkpoint, form_name, overrides, precision, top_k)
    if isinstance(form_or_reason, str):
      reasons.append(f"{form_name}: {form_or_reason}")
    else:
      fitting_forms.append(form_or_reason)
  if len(fitting_forms) == 1:
    return fitting_forms[0]
  if fitting_forms:
    fitting_names = ", ".join(form.name for form in fitting_forms)
    raise UserError(f"--task is missing: {FLAG}={checkpoint.file.path} can be served as {fitting_names}; give one")
  reason = "; ".join(reasons) or f"no form serves the task {checkpoint.task}"
  raise UserError(f"{FLAG}={checkpoint.file.path} cannot be served: {reason}")


def _try_form(
  checkpoint: ExportCheckpoint, name: str, overrides: Mapping[str, Any], precision: str, top_k: int
) -> SelectedForm | str:
  """Returns the form of that name, or the reason why the checkpoint cannot be served in this form."""
  model_class = FORMS[name].load_class()
  reason = model_class.missing_weights(checkpoint)
  if reason:
    return reason
  settings = _make_settings(checkpoint, name, overrides, precision, top_k)
  incompatibility = model_class.incompatibility(checkpoint, settings.config)
  return incompatibility or SelectedForm(name, model_class, settings)


def _make_settings(
  checkpoint: ExportCheckpoint, name: str, overrides: Mapping[str, Any], precision: str, top_k: int
) -> ExportSettings:
  values = dict(checkpoint.run.get("data", {})) | {key: value for key, value in overrides.items() if value is not None}
  num_positions = checkpoint.config.max_position_embeddings
  max_seq_length = int(values.get("max_seq_length") or num_positions)
  if max_seq_length > num_positions:
    raise UserError(
      f"--max_seq_length={max_seq_length}: the model has {num_positions} positions: give {num_positions} or less"
    )
  config_class = task_registry.TASKS[FORMS[name].task].config_class
  return ExportSettings(
    config=_make_task_config(config_class, values | {"max_seq_length": max_seq_length}, checkpoint),
    max_seq_length=max_seq_length,
    tokenizer_config=tokenizer_config(
      checkpoint.vocabulary, checkpoint.file.directory, **{name: overrides.get(name) for name in SETTINGS}
    ),
    dtype=DTYPES[precision],
    top_k=top_k,
  )


def _make_task_config(config_class: type[Config], values: Mapping[str, Any], checkpoint: ExportCheckpoint) -> Config:
  """Makes the config of the form's task from the values of the run.

  The run may belong to another task, for example if the embeddings of a fine-tuned classifier are served. Then only
  the fields that both configs have are used.
  """
  field_names = {field.name for field in dataclasses.fields(config_class)}
  known_values = {key: value for key, value in values.items() if key in field_names}
  return from_dict(config_class, known_values, source=checkpoint.file.path)
