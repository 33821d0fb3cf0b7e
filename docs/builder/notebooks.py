"""Makes a page of the site from a Jupyter notebook: its texts, its code, and its outputs if it was executed."""

from __future__ import annotations

import json
import re
from typing import Any

# Terminal colors, and text that a carriage return overwrites, such as the earlier states of a progress bar.
_CONTROL = re.compile(r"\x1b\[[\d;]*m|[^\n]*\r(?!\n)")


def notebook_page(path: str, text: str, executed: str = "") -> str:
  """The Markdown of a notebook.

  Args:
    path: the path of the notebook in the repository. A line of the page names it.
    text: the JSON of the notebook. Its first cell begins with the title.
    executed: the JSON of the same notebook with outputs, which `make notebooks` writes. The page has no outputs if this
      is "", or if the cells have changed since then.
  """
  cells, executed_cells = (json.loads(notebook)["cells"] if notebook else [] for notebook in (text, executed))
  is_executed = list(map(_source, cells)) == list(map(_source, executed_cells))
  blocks = []
  for cell in executed_cells if is_executed else cells:
    is_code = cell["cell_type"] == "code"
    blocks.append(_fenced("python", _source(cell)) if is_code else _source(cell))
    blocks += _format_outputs(cell["outputs"]) if is_code else []
  title, _, introduction = blocks[0].partition("\n")
  note = f"*The notebook `{path}` of the repository{'' if is_executed else ', without its outputs'}.*"
  return "\n\n".join([title, note, introduction.strip(), *blocks[1:]]) + "\n"


def _source(cell: dict[str, Any]) -> str:
  return "".join(cell["source"])


def _format_outputs(outputs: list[dict[str, Any]]) -> list[str]:
  """Returns what a cell printed, without the log on stderr, then its pictures and values."""
  printed = "".join(line for output in outputs if output.get("name") == "stdout" for line in output["text"])
  blocks = [_fenced("text", _CONTROL.sub("", printed).rstrip())] if printed else []
  for data in (output["data"] for output in outputs if "data" in output):
    picture = "".join(data.get("image/png", "")).strip()
    value = f"![output](data:image/png;base64,{picture})" if picture else _fenced("text", "".join(data["text/plain"]))
    blocks.append(value)
  return blocks


def _fenced(language: str, text: str) -> str:
  fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", text))]))
  return f"{fence}{language}\n{text}\n{fence}"
