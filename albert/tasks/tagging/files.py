"""The texts that a tagging task reads, once, with the spans that their tags mark. Needs no TensorFlow.

A text is in a file of columns, as the shared tasks of CoNLL have them, with one word a line and its tag:

    -DOCSTART- -X- -X- O

    EU NNP B-NP B-ORG
    rejects VBZ B-VP O

A blank line ends a sentence. A line whose word is -DOCSTART- begins a document and is no word. Columns are separated by
tabs if the first line of words has one, else by any number of ASCII spaces. Other spaces, such as no-break spaces, are
parts of words. The columns have no names, unless the first line names them: `word<tab>tag`, or
`# global.columns = word tag` as in CoNLL-U Plus. In a file with tabs, a line that begins with # and has no tab is a
comment.

Or a text is a line of JSON or a row in memory:

    {"tokens": ["EU", "rejects", "it"], "tags": ["B-ORG", "O", "O"]}
    {"text": "EU rejects it", "spans": [{"start": 0, "end": 2, "label": "ORG"}]}

An object has a list of words, or a text, which a rule divides into words (albert.tokenization.words). Spans give their
first character and the one after their last, from 0. The exports of doccano and Label Studio have them in other forms
(see _find_spans). Other keys are kept in files of predictions.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from albert.data.rows import DataSource, Rows
from albert.data.tables import is_json_file, read_lines, read_objects
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.json_values import Schema
from albert.io.progress import log
from albert.io.text import counted, format_value, quote_names, replace_surrogates
from albert.tasks.finetuning import FinetuningData
from albert.tasks.glue.flags import format_labels, parse_labels
from albert.tasks.splits import FILE_FIELDS, TEST, TRAIN
from albert.tasks.tagging.flags import UTF16, TaggingConfig, find_file
from albert.tasks.tagging.schemes import BIO, IO, OUTSIDE, SCHEMES, Span, TagError, bio_of_io, bio_of_iob1, is_iob1
from albert.tokenization.packing import window_starts
from albert.tokenization.words import split_words

# The keys of a JSON object.
TOKENS, TAGS, TEXT, SPANS = "tokens", "tags", "text", "spans"
_DOCUMENT_START = "-DOCSTART-"
_NAMES_PREFIX = re.compile(r"#\s*global\.columns\s*=")
# The keys of spans in an object with a text: ours, those of doccano, and that of Label Studio's smaller JSON export.
_SPAN_KEYS = (SPANS, "label", "labels")
_NUMBER = re.compile(r"-?\d+\Z")
_find_fields = re.compile(r"[^ \t]+").findall


@dataclasses.dataclass(frozen=True)
class TaggedText:
  """A sentence or a longer text, divided into words.

  Attributes:
    index: the number of the text in its file, from 0.
    location: for messages: its file; if it is an object, also its line or row.
    words: the words.
    spans: the spans that its tags mark; () if the tags were not read.
    text: the whole text, if the file gives it; "" if it gives words.
    word_ranges: the start and the end of each word in `text`, in characters; () without a text.
    line_numbers: the line of each word in a file of columns; () for an object.
  """

  index: int
  location: str
  words: Sequence[str]
  spans: Sequence[Span] = ()
  text: str = ""
  word_ranges: Sequence[tuple[int, int]] = ()
  line_numbers: Sequence[int] = ()

  def location_of(self, word: int) -> str:
    """Returns the file and the line of a word, for messages."""
    return f"{self.location}, line {self.line_numbers[word]}" if self.line_numbers else self.location

  def spaced_words(self) -> list[str]:
    """Returns the words, each with a space before it if there is whitespace between it and the word before.

    Words without a text have whitespace between them. With byte-level BPE, a word has other pieces after a space.
    """
    ranges = itertools.pairwise(self.word_ranges)
    are_apart = [end < start for (_, end), (start, _) in ranges] or [True] * (len(self.words) - 1)
    further = zip(self.words[1:], are_apart, strict=True)
    return [*self.words[:1], *(f" {word}" if is_apart else word for word, is_apart in further)]

  def offsets(self, span: Span) -> tuple[int, int]:
    """Returns the start and the end of a span: in characters of `text`, or in words if there is no text."""
    if self.word_ranges:
      return self.word_ranges[span.start][0], self.word_ranges[span.end - 1][1]
    return span.start, span.end

  def text_of(self, span: Span) -> str:
    """Returns the text of a span: a part of `text`, or its words with spaces between them."""
    if self.word_ranges:
      return self.text[slice(*self.offsets(span))]
    return " ".join(self.words[span.start : span.end])


class TaggingData(FinetuningData):
  """The texts of each split, and the types of their spans.

  Args:
    config: the flags.

  Attributes:
    config: the flags, with the types of spans as labels.
    scheme: how tags mark spans.
    types: the types of spans: those of --labels, or else, from `find_labels` on, those of the training file.
    tags: the tags of these types, in the order of the model's logits.
  """

  config: TaggingConfig

  def __init__(self, config: TaggingConfig):
    super().__init__(config)
    self.scheme = SCHEMES[config.scheme]
    self._set_types(parse_labels(config.labels, minimum=1))

  def _set_types(self, types: tuple[str, ...]) -> None:
    self.types, self.tags = types, self.scheme.tags(types)
    self.config = dataclasses.replace(self.config, labels=format_labels(types))

  def count_windows(self, rows: Sequence[TaggedText]) -> Sequence[int]:
    """Returns the number of windows of each text."""
    room, stride = self.config.max_seq_length - 2, self.config.doc_stride  # [CLS] and [SEP]
    all_ids = self.tokenizer.encode_batch(" ".join(text.words) for text in rows)
    return [len(window_starts(len(ids), room, stride)) for ids in all_ids]

  def find_labels(self) -> None:
    """Takes the types of spans from the training file. Raises UserError if there is none, or it has no spans."""
    if not self.types:
      if not self.config.train_file:
        raise UserError("--labels is missing, and there is no --train_file to take the types of the spans from")
      self._set_types(find_types(self.sources(TRAIN)[0], self.rows(TRAIN)))

  def find(self, split: str) -> Sequence[str]:
    """Returns the path of the file of a split, which a flag gives."""
    return [find_file(self.config, split)]

  def read_split(self, split: str) -> Sequence[TaggedText]:
    """Reads the texts of a split, see read_texts; those of the test set without spans."""
    return read_texts(self.sources(split)[0], self.config, with_tags=split != TEST, types=self.types)

  def checkpoint_settings(self) -> dict[str, Any]:
    """Adds the scheme and the types of spans, which determine the head."""
    return super().checkpoint_settings() | {"scheme": self.config.scheme, "labels": self.config.labels}

  def row_settings(self, split: str) -> dict[str, Any]:
    """Returns the columns that are read, what offsets count, and the rule for words."""
    del split
    return {name: getattr(self.config, name) for name in ("word_column", "tag_column", "offsets", "word_rule")}

  def extension(self, split: str) -> str:
    """Returns the extension of a predictions file, which has the form of the split's data."""
    path = "rows.jsonl" if split in self._memory else getattr(self.config, FILE_FIELDS[split])
    return ".jsonl" if is_json_file(path) else os.path.splitext(path.removesuffix(".gz"))[1] or ".conll"


