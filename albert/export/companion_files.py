"""The files beside an exported model: servable.json with hashes of the files, example requests, and the model card.

A SavedModel's own fingerprint.pb has 64-bit hashes of the graph and of the index of the variables, but not of the
variables themselves or of the assets. This module does not import TensorFlow, because it checks a model before the
model is loaded.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from albert.data.manifest import checksum_of, file_sha256
from albert.errors import UserError
from albert.export.registry import EVALUATION_BATCH_SIZE, TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.io import files, json_text, json_values
from albert.io.text import encode_utf8

if TYPE_CHECKING:
  from albert.export.checkpoint import ExportCheckpoint, SelectedForm
  from albert.export.served_model import ServedModel

# Inputs or answers by name. The first dimension of each is the batch.
NamedArrays = Mapping[str, np.ndarray]

# The file that describes a model for programs, see describe_model.
DESCRIPTION = "assets.extra/servable.json"
# Folder of the example requests and their answers.
EXAMPLES_FOLDER = "examples"
# Decimal places of numbers in the examples.
_DECIMALS = 6
EXPORT_AGAIN = "export it again with python -m albert.export"

# Settings of the run that the card shows besides the task's settings that affect training.
_SHOWN_SETTINGS = {
  "train": ("num_train_steps", "num_train_epochs", "max_train_seconds", "train_batch_size", "seed", "precision"),
  "optimizer": (
    "optimizer",
    "learning_rate",
    "scale_learning_rate",
    "num_warmup_steps",
    "warmup_proportion",
    "weight_decay",
  ),
}
_DATA_PATHS = ("data_dir", "train_file", "input_file")
# Settings that have an effect only on a custom task.
_CUSTOM_TASK_SETTINGS = ("text_columns", "label_column", "id_column", "regression", "multi_label", "label_separator")

_NOT_MEASURED = (
  "## Quality of the formats\n\nThe quality of these formats was not measured: `--eval_file` was not given to "
  "`python -m albert.export`. The task's metric may be lower than that of the SavedModel, above all with int8."
)


@dataclasses.dataclass(frozen=True)
class RequestField:
  """One field of a request.

  Attributes:
    name: name of the field in the signature.
    meaning: description for the model card.
    is_list: whether the field is a list of texts, string [B, K]; if not, it is one text, string [B]. "" pads the
      shorter lists of a batch.
  """

  name: str
  meaning: str
  is_list: bool = False


class CheckpointOrigin(msgspec.Struct, frozen=True):
  """The path and the step of the checkpoint that a model was made from, if they are known."""

  path: str | None = None
  step: int | None = None


class Description(msgspec.Struct, kw_only=True):
  """The keys of servable.json that are read, see `describe_model`. Those with defaults may be missing in old exports.

  Attributes:
    files: folder -> file name -> SHA-256, of the files that are read when the model is loaded.
    checksum: the hash of all other keys.
  """

  task: str
  fields: Annotated[list[RequestField], msgspec.Meta(min_length=1)]
  answers: dict[str, str]
  labels: list[str]
  counted_by: str
  checkpoint: CheckpointOrigin = CheckpointOrigin()
  files: dict[str, dict[json_values.FileName, str]] = {}
  checksum: str = ""


def text_inputs(fields: Sequence[RequestField], requests: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
  """Turns requests into the input arrays of serving_default.

  Args:
    fields: the fields of a request.
    requests: a text or a list of texts, str or bytes, by the name of each field.
  Returns: arrays of bytes, [B] or [B, K], by the name of each field. Shorter lists are padded with "".
  """

  def make_column(field: RequestField) -> np.ndarray:
    values = [request[field.name] for request in requests]
    if not field.is_list:
      return np.array([_to_bytes(text) for text in values], object)
    column = np.full([len(values), max(map(len, values), default=0)], b"", object)
    for row, texts in enumerate(values):
      column[row, : len(texts)] = [_to_bytes(text) for text in texts]
    return column

  return {field.name: make_column(field) for field in fields}


def _to_bytes(text: str | bytes) -> bytes:
  return text if isinstance(text, bytes) else encode_utf8(text)


def describe_model(name: str, form: SelectedForm, model: ServedModel, checkpoint: ExportCheckpoint) -> dict[str, Any]:
  """Makes the values of servable.json. A program that calls the model needs them in addition to the signatures.

  Args:
    name: name of the model.
    form: the form in which the model is served.
    model: the model.
    checkpoint: the checkpoint that the model was made from.
  Returns:
    name, checkpoint: see above; of the checkpoint, its path and step.
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
    vocabulary: kind, sha256 and size (number of pieces) of the vocabulary.
    precision: dtype in which the encoder's matrices are stored and multiplied.
    made_with: library -> its version when the model was exported.
    quality: metrics, sizes and latencies of the models, see `albert.export.checks.QualityCheck.measure`; None if they
      were not measured.
  """
  import tensorflow as tf

  config, tokenizer = form.tokenizer_config, model.tokenizer.reference
  return {
    "name": name,
    "task": form.name,
    "summary": model.summary,
    "fields": [dataclasses.asdict(field) for field in model.fields],
    "answers": dict(model.available_answers()),
    "labels": list(model.labels),
    "thresholds": dict(model.thresholds),
    "counted_by": model.counted_by,
    "max_seq_length": form.max_seq_length,
    "do_lower_case": config.do_lower_case and not tokenizer.vocabulary.keeps_case,
    "keep_accents": config.keep_accents or tokenizer.vocabulary.keeps_case,
    "convert_quotes": config.convert_quotes,
    "vocabulary": {"kind": tokenizer.vocabulary.kind, "sha256": tokenizer.sha256, "size": tokenizer.vocab_size},
    "precision": form.precision,
    "made_with": {"tensorflow": tf.__version__},
    "checkpoint": {"path": checkpoint.file.path, "step": checkpoint.step},
    "quality": None,
  }


def add_hashes(directory: str, description: Mapping[str, Any]) -> dict[str, Any]:
  """Adds two keys to the values of servable.json: the hashes of the model's files, and a checksum of all other keys."""
  hashes = {"": {"saved_model.pb": file_sha256(files.join(directory, "saved_model.pb"))}}
  for folder in ("variables", "assets"):
    path = files.join(directory, folder)
    hashes[folder] = {name: file_sha256(files.join(path, name)) for name in files.listdir(path)}
  with_hashes = {**description, "files": hashes}
  return {**with_hashes, "checksum": checksum_of(with_hashes)}


