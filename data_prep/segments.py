"""Cuts tokenized documents into instances: runs of consecutive sentences, as pairs for SOP or NSP, or as they stand.

Pure: arrays in, arrays out, randomness is an argument. Many streams (a document, a duplicate) are cut side
by side, one chunk of each at a time; what a stream gives depends on its documents and its key alone.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from albert.data import random_streams

SOP, NSP, NONE = "sop", "nsp", "none"
SENTENCE_PREDICTIONS = (SOP, NSP, NONE)
# BERT's segments of several sentences, and RoBERTa's other formats (section 4.2).
SEGMENTS, SENTENCE_PAIR, FULL_SENTENCES, DOC_SENTENCES = "segments", "sentence_pair", "full_sentences", "doc_sentences"
INPUT_FORMATS = (SEGMENTS, SENTENCE_PAIR, FULL_SENTENCES, DOC_SENTENCES)

# Draws of one chunk, by purpose.
_SHORT, _TARGET, _SPLIT, _LABEL, _DONOR, _DONOR_START, _INSTANCE, _DRAWS = range(8)
# Streams within an instance's stream.
ORDER, MASKS, _TRUNCATION = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Documents:
  """Tokenized documents laid end to end.

  Attributes:
    ids: int32 [T] tokens, without special tokens but separators.
    word_starts: bool [T], the token starts a word; so does the first token of every sentence but a separator.
    sentence_ends: int64 [N], where each sentence ends in T, ascending; no sentence is empty. A separator of
      documents (`run_together`) is a sentence of one token.
    splits: int64 [D + 1], document d is tokens splits[d] to splits[d + 1].
    file_ordinals, offsets: int64 [D], the document's id: its file in the sorted list, and the byte there.
  """

  ids: np.ndarray
  word_starts: np.ndarray
  sentence_ends: np.ndarray
  splits: np.ndarray
  file_ordinals: np.ndarray
  offsets: np.ndarray

  def __len__(self) -> int:
    return self.splits.size - 1


class Rules(NamedTuple):
  """How documents are cut: tokens in an instance (special ones too), and the settings of the same names."""

  max_seq_length: int
  short_seq_prob: float
  sentence_prediction: str
  input_format: str = SEGMENTS

  @property
  def max_num_tokens(self) -> int:
    """Room for text: what [CLS] and one [SEP] per segment leave."""
    return self.max_seq_length - (2 if self.sentence_prediction == NONE else 3)

  @property
  def min_words(self) -> int:
    """The least a document must hold to give an instance: a word for each segment."""
    return 1 if self.sentence_prediction == NONE else 2

  @property
  def min_words_left(self) -> int:
    """The least that must be left of a document to go on: a last sentence, however short, pairs with the one before."""
    return 1 if self.input_format == SENTENCE_PAIR else self.min_words

  @property
  def crosses_documents(self) -> bool:
    """Whether an instance holds text of several documents, so that a document's instances depend on its neighbours."""
    return self.sentence_prediction == NSP or self.input_format == FULL_SENTENCES


class Instances(NamedTuple):
  """[I] instances: token ranges of both segments (the second one empty for "none"), label, key, document."""

  a_start: np.ndarray
  a_end: np.ndarray
  b_start: np.ndarray
  b_end: np.ndarray
  labels: np.ndarray
  keys: np.ndarray
  documents: np.ndarray


def document_keys(seed: int, file_ordinals: np.ndarray, offsets: np.ndarray, duplicates: np.ndarray) -> np.ndarray:
  """The random stream of each document's duplicate: uint64 [D], from the documents' ids and the duplicate's number."""
  keys = random_streams.draw(random_streams.draw(seed, 0), file_ordinals)
  return random_streams.draw(random_streams.draw(keys, offsets), duplicates)


