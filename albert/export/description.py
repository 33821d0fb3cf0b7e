"""What an export says of itself: servable.json for programs, and examples of requests for TensorFlow Serving's REST."""

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

EXAMPLES = "examples"
# Numbers of an example in a card or file: enough to compare with, few enough to read.
_DIGITS = 6

NamedArrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Description:
  """What a program that calls the model must know, beside its signatures.

  Attributes:
    name: of the model.
    task: the form, a --task of albert.export.
    summary: what it does.
    fields: of serving_default, in the order of the columns of a file: name, is_list and meaning of each.
    answers: name -> what it is.
    labels: the classes, in the order of the probabilities.
    counted_by: see ServedModel.
    max_seq_length: longer texts are cut to so many tokens.
    do_lower_case, convert_quotes, precision: how it was exported.
    made_with: versions of what made it.
    checkpoint: what it was made of, with its step.
  """

  name: str
  task: str
  summary: str
  fields: Sequence[Mapping[str, Any]]
  answers: Mapping[str, str]
  labels: Sequence[str]
  counted_by: str
  max_seq_length: int
  do_lower_case: bool
  convert_quotes: bool
  precision: str
  made_with: Mapping[str, str]
  checkpoint: Mapping[str, Any]

  def to_dict(self) -> dict[str, Any]:
    """Plain JSON values."""
    return dataclasses.asdict(self)


def describe_model(name: str, form: SelectedForm, model: ServedModel, checkpoint: ExportCheckpoint) -> Description:
  """The description of a model that is being exported."""
  settings = form.settings
  return Description(
    name=name,
    task=form.name,
    summary=model.summary,
    fields=[dataclasses.asdict(field) for field in model.fields],
    answers=dict(model.given_answers()),
    labels=list(model.labels()),
    counted_by=model.counted_by,
    max_seq_length=settings.max_seq_length,
    do_lower_case=settings.tokenizer_config.do_lower_case,
    convert_quotes=settings.tokenizer_config.convert_quotes,
    precision=settings.dtype.name,
    made_with={"tensorflow": tf.__version__},
    checkpoint={"path": checkpoint.file.path, "step": checkpoint.step},
  )


def rest_request(signature: str, inputs: NamedArrays) -> dict[str, Any]:
  """The body of a POST to /v1/models/NAME:predict, an instance an example."""
  count = len(next(iter(inputs.values())))
  instances = [{name: _plain(values[row]) for name, values in inputs.items()} for row in range(count)]
  return {"signature_name": signature, "instances": instances}


def rest_answer(answers: NamedArrays) -> dict[str, Any]:
  """What the server answers, with fewer digits. It gives a model's only answer without its name."""
  count = len(next(iter(answers.values())))
  rows = [{name: _plain(values[row]) for name, values in answers.items()} for row in range(count)]
  return {"predictions": [next(iter(row.values())) if len(row) == 1 else row for row in rows]}


def write_examples(directory: str, inputs: Mapping[str, NamedArrays], answers: Mapping[str, NamedArrays]) -> None:
  """Writes examples/SIGNATURE.json and examples/SIGNATURE.answer.json."""
  folder = files.join(directory, EXAMPLES)
  files.makedirs(folder)
  for signature in inputs:
    files.write_atomically(
      files.join(folder, f"{signature}.json"), format_json(rest_request(signature, inputs[signature]))
    )
    files.write_atomically(files.join(folder, f"{signature}.answer.json"), format_json(rest_answer(answers[signature])))


def format_json(value: dict[str, Any]) -> str:
  """JSON with an example a line, text as it is."""
  parts = []
  for key, item in value.items():
    rows = [json_values.dumps(row, ensure_ascii=False) for row in item] if isinstance(item, list) else []
    text = "[\n    " + ",\n    ".join(rows) + "\n  ]" if rows else json_values.dumps(item, ensure_ascii=False)
    parts.append(f"{json.dumps(key)}: {text}")
  return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def _plain(value: Any) -> Any:
  """NamedArrays as lists, bytes as text, floats with few digits."""
  if isinstance(value, np.ndarray):
    return [_plain(item) for item in value]
  if isinstance(value, bytes):
    return value.decode("utf-8", errors="replace")
  if isinstance(value, np.generic):
    value = value.item()
  return round(value, _DIGITS) if isinstance(value, float) else value