def read_description(directory: str) -> Description:
  """Reads the description of an exported model, and compares the model's files with the hashes in it.

  Raises:
    UserError: the description is damaged or was changed, or a file of the model is missing or damaged.
  """
  path = files.join(directory, DESCRIPTION)
  values = files.read_json(path, remedy=EXPORT_AGAIN)
  description = json_values.convert(path, values, Description, EXPORT_AGAIN)
  without_checksum = {name: value for name, value in values.items() if name != "checksum"}
  if description.checksum and description.checksum != checksum_of(without_checksum):
    raise UserError(f"{path}: was changed after the export: {EXPORT_AGAIN}")
  for folder, hashes in description.files.items():
    for name, sha256 in hashes.items():
      file = files.join(directory, folder, name) if folder else files.join(directory, name)
      if not files.exists(file):
        raise UserError(f"{file}: is missing, although {path} lists it: {EXPORT_AGAIN}")
      if file_sha256(file) != sha256:
        raise UserError(f"{file}: is damaged (its SHA-256 differs from that in {path}): {EXPORT_AGAIN}")
  return description


def make_rest_request(signature: str, inputs: NamedArrays) -> dict[str, Any]:
  """Makes the body of a POST request to /v1/models/NAME:predict. Each row of the inputs becomes an instance."""
  return {"signature_name": signature, "instances": _json_rows(inputs)}


def make_rest_response(answers: NamedArrays) -> dict[str, Any]:
  """Makes the body of the server's response, with rounded numbers.

  If a model has only one answer, TensorFlow Serving returns its values without a name.
  """
  rows = _json_rows(answers)
  return {"predictions": rows if len(answers) > 1 else [value for row in rows for value in row.values()]}


def _json_rows(arrays: NamedArrays) -> list[dict[str, Any]]:
  return [
    {name: plain_value(value, lambda number: round(number, _DECIMALS)) for name, value in zip(arrays, row, strict=True)}
    for row in zip(*arrays.values(), strict=True)
  ]


def write_examples(directory: str, inputs: Mapping[str, NamedArrays], answers: Mapping[str, NamedArrays]) -> None:
  """Writes examples/SIGNATURE.json and SIGNATURE.answer.json: the inputs of each signature, and the answers to them."""
  folder = files.join(directory, EXAMPLES_FOLDER)
  files.makedirs(folder)
  for signature in inputs:
    request, response = make_rest_request(signature, inputs[signature]), make_rest_response(answers[signature])
    files.write_atomically(files.join(folder, f"{signature}.json"), format_json(request))
    files.write_atomically(files.join(folder, f"{signature}.answer.json"), format_json(response))


