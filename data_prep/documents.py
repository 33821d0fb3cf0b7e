"""Reads and tokenizes the documents in ranges of text.

A document ends at a blank line or at the end of a file. Every other line is a sentence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from albert.errors import UserError
from albert.tokenization.tokenizer import Tokenizer
from data_prep import text_checks
from data_prep.text_files import count_line_ends, cut_line, decoding_problem, strip_line
from data_prep.units import TextRange, plan_units, read_range

# Number of sentences that are tokenized at a time.
_BATCH_SENTENCES = 1 << 12


class TextDocument(NamedTuple):
  """A document: the ordinal of its file, the byte of the (decompressed) file where it begins, and its sentences.

  `is_part` says whether it is a part of a document that was cut because it is longer than a unit of text.
  """

  file_ordinal: int
  offset: int
  sentences: list[str]
  is_part: bool = False


@dataclasses.dataclass(frozen=True)
class Documents:
  """Tokenized documents, concatenated.

  Attributes:
    ids: int32 [T], token ids, without special tokens except the separators that `merge_documents` inserts.
    word_starts: bool [T], whether the token starts a word. The first token of a sentence always does; a separator
      never does.
    sentence_ends: int64 [N], the index of the token after each sentence, ascending. No sentence is empty. A separator
      is a sentence of one token.
    splits: int64 [D + 1], document d consists of the tokens splits[d] to splits[d + 1] - 1.
    file_ordinals: int64 [D], index of each document's file in the sorted list of input files.
    offsets: int64 [D], byte of the file where the document begins. File ordinal and offset identify a document.
  """

  ids: np.ndarray
  word_starts: np.ndarray
  sentence_ends: np.ndarray
  splits: np.ndarray
  file_ordinals: np.ndarray
  offsets: np.ndarray

  def __len__(self) -> int:
    return self.splits.size - 1


@dataclasses.dataclass(frozen=True)
class Counts:
  """Numbers of documents, dropped ones included, of their tokens, of dropped documents (too short), and of <unk>.

  `cut` is the number of times that a document was cut in two because it is longer than a unit of text.
  """

  documents: int = 0
  tokens: int = 0
  dropped: int = 0
  cut: int = 0
  unknown: int = 0

  def __add__(self, other: Counts) -> Counts:
    return Counts(*map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other)))


# ---- text ----------------------------------------------------------------------------------------------


def parse_documents(text_range: TextRange) -> list[TextDocument]:
  """Returns the documents in a range that was read. Byte-order marks are removed. White space is a blank line.

  Raises:
    UserError: the text is not UTF-8 (the message names the file and the line), or the file is not plain text.
  """
  data, offset = text_range.data, text_range.start
  assert data is not None
  if offset == 0:
    text_checks.check_head(text_range.path, data)
  documents: list[TextDocument] = []
  sentences: list[str] = []
  for line in data.split(b"\n"):
    try:
      text = line.decode("utf-8")
    except UnicodeDecodeError as error:
      line_number = count_line_ends(text_range.path, offset) + 1
      raise UserError(f"{text_range.path}, line {line_number}: {decoding_problem(line, error)}") from error
    text = strip_line(text)
    if not text:
      sentences = []
    else:
      if not sentences:  # the document keeps this list, to which the next lines are added
        documents.append(TextDocument(text_range.ordinal, offset, sentences))
      sentences.extend(cut_line(text))
    offset += len(line) + 1
  for index, is_cut in ((0, text_range.is_cut), (-1, text_range.is_end_cut)):
    if documents and is_cut:
      documents[index] = documents[index]._replace(is_part=True)
  return documents


def is_heldout(document: TextDocument, eval_share: float, seed: int) -> bool:
  """Whether a document is one of those to evaluate on, whose expected share is `eval_share`.

  A hash of its text and the seed decides, so that copies of a document are on the same side. A document that was cut is
  not held out, since its parts might be on different sides.
  """
  return _draw(document, seed) < eval_share * 2**64


def _draw(document: TextDocument, seed: int) -> int:
  """Returns a hash of a document's text and the seed, which is below 2**64; for a part of a document, 2**64."""
  text = "\n".join(document.sentences).encode()
  digest = hashlib.blake2b(text, digest_size=8, key=str(seed).encode()).digest()
  return 2**64 if document.is_part else int.from_bytes(digest, "big")


