"""Runs exported models on their example requests: `python examples/ask.py MODEL_DIRECTORY [MODEL_DIRECTORY ...]`.

It needs TensorFlow and tensorflow-text, but not this project. Each directory is a model version that
`python -m albert.export` has written. For each example it prints a JSON object with the model, the request and the
answer.
"""

from __future__ import annotations

import json
import os
import sys

stderr = os.dup(2)
if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":  # TensorFlow prints lines before it reads this
  os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
try:
  import tensorflow as tf
  import tensorflow_text  # noqa: F401  (registers the tokenizer's operations)
finally:
  os.dup2(stderr, 2)


def to_json(value: object) -> object:
  """Converts bytes to text, and rounds floats to six decimal places."""
  if isinstance(value, list):
    return [to_json(item) for item in value]
  if isinstance(value, bytes):
    return value.decode("utf-8", errors="replace")
  return round(value, 6) if isinstance(value, float) else value


def ask(directory: str) -> None:
  """Prints the answers of a model to its example requests.

  Args:
    directory: the model version.
  """
  try:
    with open(os.path.join(directory, "examples", "serving_default.json"), encoding="utf-8") as file:
      instances = json.load(file)["instances"]
  except OSError as error:
    sys.exit(f"error: {error}: give a version that albert.export wrote, such as models/NAME/1")
  model = tf.saved_model.load(directory)
  for instance in instances:
    batch_of_one = {name: tf.constant([value]) for name, value in instance.items()}
    outputs = model.signatures["serving_default"](**batch_of_one)
    answer = {name: to_json(values.numpy().tolist()[0]) for name, values in sorted(outputs.items())}
    result = {"model": directory, "request": instance, "answer": answer}
    print(json.dumps(result, ensure_ascii=False), flush=True)


if __name__ == "__main__":
  if not sys.argv[1:]:
    sys.exit(__doc__)
  for path in sys.argv[1:]:
    ask(path)
  # This project's tests run this program to show that an exported model does not need the project.
  if any(name.split(".")[0] == "albert" for name in sys.modules):
    sys.exit("error: this program must not import albert")