def format_json(value: dict[str, Any]) -> str:
  """Formats an object as JSON. A list that is the value of a key has each element on a line of its own."""
  members = []
  for key, item in value.items():
    text = json_text.dumps(item, ensure_ascii=False)
    if isinstance(item, list) and item:
      lines = [json_text.dumps(element, ensure_ascii=False) for element in item]
      text = "[\n    " + ",\n    ".join(lines) + "\n  ]"
    members.append(f"{json.dumps(key)}: {text}")
  return "{\n  " + ",\n  ".join(members) + "\n}\n"


def plain_value(value: Any, round_number: Callable[[float], float]) -> Any:
  """Converts an array or a NumPy scalar to values that JSON can hold, with rounded floats."""
  if isinstance(value, np.ndarray):
    return [plain_value(item, round_number) for item in value]
  if isinstance(value, bytes):
    return value.decode("utf-8", errors="replace")
  if isinstance(value, np.generic):
    value = value.item()
  return round_number(value) if isinstance(value, float) else value


def format_model_card(
  description: Mapping[str, Any],
  model: ServedModel,
  checkpoint: ExportCheckpoint,
  example: tuple[NamedArrays, NamedArrays],
  notes: Sequence[str],
) -> str:
  """Formats the model card as Markdown.

  Args:
    description: the description of the model.
    model: the model.
    checkpoint: the checkpoint that the model was made from.
    example: the inputs of one request to serving_default, and the answers to it.
    notes: a line about each other format that was written.
  """
  sections = [
    f"# {description['name']}\n\n"
    f"An ALBERT model that {description['summary']}, as a SavedModel that includes the tokenizer.",
    _format_how_to_call(description, *example),
    _format_table("Inputs", ["field", "type", "meaning"], _input_rows(description, model)),
    _format_table("Outputs", ["answer", "meaning"], list(description["answers"].items())),
  ]
  if description["thresholds"]:
    rows = [[label, f"{threshold:.6g}"] for label, threshold in description["thresholds"].items()]
    sections.append(
      f"{_format_table('Thresholds', ['label', 'threshold'], rows)}\n\n"
      "A label is predicted if its probability is at least its threshold."
    )
  sections += [
    _format_limits(description, model),
    _format_model_config(description, checkpoint),
    _format_training(checkpoint),
    _format_metrics(checkpoint),
  ]
  if notes:
    sections.append("## Other formats\n\n" + "\n".join(f"- {note}" for note in notes))
  if description["quality"]:
    sections.append(_format_quality(description["quality"]))
  elif notes:
    sections.append(_NOT_MEASURED)
  return "\n\n".join(sections) + "\n"


def _format_how_to_call(description: Mapping[str, Any], inputs: NamedArrays, answers: NamedArrays) -> str:
  request = make_rest_request(TEXT_SIGNATURE, inputs)
  arguments = ", ".join(
    f"{name}=tf.constant({json.dumps([request['instances'][0][name]], ensure_ascii=False)})" for name in inputs
  )
  return f"""## How to call it

In Python, with only TensorFlow and tensorflow-text installed (tensorflow-text provides the op of the tokenizer):

```python
import tensorflow as tf
import tensorflow_text  # noqa: F401

model = tf.saved_model.load("DIRECTORY OF THIS FILE")
print(model.signatures["{TEXT_SIGNATURE}"]({arguments}))
```

With TensorFlow Serving, `POST /v1/models/{description["name"]}:predict` accepts this request:

```json
{format_json(request).rstrip()}
```

The response is this one (the server gives more digits):

```json
{format_json(make_rest_response(answers)).rstrip()}
```

`{EXAMPLES_FOLDER}/` has more examples, also for the signature `{TOKENS_SIGNATURE}`, which takes ids instead of text."""


def _input_rows(description: Mapping[str, Any], model: ServedModel) -> list[list[str]]:
  rows = [
    [field["name"], "string [B, K]" if field["is_list"] else "string [B]", field["meaning"]]
    for field in description["fields"]
  ]
  shape = "int32 [B, K, S]" if model.ids_rank == 3 else "int32 [B, S]"
  ids = {
    "input_ids": model.ids_meaning,
    "input_mask": "1 for these tokens, 0 for padding",
    "segment_ids": "0 up to and including the first [SEP], 1 after it",
  }
  return rows + [[f"{name} (signature `{TOKENS_SIGNATURE}`)", shape, meaning] for name, meaning in ids.items()]


