"""The model card: README.md beside a SavedModel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from albert.config.base import from_dict
from albert.config.run import OptimizerConfig
from albert.export.checkpoint import ExportCheckpoint
from albert.export.description import EXAMPLES, Description, NamedArrays, format_json, rest_answer, rest_request
from albert.export.formats import TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.export.served_model import ServedModel
from albert.export.signatures import TOKEN_INPUTS
from albert.optimizers.schedules import make_schedule
from albert.tasks import registry

# Of a run's config, what a reader wants to know.
_TRAINING = ("num_train_steps", "num_train_epochs", "train_batch_size", "seed", "precision")
_OPTIMIZER = ("optimizer", "learning_rate", "num_warmup_steps", "warmup_proportion", "weight_decay")
_TRAINING_DATA = ("data_dir", "train_file", "input_file")
_OF_DYNAMIC_MASKING = ("masked_lm_prob", "ngram")
_OF_CUSTOM_TASKS = ("text_columns", "label_column", "id_column", "regression")


def format_model_card(
  description: Description,
  model: ServedModel,
  checkpoint: ExportCheckpoint,
  example: tuple[NamedArrays, NamedArrays],
  notes: Sequence[str],
) -> str:
  """The text of the card.

  Args:
    description: of the model.
    model: the model.
    source: the checkpoint.
    example: a request of one row to serving_default, and the answers to this request.
    notes: lines on other formats, with their sizes.
  """
  sections = [
    f"# {description.name}\n\nALBERT that {description.summary}. A SavedModel with its text processing inside.",
    _how_to_call(description, *example),
    _table("What goes in", ["field", "type", "what it is"], _inputs(description, model)),
    _table("What comes out", ["answer", "what it is"], [list(item) for item in description.answers.items()]),
    _limits(description, model),
    _model(checkpoint),
    _data(checkpoint),
    _metrics(checkpoint),
  ]
  if notes:
    sections.append("## Other formats\n\n" + "\n".join(f"- {note}" for note in notes))
  return "\n\n".join(sections) + "\n"


def _how_to_call(description: Description, inputs: NamedArrays, answers: NamedArrays) -> str:
  request = rest_request(TEXT_SIGNATURE, inputs)
  arguments = ", ".join(
    f"{name}=tf.constant({json.dumps([request['instances'][0][name]], ensure_ascii=False)})" for name in inputs
  )
  return f"""## How to call it

