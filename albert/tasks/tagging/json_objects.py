"""Reads and writes texts with tags as JSON lines, and converts rows in memory, which have the same keys.

    {"tokens": ["EU", "rejects", "it"], "tags": ["B-ORG", "O", "O"]}
    {"text": "EU rejects it", "spans": [{"start": 0, "end": 2, "label": "ORG"}]}

An object has a list of words, or a text, which a rule divides into words (albert.tokenization.words). Spans give their
first character and the one after their last, from 0. Other keys are kept in files of predictions.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from albert.data.rows import DataSource, Rows
from albert.data.tables import read_json_objects
from albert.errors import UserError
from albert.io import json_values
from albert.io.text import format_value, replace_surrogates
from albert.tasks.tagging.schemes import Span

TOKENS, TAGS, TEXT, SPANS = "tokens", "tags", "text", "spans"
# The keys that are added to predicted objects.
PREDICTED_TAGS, PREDICTED_SPANS = "predicted_tags", "predicted_spans"


class CharSpan(msgspec.Struct):
  """A span of a text: text[start:end] has the type `label`."""

  start: int
  end: int
  label: str


class Entry(NamedTuple):
  """One JSON object.

  Attributes:
    location: its file and line, for messages.
    words: the words; () for a text.
    tags: the tag of each word; () if tags were not read.
    text: the text; None if the object has words.
    spans: the spans of the text, in order; () if they were not read.
  """

  location: str
  words: Sequence[str] = ()
  tags: Sequence[str] = ()
  text: str | None = None
  spans: Sequence[CharSpan] = ()


def read_entries(source: DataSource, word_key: str, tag_key: str, *, with_tags: bool) -> Iterator[Entry]:
  """Yields the objects of a file, or of rows in memory.

  Args:
    source: the file, or the rows.
    word_key, tag_key: the keys of the words and of the tags; "" for tokens and tags.
    with_tags: whether tags and spans are read.
  Raises:
    UserError: a line is not a JSON object, lacks a key, or has a value of another type; the numbers of words and tags
      differ; or spans overlap or end outside of the text. The message names the file and the line.
  """
  word_key, tag_key = word_key or TOKENS, tag_key or TAGS
  for location, values in _objects(source):
    if word_key in values:
      yield _read_words(location, values, word_key, tag_key, with_tags=with_tags)
    elif TEXT in values:
      text = json_values.convert(f"{location}: {TEXT}", values[TEXT], str)
      yield Entry(location, text=text, spans=_read_spans(location, values, text) if with_tags else ())
    else:
      raise UserError(f"{location}: has neither {word_key!r} nor {TEXT!r}; it has: {', '.join(values) or 'nothing'}")


def _objects(source: DataSource) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yields the location and the values of each object."""
  if isinstance(source, Rows):
    for index in range(len(source)):
      yield source.location(index), source.values(index)
  else:
    for number, values in read_json_objects(source):
      yield f"{source}, line {number}", values


def _read_words(location: str, values: Mapping[str, Any], word_key: str, tag_key: str, *, with_tags: bool) -> Entry:
  words = json_values.convert(f"{location}: {word_key}", values[word_key], list[str])
  for index, word in enumerate(words):
    if not word.strip(" \t\r\n"):
      raise UserError(f"{location}: {word_key}[{index}] is empty: give it a word, or remove it with its tag")
  if not with_tags:
    return Entry(location, words)
  if tag_key not in values:
    raise UserError(f"{location}: no {tag_key!r}; there are: {', '.join(values)}")
  tags = json_values.convert(
    f"{location}: {tag_key}", values[tag_key], list[str], "give the names of the tags, not their numbers"
  )
  if len(tags) != len(words):
    raise UserError(f"{location}: {len(tags)} {tag_key} for {len(words)} {word_key}: give each word one tag")
  return Entry(location, words, tags)


def _read_spans(location: str, values: Mapping[str, Any], text: str) -> list[CharSpan]:
  """Reads the spans of a text, and sorts them. Raises UserError if they overlap or are not in the text."""
  if SPANS not in values:
    raise UserError(f"{location}: no {SPANS!r}; there are: {', '.join(values)}")
  spans = json_values.convert(f"{location}: {SPANS}", values[SPANS], list[CharSpan])
  spans = sorted(spans, key=lambda span: span.start)
  end_before = 0
  for span in spans:
    shown = f"span {span.start} to {span.end} ({span.label})"
    if not span.label:
      raise UserError(f"{location}: {shown}: the label is empty: give its type")
    if not 0 <= span.start < span.end <= len(text):
      raise UserError(f"{location}: {shown}: not a part of the text, which has {len(text)} characters: correct it")
    if span.start < end_before:
      raise UserError(f"{location}: {shown}: overlaps with the span before it: keep one of the two")
    end_before = span.end
  return spans


def word_spans(entry: Entry, word_ranges: Sequence[tuple[int, int]]) -> list[Span]:
  """Converts the spans of a text to spans of its words.

  Args:
    entry: an object with a text.
    word_ranges: the start and the end of each word, in characters.
  Raises:
    UserError: a span does not begin and end with words.
  """
  assert entry.text is not None
  starts, ends = [start for start, _ in word_ranges], [end for _, end in word_ranges]
  spans = []
  for span in entry.spans:
    # Without whitespace at its ends.
    shown = entry.text[span.start : span.end]
    char_start = span.start + len(shown) - len(shown.lstrip())
    char_end = span.end - (len(shown) - len(shown.rstrip()))
    first, last = bisect.bisect_left(starts, char_start), bisect.bisect_left(ends, char_end)
    if char_start >= char_end or first >= len(starts) or starts[first] != char_start or ends[last] != char_end:
      nearest = max(bisect.bisect_right(starts, char_start) - 1, 0)
      word = entry.text[slice(*word_ranges[nearest])] if word_ranges else ""
      raise UserError(
        f"{entry.location}: the span {format_value(shown)} ({span.start} to {span.end}) does not consist of whole "
        f"words; the word there is {format_value(word)}: correct it, give another --word_rule, or give tokens and tags"
      )
    spans.append(Span(first, last + 1, span.label))
  return spans


def lines_with_predictions(
  source: DataSource, tags: Iterable[Sequence[str]], spans: Iterable[Sequence[Any]]
) -> Iterator[str]:
  """Yields the objects as lines of JSON, with two further keys: predicted_tags and predicted_spans.

  Args:
    source: the file, or the rows in memory.
    tags: the predicted tags of each object.
    spans: the predicted spans of each object, as JSON values.
  """
  for (_, values), tags_of_text, spans_of_text in zip(_objects(source), tags, spans, strict=True):
    predictions = {PREDICTED_TAGS: list(tags_of_text), PREDICTED_SPANS: list(spans_of_text)}
    yield replace_surrogates(json.dumps({**values, **predictions}, ensure_ascii=False)) + "\n"
