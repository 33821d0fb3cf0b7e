"""Makes a page of a Jupyter notebook: its texts as they are, and its code as blocks."""

from __future__ import annotations

import json
import re


def notebook_page(path: str, text: str) -> str:
  """The Markdown of a notebook.

  Args:
    path: of the notebook in the repository, for the line that says where it is.
    text: the JSON of the notebook. Its first cell begins with the title.
  """
  parts = []
  for cell in json.loads(text)["cells"]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "code":
      fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", source))]))
      source = f"{fence}python\n{source}\n{fence}"
    parts.append(source)
  title, _, rest = parts[0].partition("\n")
  note = f"*The notebook `{path}` of the repository, without its outputs.*"
  return "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n"