def share_that_holds_out(paths: list[str], eval_share: float, seed: int) -> float:
  """Returns `eval_share`. If this holds out no document of a text, returns the smallest share that holds out one.

  It reads the text until it finds a held-out document. A text of a single document cannot be divided.
  """
  ranges = (text_range for unit in plan_units(paths, with_donors=False) for text_range in unit.ranges)
  smallest: list[int] = []  # the two smallest hashes; copies of a document have one
  for document in (document for text_range in ranges for document in parse_documents(read_range(text_range))):
    if is_heldout(document, eval_share, seed):
      return eval_share
    smallest = sorted({*smallest, _draw(document, seed)})[:2]
  return math.nextafter(smallest[0] / 2**64, 1) if len(smallest) == 2 else eval_share


# ---- tokens --------------------------------------------------------------------------------------------


def load_documents(
  ranges: tuple[TextRange, ...],
  tokenizer: Tokenizer,
  min_words: int,
  max_num_tokens: int,
  selects: Callable[[TextDocument], bool] = lambda document: True,
) -> tuple[Documents, Counts]:
  """Reads the documents of some ranges of text, and tokenizes those for which `selects` returns True.

  Documents with fewer than `min_words` words are dropped. Sentences longer than `max_num_tokens` are cut.

  Returns:
    The documents that were not dropped, and the counts of all selected ones.
  """
  text_documents: list[TextDocument] = []
  num_cuts = 0
  for text_range in map(read_range, ranges):
    documents_of_range = list(filter(selects, parse_documents(text_range)))
    num_cuts += text_range.is_cut and any(document.is_part for document in documents_of_range[:1])
    text_documents += documents_of_range
  num_documents = len(text_documents)
  # With the space between sentences, byte-level BPE gives the ids of the document's text; other kinds ignore it.
  sentences = [
    f" {sentence}" if index else sentence
    for document in text_documents
    for index, sentence in enumerate(document.sentences)
  ]
  batch_starts = range(0, max(1, len(sentences)), _BATCH_SENTENCES)
  batches = [tokenizer.encode_batch_flat(sentences[start : start + _BATCH_SENTENCES]) for start in batch_starts]
  ids = np.concatenate([batch_ids for batch_ids, _ in batches])
  lengths = np.concatenate([np.diff(offsets) for _, offsets in batches])
  num_sentences = np.fromiter((len(document.sentences) for document in text_documents), np.int64, num_documents)
  first_sentences = np.concatenate([[0], np.cumsum(num_sentences)])  # of each document; at the end the total number
  sentence_splits = np.concatenate([[0], np.cumsum(lengths)])  # the first token of each sentence, and the end
  nonempty_sentence_ends = sentence_splits[1:][lengths > 0]
  sentence_ends, word_starts = cut_long_sentences(nonempty_sentence_ends, tokenizer.word_starts[ids], max_num_tokens)
  documents = Documents(
    ids=ids,
    word_starts=word_starts,
    sentence_ends=sentence_ends,
    splits=sentence_splits[first_sentences],
    file_ordinals=np.fromiter((document.file_ordinal for document in text_documents), np.int64, num_documents),
    offsets=np.fromiter((document.offset for document in text_documents), np.int64, num_documents),
  )
  kept = _drop_short_documents(documents, min_words)
  num_unknown = int(np.count_nonzero(ids == tokenizer.special_ids.unk))
  return kept, Counts(num_documents, int(ids.size), num_documents - len(kept), num_cuts, num_unknown)


