"""The schemes in which tags of words mark spans, and the most probable tags that they allow. Needs no TensorFlow.

A tag is O, or a prefix, a hyphen and the type of a span: B-PER. In BIO (IOB2), the first word of a span has B and its
other words have I. In BILOU, the last word has L instead of I, and a span of one word has U. BIOES is BILOU with E for
L and S for U (Ratinov and Roth 2009, section 3.2). In the scheme "plain", each word is a span, and its tag is the type,
such as a part of speech.

Files in IOB1 or IO, which write no B before most spans, are converted to BIO when they are read.

T words of all texts, N texts, C tags.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from albert.io.text import format_value

OUTSIDE = "O"


class Span(NamedTuple):
  """A span of words.

  Attributes:
    start: the index of its first word.
    end: the index after its last word.
    type: its type, such as PER.
  """

  start: int
  end: int
  type: str


class TagError(Exception):
  """A tag does not follow the scheme.

  Attributes:
    index: the index of the tag.
  """

  def __init__(self, index: int, problem: str):
    super().__init__(problem)
    self.index = index


@dataclasses.dataclass(frozen=True)
class Scheme:
  """A scheme.

  Attributes:
    name: the name, as --scheme takes it.
    last: the prefix of the last word of a span of several words.
    unit: the prefix of a span of one word.
    has_prefixes: whether tags have prefixes, and some words are outside of spans; False for "plain".
  """

  name: str
  last: str = "I"
  unit: str = "B"
  has_prefixes: bool = True

  @property
  def prefixes(self) -> tuple[str, ...]:
    """The prefixes: B, I and those of the last word and of single words, if the scheme has others for them."""
    return tuple(dict.fromkeys(("B", "I", self.last, self.unit)))

  def tags(self, types: Sequence[str]) -> tuple[str, ...]:
    """Returns all tags of some types of spans: O, then the tags of each type. Their order is that of the logits."""
    if not self.has_prefixes:
      return tuple(types)
    return (OUTSIDE, *(f"{prefix}-{span_type}" for span_type in types for prefix in self.prefixes))

  def parts(self, tag: str) -> tuple[str, str]:
    """Returns the prefix and the type of a tag; "" and "" for O."""
    if not self.has_prefixes:
      return self.unit, tag
    prefix, _, span_type = ("", "", "") if tag == OUTSIDE else tag.partition("-")
    return prefix, span_type

  def may_follow(self, previous: str, tag: str) -> bool:
    """Whether a tag may follow another one. Before the first word and after the last one, there is an O."""
    (previous_prefix, previous_type), (prefix, span_type) = self.parts(previous), self.parts(tag)
    is_open = previous_prefix in ("B", "I")  # the span of the previous word may go on
    if prefix in ("I", self.last):
      return is_open and span_type == previous_type
    return not (is_open and self.last != "I")  # with a prefix for the last word, a span must not end without it

  def transitions(self, tags: Sequence[str]) -> np.ndarray:
    """Returns which tags may follow each tag, bool [C, C]: row = tag, column = next tag."""
    return np.array([[self.may_follow(previous, tag) for tag in tags] for previous in tags])

  def spans(self, tags: Sequence[str]) -> list[Span]:
    """Returns the spans that tags mark, in order.

    Raises:
      TagError: a tag is unknown, or may not follow the tag before it.
    """
    spans: list[Span] = []
    previous = OUTSIDE
    for index, tag in enumerate(tags):
      prefix, span_type = self.parts(tag)
      if tag != OUTSIDE and (prefix not in self.prefixes or not span_type):
        examples = ", ".join(f"{known_prefix}-TYPE" for known_prefix in self.prefixes)
        remedy = _remedy(prefix, span_type)
        raise TagError(index, f"tag {format_value(tag)} is not one of {self.name} (O, {examples}): {remedy}")
      if not self.may_follow(previous, tag):
        where = f"follows {previous!r}" if index else "is the first one of the sentence"
        rule = "a span begins with B-"
        if prefix not in ("I", self.last):
          rule = f"a span ends with {self.last}-"
        raise TagError(index, f"tag {tag!r} {where}: in {self.name} {rule}: correct it")
      if prefix in ("B", self.unit):
        spans.append(Span(index, index + 1, span_type))
      elif prefix:
        spans[-1] = spans[-1]._replace(end=index + 1)
      previous = tag
    if not self.may_follow(previous, OUTSIDE):
      raise TagError(
        len(tags) - 1,
        f"tag {previous!r} is the last one of the sentence: in {self.name} a span of several words ends with "
        f"{self.last}-, and one of a single word is {self.unit}-: correct it",
      )
    return spans

  def tags_of_spans(self, spans: Sequence[Span], num_words: int) -> list[str]:
    """Returns the tags of `num_words` words in which spans, which do not overlap, are marked."""
    tags = [OUTSIDE] * num_words
    for start, end, span_type in spans:
      if not self.has_prefixes:
        tags[start:end] = [span_type] * (end - start)
        continue
      for index in range(start, end):
        tags[index] = f"{'B' if index == start else 'I'}-{span_type}"
      tags[end - 1] = f"{self.unit if end == start + 1 else self.last}-{span_type}"
    return tags


def _remedy(prefix: str, span_type: str) -> str:
  """Returns what to do about a tag that does not belong to the scheme."""
  for scheme in SCHEMES.values():
    if span_type and prefix in scheme.prefixes:
      return f"give --scheme={scheme.name}, or correct it"
  return (
    f"correct it, or give another --tag_column, --scheme={PLAIN} if each word has a tag of its own, or --scheme={IO} "
    "if neighbours with the same tag are one span"
  )


# The value of --scheme -> the scheme. Files in IO are read as BIO.
BIO, IO, PLAIN = "BIO", "IO", "plain"
SCHEMES = {
  BIO: Scheme(BIO),
  "BILOU": Scheme("BILOU", "L", "U"),
  "BIOES": Scheme("BIOES", "E", "S"),
  IO: Scheme(BIO),
  PLAIN: Scheme(PLAIN, has_prefixes=False),
}


def is_iob1(tags_of_texts: Iterable[Sequence[str]]) -> bool:
  """Whether tags are in IOB1, and not in BIO: spans begin with I, and with B only after a span of the same type."""
  begins_with_inside = False
  for tags in tags_of_texts:
    for previous, tag in itertools.pairwise([OUTSIDE, *tags]):
      (_, previous_type), (prefix, span_type) = map(SCHEMES[BIO].parts, (previous, tag))
      if (tag != OUTSIDE and prefix not in ("B", "I")) or (prefix == "B" and span_type != previous_type):
        return False
      begins_with_inside |= prefix == "I" and span_type != previous_type
  return begins_with_inside


def bio_of_iob1(tags: Sequence[str]) -> list[str]:
  """Converts tags of IOB1 to BIO."""
  types = [OUTSIDE, *(tag.partition("-")[2] for tag in tags)]
  return [f"B-{types[i + 1]}" if tag[:1] == "I" and types[i + 1] != types[i] else tag for i, tag in enumerate(tags)]


def bio_of_io(tags: Sequence[str]) -> list[str]:
  """Converts tags of IO, which are O and the types of spans or I-TYPE, to BIO. Raises TagError for another prefix."""
  for index, tag in enumerate(tags):
    prefix, _, span_type = tag.partition("-")
    if span_type and prefix in ("B", "L", "U", "E", "S"):
      raise TagError(index, f"tag {tag!r} is not one of {IO} (O, TYPE or I-TYPE): {_remedy(prefix, span_type)}")
  return bio_of_iob1([tag if tag in ("", OUTSIDE) else f"I-{tag.removeprefix('I-')}" for tag in tags])


def best_tags(log_probabilities: np.ndarray, lengths: np.ndarray, transitions: np.ndarray) -> np.ndarray:
  """Finds the sequence of tags of each text that has the largest sum of log probabilities.

  Of several sequences with the same sum, the one whose last tag, then the tag before it, and so on, comes first wins.

  Args:
    log_probabilities: float [T, C], of each word of all texts, concatenated.
    lengths: int [N], the number of words of each text.
    transitions: bool [C, C], whether the tag of a column may follow that of a row. The first tag must be O: a text
      begins and ends as if there was an O before it and after it.
  Returns: int32 [T], the index of the tag of each word.
  """
  costs = np.where(transitions, 0.0, -np.inf)  # [C, C]
  scores = log_probabilities.astype(np.float64)
  previous_tags = np.zeros(scores.shape, np.int32)
  starts = np.cumsum(lengths) - lengths
  max_length = int(lengths.max(initial=0))
  for position in range(max_length):  # of all texts that have a word there
    words = starts[lengths > position] + position
    if position == 0:
      scores[words] += costs[0]
      continue
    paths = scores[words - 1][:, :, None] + costs  # [texts, C, C]
    previous_tags[words] = paths.argmax(axis=1)
    scores[words] += paths.max(axis=1)
  tags = np.zeros(len(scores), np.int32)
  for position in reversed(range(max_length)):
    words = starts[lengths > position] + position
    is_last = lengths[lengths > position] == position + 1
    last_tags = (scores[words] + costs[:, 0]).argmax(axis=1)
    next_words = np.minimum(words + 1, len(scores) - 1)
    tags[words] = np.where(is_last, last_tags, previous_tags[next_words, tags[next_words]])
  return tags