With TensorFlow and tensorflow-text alone (the latter has the tokenizer's op):

```python
import tensorflow as tf
import tensorflow_text  # noqa: F401

model = tf.saved_model.load("DIRECTORY OF THIS FILE")
print(model.signatures["{TEXT_SIGNATURE}"]({arguments}))
```

With TensorFlow Serving, `POST /v1/models/{description.name}:predict` takes

```json
{format_json(request).rstrip()}
```

and answers, with more digits,

```json
{format_json(rest_answer(answers)).rstrip()}
```

`{EXAMPLES}/` has more, also for the signature `{TOKENS_SIGNATURE}`, which takes ids instead of text."""


def _inputs(description: Description, model: ServedModel) -> list[list[str]]:
  rows = [
    [field["name"], "string [B, K]" if field["is_list"] else "string [B]", field["meaning"]]
    for field in description.fields
  ]
  shape = "int32 [B, K, S]" if model.rank_of_ids == 3 else "int32 [B, S]"
  meanings = (model.row_of_ids, "1 for these tokens, 0 for padding", "0 up to the first [SEP], 1 behind it")
  ids = zip(TOKEN_INPUTS, meanings, strict=True)
  return rows + [[f"{name} (signature `{TOKENS_SIGNATURE}`)", shape, meaning] for name, meaning in ids]


def _limits(description: Description, model: ServedModel) -> str:
  case = "lower-cased" if description.do_lower_case else "taken with its case"
  quotes = ", \\`\\` and '' become \"" if description.convert_quotes else ""
  is_float32 = description.precision == "float32"
  numbers = "All numbers are" if is_float32 else f"The encoder's matrices are {description.precision}, all else is"
  return (
    f"Any batch size. Text is {case}{quotes}; bytes that are no UTF-8 become U+FFFD. {model.how_text_is_cut()} The "
    f"signature `{TOKENS_SIGNATURE}` cuts nothing and takes at most {model.longest_sequence} tokens a sequence. "
    f"{numbers} float32."
  )


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ["---"] * len(header), *rows]
  return f"## {title}\n\n" + "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)


def _model(checkpoint: ExportCheckpoint) -> str:
  rows = [[name, str(value)] for name, value in checkpoint.config.to_dict().items()]
  step = f", step {checkpoint.step}" if checkpoint.step is not None else ""
  return _table("The model", ["setting", "value"], rows) + f"\n\nFrom {checkpoint.file.path}{step}."


def _data(checkpoint: ExportCheckpoint) -> str:
  run = checkpoint.run
  if not run:
    return "## Training\n\nThe checkpoint came without the settings of its run."
  rows: list[list[Any]] = [["task", run.get("task", "")]]
  rows += [[name, value] for name, value in _data_settings(checkpoint).items()]
  rows += [[name, value] for name, value in _training_settings(checkpoint).items()]
  if run.get("init_checkpoint"):
    rows.append(["init_checkpoint", run["init_checkpoint"]])
  return _table("Training", ["setting", "value"], rows)


def _data_settings(checkpoint: ExportCheckpoint) -> dict[str, Any]:
  """The settings of the run's task that decided what was learned, and the paths of its data."""
  data = dict(checkpoint.run.get("data", {}))
  entry = registry.TASKS.get(checkpoint.task or "")
  if entry:
    decided = entry.config_class().training_settings()
    known = entry.config_class().to_dict()
    data = {name: value for name, value in data.items() if name not in known or name in (*decided, *_TRAINING_DATA)}
  dropped = set(_OF_DYNAMIC_MASKING) if data.get("masking") == "static" else set()
  if data.get("task_name") not in (None, "custom"):
    dropped |= set(_OF_CUSTOM_TASKS)
  return {name: value for name, value in data.items() if value not in ("", None) and name not in dropped}


def _training_settings(checkpoint: ExportCheckpoint) -> dict[str, Any]:
  """How long and with which optimizer, as it was in effect: of two settings for one thing the one that decided."""
  train, optimizer = dict(checkpoint.run.get("train", {})), dict(checkpoint.run.get("optimizer", {}))
  found = {name: train[name] for name in _TRAINING if name in train}
  found |= {name: optimizer[name] for name in _OPTIMIZER if name in optimizer}
  for name in ("num_train_epochs", "warmup_proportion"):
    if not found.get(name):
      found.pop(name, None)
  steps, batch_size = train.get("num_train_steps"), train.get("train_batch_size")
  if optimizer and steps and batch_size:
    config = from_dict(OptimizerConfig, optimizer, source=checkpoint.file.path, strict=False)
    schedule = make_schedule(config, steps, batch_size)
    found["num_warmup_steps"] = schedule.warmup_steps
    if config.scale_learning_rate:
      found["learning_rate"] = f"{schedule.peak:.6g} (learning_rate {config.learning_rate:g}, scaled by the batch)"
  elif "warmup_proportion" in found:
    found.pop("num_warmup_steps", None)
  return found


def _metrics(checkpoint: ExportCheckpoint) -> str:
  if not checkpoint.run:
    return "## Metrics\n\nNot known: the checkpoint came without its run."
  if not checkpoint.metrics:
    return "## Metrics\n\nThe eval_results.json of the run has none of this step (`--do_eval` of the run writes it)."
  rows = [[name, f"{value:.6g}"] for name, value in checkpoint.metrics.items()]
  table = _table("Metrics", ["metric", "value"], rows)
  note = f"The run measured these at step {checkpoint.step} on its own task ({checkpoint.task}), before the export."
  return f"{table}\n\n{note}"
