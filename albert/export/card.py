"""The model card: README.md beside a SavedModel."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from albert.export.description import EXAMPLES, Arrays, Description, format_json, rest_answer, rest_request
from albert.export.formats import TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.export.signatures import TOKEN_INPUTS
from albert.export.source import Source

# Of a run's config, what a reader wants to know.
_TRAINING = ("num_train_steps", "train_batch_size", "seed", "precision")
_OPTIMIZER = ("optimizer", "learning_rate", "num_warmup_steps", "weight_decay")


def write_card(
  description: Description,
  source: Source,
  inputs: Mapping[str, Arrays],
  answers: Mapping[str, Arrays],
  notes: Sequence[str],
) -> str:
  """The text of the card.

  Args:
    description: of the model.
    source: the checkpoint.
    inputs, answers: of the examples, by signature.
    notes: lines on other formats, with their sizes.
  """
  sections = [
    f"# {description.name}\n\nALBERT that {description.summary}. A SavedModel with its text processing inside.",
    _how_to_call(description, inputs, answers),
    _table("What goes in", ["field", "type", "what it is"], _inputs(description)),
    _table("What comes out", ["answer", "what it is"], [list(item) for item in description.answers.items()]),
    _limits(description),
    _model(source),
    _data(source),
    _metrics(source),
  ]
  if notes:
    sections.append("## Other formats\n\n" + "\n".join(f"- {note}" for note in notes))
  return "\n\n".join(sections) + "\n"


def _how_to_call(description: Description, inputs: Mapping[str, Arrays], answers: Mapping[str, Arrays]) -> str:
  first = {name: values[:1] for name, values in inputs[TEXT_SIGNATURE].items()}
  answer = {name: values[:1] for name, values in answers[TEXT_SIGNATURE].items()}
  request = rest_request(TEXT_SIGNATURE, first)
  arguments = ", ".join(
    f"{name}=tf.constant({json.dumps([request['instances'][0][name]], ensure_ascii=False)})" for name in first
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

and answers

```json
{format_json(rest_answer(answer)).rstrip()}
```

`{EXAMPLES}/` has more, also for the signature `{TOKENS_SIGNATURE}`, which takes ids instead of text."""


def _inputs(description: Description) -> list[list[str]]:
  rows = [
    [field["name"], "string [B, K]" if field["is_list"] else "string [B]", field["meaning"]]
    for field in description.fields
  ]
  return rows + [[f"{name} (signature `{TOKENS_SIGNATURE}`)", "int32", "as in training"] for name in TOKEN_INPUTS]


def _limits(description: Description) -> str:
  case = "lower-cased" if description.do_lower_case else "taken with its case"
  return (
    f"Any batch size. Text is {case}; bytes that are no UTF-8 become U+FFFD. What is longer than "
    f"{description.max_seq_length} tokens is cut as in training. Matrices are {description.precision}."
  )


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ["---"] * len(header), *rows]
  return f"## {title}\n\n" + "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)


def _model(source: Source) -> str:
  rows = [[name, str(value)] for name, value in source.config.to_dict().items()]
  step = f", step {source.step}" if source.step is not None else ""
  return _table("The model", ["setting", "value"], rows) + f"\n\nFrom {source.file.path}{step}."


def _data(source: Source) -> str:
  run = source.run
  if not run:
    return "## Training\n\nThe checkpoint came without the settings of its run."
  rows: list[list[Any]] = [["task", run.get("task", "")]]
  rows += [[name, value] for name, value in run.get("data", {}).items() if value not in ("", None)]
  for section, names in (("train", _TRAINING), ("optimizer", _OPTIMIZER)):
    rows += [[name, run[section][name]] for name in names if name in run.get(section, {})]
  if run.get("init_checkpoint"):
    rows.append(["init_checkpoint", run["init_checkpoint"]])
  return _table("Training", ["setting", "value"], rows)


def _metrics(source: Source) -> str:
  if not source.metrics:
    return "## Metrics\n\nThis step was not evaluated (`--do_eval` of the run writes eval_results.json)."
  return _table("Metrics", ["metric", "value"], [[name, f"{value:.6g}"] for name, value in source.metrics.items()])
