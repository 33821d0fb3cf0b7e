"""The model card, which is written to README.md beside a SavedModel."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from albert.config.base import from_dict
from albert.config.run import OptimizerConfig
from albert.export.checking.form_evaluations import BATCH_SIZE
from albert.export.checkpoint import ExportCheckpoint
from albert.export.companion_files.description import (
  EXAMPLES_FOLDER,
  Description,
  NamedArrays,
  format_json,
  make_rest_request,
  make_rest_response,
)
from albert.export.formats import TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.export.served_model import ServedModel
from albert.export.signatures import TOKEN_INPUTS
from albert.optimizers.schedules import make_schedule
from albert.tasks import registry

# Settings of the run that the card shows: those of the training and of the optimizer, and the paths of the data.
_TRAINING_SETTINGS = (
  "num_train_steps",
  "num_train_epochs",
  "max_train_seconds",
  "train_batch_size",
  "seed",
  "precision",
)
_OPTIMIZER_SETTINGS = ("optimizer", "learning_rate", "num_warmup_steps", "warmup_proportion", "weight_decay")
_DATA_PATHS = ("data_dir", "train_file", "input_file")
# Settings that have an effect only if masks are drawn during training, and only if the task is a custom one.
_DYNAMIC_MASKING_SETTINGS = ("masked_lm_prob", "ngram")
_CUSTOM_TASK_SETTINGS = ("text_columns", "label_column", "id_column", "regression", "multi_label", "label_separator")

# The speeds are in benchmarks/results/engines_2026-11-23.md.
_ONEDNN_NOTE = (
  "On an x86 processor without AVX512-VNNI, set the environment variable `TF_ENABLE_ONEDNN_OPTS=1` before TensorFlow "
  "is imported or the server is started. With it, albert_base answered 15% more texts per second in batches of 8 texts "
  "of 128 tokens (2 cores, AVX2); single requests took about as long. With AVX512-VNNI, TensorFlow turns these kernels "
  "on by itself. The answers differ by rounding."
)
_NOT_MEASURED = (
  "## Quality of the formats\n\nThe quality of these formats was not measured: `--eval_file` was not given to "
  "`python -m albert.export`. The task's metric may be lower than that of the SavedModel, above all with int8."
)


def format_model_card(
  description: Description,
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
    f"# {description.name}\n\nAn ALBERT model that {description.summary}, as a SavedModel that includes the tokenizer.",
    _format_how_to_call(description, *example),
    _format_table("Inputs", ["field", "type", "meaning"], _input_rows(description, model)),
    _format_table("Outputs", ["answer", "meaning"], [list(item) for item in description.answers.items()]),
    *_format_thresholds(description),
    _format_limits(description, model),
    _format_model_config(description, checkpoint),
    _format_training(checkpoint),
    _format_metrics(checkpoint),
  ]
  if notes:
    sections.append("## Other formats\n\n" + "\n".join(f"- {note}" for note in notes))
  if description.quality:
    sections.append(_format_quality(description.quality))
  elif notes:
    sections.append(_NOT_MEASURED)
  return "\n\n".join(sections) + "\n"


def _format_how_to_call(description: Description, inputs: NamedArrays, answers: NamedArrays) -> str:
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

{_ONEDNN_NOTE}

With TensorFlow Serving, `POST /v1/models/{description.name}:predict` accepts this request:

```json
{format_json(request).rstrip()}
```

The response is this one (the server gives more digits):

```json
{format_json(make_rest_response(answers)).rstrip()}
```

`{EXAMPLES_FOLDER}/` has more examples, also for the signature `{TOKENS_SIGNATURE}`, which takes ids instead of text."""


def _input_rows(description: Description, model: ServedModel) -> list[list[str]]:
  rows = [
    [field["name"], "string [B, K]" if field["is_list"] else "string [B]", field["meaning"]]
    for field in description.fields
  ]
  shape = "int32 [B, K, S]" if model.ids_rank == 3 else "int32 [B, S]"
  meanings = (
    model.ids_meaning,
    "1 for these tokens, 0 for padding",
    "0 up to and including the first [SEP], 1 after it",
  )
  return rows + [
    [f"{name} (signature `{TOKENS_SIGNATURE}`)", shape, meaning]
    for name, meaning in zip(TOKEN_INPUTS, meanings, strict=True)
  ]


def _format_thresholds(description: Description) -> list[str]:
  """The section about the thresholds of the labels; none if the model has no thresholds."""
  if not description.thresholds:
    return []
  rows = [[label, f"{threshold:.6g}"] for label, threshold in description.thresholds.items()]
  table = _format_table("Thresholds", ["label", "threshold"], rows)
  return [f"{table}\n\nA label is predicted if its probability is at least its threshold."]


