"""Lines of the input of albert.predict -> requests: each line a text, columns with tabs between, or a JSON object."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from albert.errors import UserError
from albert.io.json_values import encoded, parse_object, shown

AUTO, LINES, TSV, JSON = "auto", "lines", "tsv", "json"
_BOM = b"\xef\xbb\xbf"
# Put before the name of a field of the input that an answer has, too.
INPUT_PREFIX = "input_"


@dataclasses.dataclass(frozen=True)
class Request:
  """A line: its number from 1, its texts (or lists of them) by the names of the fields, and what else it has."""

  line: int
  texts: Mapping[str, Any]
  others: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def length(self) -> int:
    """Bytes of all texts, which the time to answer grows with."""
    return sum(sum(map(len, value)) if isinstance(value, list) else len(value) for value in self.texts.values())


def returned_name(name: str, answers: Collection[str]) -> str:
  """The name that a field of the input comes back under: its own, or with input_ before it if an answer has it.

  It depends on nothing but the names of the answers, so that it is the same for all lines of all files. A field that
  has input_ before the name of an answer gets another one, so that no two fields come back under one name.
  """
  rest = name
  while rest.startswith(INPUT_PREFIX):
    rest = rest.removeprefix(INPUT_PREFIX)
  return INPUT_PREFIX + name if rest in answers else name


class Parser:
  """Lines -> requests.

  Args:
    fields: of the model, see albert.export.description.
    form: auto, lines, tsv or json; auto is settled by the first line that is not blank: "{" begins JSON.
    source: what lines come from, for errors.
    answers: names of the model's answers, see returned_name.
  """

  def __init__(self, fields: Sequence[Mapping[str, Any]], form: str, source: str, answers: Collection[str] = ()):
    self._fields = fields
    self._form = form
    self.source = source
    self._answers = answers
    # An empty line is an empty text where a line is a text.
    self._takes_blank = len(fields) == 1 and not fields[0]["is_list"]
    if form == LINES and not self._takes_blank:
      names = ", ".join(field["name"] for field in fields)
      raise UserError(f"--format={LINES}: the model takes {names}: give {TSV} or {JSON}")

  def settle(self, lines: Sequence[bytes], *, at_end: bool = False) -> bool:
    """Settles what auto stands for by the first lines of the input.

    Args:
      lines: all lines up to here.
      at_end: no others follow.
    Returns: False if all lines are blank and others may follow, which is too early to tell.
    """
    if self._form == AUTO:
      stripped = (line.removeprefix(_BOM if i == 0 else b"").strip() for i, line in enumerate(lines))
      first = next(filter(None, stripped), b"")
      if not first and not at_end:
        return False
      self._form = JSON if first.startswith(b"{") else LINES if self._takes_blank else TSV
    return True

  def parse(self, number: int, line: bytes) -> Request | None:
    """Line `number` (from 1), without its end; None if it is blank and no request.

    Raises:
      UserError: it is wrong; with source and line.
    """
    where = f"{self.source}, line {number}"
    if number == 1:
      line = line.removeprefix(_BOM)
    self.settle([line], at_end=True)
    if self._form == LINES:
      return Request(number, {self._fields[0]["name"]: line})
    is_blank = not line.strip() if self._form == JSON else not line.strip(b" ") and not self._takes_blank
    if is_blank:
      return None
    request = self._json(number, where, line) if self._form == JSON else self._tsv(number, where, line)
    for field in self._fields:
      if field["is_list"] and not any(request.texts[field["name"]]):
        raise UserError(f"{where}: {field['name']!r} has no text ({field['meaning']}): give at least one")
    return request

  def _tsv(self, number: int, where: str, line: bytes) -> Request:
    columns = line.split(b"\t")
    names = [field["name"] for field in self._fields]
    *_, last = self._fields
    is_enough = len(columns) >= len(names) if last["is_list"] else len(columns) == len(names)
    if not is_enough:
      more = " (each further column one more of the last)" if last["is_list"] else ""
      raise UserError(f"{where}: has {len(columns)} columns; give {', '.join(names)}{more}, with tabs between")
    if last["is_list"]:
      columns = [*columns[: len(names) - 1], columns[len(names) - 1 :]]  # type: ignore[list-item]
    return Request(number, dict(zip(names, columns, strict=True)))

  def _json(self, number: int, where: str, line: bytes) -> Request:
    values = parse_object(where, line)
    texts = {}
    for field in self._fields:
      name, kind = field["name"], "a list of texts" if field["is_list"] else "a text"
      if name not in values:
        raise UserError(f"{where}: lacks {name!r} ({kind}: {field['meaning']})")
      value = values.pop(name)
      is_right = isinstance(value, list) if field["is_list"] else isinstance(value, str)
      if not is_right or (field["is_list"] and not all(isinstance(text, str) for text in value)):
        raise UserError(f"{where}: {name!r} must be {kind}, it is {shown(value)}")
      texts[name] = [encoded(text) for text in value] if field["is_list"] else encoded(value)
    return Request(number, texts, {returned_name(name, self._answers): value for name, value in values.items()})