def cut_long_sentences(
  sentence_ends: np.ndarray, word_starts: np.ndarray, max_num_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
  """Cuts sentences longer than `max_num_tokens` where a word starts, or after that many tokens if no word starts.

  The arrays are those of `Documents`.

  Returns:
    The new sentence_ends, and a copy of word_starts in which the first token of every sentence starts a word.
  """
  sentence_starts = np.concatenate([[0], sentence_ends])[:-1].astype(np.int64)
  word_starts = word_starts.copy()
  word_starts[sentence_starts] = True
  cuts = []
  for index in np.flatnonzero(sentence_ends - sentence_starts > max_num_tokens):
    start, end = int(sentence_starts[index]), int(sentence_ends[index])
    while end - start > max_num_tokens:
      # The words that begin in the next max_num_tokens tokens, counted from token start + 1.
      word_offsets = np.flatnonzero(word_starts[start + 1 : start + max_num_tokens + 1])
      start += int(word_offsets[-1]) + 1 if word_offsets.size else max_num_tokens
      cuts.append(start)
  word_starts[cuts] = True
  return np.sort(np.concatenate([sentence_ends, np.asarray(cuts, np.int64)])), word_starts


def _drop_short_documents(documents: Documents, min_words: int) -> Documents:
  """Returns the documents with at least `min_words` words."""
  splits = documents.splits
  words_before_document = np.concatenate([[0], np.cumsum(documents.word_starts)])[splits]
  is_kept = np.diff(words_before_document) >= min_words
  if is_kept.all():
    return documents
  token_is_kept = np.repeat(is_kept, np.diff(splits))
  sentence_is_kept = is_kept[np.searchsorted(splits, documents.sentence_ends) - 1]
  # The old position p of a kept token becomes new_position[p].
  new_position = np.concatenate([[0], np.cumsum(token_is_kept)])
  return Documents(
    ids=documents.ids[token_is_kept],
    word_starts=documents.word_starts[token_is_kept],
    sentence_ends=new_position[documents.sentence_ends[sentence_is_kept]],
    splits=np.concatenate([[0], new_position[splits[1:][is_kept]]]),
    file_ordinals=documents.file_ordinals[is_kept],
    offsets=documents.offsets[is_kept],
  )


# ---- several documents ---------------------------------------------------------------------------------


def concatenate_documents(first: Documents, second: Documents) -> Documents:
  """Returns the documents of `first`, followed by those of `second`."""
  shift = first.ids.size
  return Documents(
    ids=np.concatenate([first.ids, second.ids]),
    word_starts=np.concatenate([first.word_starts, second.word_starts]),
    sentence_ends=np.concatenate([first.sentence_ends, second.sentence_ends + shift]),
    splits=np.concatenate([first.splits, second.splits[1:] + shift]),
    file_ordinals=np.concatenate([first.file_ordinals, second.file_ordinals]),
    offsets=np.concatenate([first.offsets, second.offsets]),
  )


def merge_documents(documents: Documents, sep_id: int) -> Documents:
  """Concatenates all documents into a single one, with the token `sep_id` between them (RoBERTa's FULL-SENTENCES)."""
  boundaries = documents.splits[1:-1]  # position of the first token of each document but the first one
  # Each separator moves the tokens after it by one position. A sentence has as many separators before its end as there
  # are boundaries before it.
  shifted_sentence_ends = documents.sentence_ends + np.searchsorted(boundaries, documents.sentence_ends, side="left")
  # A separator is a sentence of its own, before the first sentence of the next document.
  separator_ends = boundaries + np.arange(1, boundaries.size + 1)
  # Index of the first sentence of each document but the first one.
  first_sentences = np.searchsorted(documents.sentence_ends, boundaries, side="right")
  return Documents(
    ids=np.insert(documents.ids, boundaries, sep_id),
    word_starts=np.insert(documents.word_starts, boundaries, False),
    sentence_ends=np.insert(shifted_sentence_ends, first_sentences, separator_ends),
    splits=np.array([0, documents.ids.size + boundaries.size], np.int64),
    file_ordinals=documents.file_ordinals[:1],
    offsets=documents.offsets[:1],
  )
