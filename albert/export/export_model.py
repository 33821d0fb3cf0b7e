"""One export: choose, build, write to a staging directory, check, rename."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert.errors import RunError, UserError
from albert.export import card, checks, hashes, mobile, ops, warmup
from albert.export.description import describe, write_examples
from albert.export.formats import DESCRIPTION, TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.export.registry import Choice, choose
from albert.export.servable import Servable
from albert.export.signatures import text_function, text_inputs, token_inputs, tokens_function
from albert.export.source import Source, open_source
from albert.io import files
from albert.runs import run_directory
from albert.runs.output_files import VOCABULARY

LABELS = "labels.txt"


def export(
  checkpoint: str,
  output_dir: str,
  *,
  task: str = "",
  name: str = "",
  version: int = 0,
  settings: Mapping[str, Any] | None = None,
  precision: str = "float32",
  top_k: int = 5,
  formats: tuple[str, ...] = (),
  select: str = "",
  albert_config_file: str = "",
  spm_model_file: str = "",
) -> str:
  """Writes output_dir/name/version atomically: it appears when all files are written and checked.

  Args:
    checkpoint, select, albert_config_file, spm_model_file: see source.open_source.
    output_dir: what holds the models.
    task: what is served; empty: what the run was trained for.
    name: of the model; empty: that of the task.
    version: a number that is not there yet; 0: one more than the greatest there is.
    settings: fields of the task's config and of the text, over those of the run.
    precision: that matrices are kept and multiplied in, float32 or bfloat16.
    top_k: candidates for each mask.
    formats: of formats.EXTRA_FORMATS, what to write besides the SavedModel.
  Returns: the directory.
  Raises:
    UserError: bad input, a version that is there.
    RunError: the model fails for a request of `checks`, a format that its converter cannot write, or one whose answers
      differ from the SavedModel's; the disk failed.
  """
  mobile.check_formats(formats, precision)
  source = open_source(checkpoint, select=select, albert_config_file=albert_config_file, spm_model_file=spm_model_file)
  choice = choose(source, task, settings or {}, precision=precision, top_k=top_k)
  name = name or choice.name
  target = _target(output_dir, name, version)
  run_directory.check_writable(os.path.dirname(target))
  servable = choice.servable(source, choice.settings)
  files.remove_leftovers(os.path.dirname(target))
  staging = files.staging_path(target)
  try:
    with files.naming(target):  # TensorFlow writes here, too
      _write(staging, name, source, choice, servable, formats)
    files.sync_tree(staging)
    target = _rename(staging, target, output_dir, name, version)
  except BaseException:
    files.discard(staging)
    raise
  return target


def _rename(staging: str, target: str, output_dir: str, name: str, version: int) -> str:
  """Gives the staging directory its name; another number, if another process has taken this one meanwhile."""
  while True:
    try:
      if not files.exists(target):
        files.replace(staging, target)
        return target
    except (UserError, RunError):
      if not files.exists(target):
        raise
    target = _target(output_dir, name, version)


def _target(output_dir: str, name: str, version: int) -> str:
  """The directory of a new version."""
  if "/" in name or name.startswith("."):
    raise UserError(f"--name={name}: must be a plain name, such as cola")
  directory = files.join(output_dir.rstrip("/"), name)
  if files.exists(directory) and not files.is_dir(directory):
    raise UserError(f"{directory}: is a file; give another --output_dir or --name")
  there = [int(entry) for entry in files.listdir(directory) if entry.isdecimal()] if files.exists(directory) else []
  if version in there:
    raise UserError(f"--version={version}: {files.join(directory, str(version))} exists; give another, or none")
  return files.join(directory, str(version or max(there, default=0) + 1))


def _write(
  directory: str, name: str, source: Source, choice: Choice, servable: Servable, formats: tuple[str, ...]
) -> None:
  functions = {TEXT_SIGNATURE: text_function(servable), TOKENS_SIGNATURE: tokens_function(servable)}
  requests = servable.examples()
  texts = text_inputs(servable.fields, requests)
  inputs = {TEXT_SIGNATURE: texts, TOKENS_SIGNATURE: token_inputs(servable, texts)}
  expected = checks.check_signatures(functions, servable, inputs)
  with tempfile.TemporaryDirectory() as scratch:
    servable.assets = _assets(scratch, source, servable)
    tf.saved_model.save(servable, directory, signatures=functions)
  ops.check_ops(directory)
  warmup.write_warmup(directory, name, [warmup.Request(signature, values) for signature, values in inputs.items()])
  answers = {
    signature: {key: value.numpy() for key, value in _call(function, inputs[signature]).items()}
    for signature, function in functions.items()
  }
  description = describe(name, choice, servable, source)
  write_examples(directory, inputs, answers)
  notes = mobile.write_formats(directory, servable, inputs[TOKENS_SIGNATURE], expected, formats)
  files.write_json(files.join(directory, DESCRIPTION), hashes.with_hashes(directory, description.to_dict()))
  first = text_inputs(servable.fields, requests[:1])
  example = (first, {key: value.numpy() for key, value in _call(functions[TEXT_SIGNATURE], first).items()})
  text = card.write_card(description, servable, source, example, notes)
  files.write_atomically(files.join(directory, "README.md"), text)


def _call(function: Any, inputs: Mapping[str, np.ndarray]) -> Mapping[str, tf.Tensor]:
  return function(**{name: tf.constant(value) for name, value in inputs.items()})


def _assets(directory: str, source: Source, servable: Servable) -> list[tf.saved_model.Asset]:
  """The vocabulary, and the labels if there are any, a line each."""
  with files.open_file(source.vocabulary) as file:
    contents = {VOCABULARY: file.read()}
  if servable.labels():
    contents[LABELS] = "".join(f"{label}\n" for label in servable.labels()).encode()
  for name, content in contents.items():
    files.write_atomically(os.path.join(directory, name), content)
  return [tf.saved_model.Asset(os.path.join(directory, name)) for name in contents]
