"""The flags of run_tagging.py, and the texts with tagged words that it reads. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

from albert.config.base import option
from albert.config.run import FinetuningConfig
from albert.data.rows import DataSource, Rows
from albert.data.tables import is_json_file
from albert.errors import UserError
from albert.io import files
from albert.io.text import format_value
from albert.tasks.glue.flags import format_labels, parse_labels
from albert.tasks.splits import FILE_FIELDS, TRAIN
from albert.tasks.tagging import columns, json_objects
from albert.tasks.tagging.schemes import SCHEMES, Scheme, Span, TagError, types_of
from albert.tokenization import words

# The extension of a predictions file for rows in memory.
JSON_EXTENSION = ".jsonl"
_REMEDY = "give a file of columns with one word a line, or JSON lines"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingConfig(FinetuningConfig):
  """The flags of run_tagging.py that describe its files and tags."""

  train_file: str = option(
    "", "file to train on: columns as in CoNLL, with one word a line, or JSON lines (.jsonl)", affects_training=False
  )
  eval_file: str = option("", "file to evaluate on, in the same forms", affects_training=False)
  predict_file: str = option("", "file to predict, in the same forms; it needs no tags", affects_training=False)
  scheme: str = option(
    "BIO",
    "how tags mark spans: BIO (IOB2), BILOU, or BIOES, which is BILOU with other letters",
    choices=tuple(SCHEMES),
  )
  labels: str = option(
    "",
    "types of the spans, such as LOC,PER, separated by commas or as a JSON list; if not given, those of the training "
    "file, sorted",
  )
  word_column: str = option(
    "",
    "column of the words: its number, from 0 (-1: the last), or its name if the first line names the columns; in JSON "
    "lines, the key of the list of words. By default the first column, or tokens",
    evaluation_may_differ=True,
  )
  tag_column: str = option(
    "",
    "column of the tags, as for --word_column. By default the last column, or tags",
    evaluation_may_differ=True,
  )
  word_rule: str = option(
    words.PUNCTUATION,
    "how texts that are not divided into words are divided. punctuation: at spaces, and before and after punctuation "
    "at the edges of what is between them; whitespace: at spaces only",
    choices=words.RULES,
  )
  doc_stride: int = option(128, "tokens between the starts of two successive windows of a long text", minimum=1)


def find_files(config: TaggingConfig, split: str) -> list[str]:
  """Returns the path of the file of a split, which a flag gives.

  Args:
    config: the flags.
    split: "train", "dev" or "test".
  Raises:
    UserError: the flag is missing, or there is no such file.
  """
  flag = FILE_FIELDS[split]
  path: str = getattr(config, flag)
  if not path:
    raise UserError(f"--{flag} is missing: the {split} set; {_REMEDY}")
  if not files.exists(path):
    raise UserError(f"--{flag}={path}: no such file")
  return [path]


@dataclasses.dataclass(frozen=True)
class TaggedText:
  """A sentence or a longer text, divided into words.

  Attributes:
    index: the number of the text in its file, from 0.
    location: its file and line, for messages.
    words: the words.
    spans: the spans that its tags mark; () if the tags were not read.
    text: the whole text, if the file gives it; "" if it gives words.
    word_ranges: the start and the end of each word in `text`, in characters; () without a text.
  """

  index: int
  location: str
  words: Sequence[str]
  spans: Sequence[Span] = ()
  text: str = ""
  word_ranges: Sequence[tuple[int, int]] = ()

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
  if isinstance(source, Rows) or is_json_file(source):
    for entry in json_objects.read_entries(source, config.word_column, config.tag_column, with_tags=with_tags):
      text = _text_of_entry(entry, len(texts), scheme, config.word_rule, with_tags=with_tags)
      _check_types(text, types, functools.partial(_location_of_entry, entry))
      texts.append(text)
  else:
    for sentence in columns.read_sentences(source, config.word_column, config.tag_column, with_tags=with_tags):
      location = functools.partial(columns.location, source, sentence)
      text = TaggedText(len(texts), location(0), sentence.words, _spans_of_tags(sentence.tags, scheme, location))
      _check_types(text, types, location)
      texts.append(text)
  if not any(text.words for text in texts):
    raise UserError(f"{source}: no words: {_REMEDY}")
  return texts


def _text_of_entry(
  entry: json_objects.Entry, index: int, scheme: Scheme, word_rule: str, *, with_tags: bool
) -> TaggedText:
  """Converts a JSON object with tokens and tags, or with text and spans, to a text."""
  if entry.text is None:
    if with_tags and not entry.words:
      raise UserError(f"{entry.location}: has no words: give some, or remove it")
    spans = _spans_of_tags(entry.tags, scheme, functools.partial(_location_of_entry, entry))
    return TaggedText(index, entry.location, entry.words, spans)
  ranges = words.split_words(entry.text, word_rule)
  if with_tags and not ranges:
    raise UserError(f"{entry.location}: the text has no words: give some, or remove it")
  word_list = [entry.text[start:end] for start, end in ranges]
  spans = json_objects.word_spans(entry, ranges)
  return TaggedText(index, entry.location, word_list, spans, entry.text, ranges)


def _location_of_entry(entry: json_objects.Entry, word: int) -> str:
  """Returns the file and the line of a word: an object is on one line."""
  del word
  return entry.location


def _spans_of_tags(tags: Sequence[str], scheme: Scheme, location: Callable[[int], str]) -> list[Span]:
  """Returns the spans that tags mark. Raises UserError if the tags do not follow the scheme."""
  try:
    return scheme.spans(tags)
  except TagError as error:
    raise UserError(f"{location(error.index)}: {error.problem}") from error


def _check_types(text: TaggedText, types: Sequence[str], location: Callable[[int], str]) -> None:
  """Raises UserError if a span has a type that is not one of `types`, unless these are ().

  Args:
    text: the text.
    types: the types.
    location: the index of a word -> its file and line.
  """
  for span in text.spans:
    if types and span.type not in types:
      raise UserError(
        f"{location(span.start)}: the span {format_value(text.text_of(span))} has the type {format_value(span.type)}, "
        f"which is none of those of the training file ({', '.join(types)}): correct it, or train with all types as "
        "--labels"
      )


def read_labels(source: DataSource, config: TaggingConfig) -> tuple[str, ...]:
  """Returns the types of the spans in a training file, or in rows in memory, sorted.

  Raises:
    UserError: see read_texts; or there are no spans.
  """
  types = types_of([text.spans for text in read_texts(source, config, with_tags=True)])
  if not types:
    raise UserError(f"{source}: has no spans, all tags are O: choose another --tag_column, or give a file with spans")
  return tuple(types)


def with_labels(config: TaggingConfig) -> TaggingConfig:
  """Returns the config with the types of spans: those that --labels lists, or else those of the training file.

  Raises:
    UserError: there are none, or the training file cannot be used.
  """
  labels = parse_labels(config.labels, minimum=1)
  if not labels:
    if not config.train_file:
      raise UserError("--labels is missing, and there is no --train_file to take the types of the spans from")
    (path,) = find_files(config, TRAIN)
    labels = read_labels(path, config)
  return dataclasses.replace(config, labels=format_labels(labels))


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
  if isinstance(source, Rows) or is_json_file(source):
    lines = json_objects.lines_with_predictions(source, tags, spans)
  else:
    lines = columns.lines_with_predictions(source, config.word_column, config.tag_column, tags)
  files.write_atomically(path, "".join(lines))