def read_texts(
  source: DataSource, config: TaggingConfig, *, with_tags: bool, types: Sequence[str] = ()
) -> list[TaggedText]:
  """Reads all texts of a file, or of rows in memory.

  Args:
    source: the path of a file, or rows with the columns tokens and tags, or text and spans.
    config: the flags.
    with_tags: whether tags are read and checked, for training and evaluation.
    types: the types that spans may have; () for any.
  Raises:
    UserError: the file has no words, a line with another number of columns, a tag that is not of the scheme or may not
      follow the one before it, a span of another type, or one that does not agree with the words. The message names the
      file and the line.
  """
  scheme = SCHEMES[config.scheme]
  texts: list[TaggedText] = []
  read = _read_with_offsets if _has_objects(source) else _read_sentences
  pairs = list(read(source, config, with_tags))
  to_scheme = bio_of_io if config.scheme == IO else list
  if config.scheme == BIO and is_iob1(tags for _, tags in pairs):
    log(f"{source}: its tags are IOB1, where a span begins with I-: converted to BIO")
    to_scheme = bio_of_iob1
  for text, tags in pairs:
    try:
      spans = text.spans or scheme.spans(to_scheme(tags))
    except TagError as error:
      raise UserError(f"{text.location_of(error.index)}: {error}") from error
    if with_tags and not scheme.has_prefixes and len(spans) != len(text.words):
      raise UserError(
        f"{text.location}: {counted(len(spans), 'span')} for {counted(len(text.words), 'word')}: with "
        f"--scheme={scheme.name}, give tokens and tags, one for each word"
      )
    for span in spans:
      if types and span.type not in types:
        raise UserError(
          f"{text.location_of(span.start)}: the span {format_value(text.text_of(span))} has the type "
          f"{format_value(span.type)}, which is none of those of the training file ({', '.join(types)}): correct it, "
          "or train with all types as --labels"
        )
    texts.append(dataclasses.replace(text, index=len(texts), spans=spans))
  if not any(text.words for text in texts):
    raise UserError(f"{source}: no words: give a file of columns with one word a line, or JSON lines")
  return texts


