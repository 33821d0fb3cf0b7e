"""Asks exported models what their own examples ask: `python examples/ask.py MODEL_DIRECTORY [MODEL_DIRECTORY ...]`.

Needs TensorFlow and tensorflow-text, and nothing of this project: each directory is a version that
`python -m albert.export` wrote. Prints a JSON object an example: model, request and answer.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_text  # noqa: F401  (the tokenizer's op)


def text(value: object) -> object:
  """Bytes as text, floats with six digits."""
  if isinstance(value, list):
    return [text(item) for item in value]
  if isinstance(value, bytes):
    return value.decode("utf-8", errors="replace")
  return round(value, 6) if isinstance(value, float) else value


def ask(directory: str) -> None:
  """Prints the answers of one model."""
  model = tf.saved_model.load(directory)
  with open(os.path.join(directory, "examples", "serving_default.json"), encoding="utf-8") as file:
    instances = json.load(file)["instances"]
  for instance in instances:
    answers = model.signatures["serving_default"](**{name: tf.constant([value]) for name, value in instance.items()})
    answer = {name: text(values.numpy().tolist()[0]) for name, values in sorted(answers.items())}
    shown = {"model": directory, "request": instance, "answer": answer}
    print(json.dumps(shown, ensure_ascii=False), flush=True)


if __name__ == "__main__":
  if not sys.argv[1:]:
    sys.exit(__doc__)
  for path in sys.argv[1:]:
    ask(path)
  if any(name.split(".")[0] == "albert" for name in sys.modules):
    sys.exit("albert was imported")
