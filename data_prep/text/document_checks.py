"""Warnings about text whose "documents" are probably paragraphs, or whose "sentences" are parts of sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

# There is a warning if documents have at most this many sentences on average.
_FEW_SENTENCES = 2.5
# If more than this share of the lines begins with a lower-case letter, the lines are probably wrapped.
_MAX_LOWER_CASE_SHARE = 0.4
# Text with a smaller share of lines that begin with a capital was probably converted to lower case.
_MIN_CAPITALS_SHARE = 0.1
# Smaller samples give no warning.
_MIN_LINES = 20
_MIN_DOCUMENTS = 5
_FEW_SENTENCES_REMEDY = (
  "if blank lines are between paragraphs, give --document=file; if each line is a paragraph, give --sentences=split"
)


def few_sentences_warning(num_sentences: int, num_documents: int, source: str, remedy: str) -> str | None:
  """Returns a warning if documents have so few sentences on average that they are probably paragraphs; else None.

  Args:
    num_sentences: number of sentences in all documents.
    num_documents: number of documents.
    source: the text that was counted, such as "a sample of the text".
    remedy: what the user can do; the warning ends with it.
  """
  if not num_documents or num_sentences > _FEW_SENTENCES * num_documents:
    return None
  mean = num_sentences / num_documents
  return f"warning: documents have {mean:.1f} sentences on average ({source}), too few for pairs of segments: {remedy}"


def layout_warnings(samples: Iterable[list[str]]) -> list[str]:
  """Returns warnings about text that is read with a sentence on each line and a blank line after each document.

  Args:
    samples: for each of some files, the lines at its beginning.
  """
  num_documents = num_sentences = num_lines = num_lower_case = num_capitals = 0
  for lines in samples:
    documents = _split_at_blank_lines(lines)
    for document in documents[:-1]:  # the last one may continue after the sample
      num_documents += 1
      num_sentences += len(document)
    for line in itertools.chain.from_iterable(documents):
      first_letter = next((character for character in line if character.isalpha()), "")
      num_lines += 1
      num_lower_case += first_letter.islower()
      num_capitals += first_letter.isupper()
  warnings: list[str] = []
  if num_lines >= _MIN_LINES and num_capitals >= _MIN_CAPITALS_SHARE * num_lines:
    lower_case_share = num_lower_case / num_lines
    if lower_case_share > _MAX_LOWER_CASE_SHARE:
      warnings.append(
        f"warning: {lower_case_share:.0%} of the lines begin with a lower-case letter (a sample of the text), so they "
        "are probably parts of sentences, but each line is taken for a sentence: for text whose lines are wrapped, "
        "give --document=file, or --sentences=split --paragraph=blank_line"
      )
  few = few_sentences_warning(num_sentences, num_documents, "a sample of the text", _FEW_SENTENCES_REMEDY)
  if few and num_documents >= _MIN_DOCUMENTS:
    warnings.append(few)
  return warnings


def _split_at_blank_lines(lines: list[str]) -> list[list[str]]:
  """Returns the lines of each document. Documents are separated by one or more blank lines."""
  groups = itertools.groupby(lines, lambda line: bool(line.strip()))
  return [list(group) for has_text, group in groups if has_text]