def find_types(source: DataSource, texts: Sequence[TaggedText]) -> tuple[str, ...]:
  """Returns the types of the spans of texts, sorted. Raises UserError if there are no spans; it names the source."""
  types = {span.type for text in texts for span in text.spans}
  if not types:
    raise UserError(f"{source}: has no spans, all tags are O: choose another --tag_column, or give a file with spans")
  return tuple(sorted(types))


def write_predictions(
  source: DataSource, config: TaggingConfig, path: str, tags: Iterable[Sequence[str]], spans: Iterable[Sequence[object]]
) -> None:
  """Writes a copy of the input with the predicted tags: a further column, or further keys of each JSON object.

  Args:
    source: the file, or the rows in memory, that was predicted.
    config: the flags with which it was read.
    path: the file to write.
    tags: the predicted tags of each text.
    spans: the predicted spans of each text, as JSON values.
  """
  lines: list[str] = []
  if _has_objects(source):
    for (_, _, values), tags_of_text, spans_of_text in zip(read_objects(source), tags, spans, strict=True):
      predictions = {"predicted_tags": list(tags_of_text), "predicted_spans": list(spans_of_text)}
      lines.append(replace_surrogates(json.dumps({**values, **predictions}, ensure_ascii=False)) + "\n")
  else:
    remaining_tags = itertools.chain.from_iterable(tags)
    for line in _parse_lines(str(source), config, with_tags=False):
      added = next(remaining_tags) if line.word else line.addition
      separator = "\t" if "\t" in line.text else " "
      lines.append(f"{line.text}{separator}{added}\n" if added else f"{line.text}\n")
  files.write_atomically(path, "".join(lines))


# Files of columns.


class _Line(NamedTuple):
  number: int
  text: str
  word: str = ""  # "" if the line has no word
  tag: str = ""  # "" if the line has no tag, or tags are not read
  ends_sentence: bool = False
  addition: str = ""  # what a line without a word has in the column of predictions


def _read_sentences(
  source: DataSource, config: TaggingConfig, with_tags: bool
) -> Iterator[tuple[TaggedText, Sequence[str]]]:
  """Yields the sentences of a file of columns, without their spans, and the tags of their words, if they are read."""
  path = str(source)
  lines = [line for line in _parse_lines(path, config, with_tags=with_tags) if line.word or line.ends_sentence]
  fields = _find_fields(lines[0].text) if lines and not with_tags and not config.word_column else []
  if len(fields) > 2 and not re.match(r"[A-Z](-|$)", fields[-1]):
    remedy = 'if this is plain text, give it in a .jsonl file, as {"text": ...}'
    log(f"warning: {path}: reads {fields[0]!r} as a word, and {fields[-1]!r} as its last column: {remedy}")
  for has_words, sentence in itertools.groupby(lines, key=lambda line: bool(line.word)):
    if has_words:
      words, tags, numbers = zip(*((line.word, line.tag, line.number) for line in sentence), strict=True)
      yield TaggedText(0, path, list(words), line_numbers=numbers), tags if with_tags else ()


def _parse_lines(path: str, config: TaggingConfig, *, with_tags: bool) -> Iterator[_Line]:
  """Yields all lines of a file. Raises UserError if a column or a word is missing."""
  word_column, tag_column = config.word_column or "0", config.tag_column or "-1"
  lines = [(number, line.rstrip("\r\n")) for number, line in read_lines(path)]
  begins = ("#", _DOCUMENT_START)
  first_text = next((text for _, text in lines if _find_fields(text) and not text.startswith(begins)), "")
  has_tabs = "\t" in first_text
  names: Sequence[str] = ()
  # If a column is given by its name, the first line must name the columns.
  needs_names = any(not _NUMBER.match(column) for column in (word_column, tag_column))
  word_index = tag_index = num_columns = 0
  for number, text in lines:
    fields, prefix = _find_fields(text), _NAMES_PREFIX.match(text)
    if prefix or (needs_names and not names and number == 1):
      names = _find_fields(text[prefix.end() :]) if prefix else text.split("\t") if "\t" in text else fields
      yield _Line(number, text, addition="prediction" if fields else "", ends_sentence=not fields)
    elif not fields or (has_tabs and text.startswith("#") and "\t" not in text):
      yield _Line(number, text, ends_sentence=not fields)
    elif fields[0] == _DOCUMENT_START:
      yield _Line(number, text, addition=OUTSIDE, ends_sentence=True)
    else:
      location, fields = f"{path}, line {number}", text.split("\t") if has_tabs else fields
      if not num_columns:  # the first line of a word has all columns
        num_columns = len(names) or len(fields)
        word_index = _find_column(location, names, num_columns, "word_column", word_column)
        tag_index = _find_column(location, names, num_columns, "tag_column", tag_column) if with_tags else -1
        if word_index == tag_index:
          raise UserError(
            f"{location}: column {word_index} is both the column of the words and that of the tags "
            f"({counted(num_columns, 'column')}): separate columns by tabs or spaces, or give another --tag_column; "
            "only --predict_file may have no tags"
          )
      if len(fields) != num_columns:
        separator = "tabs" if has_tabs else "spaces"
        raise UserError(
          f"{location}: {counted(len(fields), 'column')} instead of {num_columns}: give each line the same columns, "
          f'separated by {separator}, and blank lines between sentences; or give plain text as .jsonl: {{"text": ...}}'
        )
      word = fields[word_index].strip(" ")
      if not word:
        raise UserError(f"{location}: the word is empty: fill it in or remove the line")
      yield _Line(number, text, word, fields[tag_index].strip(" ") if with_tags else "")