def cut_long_sentences(
  sentence_ends: np.ndarray, word_starts: np.ndarray, max_num_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
  """Cuts sentences longer than `max_num_tokens`, at word starts where there are any, so that no text is lost.

  Returns:
    the new sentence_ends, and word_starts in which every sentence's first token starts a word.
  """
  starts = np.concatenate([[0], sentence_ends])[:-1].astype(np.int64)
  word_starts = word_starts.copy()
  word_starts[starts] = True
  cuts = []
  for index in np.flatnonzero(sentence_ends - starts > max_num_tokens):
    start, end = int(starts[index]), int(sentence_ends[index])
    while end - start > max_num_tokens:
      ahead = np.flatnonzero(word_starts[start + 1 : start + max_num_tokens + 1])
      start += int(ahead[-1]) + 1 if ahead.size else max_num_tokens
      cuts.append(start)
  word_starts[cuts] = True
  return np.sort(np.concatenate([sentence_ends, np.asarray(cuts, np.int64)])), word_starts


def run_together(documents: Documents, sep_id: int) -> Documents:
  """One document of them all, with a separator between one and the next."""
  inner = documents.splits[1:-1]
  after = np.searchsorted(documents.sentence_ends, inner, side="right")  # the first sentence of the next document
  shifted = documents.sentence_ends + np.searchsorted(inner, documents.sentence_ends, side="left")
  separators = inner + np.arange(1, inner.size + 1)
  size = documents.ids.size + inner.size
  return Documents(
    ids=np.insert(documents.ids, inner, sep_id),
    word_starts=np.insert(documents.word_starts, inner, False),
    sentence_ends=np.insert(shifted, after, separators),
    splits=np.array([0, size], np.int64),
    file_ordinals=documents.file_ordinals[:1],
    offsets=documents.offsets[:1],
  )


class _Chunks(NamedTuple):
  """[C] chunks: their stream, which of its chunks they are, the tokens start to end, the target length."""

  rows: np.ndarray
  steps: np.ndarray
  start: np.ndarray
  end: np.ndarray
  target: np.ndarray


class _Draws(NamedTuple):
  """The draws of the chunks number `steps` of the streams `keys`."""

  keys: np.ndarray
  steps: np.ndarray

  def bits(self, purpose: int) -> np.ndarray:
    return random_streams.draw(self.keys, self.steps * _DRAWS + purpose)


class _Cutter:
  """One block of streams: finds the next chunk of every stream that has text left."""

  def __init__(self, documents: Documents, rules: Rules, streams: np.ndarray, keys: np.ndarray):
    self.docs, self.rules, self.owner, self.keys = documents, rules, streams, keys
    self.ends = documents.splits[streams + 1]
    self.sentence_starts = np.concatenate([[0], documents.sentence_ends])[:-1].astype(np.int64)
    self.words = np.flatnonzero(documents.word_starts)
    # One more than there are, so that the word after a document's last one can be asked for.
    self.words = np.append(self.words, documents.ids.size)
    self.word_count = np.concatenate([[0], np.cumsum(documents.word_starts)])
    self.doc_sentences = np.searchsorted(documents.sentence_ends, documents.splits, side="right")

  def chunk_ends(self, position: np.ndarray, end: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Ends of the sentences that reach the target and hold enough words; a tail with too few is taken in.

    Where sentences stay whole: the end of the last sentence within the target, of the first one at least.
    """
    if self.rules.input_format in (FULL_SENTENCES, DOC_SENTENCES):
      first = np.searchsorted(self.docs.sentence_ends, position, side="right")
      last = np.searchsorted(self.docs.sentence_ends, np.minimum(position + target, end), side="right") - 1
      return self.docs.sentence_ends[np.maximum(first, last)]
    min_words = self.rules.min_words
    last_word = np.minimum(self.word_count[position] + min_words - 1, self.words.size - 1)
    wanted = np.maximum(position + target, self.words[last_word] + 1)
    sentence = np.searchsorted(self.docs.sentence_ends, np.minimum(wanted, end))
    reached = self.docs.sentence_ends[sentence]
    return np.where(self.word_count[end] - self.word_count[reached] < min_words, end, reached)

  def sentence_pairs(
    self, rows: np.ndarray, position: np.ndarray, has_random_second: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the next two sentences. A last one by itself comes with the one before, or a random one."""
    document = self.owner[rows]
    sentence = np.searchsorted(self.docs.sentence_ends, position, side="right")
    last = self.doc_sentences[document + 1] - 1
    goes_back = (sentence == last) & (sentence > self.doc_sentences[document]) & ~has_random_second
    start = self.sentence_starts[sentence - goes_back]
    return start, self.docs.sentence_ends[np.minimum(sentence + 1, last)]

  def middles(self, start: np.ndarray, end: np.ndarray, draws: _Draws) -> np.ndarray:
    """Where the first segment ends."""
    middle = self.splits(start, end, draws.bits(_SPLIT))
    if self.rules.input_format != SENTENCE_PAIR or self.rules.sentence_prediction != NSP:
      return middle
    is_one_sentence = self.sentence_starts[np.searchsorted(self.docs.sentence_ends, end)] == start
    return np.where(is_one_sentence & _flips(draws), end, middle)

  def splits(self, start: np.ndarray, end: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """A random sentence boundary inside each chunk; a random word boundary where it is one sentence."""
    first = np.searchsorted(self.docs.sentence_ends, start, side="right")
    num_sentences = np.searchsorted(self.docs.sentence_ends, end) - first + 1
    several = num_sentences > 1
    sentence = first + random_streams.below(bits, np.maximum(num_sentences - 1, 1))
    first_word = self.word_count[start]
    num_words = self.word_count[end] - first_word
    word = first_word + 1 + random_streams.below(bits, np.maximum(num_words - 1, 1))
    return np.where(several, self.docs.sentence_ends[sentence], self.words[word])

  def donors(
    self, documents: np.ndarray, target: np.ndarray, donor_bits: np.ndarray, start_bits: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """For each document a run of sentences from another one: from a random sentence until the target."""
    donor = random_streams.below(donor_bits, len(self.docs) - 1)
    donor += donor >= documents
    first, stop = self.doc_sentences[donor], self.doc_sentences[donor + 1]
    sentence = first + random_streams.below(start_bits, stop - first)
    start = self.sentence_starts[sentence]
    wanted = np.minimum(start + np.maximum(target, 1), self.docs.splits[donor + 1])
    return start, self.docs.sentence_ends[np.searchsorted(self.docs.sentence_ends, wanted)]

  def next_chunks(self, rows: np.ndarray, position: np.ndarray, step: int) -> tuple[_Chunks, np.ndarray]:
    """The next chunk of each stream in `rows`, and the position after the text that it uses."""
    rules = self.rules
    longest = rules.max_num_tokens
    draws = _Draws(self.keys[rows], np.asarray(step))
    # Drawn here for NSP alone, where it decides how much text is used.
    has_random_second = _flips(draws) if rules.sentence_prediction == NSP else np.zeros(rows.size, bool)
    if rules.input_format == SENTENCE_PAIR:
      start, end = self.sentence_pairs(rows, position, has_random_second)
      chunks = _Chunks(rows, np.full(rows.size, step), start, end, np.ones(rows.size, np.int64))
      return chunks, np.where(has_random_second, self.middles(start, end, draws), end)
    short = random_streams.unit(draws.bits(_SHORT)) < rules.short_seq_prob
    target: np.ndarray = np.full(rows.size, longest)
    if short.any():
      drawn = 2 + random_streams.below(draws.bits(_TARGET), longest - 1)
      target = np.where(short, drawn, longest)
    start = position
    if rules.input_format == FULL_SENTENCES:
      start = position + ~self.docs.word_starts[position]  # past a separator
    end = self.chunk_ends(start, self.ends[rows], target)
    chunks = _Chunks(rows, np.full(rows.size, step), start, end, target)
    if rules.sentence_prediction != NSP:
      return chunks, end
    # The sentences that the random ones replace come again.
    return chunks, np.where(has_random_second, self.middles(start, end, draws), end)

  def instances(self, chunks: _Chunks) -> Instances:
    """What becomes of the chunks: segments, labels, keys."""
    rules, owner = self.rules, self.owner[chunks.rows]
    draws = _Draws(self.keys[chunks.rows], chunks.steps)
    keys = draws.bits(_INSTANCE)
    start, end = chunks.start, chunks.end
    if rules.sentence_prediction == NONE:
      if rules.input_format == FULL_SENTENCES:
        last = self.sentence_starts[np.searchsorted(self.docs.sentence_ends, end)]
        end = end - ~self.docs.word_starts[last]  # without a separator behind
      pair = _truncate((start, end, end, end), rules.max_num_tokens, keys)
      return Instances(*pair, np.zeros(owner.size, np.int64), keys, owner)
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
      other_start, other_end = self.donors(
        owner, chunks.target - (middle - start), draws.bits(_DONOR), draws.bits(_DONOR_START)
      )
      pair = (start, middle, np.where(flipped, other_start, middle), np.where(flipped, other_end, end))
    pair = _truncate(pair, rules.max_num_tokens, keys)
    return Instances(*pair, flipped.astype(np.int64), keys, owner)


def _flips(draws: _Draws) -> np.ndarray:
  """With probability 1/2: swap the segments (SOP), take a random second one (NSP)."""
  return random_streams.unit(draws.bits(_LABEL)) < 0.5


_Pair = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # a_start, a_end, b_start, b_end


def _truncate(pair: _Pair, longest: int, keys: np.ndarray) -> _Pair:
  """Shortens pairs to `longest` tokens as the original does: token by token from the longer segment (the
  second when they are equal), from its front or back with probability 1/2 each.

  How many tokens each segment loses is known beforehand; how many of them in front is a sum of random bits.
  """
  lengths = pair[1] - pair[0], pair[3] - pair[2]
  over = np.flatnonzero(lengths[0] + lengths[1] > longest)
  if not over.size:
    return pair
  a, b = lengths[0][over], lengths[1][over]
  excess = a + b - longest
  # First the longer one loses what it has more; what is left to lose is shared, the second losing first.
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


def _count_heads(keys: np.ndarray, throws: np.ndarray) -> np.ndarray:
  """Heads in `throws` tosses of a fair coin, [R] for keys [R]."""
  words = random_streams.draw(keys[:, None], np.arange(-(-int(throws.max(initial=0)) // 64)))
  tosses = np.unpackbits(words.astype("<u8").view(np.uint8).reshape(keys.size, -1), axis=1)
  return (tosses * (np.arange(tosses.shape[1]) < throws[:, None])).sum(axis=1, dtype=np.int64)


def make_instances(documents: Documents, rules: Rules, streams: np.ndarray, keys: np.ndarray) -> Instances:
  """All instances of the given streams: stream i cuts document streams[i] with the random stream keys[i].

  Chunks are consecutive sentences until a target length is reached: the greatest length, or with probability
  `short_seq_prob` one drawn from 2 to it. SOP splits a chunk at a random sentence boundary (inside its only
  sentence: at a word boundary) and swaps the halves with probability 1/2 (label 1). NSP takes the second
  half from another document with probability 1/2 (label 1) and puts the unused sentences back; it needs two
  documents. "none" has one segment and label 0. (BERT, appendix A.2; ALBERT, section 3.1.)

  The other input formats are RoBERTa's (section 4.2). sentence_pair: a chunk is two sentences, whatever their
  length; a last one by itself comes with the one before it, or stands in front of a random one; a document of one
  sentence is split at a word boundary. doc_sentences: one segment of as many whole sentences as fit.
  full_sentences: the same of documents run together (`run_together`), with the separators between them.

  Every document that is cut must hold `rules.min_words` words.
  """
  cutter = _Cutter(documents, rules, streams, keys)
  active, position = np.arange(streams.size), documents.splits[streams].astype(np.int64)
  parts: list[_Chunks] = []
  while active.size:
    # The steps only find the chunks; what becomes of them is drawn for all at once afterwards.
    chunks, used = cutter.next_chunks(active, position, len(parts))
    parts.append(chunks)
    # After NSP put words back, fewer than a pair needs may be left: they are given up.
    goes_on = cutter.word_count[cutter.ends[active]] - cutter.word_count[used] >= rules.min_words_left
    active, position = active[goes_on], used[goes_on]
  return cutter.instances(_Chunks(*(np.concatenate(columns) for columns in zip(*parts, strict=True))))


class Tokens(NamedTuple):
  """Instances as token sequences laid end to end.

  ids [T] with [CLS] and [SEP]; word_starts, maskable bool [T]; row_splits [I + 1]; b_starts [I], the column
  of the first token after the first [SEP] (the row's length where there is no second segment).
  """

  ids: np.ndarray
  word_starts: np.ndarray
  maskable: np.ndarray
  row_splits: np.ndarray
  b_starts: np.ndarray


def assemble(documents: Documents, instances: Instances, *, cls_id: int, sep_id: int) -> Tokens:
  """[CLS] first segment [SEP] second segment [SEP]; without the last part where the second is empty."""
  length_a = instances.a_end - instances.a_start
  length_b = instances.b_end - instances.b_start
  paired = length_b > 0
  lengths = length_a + 2 + np.where(paired, length_b + 1, 0)
  row_splits = np.concatenate([[0], np.cumsum(lengths)])
  row_start = row_splits[:-1]
  total = int(row_splits[-1])
  # Each row is five stretches: [CLS], first segment, [SEP], second segment, [SEP].
  source = np.empty(total, np.int64)
  maskable = np.ones(total, bool)
  second = row_start + length_a + 2
  for start, length, origin in (
    (row_start + 1, length_a, instances.a_start),
    (second, length_b, instances.b_start),
  ):
    before = np.cumsum(length) - length
    run = np.arange(int(length.sum()))
    source[run + np.repeat(start - before, length)] = run + np.repeat(origin - before, length)
  separators = np.concatenate([row_start + length_a + 1, row_splits[1:][paired] - 1])
  for places in (row_start, separators):
    maskable[places] = False
    source[places] = 0
  ids = documents.ids[source]
  word_starts = documents.word_starts[source]
  ids[row_start] = cls_id
  ids[separators] = sep_id
  maskable &= ids != sep_id  # those between documents
  return Tokens(ids, word_starts, maskable, row_splits, length_a + 2)
