"""Cuts tokenized documents into instances: pairs of segments for SOP or NSP, or single segments.

A stream is one duplicate of one document. Many streams are cut at the same time: each step cuts one chunk from every
stream. The instances of a stream depend only on its document and its random key, and for NSP also on the documents
that random second segments are drawn from.

Letters in shapes: T tokens of all documents, D documents, I instances, C chunks, R streams.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from albert.data import random_streams
from data_prep.documents import Documents
from data_prep.examples.settings import FULL_SENTENCES, NONE, NSP, SENTENCE_PAIR, SOP, PreparationSettings

# The purposes of the random draws for a chunk. A draw depends on its purpose, so the draws are independent.
_FOR_IS_SHORT, _FOR_TARGET, _FOR_SPLIT, _FOR_LABEL, _FOR_DONOR, _FOR_DONOR_START, _FOR_INSTANCE_KEY = range(7)
_NUM_PURPOSES = 7
# The purposes of the random draws that are derived from the key of an instance.
FOR_SHUFFLING, FOR_MASKING, _FOR_TRUNCATION = range(3)

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # a_start, a_end, b_start, b_end: each int64 [I]


class InstanceSegments(NamedTuple):
  """The segments of instances, as ranges of the documents' tokens; each int64 [I].

  Attributes:
    a_start, a_end: the first segment.
    b_start, b_end: the second segment; empty for sentence_prediction "none".
    labels: sentence-order or next-sentence labels: 1 for swapped or random segments, else 0.
    keys: the random key of each instance, uint64.
    documents: the document that each instance was cut from.
  """

  a_start: np.ndarray
  a_end: np.ndarray
  b_start: np.ndarray
  b_end: np.ndarray
  labels: np.ndarray
  keys: np.ndarray
  documents: np.ndarray


def stream_keys(seed: int, file_ordinals: np.ndarray, offsets: np.ndarray, duplicates: np.ndarray) -> np.ndarray:
  """Returns the random key of each stream, uint64 [R], by file and position of its document, and its duplicate."""
  keys = random_streams.draw(random_streams.draw(seed, 0), file_ordinals)
  return random_streams.draw(random_streams.draw(keys, offsets), duplicates)


def truncate(pairs: Pairs, longest: int, keys: np.ndarray) -> Pairs:
  """Shortens pairs to `longest` tokens, as the original scripts do.

  The scripts remove tokens one by one from the longer segment (from the second one if the lengths are equal), each from
  its front or its back with probability 1/2. Here the number of tokens to remove from each segment is computed
  directly, and the number to remove from its front is a sum of random bits.
  """
  a_start, a_end, b_start, b_end = (bound.copy() for bound in pairs)
  too_long = np.flatnonzero(a_end - a_start + b_end - b_start > longest)
  if not too_long.size:
    return pairs
  a_length, b_length = (a_end - a_start)[too_long], (b_end - b_start)[too_long]
  excess = a_length + b_length - longest
  # First the longer segment is shortened to the other's length. Then both lose tokens in turn, the second one first.
  to_equal_length = np.minimum(np.abs(a_length - b_length), excess)
  in_turn = excess - to_equal_length
  a_removed = np.where(a_length > b_length, to_equal_length, 0) + in_turn // 2
  b_removed = np.where(a_length > b_length, 0, to_equal_length) + (in_turn + 1) // 2
  for segment, (start, end, num_removed) in enumerate(((a_start, a_end, a_removed), (b_start, b_end, b_removed))):
    removed_from_front = _count_heads(random_streams.draw(keys[too_long], segment), num_removed)
    start[too_long] += removed_from_front
    end[too_long] -= num_removed - removed_from_front
  return a_start, a_end, b_start, b_end


def _count_heads(keys: np.ndarray, num_tosses: np.ndarray) -> np.ndarray:
  """Returns the number of heads in `num_tosses` tosses of a fair coin, [I], for random keys [I]."""
  num_integers = -(-int(num_tosses.max(initial=0)) // 64)  # rounded up; each random integer gives 64 tosses
  integers = random_streams.draw(keys[:, None], np.arange(num_integers))
  tosses = np.unpackbits(integers.astype("<u8").view(np.uint8).reshape(keys.size, -1), axis=1)
  is_counted = np.arange(tosses.shape[1]) < num_tosses[:, None]
  return (tosses * is_counted).sum(axis=1, dtype=np.int64)


class _Chunks(NamedTuple):
  """Chunks of text. A chunk is a sequence of consecutive sentences and becomes one instance.

  For each chunk, [C]: the index of its stream, its number there, the positions of its first token and after its last
  one, and its target length in tokens.
  """

  streams: np.ndarray
  steps: np.ndarray
  start: np.ndarray
  end: np.ndarray
  target: np.ndarray


class _Draws(NamedTuple):
  """Random draws for chunks: chunk number `steps` of the streams with the keys `keys`."""

  keys: np.ndarray
  steps: np.ndarray

  def bits(self, purpose: int) -> np.ndarray:
    """Returns 64 random bits for each chunk. The purpose is one of the constants above, such as _FOR_SPLIT."""
    return random_streams.draw(self.keys, self.steps * _NUM_PURPOSES + purpose)


class _Cutter:
  """Finds the next chunk of every stream that has text left.

  Positions (such as `position`, `start` and `end`) are indices of tokens. Tokens, sentences and words are numbered
  through all documents.
  """

  def __init__(
    self, documents: Documents, settings: PreparationSettings, stream_documents: np.ndarray, keys: np.ndarray
  ):
    self.documents, self.settings = documents, settings
    self.stream_documents, self.keys = stream_documents, keys
    self.stream_ends = documents.splits[stream_documents + 1]
    self.sentence_ends = documents.sentence_ends
    self.sentence_starts = np.concatenate([[0], self.sentence_ends])[:-1].astype(np.int64)
    # The position of each word's first token. The end of the text is added as one more word, so that the last word has
    # a next one.
    self.word_positions = np.append(np.flatnonzero(documents.word_starts), documents.ids.size)
    self.words_before = np.concatenate([[0], np.cumsum(documents.word_starts)])  # at each token position
    # The first sentence of each document, and the number of all sentences.
    self.first_sentences = self.sentences_at(documents.splits)

  def sentences_at(self, position: np.ndarray) -> np.ndarray:
    """Returns the sentence that contains the token at each position."""
    return np.searchsorted(self.sentence_ends, position, side="right")

  def sentences_before(self, end: np.ndarray) -> np.ndarray:
    """Returns the sentence that contains the token before each position; at the end of a sentence, this sentence."""
    return np.searchsorted(self.sentence_ends, end, side="left")

  def is_separator(self, position: np.ndarray) -> np.ndarray:
    """Whether a sentence that begins at each position is a separator between documents (`merge_documents`).

    A separator never starts a word. The first token of any other sentence does.
    """
    return ~self.documents.word_starts[position]

  def chunk_ends(self, position: np.ndarray, document_end: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the position at which the chunk of each stream ends.

    For full_sentences and doc_sentences, a chunk consists of the sentences that fit into the target length, and of at
    least one sentence. For the other formats, sentences are added until the chunk has the target length and enough
    words for an instance. If the rest of the document has too few words for another instance, it is added, too.
    """
    if self.settings.has_whole_sentences:
      first_sentence = self.sentences_at(position)
      last_that_fits = self.sentences_at(np.minimum(position + target, document_end)) - 1
      return self.sentence_ends[np.maximum(first_sentence, last_that_fits)]
    min_words = self.settings.min_words
    last_needed_word = np.minimum(self.words_before[position] + min_words - 1, self.word_positions.size - 1)
    # The chunk must have the target length and contain the first token of this word. It ends where a sentence ends.
    earliest_end = np.maximum(position + target, self.word_positions[last_needed_word] + 1)
    chunk_end = self.sentence_ends[self.sentences_before(np.minimum(earliest_end, document_end))]
    num_words_left = self.words_before[document_end] - self.words_before[chunk_end]
    return np.where(num_words_left < min_words, document_end, chunk_end)

  def sentence_pairs(
    self, streams: np.ndarray, position: np.ndarray, has_random_second: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns start and end of the next two sentences of each stream.

    If only the document's last sentence remains, it is paired with the sentence before it. But the chunk is the last
    sentence alone if the document has no other one, or if a random second sentence is added to it.
    """
    document = self.stream_documents[streams]
    sentence = self.sentences_at(position)
    last_sentence = self.first_sentences[document + 1] - 1
    goes_back = (sentence == last_sentence) & (sentence > self.first_sentences[document]) & ~has_random_second
    start = self.sentence_starts[np.where(goes_back, sentence - 1, sentence)]
    return start, self.sentence_ends[np.minimum(sentence + 1, last_sentence)]

  def middles(self, start: np.ndarray, end: np.ndarray, draws: _Draws) -> np.ndarray:
    """Returns the position at which the first segment of each chunk ends.

    It is a random sentence boundary, or a random word boundary if the chunk is a single sentence.
    """
    bits = draws.bits(_FOR_SPLIT)
    # The end of any sentence but the last one.
    first_sentence = self.sentences_at(start)
    num_sentences = self.sentences_before(end) - first_sentence + 1
    sentence = first_sentence + random_streams.to_int_below(bits, np.maximum(num_sentences - 1, 1))
    # The start of any word but the first one.
    first_word = self.words_before[start]
    num_words = self.words_before[end] - first_word
    word = first_word + 1 + random_streams.to_int_below(bits, np.maximum(num_words - 1, 1))
    middle = np.where(num_sentences > 1, self.sentence_ends[sentence], self.word_positions[word])
    if self.settings.input_format != SENTENCE_PAIR or self.settings.sentence_prediction != NSP:
      return middle
    # A chunk of one sentence is not split if the second segment is a random sentence.
    return np.where((num_sentences == 1) & _draw_flips(draws), end, middle)

  def random_second_segments(
    self, documents: np.ndarray, target: np.ndarray, donor_bits: np.ndarray, start_bits: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws a random second segment from another document, the donor, for each chunk (NSP).

    A segment ends after the sentence with which it reaches the target length, or at the end of the donor.
    """
    # Drawn from all documents but the chunk's own one: the documents from this one on are numbered one lower.
    donor = random_streams.to_int_below(donor_bits, len(self.documents) - 1)
    donor = np.where(donor >= documents, donor + 1, donor)
    first_sentence, end_sentence = self.first_sentences[donor], self.first_sentences[donor + 1]
    sentence = first_sentence + random_streams.to_int_below(start_bits, end_sentence - first_sentence)
    start = self.sentence_starts[sentence]
    earliest_end = np.minimum(start + np.maximum(target, 1), self.documents.splits[donor + 1])
    return start, self.sentence_ends[self.sentences_before(earliest_end)]

  def next_chunks(self, streams: np.ndarray, position: np.ndarray, step: int) -> tuple[_Chunks, np.ndarray]:
    """Finds chunk number `step` of each stream, from the first token on that no chunk has used.

    Returns:
      The chunks, and the position after the text that each chunk uses, where the next chunk begins.
    """
    settings = self.settings
    draws = _Draws(self.keys[streams], np.asarray(step))
    # Only NSP needs this draw here: with a random second segment, a chunk uses only the text of its first segment.
    has_random_second = _draw_flips(draws) if settings.sentence_prediction == NSP else np.zeros(streams.size, bool)
    if settings.input_format == SENTENCE_PAIR:
      start, end = self.sentence_pairs(streams, position, has_random_second)
      target: np.ndarray = np.ones(streams.size, np.int64)  # a random second segment is one sentence of any length
    else:
      start = position
      if settings.input_format == FULL_SENTENCES:  # a chunk does not begin with a separator
        start = np.where(self.is_separator(position), position + 1, position)
      longest = settings.max_num_tokens
      is_short = random_streams.to_unit_float(draws.bits(_FOR_IS_SHORT)) < settings.short_seq_prob
      random_length = 2 + random_streams.to_int_below(draws.bits(_FOR_TARGET), longest - 1)
      target = np.where(is_short, random_length, longest)
      end = self.chunk_ends(start, self.stream_ends[streams], target)
    chunks = _Chunks(streams, np.full(streams.size, step), start, end, target)
    if settings.sentence_prediction != NSP:
      return chunks, end
    # The sentences that a random second segment replaces are used by the next chunk.
    return chunks, np.where(has_random_second, self.middles(start, end, draws), end)

  def convert_chunks(self, chunks: _Chunks) -> InstanceSegments:
    """Makes one instance from each chunk."""
    settings, documents = self.settings, self.stream_documents[chunks.streams]
    draws = _Draws(self.keys[chunks.streams], chunks.steps)
    keys = draws.bits(_FOR_INSTANCE_KEY)
    truncation_keys = random_streams.draw(keys, _FOR_TRUNCATION)
    start, end = chunks.start, chunks.end
    if settings.sentence_prediction == NONE:
      if settings.input_format == FULL_SENTENCES:  # a separator at the end is dropped
        end = np.where(self.is_separator(self.sentence_starts[self.sentences_before(end)]), end - 1, end)
      pairs = truncate((start, end, end, end), settings.max_num_tokens, truncation_keys)
      return InstanceSegments(*pairs, np.zeros(documents.size, np.int64), keys, documents)
    middle = self.middles(start, end, draws)
    is_flipped = _draw_flips(draws)
    if settings.sentence_prediction == SOP:
      pairs = (
        np.where(is_flipped, middle, start),
        np.where(is_flipped, end, middle),
        np.where(is_flipped, start, middle),
        np.where(is_flipped, middle, end),
      )
    else:
      random_start, random_end = self.random_second_segments(
        documents, chunks.target - (middle - start), draws.bits(_FOR_DONOR), draws.bits(_FOR_DONOR_START)
      )
      pairs = (start, middle, np.where(is_flipped, random_start, middle), np.where(is_flipped, random_end, end))
    pairs = truncate(pairs, settings.max_num_tokens, truncation_keys)
    return InstanceSegments(*pairs, is_flipped.astype(np.int64), keys, documents)


def _draw_flips(draws: _Draws) -> np.ndarray:
  """Draws True with probability 1/2 for each chunk: swap the segments (SOP), or use a random second one (NSP)."""
  return random_streams.to_unit_float(draws.bits(_FOR_LABEL)) < 0.5


def make_instances(
  documents: Documents, settings: PreparationSettings, stream_documents: np.ndarray, keys: np.ndarray
) -> InstanceSegments:
  """Cuts streams into instances.

  A chunk consists of consecutive sentences up to a target length. The target is `max_num_tokens`, or with probability
  `short_seq_prob` a random length between 2 and `max_num_tokens`. How a chunk becomes an instance depends on the
  sentence prediction (BERT, appendix A.2; ALBERT, section 3.1):

  - sop: the chunk is split at a random sentence boundary, or at a word boundary if it is a single sentence. With
    probability 1/2 the two segments are swapped (label 1).
  - nsp: the chunk is split in the same way. With probability 1/2 the second segment is replaced by sentences of another
    document (label 1), and the next chunk begins with the replaced sentences. This needs at least two documents.
  - none: the chunk is a single segment (label 0).

  The input formats other than "segments" are RoBERTa's (RoBERTa, section 4.2):

  - sentence_pair: a chunk is two sentences of any length. If only the last sentence of a document remains, it is paired
    with the sentence before it, or for NSP with a random one. A document of a single sentence is split at a word
    boundary.
  - doc_sentences: a chunk consists of as many whole sentences of one document as fit, and is a single segment.
  - full_sentences: the same, after `merge_documents` has merged the documents into one.

  Args:
    documents: tokenized documents. Each one that is cut must have `settings.min_words` words.
    settings: how they are cut.
    stream_documents: [R], the document of each stream; at least one stream.
    keys: uint64 [R], the random key of each stream.
  """
  cutter = _Cutter(documents, settings, stream_documents, keys)
  # Indices of the streams that have text left, and the first token of each that no chunk has used.
  active = np.arange(stream_documents.size)
  position = documents.splits[stream_documents].astype(np.int64)
  chunks_of_steps: list[_Chunks] = []
  while active.size:
    # The loop only finds the chunks. Afterwards, all of them are converted to instances at once, which is faster.
    chunks, next_position = cutter.next_chunks(active, position, step=len(chunks_of_steps))
    chunks_of_steps.append(chunks)
    # If fewer words remain than an instance needs, they are dropped. This happens only with NSP, where a chunk may use
    # only a part of its sentences.
    num_words_left = cutter.words_before[cutter.stream_ends[active]] - cutter.words_before[next_position]
    # The last sentence can be paired with the one before it.
    has_text = num_words_left >= (1 if settings.input_format == SENTENCE_PAIR else settings.min_words)
    active, position = active[has_text], next_position[has_text]
  return cutter.convert_chunks(_Chunks(*(np.concatenate(column) for column in zip(*chunks_of_steps, strict=True))))