def _find_column(location: str, names: Sequence[str], number: int, flag: str, column: str) -> int:
  """Returns the index of a column among `number` ones. Raises UserError if there is none."""
  if not _NUMBER.match(column):
    if names.count(column) != 1:
      raise UserError(f"{location}: --{flag}={column}: no such column; there are: {quote_names(names)}")
    return names.index(column)
  index = int(column)
  if not -number <= index < number:
    columns = counted(number, "column")
    raise UserError(f"{location}: --{flag}={column}: the file has {columns}: give one from -{number} to {number - 1}")
  return index % number


# Objects: lines of JSON, and rows in memory.


def _has_objects(source: DataSource) -> bool:
  return isinstance(source, Rows) or is_json_file(source)


class _OffsetError(UserError):
  """The text of a span does not stand at its offsets in characters, but at those in UTF-16 units."""


def _read_with_offsets(
  source: DataSource, config: TaggingConfig, with_tags: bool
) -> Sequence[tuple[TaggedText, Sequence[str]]]:
  """Reads all objects. Offsets count UTF-16 units if the text of a span shows it, and the texts of all spans agree."""
  try:
    return list(_read_objects(source, config, with_tags))
  except _OffsetError as error:
    try:
      pairs = list(_read_objects(source, dataclasses.replace(config, offsets=UTF16), with_tags))
    except UserError:
      raise error from None
    log(f"{source}: the offsets of its spans count UTF-16 units, as the spans' texts show: converted to characters")
    return pairs


def _read_objects(
  source: DataSource, config: TaggingConfig, with_tags: bool
) -> Iterator[tuple[TaggedText, Sequence[str]]]:
  """Yields the texts of objects: those with tokens with their tags, those with a text with their spans."""
  word_key, tag_key = config.word_column or TOKENS, config.tag_column or TAGS
  for location, _, given_values in read_objects(source):
    values = _of_label_studio(location, given_values)
    if word_key in values:
      words = _convert(location, values, word_key, list[str])
      for number, word in enumerate(words):
        if not word.strip(" \t\r\n"):
          raise UserError(f"{location}: {word_key}[{number}] is empty: give it a word, or remove it with its tag")
      tags: list[str] = []
      if with_tags:
        tags = _convert(location, values, tag_key, list[str], "give the names of the tags, not their numbers")
        if len(tags) != len(words):
          raise UserError(f"{location}: {len(tags)} {tag_key} for {len(words)} {word_key}: give each word one tag")
        if not words:
          raise UserError(f"{location}: has no words: give some, or remove it")
      yield TaggedText(0, location, words), tags
    elif TEXT in values:
      text = _convert(location, values, TEXT, str)
      ranges = split_words(text, config.word_rule)
      spans = _read_spans(location, values, text, ranges, config.offsets) if with_tags else ()
      yield TaggedText(0, location, [text[start:end] for start, end in ranges], spans, text, ranges), ()
    else:
      raise UserError(f"{location}: has neither {word_key!r} nor {TEXT!r}; it has: {quote_names(values)}")


def _convert(location: str, values: Mapping[str, Any], key: str, schema: type[Schema], remedy: str = "") -> Schema:
  """Returns the value of a key. Raises UserError if it is missing or does not fit the schema."""
  if key not in values:
    raise UserError(f"{location}: no {key!r}; there are: {quote_names(values)}")
  return json_values.convert(f"{location}: {key}", values[key], schema, remedy)


