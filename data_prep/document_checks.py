"""Warnings about text whose documents or sentences are probably not what they are taken for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

# There is a warning if documents have at most this many sentences on average.
_FEW_SENTENCES = 2.5
# In text whose lines are wrapped, more than this share of the lines begins with a lower-case letter, and at least the
# other share with a capital. Text that was converted to lower case has no capitals.
_MIN_LOWER_CASE, _MIN_CAPITALS = 0.4, 0.1
_MIN_LINES = 20
_MIN_DOCUMENTS = 5
_DIRECT_REMEDY = (
  "if blank lines are between paragraphs, give --document=file; if each line is a paragraph, give --sentences=split"
)


def few_sentences_warning(num_sentences: int, num_documents: int, source: str, remedy: str) -> str | None:
  """Returns a warning if documents have so few sentences on average that they are probably paragraphs; else None.

  Args:
    num_sentences: number of sentences.
    num_documents: number of documents.
    source: what was counted.
    remedy: what to do.
  """
  if not num_documents or num_sentences > _FEW_SENTENCES * num_documents:
    return None
  mean = num_sentences / num_documents
  return f"warning: documents have {mean:.1f} sentences on average ({source}), too few for pairs of segments: {remedy}"


def direct_warnings(samples: Iterable[list[str]]) -> list[str]:
  """Returns warnings about text that is read as it is: sentences on lines, documents between blank lines.

  Args:
    samples: lines from the beginning of some files.
  """
  num_documents = num_sentences = num_lines = num_lower_case = num_capitals = 0
  for lines in samples:
    groups = [list(group) for has_text, group in itertools.groupby(lines, lambda line: bool(line.strip())) if has_text]
    for document in groups[:-1]:  # the last one may go on after the sample
      num_documents += 1
      num_sentences += len(document)
    for line in itertools.chain.from_iterable(groups):
      first = next((character for character in line if character.isalpha()), "")
      num_lines += 1
      num_lower_case += first.islower()
      num_capitals += first.isupper()
  found: list[str] = []
  if num_lines >= _MIN_LINES and num_capitals >= _MIN_CAPITALS * num_lines > 0:
    share = num_lower_case / num_lines
    if share > _MIN_LOWER_CASE:
      found.append(
        f"warning: {share:.0%} of the lines begin with a lower-case letter (a sample of the text), so they are "
        "probably parts of sentences, but each line is taken for a sentence: for text whose lines are wrapped, give "
        "--document=file, or --sentences=split --paragraph=blank_line"
      )
  few = few_sentences_warning(num_sentences, num_documents, "a sample of the text", _DIRECT_REMEDY)
  if few and num_documents >= _MIN_DOCUMENTS:
    found.append(few)
  return found
