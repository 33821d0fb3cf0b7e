"""The logs of a run: a JSON object a line, by step. No TensorFlow, so that a report is quick."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from albert.errors import UserError
from albert.io import files, json_values

# Annotated types of msgspec: a whole number from 0 on.
Step = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


def read(path: str, *, key: str = "step", kind: Any = Step) -> list[dict[str, Any]]:
  """The lines of a log; none if it is not there. A last line cut off by a kill is left out.

  Numbers that are not finite, which a run that diverges logs, are None.

  Args:
    path: of the log.
    key, kind: what every line has, and its schema.

  Raises:
    UserError: a line that is no JSON object with the key, with file and line.
  """
  if not files.exists(path):
    return []
  with files.open_file(path) as f:
    lines = f.read().split(b"\n")
  schema = msgspec.defstruct("Line", [(key, kind)])
  read_lines = []
  for number, line in enumerate(lines, start=1):
    is_cut = number == len(lines)  # a kill has cut it off, or it is empty
    try:
      values = json_values.parse(f"{path}, line {number}", line, dict[str, Any], "delete the line", nan_is_null=True)
      json_values.convert(f"{path}, line {number}", values, schema, "delete the line")
    except UserError:
      if is_cut:
        break
      raise
    read_lines.append(values)
  return read_lines
