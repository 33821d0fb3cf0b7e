"""Lets griffe read this project's docstrings, whose sections follow each other without a blank line.

griffe takes "Returns:" for the title of a section only after a blank line, and only if the section's text is on the
lines below the title. It loads this module as an extension (see mkdocs.yml).
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(Args|Attributes|Example|Examples|Raises|Returns|Yields):(?: +(\S.*))?$")


def with_separate_sections(docstring: str) -> str:
  """Puts a blank line before each section of a docstring, and the text of a section on the lines below its title.

  Args:
    docstring: its text, without indentation.
  """
  lines: list[str] = []
  for line in docstring.split("\n"):
    section = _SECTION.match(line)
    if section is None:
      lines.append(line)
      continue
    if lines and lines[-1].strip():
      lines.append("")
    # griffe knows "Examples" only; it would read the code of an "Example" as Markdown.
    lines.append("Examples:" if section[1] == "Example" else f"{section[1]}:")
    if section[2]:
      lines.append(f"  {section[2]}")
  return "\n".join(lines)


class DocstringSections(griffe.Extension):
  """Prepares the docstrings of all objects that griffe has read, and the fields of configs."""

  def on_attribute(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
    """Shows the default and the help of a field that is declared with `option(default, help, ...)`."""
    value = attr.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "option":
      default, help_text, *_ = value.arguments
      attr.value = default
      text = ast.literal_eval(str(help_text))
      attr.docstring = griffe.Docstring(f"{text[:1].upper()}{text[1:]}.", parent=attr)

  def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
    """Changes the docstring of an object."""
    if obj.docstring is not None:
      obj.docstring.value = with_separate_sections(obj.docstring.value)
