"""Exports one model: selects its form, builds and checks it, writes it to a staging directory, and renames that one."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from albert.errors import RunError, UserError
from albert.export import ops
from albert.export.arguments import check_evaluation, check_formats, version_directory
from albert.export.checking import checks
from albert.export.checkpoint import ExportCheckpoint, FoundCheckpoint, open_checkpoint
from albert.export.companion_files import file_hashes, model_card, warmup
from albert.export.companion_files.description import describe_model, write_examples
from albert.export.formats import DESCRIPTION, TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.export.other_formats import converters
from albert.export.selection import SelectedForm, select_form
from albert.export.served_model import ServedModel
from albert.export.signatures import text_function, text_inputs, token_inputs, tokens_function
from albert.io import files, local_files
from albert.runs import run_directory
from albert.runs.metrics_log import log
from albert.tokenization.vocabulary_files import read_vocabulary_files

if TYPE_CHECKING:
  from albert.export.checking.quality import QualityCheck

LABELS = "labels.txt"


def export_model(
  checkpoint: str | FoundCheckpoint,
  output_dir: str,
  *,
  task: str = "",
  name: str = "",
  version: int = 0,
  settings: Mapping[str, Any] | None = None,
  precision: str = "float32",
  top_k: int = 5,
  formats: tuple[str, ...] = (),
  eval_file: str = "",
  max_metric_drop: float | None = None,
  select: str = "",
  albert_config_file: str = "",
  spm_model_file: str = "",
) -> str:
  """Writes a SavedModel to output_dir/name/version.

  All files are written to a staging directory, which is renamed when they are complete and checked. A server that
  watches `output_dir/name` never sees an incomplete model.

  Args:
    checkpoint, select, albert_config_file, spm_model_file: the weights, the config and the vocabulary, see
      `albert.export.checkpoint.open_checkpoint`.
    output_dir: directory of all models.
    task: the form in which the model is served, a name of `albert.export.registry.FORMS`; "" for the form that fits
      the task of the run.
    name: name of the model; "" for the name of the form.
    version: a version number that does not exist yet; 0 for the greatest existing version plus one.
    settings: values by name for fields of the task's config and for the text settings. They replace the run's values.
    precision: dtype of the encoder's matrices and their products, float32 or bfloat16.
    top_k: number of candidates for each mask.
    formats: names of `albert.export.formats.EXTRA_FORMATS` to write besides the SavedModel.
    eval_file: data in the format that the evaluation of the task reads. On it, the metric of each exported model is
      compared with the metric of the float32 model. "" to measure nothing.
    max_metric_drop: the largest accepted drop of the metric; None for 0.01, or 1.0 if the metric is in percent.
  Returns: the directory of the new version.
  Raises:
    UserError: an argument is wrong, the checkpoint cannot be served in this form, the version exists, the metric drops
      by too much, or eval_file cannot be read.
    RunError: the model fails for a request of `albert.export.checking.checks`, a converter cannot write a format, the
      answers of a format differ from the SavedModel's, or writing fails.
  """
  check_formats(formats, precision)
  check_evaluation(eval_file, max_metric_drop)
  opened_checkpoint = open_checkpoint(
    checkpoint, select=select, albert_config_file=albert_config_file, spm_model_file=spm_model_file
  )
  form = select_form(opened_checkpoint, task, settings or {}, precision=precision, top_k=top_k)
  name = name or form.name
  target = version_directory(output_dir, name, version)
  run_directory.check_writable(os.path.dirname(target))
  quality_check = _open_quality_check(form, opened_checkpoint, eval_file, max_metric_drop) if eval_file else None
  log(f"exporting {opened_checkpoint.file.path} as {form.name} to {target}")
  model = form.model_class(opened_checkpoint, form.settings)
  files.remove_leftovers(os.path.dirname(target))
  staging = files.staging_path(target)
  try:
    with files.convert_errors(target):  # errors of TensorFlow name the target instead of the staging directory
      _write_model(staging, name, opened_checkpoint, form, model, formats, quality_check)
    local_files.sync_tree(staging)
    target = _rename_staging(staging, target, output_dir, name, version)
  except BaseException:
    files.discard(staging)
    raise
  return target


def _open_quality_check(
  form: SelectedForm, checkpoint: ExportCheckpoint, eval_file: str, max_metric_drop: float | None
) -> QualityCheck:
  from albert.export.checking.quality import QualityCheck  # imports the training loop, which other exports do not need

  return QualityCheck(form, checkpoint, eval_file, max_metric_drop)


def _rename_staging(staging: str, target: str, output_dir: str, name: str, version: int) -> str:
  """Renames the staging directory to `target`, or to the next version if another process has created `target`."""
  while True:
    try:
      if not files.exists(target):
        files.replace(staging, target)
        return target
    except (UserError, RunError):
      if not files.exists(target):
        raise
    target = version_directory(output_dir, name, version)


def _write_model(
  directory: str,
  name: str,
  checkpoint: ExportCheckpoint,
  form: SelectedForm,
  model: ServedModel,
  formats: tuple[str, ...],
  quality_check: QualityCheck | None,
) -> None:
  """Checks the model and writes all files of a version to `directory`."""
  functions = {TEXT_SIGNATURE: text_function(model), TOKENS_SIGNATURE: tokens_function(model)}
  requests = model.examples()
  texts = text_inputs(model.fields, requests)
  inputs = {TEXT_SIGNATURE: texts, TOKENS_SIGNATURE: token_inputs(model, texts)}
  answers_by_batch = checks.check_signatures(functions, model, inputs)
  with tempfile.TemporaryDirectory() as assets_dir:
    model.assets = _write_assets(assets_dir, checkpoint, model)
    tf.saved_model.save(model, directory, signatures=functions)
  ops.check_ops(directory)
  warmup_requests = [warmup.WarmupRequest(signature, values) for signature, values in inputs.items()]
  warmup.write_warmup(directory, name, warmup_requests)
  answers = {signature: _call(function, inputs[signature]) for signature, function in functions.items()}
  description = describe_model(name, form, model, checkpoint)
  write_examples(directory, inputs, answers)
  if formats:
    log(f"converting it to {', '.join(formats)}")
  written_formats = converters.write_formats(directory, model, inputs[TOKENS_SIGNATURE], answers_by_batch, formats)
  if quality_check:
    log(f"measuring the quality on {quality_check.evaluation.eval_file}")
    report = quality_check.run(directory, functions[TOKENS_SIGNATURE], written_formats)
    description = dataclasses.replace(description, quality=report.to_dict())
  files.write_json(files.join(directory, DESCRIPTION), file_hashes.add_hashes(directory, description.to_dict()))
  first_inputs = text_inputs(model.fields, requests[:1])
  example = (first_inputs, _call(functions[TEXT_SIGNATURE], first_inputs))
  card = model_card.format_model_card(
    description, model, checkpoint, example, [converted.note for converted in written_formats]
  )
  files.write_atomically(files.join(directory, "README.md"), card)


def _call(function: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Calls a concrete function with arrays, and returns arrays."""
  answers = function(**{name: tf.constant(value) for name, value in inputs.items()})
  return {name: tensor.numpy() for name, tensor in answers.items()}


def _write_assets(directory: str, checkpoint: ExportCheckpoint, model: ServedModel) -> list[tf.saved_model.Asset]:
  """Writes the vocabulary, and the labels (one per line) if there are any, as assets of the SavedModel."""
  contents = read_vocabulary_files(checkpoint.vocabulary)
  if model.labels():
    contents[LABELS] = "".join(f"{label}\n" for label in model.labels()).encode()
  for name, content in contents.items():
    files.write_atomically(os.path.join(directory, name), content)
  return [tf.saved_model.Asset(os.path.join(directory, name)) for name in contents]
