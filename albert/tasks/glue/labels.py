"""The flag --labels of a custom task: the names of the classes, as a text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from albert.errors import UserError
from albert.io import json_values

# Error messages show at most this number of characters of the flag's value.
_MAX_SHOWN_LENGTH = 200


def parse_labels(text: str, *, minimum: int = 2) -> tuple[str, ...]:
  """Parses the value of --labels.

  Args:
    text: labels separated by commas, or a JSON list.
    minimum: the smallest number of labels.
  Returns: the labels; () if the text is empty.
  Raises:
    UserError: there are fewer labels than `minimum`, or one is empty, occurs twice, or contains a tab or a line end.
  """
  if not text:
    return ()
  shown_text = text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}..."
  source = f"--labels={shown_text}"
  if text.startswith("["):
    values = json_values.parse(source, text, list[str | int | float], "give a JSON list of texts")
    labels = [str(value).strip() for value in values]
  else:
    labels = [label.strip() for label in text.split(",")]
  if any(character in label for label in labels for character in "\t\r\n"):
    raise UserError(f"{source}: a label has a tab or a line end, which predictions files cannot hold: remove it")
  if len(set(labels)) < max(len(labels), minimum) or "" in labels:
    raise UserError(
      f"{source}: give at least {'two' if minimum == 2 else minimum} different labels, separated by commas"
    )
  return tuple(labels)


def format_labels(labels: Sequence[str]) -> str:
  """Converts labels to a value of --labels, from which parse_labels gets the same labels."""
  text = ",".join(labels)
  needs_json = text.startswith("[") or any("," in label for label in labels)
  return json.dumps(list(labels)) if needs_json else text