def _format_limits(description: Description, model: ServedModel) -> str:
  letter_case = "lower-cased" if description.do_lower_case else "taken with its case"
  accents = " with accents" if description.keep_accents else ""
  quotes = ", \\`\\` and '' become \"" if description.convert_quotes else ""
  numbers = "All numbers are float32."
  if description.precision != "float32":
    numbers = f"The encoder's matrices are {description.precision}, all other numbers are float32."
  return (
    f"The batch may have any size. Text is {letter_case}{accents}{quotes}; bytes that are not UTF-8 become U+FFFD. "
    f"{model.truncation_note()} The signature `{TOKENS_SIGNATURE}` does not cut sequences; it accepts "
    f"at most {model.max_positions} tokens in each. {numbers}"
  )


def _format_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ["---"] * len(header), *rows]
  return f"## {title}\n\n" + "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)


def _format_model_config(description: Description, checkpoint: ExportCheckpoint) -> str:
  vocabulary = description.vocabulary
  rows = [[name, str(value)] for name, value in checkpoint.config.to_dict().items()]
  step = f", step {checkpoint.step}" if checkpoint.step is not None else ""
  table = _format_table("The model", ["setting", "value"], rows)
  return (
    f"{table}\n\nThe vocabulary in `assets/` is of the kind {vocabulary['kind']} and has {vocabulary['size']:,} "
    f"pieces; its SHA-256 is {vocabulary['sha256']}. The checkpoint is {checkpoint.file.path}{step}."
  )


def _format_training(checkpoint: ExportCheckpoint) -> str:
  run = checkpoint.run
  if not run:
    return "## Training\n\nThe settings are not known: the checkpoint does not belong to a run."
  rows: list[list[Any]] = [["task", run.get("task", "")]]
  rows += [[name, value] for name, value in _data_settings(checkpoint).items()]
  rows += [[name, value] for name, value in _training_settings(checkpoint).items()]
  if run.get("init_checkpoint"):
    rows.append(["init_checkpoint", run["init_checkpoint"]])
  return _format_table("Training", ["setting", "value"], rows)


def _data_settings(checkpoint: ExportCheckpoint) -> dict[str, Any]:
  """The settings of the run's task that affected training, and the paths of its data."""
  data = dict(checkpoint.run.get("data", {}))
  entry = registry.TASKS.get(checkpoint.task or "")
  if entry:
    config = entry.config_class()
    without_effect = config.to_dict().keys() - {*config.training_settings(), *_DATA_PATHS}
    data = {name: value for name, value in data.items() if name not in without_effect}
  hidden = set(_DYNAMIC_MASKING_SETTINGS) if data.get("masking") == "static" else set()
  if data.get("task_name") not in (None, "custom"):
    hidden |= set(_CUSTOM_TASK_SETTINGS)
  return {name: value for name, value in data.items() if value not in ("", None) and name not in hidden}


def _training_settings(checkpoint: ExportCheckpoint) -> dict[str, Any]:
  """The settings of the training and of the optimizer. Of two alternatives, only the one that had an effect."""
  train, optimizer = dict(checkpoint.run.get("train", {})), dict(checkpoint.run.get("optimizer", {}))
  shown_settings = {name: train[name] for name in _TRAINING_SETTINGS if name in train}
  shown_settings |= {name: optimizer[name] for name in _OPTIMIZER_SETTINGS if name in optimizer}
  for name in ("num_train_epochs", "max_train_seconds", "warmup_proportion"):  # each is 0 if it was not used
    if not shown_settings.get(name):
      shown_settings.pop(name, None)
  steps, batch_size = train.get("num_train_steps"), train.get("train_batch_size")
  if optimizer and steps and batch_size:
    config = from_dict(OptimizerConfig, optimizer, source=checkpoint.file.path, strict=False)
    schedule = make_schedule(config, steps, batch_size)
    shown_settings["num_warmup_steps"] = schedule.warmup_steps
    if config.scale_learning_rate:
      shown_settings["learning_rate"] = (
        f"{schedule.peak:.6g} (learning_rate {config.learning_rate:g}, scaled by the batch)"
      )
  elif "warmup_proportion" in shown_settings:
    shown_settings.pop("num_warmup_steps", None)
  return shown_settings


def _format_metrics(checkpoint: ExportCheckpoint) -> str:
  if not checkpoint.run:
    return "## Metrics\n\nThe metrics are not known: the checkpoint does not belong to a run."
  if not checkpoint.metrics:
    return "## Metrics\n\nThe eval_results.json of the run has no metrics of this step (`--do_eval` writes the file)."
  rows = [[name, f"{value:.6g}"] for name, value in checkpoint.metrics.items()]
  table = _format_table("Metrics", ["metric", "value"], rows)
  note = f"The run measured these at step {checkpoint.step} on its own task ({checkpoint.task}), before the export."
  return f"{table}\n\n{note}"


def _format_quality(quality: Mapping[str, Any]) -> str:
  """The table of quality, size and latency of all models, from the values of a `checking.quality.QualityReport`."""
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
    f"{BATCH_SIZE}). A drop of {names[0]} by more than {quality['max_metric_drop']:g} (`--max_metric_drop`) would have "
    f"ended the export. ms: the fastest of several requests of one example with {quality['num_tokens']} tokens, on a "
    f"machine with {quality['num_threads']} cores."
  )
