"""The flag --text_columns of a custom task: the names of columns, as a text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

from albert.errors import UserError
from albert.io import json_values

# Characters of a name that have a meaning in the flag.
_SPECIAL_CHARACTERS = ',"[\r\n'


def parse_columns(text: str) -> tuple[str, ...]:
  """Parses the value of --text_columns.

  Args:
    text: names separated by commas, like a line of a CSV file: a name that contains a comma or begins with a quote or
      a bracket is enclosed in quotes, and quotes inside of quotes are doubled. Or a JSON list of names.
  Returns: the names, without spaces at their ends.
  Raises:
    UserError: the text is neither of these.
  """
  source = f"--text_columns={text}"
  if text.lstrip().startswith("["):
    names = json_values.parse(source, text, list[str], 'give a JSON list of names, such as ["a","b"]')
  else:
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
      rows = list(reader)
    except csv.Error as error:
      raise UserError(f"{source}: {error}: double a quote inside of quotes, and close them") from error
    names = [name for row in rows for name in row]
  stripped_names = (name.strip() for name in names)
  return tuple(name for name in stripped_names if name)


def format_columns(names: Sequence[str]) -> str:
  """Converts names to a value of --text_columns, from which parse_columns gets the same names."""
  text = ",".join(names)
  needs_json = any(character in name for name in names for character in _SPECIAL_CHARACTERS)
  return json.dumps(list(names), ensure_ascii=False) if needs_json else text
