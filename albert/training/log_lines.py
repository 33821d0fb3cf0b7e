"""The logs of a run: a JSON object a line, by step. No TensorFlow, so that a report is quick."""

from __future__ import annotations

import json
from typing import Any

from albert import files
from albert.errors import UserError


def read(path: str, *, key: str = "step", kind: type = int) -> list[dict[str, Any]]:
  """The lines of a log; none if it is not there. A last line cut off by a kill is left out.

  Args:
    path: of the log.
    key, kind: what every line has, and of which type.

  Raises:
    UserError: a line that is no JSON object with the key, with file and line.
  """
  if not files.exists(path):
    return []
  with files.open_file(path) as f:
    lines = f.read().decode("utf-8", errors="replace").split("\n")
  if not lines[-1].endswith("}"):
    lines.pop()
  read_lines = []
  for number, line in enumerate(lines, start=1):
    try:
      values = json.loads(line)
    except json.JSONDecodeError:
      values = None
    if not isinstance(values, dict) or not isinstance(values.get(key), kind):
      raise UserError(f"{path}, line {number}: not a JSON object with a {key}: {line[:60]!r}: delete the line")
    read_lines.append(values)
  return read_lines