def _of_label_studio(location: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the text and the spans of a task in Label Studio's larger JSON export; other objects as they are."""
  data, annotations = values.get("data"), values.get("annotations", [])
  if not isinstance(data, dict) or not isinstance(annotations, list):
    return values
  finished = [item for item in annotations if isinstance(item, dict) and not item.get("was_cancelled")]
  if len(finished) > 1:
    raise UserError(f"{location}: has {len(finished)} annotations: keep one")
  results = finished[0].get("result") if finished else []
  if not isinstance(results, list):
    raise UserError(f"{location}: annotations[0] has no list 'result'")
  # A result without labels, such as a relation between spans, is not a span.
  found = [item["value"] for item in results if isinstance(item, dict) and "labels" in (item.get("value") or ())]
  return {**data, SPANS: found}


def _find_spans(location: str, values: Mapping[str, Any]) -> list[_CharSpan]:
  """Returns the spans of an object with a text: ours, or those of doccano or Label Studio.

  A span is {"start": 0, "end": 2, "label": "ORG"}; in doccano [0, 2, "ORG"]; in Label Studio it has "labels": ["ORG"].
  """
  key = next((key for key in _SPAN_KEYS if key in values), SPANS)
  spans = _convert(location, values, key, list[Any])
  for number, span in enumerate(spans):
    if isinstance(span, list) and len(span) == 3:
      spans[number] = dict(zip(("start", "end", "label"), span, strict=True))
    elif isinstance(span, dict) and isinstance(span.get("labels"), list) and len(span["labels"]) == 1:
      spans[number] = {**span, "label": span["labels"][0]}
  return json_values.convert(f"{location}: {key}", spans, list[_CharSpan])


class _CharSpan(msgspec.Struct):
  """A span of a text: text[start:end] has the type `label`. The field `text` may repeat these characters."""

  start: int
  end: int
  label: str
  text: str | None = None


def _characters(text: str, *offsets: int) -> list[int]:
  """Converts offsets in UTF-16 units to offsets in characters."""
  units = text.encode("utf-16-le", "surrogatepass")
  return [len(units[: 2 * offset].decode("utf-16-le", "replace")) for offset in offsets]


def _read_spans(
  location: str, values: Mapping[str, Any], text: str, word_ranges: Sequence[tuple[int, int]], offsets: str
) -> list[Span]:
  """Converts spans of characters to spans of words. Raises UserError if one does not begin and end with words."""
  if not word_ranges:
    raise UserError(f"{location}: the text has no words: give some, or remove it")
  first_words = {start: index for index, (start, _) in enumerate(word_ranges)}
  last_words = {end: index for index, (_, end) in enumerate(word_ranges)}
  spans: list[Span] = []
  end_before = 0
  counts_units = offsets == UTF16
  length = len(text.encode("utf-16-le", "surrogatepass")) // 2 if counts_units else len(text)
  for span in sorted(_find_spans(location, values), key=lambda span: span.start):
    where = f"{location}: span {span.start} to {span.end} ({span.label})"
    if not span.label:
      raise UserError(f"{where}: the label is empty: give its type")
    is_inside = 0 <= span.start < span.end <= length
    if counts_units:
      span.start, span.end = _characters(text, span.start, span.end)
    if span.text is not None and text[span.start : span.end].strip() != span.text.strip():
      shown = format_value(text[span.start : span.end])
      problem = f"{where}: the text there is {shown}, that of the span {format_value(span.text)}"
      if text[slice(*_characters(text, span.start, span.end))].strip() == span.text.strip():
        raise _OffsetError(f"{problem}: start and end count UTF-16 units: give --offsets={UTF16}")
      raise UserError(f"{problem}: correct it")
    if not is_inside:
      unit = "UTF-16 units" if counts_units else "characters"
      raise UserError(f"{where}: not a part of the text, which has {length} {unit}: correct it")
    if span.start < end_before:
      raise UserError(f"{where}: overlaps with the span before it: keep one of the two")
    end_before = span.end
    shown = text[span.start : span.end]
    # The words are those of the span without whitespace at its ends.
    char_start = span.end - len(shown.lstrip())
    first, last = first_words.get(char_start), last_words.get(span.start + len(shown.rstrip()))
    if first is None or last is None or last < first:
      word = next((text[start:end] for start, end in word_ranges if end > char_start), "")
      raise UserError(
        f"{where}: {format_value(shown)} does not consist of whole words; the word there is {format_value(word)}: "
        "correct it, give another --word_rule, or give tokens and tags"
      )
    spans.append(Span(first, last + 1, span.label))
  return spans
