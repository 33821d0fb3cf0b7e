"""Counts and examples of the documents that reading left out, for the manifest and for a printed table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from albert.io import json_values
from data_prep.text_checks import few_sentences_warnings

# Reasons for which a record is left out. Some readers have other reasons, such as "redirect".
BAD_RECORD, NO_TEXT = "bad record", "no text"
# Greatest number of examples that are kept of the documents left out for one reason, and of bad records.
_MAX_EXAMPLES = 3
_MAX_BAD_RECORD_EXAMPLES = 100
_MAX_EXAMPLE_CHARS = 80
# There is a warning if a greater share of the documents is left out.
_MAX_LOST_SHARE = 0.5
# Reasons that do not count for this warning: a dump of Wikipedia always has such pages.
_EXPECTED_REASONS = frozenset({"redirect", "not an article"})


class Dropped(msgspec.Struct):
  """The documents that were left out for one reason: their number and that of their characters.

  An example is a line: the file, the place in it, and the beginning of the text, or what is wrong with a bad record.
  """

  documents: json_values.Count = 0
  characters: json_values.Count = 0
  examples: list[str] = []


class ReadingReport(msgspec.Struct):
  """Counts of the documents that were read and left out.

  Attributes:
    documents, sentences, characters: of the documents that were kept.
    dropped: reason -> the documents that were left out for it.
    left_out: kind -> number of parts of documents that were left out, such as tables.
  """

  documents: json_values.Count = 0
  sentences: json_values.Count = 0
  characters: json_values.Count = 0
  dropped: dict[str, Dropped] = {}
  left_out: dict[str, json_values.Count] = {}

  def drop(self, reason: str, source: str, text: str, num_chars: int) -> None:
    """Counts a document that is left out. `text` is the beginning of its text, or what is wrong with a bad record."""
    if reason != BAD_RECORD:
      text = " ".join(text[: 2 * _MAX_EXAMPLE_CHARS].split())[:_MAX_EXAMPLE_CHARS]
    self.add_dropped(reason, Dropped(1, num_chars, [f"{source}: {text}" if text else source]))

  def add_dropped(self, reason: str, dropped: Dropped) -> None:
    """Adds documents that were left out for a reason."""
    entry = self.dropped.setdefault(reason, Dropped())
    entry.documents += dropped.documents
    entry.characters += dropped.characters
    max_examples = _MAX_BAD_RECORD_EXAMPLES if reason == BAD_RECORD else _MAX_EXAMPLES
    entry.examples += dropped.examples[: max_examples - len(entry.examples)]

  def add_left_out(self, left_out: Mapping[str, int]) -> None:
    """Counts parts of documents that were left out, by kind."""
    for kind, number in left_out.items():
      self.left_out[kind] = self.left_out.get(kind, 0) + number

  @property
  def num_bad(self) -> int:
    return self.dropped[BAD_RECORD].documents if BAD_RECORD in self.dropped else 0

  def to_dict(self) -> dict[str, Any]:
    """Returns JSON values."""
    return dict(msgspec.to_builtins(self))


def add_reports(reports: Iterable[ReadingReport]) -> ReadingReport:
  """Adds up reports. The total keeps only the first examples for each reason."""
  total = ReadingReport()
  for report in reports:
    total.documents += report.documents
    total.sentences += report.sentences
    total.characters += report.characters
    total.add_left_out(report.left_out)
    for reason, dropped in report.dropped.items():
      total.add_dropped(reason, dropped)
  return total


def format_table(report: ReadingReport) -> str:
  """Returns a table of the documents that were kept and left out, and of the parts that were left out."""
  rows = [("text", "documents", "sentences", "characters")]
  rows.append(("kept", f"{report.documents:,}", f"{report.sentences:,}", f"{report.characters:,}"))
  for reason, dropped in sorted(report.dropped.items()):
    rows.append((f"left out: {reason}", f"{dropped.documents:,}", "", f"{dropped.characters:,}"))
  label_width, *number_widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = []
  for label, *numbers in rows:
    cells = [number.rjust(width) for number, width in zip(numbers, number_widths, strict=True)]
    lines.append("  ".join([label.ljust(label_width), *cells]))
  for reason, dropped in sorted(report.dropped.items()):
    if dropped.examples:
      lines.append(f"{reason}, for example {dropped.examples[0]}")
  if report.left_out:
    kinds = [f"{number:,} {kind}" for kind, number in sorted(report.left_out.items())]
    lines.append(f"left out of documents: {', '.join(kinds)}")
  return "\n".join(line.rstrip() for line in lines)


def warnings(report: ReadingReport, few_sentences_remedy: str) -> list[str]:
  """Returns warnings about text that was probably not meant to be read with these settings.

  The remedy says what the user can do if documents have few sentences.
  """
  source = f"{report.documents:,} documents"
  messages = few_sentences_warnings(report.sentences, report.documents, source, few_sentences_remedy)
  lost = {reason: entry for reason, entry in report.dropped.items() if reason not in _EXPECTED_REASONS}
  num_lost = sum(entry.documents for entry in lost.values())
  if num_lost > _MAX_LOST_SHARE * (num_lost + report.documents):
    reasons = ", ".join(f"{entry.documents:,} {reason}" for reason, entry in sorted(lost.items()))
    messages.append(
      f"warning: most of the text is left out ({reasons}): look at the examples in the table above, and check "
      "--text_format and --text_field"
    )
  return messages
