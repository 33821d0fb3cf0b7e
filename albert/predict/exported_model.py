"""Loads a model that `python -m albert.export` wrote, or makes it from a checkpoint, and answers batches of requests.

For an exported model, TensorFlow is imported without Keras, and tensorflow-text without its Python modules: it needs
neither, and without them the imports take a third less time.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert import startup
from albert.errors import RunError, UserError
from albert.export.companion_files import (
  DESCRIPTION,
  EXPORT_AGAIN,
  Description,
  describe_model,
  plain_value,
  read_description,
  text_inputs,
)
from albert.export.registry import FORMS, TEXT_SIGNATURE, list_versions
from albert.io import files, json_values
from albert.io.local_files import describe_error
from albert.predict.requests import PredictRequest
from albert.runs.output_files import RUNS

_SAVED_MODEL = "saved_model.pb"
_PROBABILITIES, _LABELS = "probabilities", "labels"
# TensorFlow imports one of these at the end of its own import, and continues without it if that fails.
_KERAS_MODULES = ("keras.src", "tf_keras.src")
# The libraries of the tokenizers' ops, such as SentencepieceOp, in the directory of tensorflow_text.
_OPS_LIBRARIES = tuple(
  os.path.join("python", "ops", name) for name in ("_sentencepiece_tokenizer.so", "_fast_wordpiece_tokenizer.so")
)


class ExportedModel:
  """A SavedModel with its description.

  Args:
    path: the directory of a version, or the directory that holds the versions of a model, whose newest is loaded.

  Attributes:
    directory: the directory of the version that was loaded.
    description: its servable.json.

  Raises:
    UserError: `albert.export` did not write this directory, a file is damaged, or the model cannot be loaded.
  """

  def __init__(self, path: str):
    self.directory = newest_version(path.rstrip("/") or "/")
    if not files.exists(files.join(self.directory, DESCRIPTION)):
      raise UserError(f"--model={path}: has no {DESCRIPTION}: give a directory that python -m albert.export wrote")
    self.description = read_description(self.directory)
    self._tf = import_tensorflow()
    try:
      with files.tensorflow_path(self.directory) as readable_directory:
        self._loaded = self._tf.saved_model.load(readable_directory)  # the signature needs it
      self._signature = self._loaded.signatures[TEXT_SIGNATURE]
    except Exception as error:
      raise UserError(f"--model={path}: does not load ({describe_error(error)}): {EXPORT_AGAIN}") from error

  def describe_origin(self) -> str:
    """Names the directory and the task of the model, and its checkpoint and step if the export recorded them."""
    checkpoint = self.description.checkpoint
    path = "" if checkpoint.path in (None, self.directory) else f", made from {checkpoint.path}"
    step = "" if checkpoint.step is None else f" (step {checkpoint.step})"
    return f"{self.directory}: {self.description.task}{path}{step}"

  def answer(self, requests: Sequence[PredictRequest]) -> list[dict[str, Any]]:
    """Answers requests in one batch.

    Args:
      requests: at least one.
    Returns:
      For each request, in order: name of an answer -> its value as plain JSON. Entries that only pad an answer to the
      longest one of the batch are left out. Probabilities of labels are a dict: label -> probability.
    Raises:
      RunError: the model fails, or an answer is not finite.
    """
    arrays_of_texts = text_inputs(self.description.fields, [request.texts for request in requests])
    inputs = {name: self._tf.constant(texts, self._tf.string) for name, texts in arrays_of_texts.items()}
    try:
      arrays = {name: tensor.numpy() for name, tensor in self._signature(**inputs).items()}
    except self._tf.errors.ResourceExhaustedError:  # albert.app has a message for too little memory
      raise
    except self._tf.errors.OpError as error:
      raise RunError(
        f"{_describe_lines(requests)}: the model fails ({describe_error(error)}): {EXPORT_AGAIN}"
      ) from error
    for name in self.description.answers:
      if arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
        raise RunError(f"{_describe_lines(requests)}: {name!r} is not finite; do the weights of the model hold NaN?")
    return [
      self._plain_answers({name: arrays[name][index] for name in self.description.answers}, request)
      for index, request in enumerate(requests)
    ]

  def _plain_answers(self, arrays: Mapping[str, Any], request: PredictRequest) -> dict[str, Any]:
    """The answers to one request as plain values, without padding."""
    counter = self.description.counted_by
    num_entries = None  # how many entries of each answer are not padding; None for all
    if counter:
      num_entries = int(arrays[counter]) if counter in arrays else len(request.texts[counter])
    answers = {
      name: plain_value(array[:num_entries] if np.ndim(array) else array, lambda number: float(f"{number:.6g}"))
      for name, array in arrays.items()
    }
    labels = self.description.labels
    if labels and len(answers.get(_PROBABILITIES, ())) == len(labels):
      answers[_PROBABILITIES] = dict(zip(labels, answers[_PROBABILITIES], strict=True))
    if isinstance(answers.get(_LABELS), list):
      answers[_LABELS] = [label for label in answers[_LABELS] if label]
    return answers


class CheckpointModel(ExportedModel):
  """The model that `albert.export` would write for a checkpoint, made in memory.

  Args:
    path: the output_dir of a run, or a directory of weights.
    task, settings: see `albert.export.export_model.export_model`. By default a pretrained model fills masks.

  Raises:
    UserError: there is no checkpoint, or it cannot be served in this form.
  """

  def __init__(self, path: str, task: str = "", settings: Mapping[str, Any] | None = None):
    from albert.export.checkpoint import find_checkpoint, open_checkpoint, select_form
    from albert.tokenization.recorded_settings import SETTINGS

    checkpoint = open_checkpoint(find_checkpoint(path, flag="--model"))
    default_task = "fill_mask" if checkpoint.task == "pretraining" else ""
    form = select_form(checkpoint, task or default_task, settings or {})
    known = ("max_seq_length", *SETTINGS, *FORMS[form.name].settings)
    for name in settings or {}:
      if name not in known:
        raise UserError(f"{name}: not a setting of {form.name}; its settings are {', '.join(known)}")
    from albert.export.served_model import text_function  # imports TensorFlow, as select_form does

    model = form.model_class(checkpoint, form)
    self.directory = checkpoint.file.path
    self.description = json_values.convert(self.directory, describe_model("", form, model, checkpoint), Description)
    self._tf = import_tensorflow()
    self._signature = text_function(model)


def open_model(path: str, task: str = "", settings: Mapping[str, Any] | None = None) -> ExportedModel:
  """Loads an export, or makes the model of a checkpoint.

  Args:
    path: the path of ExportedModel or of CheckpointModel.
    task, settings: those of CheckpointModel. An export does not take them.
  Raises:
    UserError: the path is neither an export nor a checkpoint, or the model cannot be loaded or made.
  """
  if not path:
    raise UserError("--model is missing: give an export, or the output_dir of a run")
  if files.exists(files.join(path, _SAVED_MODEL)) or list_versions(path):
    if given := [*(["task"] if task else []), *(settings or {})]:
      raise UserError(f"--model={path}: an export keeps its task and its settings: leave out {', '.join(given)}")
    return ExportedModel(path)
  from albert.weights.files import CONFIG_NAMES  # takes time to import

  if task or any(files.exists(files.join(path, name)) for name in (*CONFIG_NAMES, RUNS)):
    return CheckpointModel(path, task, settings)
  return ExportedModel(path)  # raises the error for a path that is neither


def import_tensorflow() -> Any:
  """Imports TensorFlow, unless it is imported already, and registers the ops of tokenizers.

  Returns: the module tensorflow. Its attribute `keras` imports Keras when it is used.
  """
  with startup.quick_imports(*_KERAS_MODULES):
    import tensorflow as tf
  spec = importlib.util.find_spec("tensorflow_text")
  directories = (spec.submodule_search_locations if spec else None) or []
  paths = [os.path.join(directory, name) for directory in directories[:1] for name in _OPS_LIBRARIES]
  if paths and all(map(os.path.exists, paths)) and "tensorflow_text" not in sys.modules:
    for path in paths:
      tf.load_op_library(path)
  else:
    import tensorflow_text  # noqa: F401  (registers the ops)
  return tf


def _describe_lines(requests: Sequence[PredictRequest]) -> str:
  numbers = [request.line_number for request in requests]
  return f"line {numbers[0]}" if len(numbers) == 1 else f"lines {min(numbers)} to {max(numbers)} (some of them)"


def newest_version(path: str) -> str:
  """Returns the directory of the newest version in a directory of versions; `path` itself if it is a version."""
  if files.exists(files.join(path, _SAVED_MODEL)):
    return path
  versions = list_versions(path)
  if not versions:
    names = files.listdir(path) if files.is_dir(path) else []
    directories = [files.join(path, name) for name in sorted(names)]
    models = [directory for directory in directories if list_versions(directory)]
    remedy = files.hub_remedy(path) or "give an export, the output_dir of a run, or a directory from Hugging Face"
    if models:
      remedy = f"give one of its models, such as --model={models[0]}"
    problem = "neither a SavedModel nor a directory of versions of one" if files.exists(path) else "no such directory"
    raise UserError(f"--model={path}: {problem}: {remedy}")
  return files.join(path, str(max(versions)))
