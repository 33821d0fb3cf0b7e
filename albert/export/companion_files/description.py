"""Describes an exported model: servable.json for programs, and example requests for TensorFlow Serving's REST API."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert.export.checkpoint import ExportCheckpoint
from albert.export.selection import SelectedForm
from albert.export.served_model import ServedModel
from albert.io import files, json_values

# Folder of the example requests and their answers.
EXAMPLES_FOLDER = "examples"
# Decimal places of numbers in the examples.
_DECIMALS = 6

# Inputs or answers of a batch by name. The first dimension of each array is the batch.
NamedArrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Description:
  """The values of servable.json. A program that calls the model needs them in addition to the signatures.

  Attributes:
    name: name of the model.
    task: the form in which the model is served, a name of `albert.export.registry.FORMS`.
    summary: what the model does.
    fields: name, is_list and meaning of each input field of the signature serving_default. The columns of a
      tab-separated file of requests have the same order.
    answers: name of an answer -> its description.
    labels: the classes, in the order of the probabilities.
    thresholds: label -> the probability from which on it is predicted, if a text may have several labels; {} if not.
    counted_by: name of the answer or the list field that gives the number of real entries in each row, if the answers
      of a batch are padded to the same size; "" if answers are not padded.
    max_seq_length: maximum number of tokens in a sequence that is made from text.
    do_lower_case, keep_accents, convert_quotes: how texts are normalized, see `albert.tokenization.Tokenizer`.
    vocabulary: kind, sha256 and size (number of pieces) of the vocabulary; the kinds are those of
      `albert.tokenization.kinds`.
    precision: dtype in which the encoder's matrices are stored and multiplied.
    made_with: library -> its version when the model was exported.
    checkpoint: path and step of the checkpoint.
    quality: metrics, sizes and latencies of the models, see
      `albert.export.checking.quality.QualityReport`; None if they were not measured.
  """

  name: str
  task: str
  summary: str
  fields: Sequence[Mapping[str, Any]]
  answers: Mapping[str, str]
  labels: Sequence[str]
  thresholds: Mapping[str, float]
  counted_by: str
  max_seq_length: int
  do_lower_case: bool
  keep_accents: bool
  convert_quotes: bool
  vocabulary: Mapping[str, Any]
  precision: str
  made_with: Mapping[str, str]
  checkpoint: Mapping[str, Any]
  quality: Mapping[str, Any] | None = None

  def to_dict(self) -> dict[str, Any]:
    """The values by name, as plain JSON values."""
    return dataclasses.asdict(self)


def describe_model(name: str, form: SelectedForm, model: ServedModel, checkpoint: ExportCheckpoint) -> Description:
  """Makes the description of a model.

  Args:
    name: name of the model.
    form: the form in which the model is served.
    model: the model.
    checkpoint: the checkpoint that the model was made from.
  """
  settings, tokenizer = form.settings, model.tokenizer.reference
  return Description(
    name=name,
    task=form.name,
    summary=model.summary,
    fields=[dataclasses.asdict(field) for field in model.fields],
    answers=dict(model.available_answers()),
    labels=list(model.labels()),
    thresholds=dict(model.thresholds()),
    counted_by=model.counted_by,
    max_seq_length=settings.max_seq_length,
    do_lower_case=settings.tokenizer_config.do_lower_case and not tokenizer.vocabulary.keeps_case,
    keep_accents=settings.tokenizer_config.keep_accents or tokenizer.vocabulary.keeps_case,
    convert_quotes=settings.tokenizer_config.convert_quotes,
    vocabulary={"kind": tokenizer.vocabulary.kind, "sha256": tokenizer.sha256, "size": tokenizer.vocab_size},
    precision=settings.dtype.name,
    made_with={"tensorflow": tf.__version__},
    checkpoint={"path": checkpoint.file.path, "step": checkpoint.step},
  )


def make_rest_request(signature: str, inputs: NamedArrays) -> dict[str, Any]:
  """Makes the body of a POST request to /v1/models/NAME:predict.

  Args:
    signature: name of the signature.
    inputs: input arrays; each row becomes an instance.
  """
  num_rows = len(next(iter(inputs.values())))
  instances = [{name: _to_json_value(values[row]) for name, values in inputs.items()} for row in range(num_rows)]
  return {"signature_name": signature, "instances": instances}


def make_rest_response(answers: NamedArrays) -> dict[str, Any]:
  """Makes the body of the server's response, with rounded numbers.

  If a model has only one answer, TensorFlow Serving returns its values without a name.
  """
  num_rows = len(next(iter(answers.values())))
  if len(answers) == 1:
    (values,) = answers.values()
    return {"predictions": [_to_json_value(values[row]) for row in range(num_rows)]}
  predictions = [{name: _to_json_value(values[row]) for name, values in answers.items()} for row in range(num_rows)]
  return {"predictions": predictions}


def write_examples(directory: str, inputs: Mapping[str, NamedArrays], answers: Mapping[str, NamedArrays]) -> None:
  """Writes examples/SIGNATURE.json and examples/SIGNATURE.answer.json.

  Args:
    directory: the directory of the SavedModel.
    inputs: signature -> the input arrays, by name.
    answers: signature -> the answers to these inputs, by name.
  """
  folder = files.join(directory, EXAMPLES_FOLDER)
  files.makedirs(folder)
  for signature in inputs:
    files.write_atomically(
      files.join(folder, f"{signature}.json"), format_json(make_rest_request(signature, inputs[signature]))
    )
    response = format_json(make_rest_response(answers[signature]))
    files.write_atomically(files.join(folder, f"{signature}.answer.json"), response)


def format_json(value: dict[str, Any]) -> str:
  """Formats an object as JSON. A list that is the value of a key has each element on a line of its own."""
  members = []
  for key, item in value.items():
    text = json_values.dumps(item, ensure_ascii=False)
    if isinstance(item, list) and item:
      lines = [json_values.dumps(element, ensure_ascii=False) for element in item]
      text = "[\n    " + ",\n    ".join(lines) + "\n  ]"
    members.append(f"{json.dumps(key)}: {text}")
  return "{\n  " + ",\n  ".join(members) + "\n}\n"


def _to_json_value(value: Any) -> Any:
  """Converts an array or a NumPy scalar to values that JSON can hold; floats are rounded."""
  if isinstance(value, np.ndarray):
    return [_to_json_value(item) for item in value]
  if isinstance(value, bytes):
    return value.decode("utf-8", errors="replace")
  if isinstance(value, np.generic):
    value = value.item()
  return round(value, _DECIMALS) if isinstance(value, float) else value
