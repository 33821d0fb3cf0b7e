"""What reading left out, and why: counts and examples, for the manifest and for a printed table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from albert.io import json_values
from data_prep.document_checks import few_sentences_warning

BAD_RECORD = "bad record"
# So many examples of each reason are kept, each with the beginning of the text.
MAX_EXAMPLES = 3
# Bad records are listed up to this number.
MAX_BAD_RECORDS = 100
_MAX_EXAMPLE_CHARS = 80
_MANY_DROPPED = 0.5
# Documents that a form leaves out by design; they do not count as lost text.
_EXPECTED_REASONS = frozenset({"redirect", "not an article"})


class Dropped(msgspec.Struct):
  """The documents that were left out for one reason.

  Attributes:
    documents: their number.
    characters: number of characters of their text.
    examples: some of them: the file, the place in it, and the beginning of the text or what is wrong with it.
  """

  documents: json_values.Count = 0
  characters: json_values.Count = 0
  examples: list[str] = []


class ReadingReport(msgspec.Struct):
  """Counts of the documents that were read and left out.

  Attributes:
    documents: number of documents that were kept.
    sentences: number of their sentences.
    characters: number of characters of their sentences.
    dropped: reason -> the documents that were left out for it.
    left_out: kind -> number of parts of documents that were left out, such as tables.
  """

  documents: json_values.Count = 0
  sentences: json_values.Count = 0
  characters: json_values.Count = 0
  dropped: dict[str, Dropped] = {}
  left_out: dict[str, json_values.Count] = {}

  def drop(self, reason: str, source: str, text: str, num_chars: int) -> None:
    """Counts a document that is left out.

    Args:
      reason: why.
      source: its file and its place there.
      text: the beginning of its text, or what is wrong with it.
      num_chars: number of characters of its text.
    """
    entry = self.dropped.setdefault(reason, Dropped())
    entry.documents += 1
    entry.characters += num_chars
    if len(entry.examples) < (MAX_BAD_RECORDS if reason == BAD_RECORD else MAX_EXAMPLES):
      shown = text if reason == BAD_RECORD else " ".join(text[: 2 * _MAX_EXAMPLE_CHARS].split())[:_MAX_EXAMPLE_CHARS]
      entry.examples.append(f"{source}: {shown}" if shown else source)

  @property
  def num_bad(self) -> int:
    """Number of bad records."""
    return self.dropped[BAD_RECORD].documents if BAD_RECORD in self.dropped else 0

  def to_dict(self) -> dict[str, Any]:
    """Returns JSON values."""
    return dict(msgspec.to_builtins(self))


def add_reports(reports: Iterable[ReadingReport]) -> ReadingReport:
  """Adds up reports. The examples are those of the first reports that have any."""
  total = ReadingReport()
  for report in reports:
    total.documents += report.documents
    total.sentences += report.sentences
    total.characters += report.characters
    for kind, number in report.left_out.items():
      total.left_out[kind] = total.left_out.get(kind, 0) + number
    for reason, dropped in report.dropped.items():
      entry = total.dropped.setdefault(reason, Dropped())
      entry.documents += dropped.documents
      entry.characters += dropped.characters
      limit = MAX_BAD_RECORDS if reason == BAD_RECORD else MAX_EXAMPLES
      entry.examples += dropped.examples[: limit - len(entry.examples)]
  return total


def format_table(report: ReadingReport) -> str:
  """Returns a table of the documents that were kept and left out, and of the parts that were left out."""
  rows = [("text", "documents", "sentences", "characters")]
  rows.append(("kept", f"{report.documents:,}", f"{report.sentences:,}", f"{report.characters:,}"))
  for reason, dropped in sorted(report.dropped.items()):
    rows.append((f"left out: {reason}", f"{dropped.documents:,}", "", f"{dropped.characters:,}"))
  widths = [max(len(row[column]) for row in rows) for column in range(4)]
  lines = [
    "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
    for row in rows
  ]
  for reason, dropped in sorted(report.dropped.items()):
    lines += [f"{reason}, for example {example}" for example in dropped.examples[:1]]
  if report.left_out:
    lines.append("left out of documents: " + ", ".join(f"{n:,} {kind}" for kind, n in sorted(report.left_out.items())))
  return "\n".join(line.rstrip() for line in lines)


def warnings(report: ReadingReport, remedies: Mapping[str, str]) -> list[str]:
  """Returns warnings about text that can hardly be meant to be read in this way, each with the remedy.

  Args:
    report: what was read.
    remedies: the remedies for "few sentences" and for "much dropped".
  """
  few = few_sentences_warning(
    report.sentences, report.documents, f"{report.documents:,} documents", remedies["few sentences"]
  )
  found = [few] if few else []
  lost = {reason: entry for reason, entry in report.dropped.items() if reason not in _EXPECTED_REASONS}
  num_lost = sum(entry.documents for entry in lost.values())
  lost_chars = sum(entry.characters for entry in lost.values())
  lost_share = max(num_lost / max(1, num_lost + report.documents), lost_chars / max(1, lost_chars + report.characters))
  if lost_share > _MANY_DROPPED:
    reasons = ", ".join(f"{entry.documents:,} {reason}" for reason, entry in sorted(lost.items()))
    found.append(f"warning: most of the text is left out ({reasons}): {remedies['much dropped']}")
  return found
