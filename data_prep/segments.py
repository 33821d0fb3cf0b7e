"""Cuts tokenized documents into instances: consecutive sentences, as pairs of segments for SOP or NSP, or unpaired.

The functions take and return arrays, have no side effects, and take random keys as arguments. A stream is one duplicate
of one document. Many streams are cut at the same time, one chunk of each per step; the instances of a stream depend
only on its documents and its key.

Letters in shapes: T tokens of all documents, D documents, I instances, C chunks, R streams.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from albert.data import random_streams
from data_prep.documents import Documents

SOP, NSP, NONE = "sop", "nsp", "none"
SENTENCE_PREDICTIONS = (SOP, NSP, NONE)
# BERT's segments of several sentences, and RoBERTa's other input formats (RoBERTa, section 4.2).
SEGMENTS, SENTENCE_PAIR, FULL_SENTENCES, DOC_SENTENCES = "segments", "sentence_pair", "full_sentences", "doc_sentences"
INPUT_FORMATS = (SEGMENTS, SENTENCE_PAIR, FULL_SENTENCES, DOC_SENTENCES)

# The random draws of a chunk, by purpose; _DRAWS is their number.
_SHORT, _TARGET, _SPLIT, _LABEL, _DONOR, _DONOR_START, _INSTANCE, _DRAWS = range(8)
# The random streams that are derived from the key of an instance.
ORDER, MASKS, _TRUNCATION = 0, 1, 2


class SegmentRules(NamedTuple):
  """How documents are cut into instances.

  Attributes:
    max_seq_length: greatest number of tokens in an instance, special tokens included.
    short_seq_prob: see `PreparationSettings`, as for the following ones.
    sentence_prediction: one of SENTENCE_PREDICTIONS.
    input_format: one of INPUT_FORMATS.
  """

  max_seq_length: int
  short_seq_prob: float
  sentence_prediction: str
  input_format: str = SEGMENTS

  @property
  def max_num_tokens(self) -> int:
    """The greatest number of tokens of text: `max_seq_length` without [CLS] and one [SEP] for each segment."""
    return self.max_seq_length - (2 if self.sentence_prediction == NONE else 3)

  @property
  def min_words(self) -> int:
    """The smallest number of words that a document needs to give an instance: one for each segment."""
    return 1 if self.sentence_prediction == NONE else 2

  @property
  def min_words_left(self) -> int:
    """The smallest number of words that must remain of a document for another instance.

    For sentence pairs one word is enough, since the last sentence can be paired with the one before it.
    """
    return 1 if self.input_format == SENTENCE_PAIR else self.min_words

  @property
  def crosses_documents(self) -> bool:
    """Whether an instance can contain text of several documents."""
    return self.sentence_prediction == NSP or self.input_format == FULL_SENTENCES


class InstanceSegments(NamedTuple):
  """The segments of instances, as ranges of the documents' tokens.

  Attributes:
    a_start, a_end: int64 [I], the first segment.
    b_start, b_end: int64 [I], the second segment; empty for sentence_prediction "none".
    labels: int64 [I], sentence-order or next-sentence labels: 1 for swapped or random segments, else 0.
    keys: uint64 [I], the random key of each instance.
    documents: int64 [I], the document that each instance was cut from.
  """

  a_start: np.ndarray
  a_end: np.ndarray
  b_start: np.ndarray
  b_end: np.ndarray
  labels: np.ndarray
  keys: np.ndarray
  documents: np.ndarray


def document_keys(seed: int, file_ordinals: np.ndarray, offsets: np.ndarray, duplicates: np.ndarray) -> np.ndarray:
  """The random key of each stream, uint64 [R].

  Args:
    seed: the job's seed.
    file_ordinals: [R] the file of each stream's document.
    offsets: [R] the position of the document in its file.
    duplicates: [R] the number of the duplicate, from 0.
  """
  keys = random_streams.draw(random_streams.draw(seed, 0), file_ordinals)
  return random_streams.draw(random_streams.draw(keys, offsets), duplicates)


class _Chunks(NamedTuple):
  """Chunks: consecutive sentences, each of which becomes one instance.

  Attributes:
    rows: [C], index of the stream.
    steps: [C], number of the chunk in its stream, from 0.
    start, end: [C], its tokens.
    target: [C], the length that it was meant to have.
  """

  rows: np.ndarray
  steps: np.ndarray
  start: np.ndarray
  end: np.ndarray
  target: np.ndarray


class _Draws(NamedTuple):
  """Random draws for chunks: chunk number `steps` of the streams with the keys `keys`."""

  keys: np.ndarray
  steps: np.ndarray

  def bits(self, purpose: int) -> np.ndarray:
    """64 random bits for each chunk. `purpose`: such as _SHORT."""
    return random_streams.draw(self.keys, self.steps * _DRAWS + purpose)


class _Cutter:
  """Finds the next chunk of every stream that has text left.

  Args:
    documents: tokenized documents.
    rules: how they are cut.
    streams: [R], the document of each stream.
    keys: uint64 [R], the random key of each stream.
  """

  def __init__(self, documents: Documents, rules: SegmentRules, streams: np.ndarray, keys: np.ndarray):
    self.docs, self.rules, self.stream_documents, self.keys = documents, rules, streams, keys
    self.ends = documents.splits[streams + 1]
    self.sentence_starts = np.concatenate([[0], documents.sentence_ends])[:-1].astype(np.int64)
    self.word_positions = np.flatnonzero(documents.word_starts)
    # The end of the text is added as one more word, so that the last word has a next one.
    self.word_positions = np.append(self.word_positions, documents.ids.size)
    self.words_before = np.concatenate([[0], np.cumsum(documents.word_starts)])
    self.first_sentences = np.searchsorted(documents.sentence_ends, documents.splits, side="right")

  def chunk_ends(self, position: np.ndarray, end: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Where the chunk of each stream ends.

    For full_sentences and doc_sentences: after the last sentence that ends within the target length, but after the
    first sentence at least. Otherwise: after the first sentence that reaches the target and gives the chunk enough
    words. If too few words remain in the document, they become part of the chunk.

    Args:
      position: [C], where the chunks begin.
      end: [C], where the documents end.
      target: [C], target lengths.
    """
    if self.rules.input_format in (FULL_SENTENCES, DOC_SENTENCES):
      first = np.searchsorted(self.docs.sentence_ends, position, side="right")
      last = np.searchsorted(self.docs.sentence_ends, np.minimum(position + target, end), side="right") - 1
      return self.docs.sentence_ends[np.maximum(first, last)]
    min_words = self.rules.min_words
    last_word = np.minimum(self.words_before[position] + min_words - 1, self.word_positions.size - 1)
    earliest_end = np.maximum(position + target, self.word_positions[last_word] + 1)
    sentence = np.searchsorted(self.docs.sentence_ends, np.minimum(earliest_end, end))
    sentence_end = self.docs.sentence_ends[sentence]
    return np.where(self.words_before[end] - self.words_before[sentence_end] < min_words, end, sentence_end)

  def sentence_pairs(
    self, rows: np.ndarray, position: np.ndarray, has_random_second: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the next two sentences of each stream.

    If a single sentence remains, the chunk begins with the sentence before it. If that sentence will be paired with a
    random one, or is the only one of its document, the chunk is this sentence alone.
    """
    document = self.stream_documents[rows]
    sentence = np.searchsorted(self.docs.sentence_ends, position, side="right")
    last = self.first_sentences[document + 1] - 1
    goes_back = (sentence == last) & (sentence > self.first_sentences[document]) & ~has_random_second
    start = self.sentence_starts[sentence - goes_back]
    return start, self.docs.sentence_ends[np.minimum(sentence + 1, last)]

  def middles(self, start: np.ndarray, end: np.ndarray, draws: _Draws) -> np.ndarray:
    """Where the first segment of each chunk ends."""
    middle = self.random_splits(start, end, draws.bits(_SPLIT))
    if self.rules.input_format != SENTENCE_PAIR or self.rules.sentence_prediction != NSP:
      return middle
    is_one_sentence = self.sentence_starts[np.searchsorted(self.docs.sentence_ends, end)] == start
    return np.where(is_one_sentence & _flips(draws), end, middle)

  def random_splits(self, start: np.ndarray, end: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """A random sentence boundary inside each chunk. If the chunk is a single sentence: a random word boundary."""
    first = np.searchsorted(self.docs.sentence_ends, start, side="right")
    num_sentences = np.searchsorted(self.docs.sentence_ends, end) - first + 1
    has_several = num_sentences > 1
    sentence = first + random_streams.to_int_below(bits, np.maximum(num_sentences - 1, 1))
    first_word = self.words_before[start]
    num_words = self.words_before[end] - first_word
    word = first_word + 1 + random_streams.to_int_below(bits, np.maximum(num_words - 1, 1))
    return np.where(has_several, self.docs.sentence_ends[sentence], self.word_positions[word])

  def random_second_segments(
    self, documents: np.ndarray, target: np.ndarray, donor_bits: np.ndarray, start_bits: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Random second segments for NSP.

    Args:
      documents: [C], the document of each chunk.
      target: [C], length that the second segment should have.
      donor_bits: [C], random bits that choose another document, the donor.
      start_bits: [C], random bits that choose the donor's sentence where the segment begins.

    Returns:
      Start and end of each segment. It ends after the sentence that reaches the target, or with the donor.
    """
    donor = random_streams.to_int_below(donor_bits, len(self.docs) - 1)
    donor += donor >= documents
    first, stop = self.first_sentences[donor], self.first_sentences[donor + 1]
    sentence = first + random_streams.to_int_below(start_bits, stop - first)
    start = self.sentence_starts[sentence]
    earliest_end = np.minimum(start + np.maximum(target, 1), self.docs.splits[donor + 1])
    return start, self.docs.sentence_ends[np.searchsorted(self.docs.sentence_ends, earliest_end)]

  def next_chunks(self, rows: np.ndarray, position: np.ndarray, step: int) -> tuple[_Chunks, np.ndarray]:
    """The next chunk of some streams.

    Args:
      rows: [C], the streams.
      position: [C], the first token of each stream that no chunk has used.
      step: number of the chunk in its stream.

    Returns:
      The chunks, and the positions after the text that they use.
    """
    rules = self.rules
    longest = rules.max_num_tokens
    draws = _Draws(self.keys[rows], np.asarray(step))
    # Only NSP needs this draw here: with a random second segment, a chunk uses only the text of its first segment.
    has_random_second = _flips(draws) if rules.sentence_prediction == NSP else np.zeros(rows.size, bool)
    if rules.input_format == SENTENCE_PAIR:
      start, end = self.sentence_pairs(rows, position, has_random_second)
      chunks = _Chunks(rows, np.full(rows.size, step), start, end, np.ones(rows.size, np.int64))
      return chunks, np.where(has_random_second, self.middles(start, end, draws), end)
    short = random_streams.to_unit_float(draws.bits(_SHORT)) < rules.short_seq_prob
    target: np.ndarray = np.full(rows.size, longest)
    if short.any():
      drawn = 2 + random_streams.to_int_below(draws.bits(_TARGET), longest - 1)
      target = np.where(short, drawn, longest)
    start = position
    if rules.input_format == FULL_SENTENCES:
      start = position + ~self.docs.word_starts[position]  # skips a separator
    end = self.chunk_ends(start, self.ends[rows], target)
    chunks = _Chunks(rows, np.full(rows.size, step), start, end, target)
    if rules.sentence_prediction != NSP:
      return chunks, end
    # The sentences that a random second segment replaces are used by the next chunk.
    return chunks, np.where(has_random_second, self.middles(start, end, draws), end)

  def instances(self, chunks: _Chunks) -> InstanceSegments:
    """Makes one instance of each chunk."""
    rules, documents = self.rules, self.stream_documents[chunks.rows]
    draws = _Draws(self.keys[chunks.rows], chunks.steps)
    keys = draws.bits(_INSTANCE)
    start, end = chunks.start, chunks.end
    if rules.sentence_prediction == NONE:
      if rules.input_format == FULL_SENTENCES:
        last = self.sentence_starts[np.searchsorted(self.docs.sentence_ends, end)]
        end = end - ~self.docs.word_starts[last]  # without a separator at the end
      pair = _truncate((start, end, end, end), rules.max_num_tokens, keys)
      return InstanceSegments(*pair, np.zeros(documents.size, np.int64), keys, documents)
    middle = self.middles(start, end, draws)
    flipped = _flips(draws)
    if rules.sentence_prediction == SOP:
      pair = (
        np.where(flipped, middle, start),
        np.where(flipped, end, middle),
        np.where(flipped, start, middle),
        np.where(flipped, middle, end),
      )
    else:
      random_start, random_end = self.random_second_segments(
        documents, chunks.target - (middle - start), draws.bits(_DONOR), draws.bits(_DONOR_START)
      )
      pair = (start, middle, np.where(flipped, random_start, middle), np.where(flipped, random_end, end))
    pair = _truncate(pair, rules.max_num_tokens, keys)
    return InstanceSegments(*pair, flipped.astype(np.int64), keys, documents)


def _flips(draws: _Draws) -> np.ndarray:
  """True with probability 1/2: swap the segments (SOP), or use a random second segment (NSP)."""
  return random_streams.to_unit_float(draws.bits(_LABEL)) < 0.5


_Pair = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # a_start, a_end, b_start, b_end


def _truncate(pair: _Pair, longest: int, keys: np.ndarray) -> _Pair:
  """Shortens pairs to `longest` tokens, as the original scripts do.

  They remove tokens one by one from the longer segment (from the second one if the lengths are equal), each from its
  front or its back with probability 1/2. Here the number of tokens that each segment loses is computed directly, and
  the number lost at its front is a sum of random bits.
  """
  lengths = pair[1] - pair[0], pair[3] - pair[2]
  over = np.flatnonzero(lengths[0] + lengths[1] > longest)
  if not over.size:
    return pair
  a, b = lengths[0][over], lengths[1][over]
  excess = a + b - longest
  # First the longer segment is shortened to the other's length. Then both lose tokens in turn, the second one first.
  level = np.minimum(np.abs(a - b), excess)
  shared = excess - level
  lost_a = np.where(a > b, level, 0) + shared // 2
  lost_b = np.where(a > b, 0, level) + (shared + 1) // 2
  a_start, a_end, b_start, b_end = (side.copy() for side in pair)
  streams = random_streams.draw(keys[over], _TRUNCATION)
  for index, (start, end, lost) in enumerate(((a_start, a_end, lost_a), (b_start, b_end, lost_b))):
    front = _count_heads(random_streams.draw(streams, index), lost)
    start[over] += front
    end[over] -= lost - front
  return a_start, a_end, b_start, b_end


def _count_heads(keys: np.ndarray, num_tosses: np.ndarray) -> np.ndarray:
  """The number of heads in `num_tosses` tosses of a fair coin, [R], for random keys [R]."""
  words = random_streams.draw(keys[:, None], np.arange(-(-int(num_tosses.max(initial=0)) // 64)))
  tosses = np.unpackbits(words.astype("<u8").view(np.uint8).reshape(keys.size, -1), axis=1)
  return (tosses * (np.arange(tosses.shape[1]) < num_tosses[:, None])).sum(axis=1, dtype=np.int64)


def make_instances(
  documents: Documents, rules: SegmentRules, streams: np.ndarray, keys: np.ndarray
) -> InstanceSegments:
  """Cuts streams into instances.

  A chunk consists of consecutive sentences up to a target length. The target is `max_num_tokens`, or with probability
  `short_seq_prob` a random length between 2 and `max_num_tokens`. How a chunk becomes an instance depends on the
  sentence prediction (BERT, appendix A.2; ALBERT, section 3.1):

  - sop: the chunk is split at a random sentence boundary, or at a word boundary if it is a single sentence. With
    probability 1/2 the two segments are swapped (label 1).
  - nsp: the chunk is split likewise. With probability 1/2 the second segment is replaced by sentences of another
    document (label 1), and the next chunk begins with the replaced sentences. This needs at least two documents.
  - none: the chunk is a single segment (label 0).

  The input formats other than "segments" are RoBERTa's (RoBERTa, section 4.2):

  - sentence_pair: a chunk is two sentences of any length. If the last sentence of a document remains alone, it is
    paired with the sentence before it, or for NSP with a random one. A document of a single sentence is split at a word
    boundary.
  - doc_sentences: a chunk is as many whole sentences of one document as fit, and a single segment.
  - full_sentences: the same, for documents that `merge_documents` has merged into one.

  Args:
    documents: tokenized documents. Each one that is cut must have `rules.min_words` words.
    rules: how they are cut.
    streams: [R], the document of each stream.
    keys: uint64 [R], the random key of each stream.

  Returns:
    The instances of all streams.
  """
  cutter = _Cutter(documents, rules, streams, keys)
  active, position = np.arange(streams.size), documents.splits[streams].astype(np.int64)
  parts: list[_Chunks] = []
  while active.size:
    # The loop only finds the chunks. Instances are made from all chunks together afterwards, which is faster.
    chunks, used = cutter.next_chunks(active, position, len(parts))
    parts.append(chunks)
    # If fewer words remain than an instance needs, they are dropped. Only NSP leaves so few: it reuses sentences.
    has_text = cutter.words_before[cutter.ends[active]] - cutter.words_before[used] >= rules.min_words_left
    active, position = active[has_text], used[has_text]
  return cutter.instances(_Chunks(*(np.concatenate(columns) for columns in zip(*parts, strict=True))))