def _format_limits(description: Mapping[str, Any], model: ServedModel) -> str:
  letter_case = "lower-cased" if description["do_lower_case"] else "taken with its case"
  accents = " with accents" if description["keep_accents"] else ""
  quotes = ", \\`\\` and '' become \"" if description["convert_quotes"] else ""
  numbers = "All numbers are float32."
  if description["precision"] != "float32":
    numbers = f"The encoder's matrices are {description['precision']}, all other numbers are float32."
  return (
    f"The batch may have any size. Text is {letter_case}{accents}{quotes}; bytes that are not UTF-8 become U+FFFD. "
    f"{model.truncation_note()} The signature `{TOKENS_SIGNATURE}` does not cut sequences; it accepts "
    f"at most {model.max_positions} tokens in each. {numbers}"
  )


def _format_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  lines = [header, ["---"] * len(header), *rows]
  return f"## {title}\n\n" + "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)


def _format_model_config(description: Mapping[str, Any], checkpoint: ExportCheckpoint) -> str:
  vocabulary = description["vocabulary"]
  step = f", step {checkpoint.step}" if checkpoint.step is not None else ""
  table = _format_table("The model", ["setting", "value"], list(checkpoint.config.to_dict().items()))
  return (
    f"{table}\n\nThe vocabulary in `assets/` is of the kind {vocabulary['kind']} and has {vocabulary['size']:,} "
    f"pieces; its SHA-256 is {vocabulary['sha256']}. The checkpoint is {checkpoint.file.path}{step}."
  )


def _format_training(checkpoint: ExportCheckpoint) -> str:
  run = checkpoint.run
  if not run:
    return "## Training\n\nThe settings are not known: the checkpoint does not belong to a run."
  from albert.tasks import registry

  settings = dict(run.get("data", {}))
  if entry := registry.TASKS.get(checkpoint.task or ""):
    shown = {*entry.config_class().training_settings(), *_DATA_PATHS}
    settings = {name: value for name, value in settings.items() if name in shown}
  if settings.get("task_name") not in (None, "custom"):
    settings = {name: value for name, value in settings.items() if name not in _CUSTOM_TASK_SETTINGS}
  for section, names in _SHOWN_SETTINGS.items():
    settings |= {name: run[section][name] for name in names if name in run.get(section, {})}
  if settings.get("warmup_proportion"):
    settings.pop("num_warmup_steps", None)  # it had no effect
  settings["init_checkpoint"] = run.get("init_checkpoint")
  rows = [("task", run.get("task", "")), *((name, value) for name, value in settings.items() if value)]
  table = _format_table("Training", ["setting", "value"], rows)
  return f"{table}\n\nSettings that are 0, false or empty are not listed."


def _format_metrics(checkpoint: ExportCheckpoint) -> str:
  if not checkpoint.metrics:
    return "## Metrics\n\nNot known: no eval_results.json of a run has metrics of this step (`--do_eval` writes them)."
  rows = [[name, f"{value:.6g}"] for name, value in checkpoint.metrics.items()]
  table = _format_table("Metrics", ["metric", "value"], rows)
  note = f"The run's last evaluation (task {checkpoint.task}, step {checkpoint.step}) gave these, before the export."
  return f"{table}\n\n{note}"


def _format_quality(quality: Mapping[str, Any]) -> str:
  """The table of quality, size and latency of all models, from the result of `QualityCheck.measure`."""
  names = quality["metric_names"]
  rows = []
  for model in quality["models"]:
    size = f"{model['num_bytes'] / 1e6:.1f}" if model["num_bytes"] else "not exported"
    change = f"{-model['drop']:+.4g}" if model["drop"] else "0"
    values = [f"{model['metrics'][name]:.5g}" for name in names]
    rows.append([model["name"], *values, change, size, f"{model['latency_ms']:.2f}"])
  header = ["model", *names, f"change of {names[0]}", "MB", "ms"]
  return (
    f"{_format_table('Quality of the formats', header, rows)}\n\n"
    f"Measured at the export on {quality['eval_file']} ({quality['num_examples']:,} examples; batches of "
    f"{EVALUATION_BATCH_SIZE}). A drop of {names[0]} by more than {quality['max_metric_drop']:g} (`--max_metric_drop`) "
    f"would have ended the export. ms: the fastest of several requests of one example with {quality['num_tokens']} "
    f"tokens, on a machine with {quality['num_threads']} cores."
  )
