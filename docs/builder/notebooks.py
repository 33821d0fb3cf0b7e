"""Makes a page of the site from a Jupyter notebook. Its texts are copied, and its code becomes fenced blocks."""

from __future__ import annotations

import json
import re


def notebook_page(path: str, text: str) -> str:
  """The Markdown of a notebook.

  Args:
    path: the path of the notebook in the repository. A line of the page names it.
    text: the JSON of the notebook. Its first cell begins with the title.
  """
  cells = []
  for cell in json.loads(text)["cells"]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "code":
      fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", source))]))
      source = f"{fence}python\n{source}\n{fence}"
    cells.append(source)
  title, _, introduction = cells[0].partition("\n")
  note = f"*The notebook `{path}` of the repository, without its outputs.*"
  return "\n\n".join([title, note, introduction.strip(), *cells[1:]]) + "\n"
