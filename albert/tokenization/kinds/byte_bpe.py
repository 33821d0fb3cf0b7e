"""Byte-level BPE vocabularies: `tokenizer.json`, or `vocab.json` with `merges.txt`, as GPT-2's and RoBERTa's.

The code is this project's own and not the library tokenizers: it needs no further package, and with the ids of frequent
words kept it is faster in a process of its own. The tests compare the ids with those of the library.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from albert.errors import UserError
from albert.io.json_text import encode_utf8, replace_surrogates
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.kinds.base import TokensWithOffsets, Vocabulary
from albert.tokenization.kinds.byte_bpe_files import Merge, read_files
from albert.tokenization.kinds.byte_bpe_text import BYTE_CHARACTERS, piece_to_bytes, split_words
from albert.tokenization.pieces import is_written_without_spaces, starts_word
from albert.tokenization.vocabulary_files import contents_sha256

# The ids of this many different words are kept, of words up to this length. (Text in Thai or Han characters is cut into
# words at punctuation only, so long words seldom occur twice.)
_MAX_CACHED_WORDS, _MAX_CACHED_CHARS = 1 << 18, 32


class _WordIds(dict[str, list[int]]):
  """Maps words to the ids of their pieces; a word is cut when it is first used."""

  def __init__(self, byte_ids: list[int], merges: Iterable[Merge]):
    super().__init__()
    self._byte_ids = byte_ids
    # A pair of ids -> its rank, and the id of what it becomes.
    self._merge_of = {(merge.left, merge.right): (rank, merge.merged) for rank, merge in enumerate(merges)}

  def __missing__(self, word: str) -> list[int]:
    ids = self._merge([self._byte_ids[byte] for byte in encode_utf8(word)])
    if len(word) <= _MAX_CACHED_CHARS:
      if len(self) >= _MAX_CACHED_WORDS:
        self.clear()
      self[word] = ids
    return ids

  def _merge(self, ids: list[int]) -> list[int]:
    """Applies the merges to the ids of a word's bytes, always the one of the lowest rank, of equal ones the leftmost.

    A queue holds the pairs that can be merged, so the time is proportional to n log n for n bytes.
    """
    merge_of, end = self._merge_of, len(ids)
    following, preceding = list(range(1, end + 1)), list(range(-1, end - 1))
    queue = [(*merge_of[pair], i) for i, pair in enumerate(itertools.pairwise(ids)) if pair in merge_of]
    heapq.heapify(queue)
    while queue:
      rank, merged, i = heapq.heappop(queue)
      right = following[i]
      # A pair in the queue may have become part of another piece. The id of such a piece is -1.
      if right == end or merge_of.get((ids[i], ids[right])) != (rank, merged):
        continue
      ids[i], ids[right] = merged, -1
      after = following[i] = following[right]
      if after < end:
        preceding[after] = i
        if found := merge_of.get((merged, ids[after])):
          heapq.heappush(queue, (*found, i))
      before = preceding[i]
      if before >= 0 and (found := merge_of.get((ids[before], merged))):
        heapq.heappush(queue, (*found, before))
    return [i for i in ids if i >= 0]


class ByteLevelBPEVocabulary(Vocabulary):
  """The words of `split_words`, each as UTF-8 bytes, which merges join to longer pieces.

  Nothing in the text is changed, so `decode` gives it back: `do_lower_case` has no effect here. A piece that starts
  with a space is written with Ġ before it. The first word of a text has no such space. Text never yields special
  pieces: "<mask>" in a text becomes the pieces of "<", "mask" and ">".

  Args:
    config: the file and the normalization.
    contents: the contents of the vocabulary's files, see `vocabulary_files.read_vocabulary_files`.

  Attributes:
    merges: the merges, in order of their ranks.
    piece_bytes: the bytes that each piece stands for, V strings; none for pieces that are special.

  Raises:
    UserError: see `read_files`; or quotes are to be converted.
  """

  kind = "byte_level_bpe"
  keeps_case = True

  def __init__(self, config: TokenizerConfig, contents: Mapping[str, bytes]):
    if config.convert_quotes:
      raise UserError(
        f"--convert_quotes with {config.model_file}: byte-level BPE keeps the text as it is: leave the flag out"
      )
    self.config = config
    self.sha256 = contents_sha256(contents)
    self.pieces, self.merges, self.special_ids = read_files(config.model_file, contents)
    id_of_piece = {piece: i for i, piece in enumerate(self.pieces)}
    self.byte_ids = [id_of_piece[character] for character in BYTE_CHARACTERS]
    # A special piece has letters and brackets, which are never in the same word, so no text yields it.
    represents_text = {*self.byte_ids, *(merge.merged for merge in self.merges)} - {*self.special_ids}
    self.piece_bytes = [piece_to_bytes(piece) if i in represents_text else b"" for i, piece in enumerate(self.pieces)]
    self._ids_of_word = _WordIds(self.byte_ids, self.merges)

  @functools.cached_property
  def is_special(self) -> np.ndarray:
    """bool [V]: True for pieces that no text yields: the special pieces, and those that no merge makes."""
    return np.array([not data for data in self.piece_bytes])

  @functools.cached_property
  def word_starts(self) -> np.ndarray:
    """bool [V]: True for pieces that start with whitespace, punctuation, a symbol, or of a script without spaces.

    Of a piece that starts with a part of a character, the first and the last character with these bytes count.
    """
    return np.array([_starts_word(data) for data in self.piece_bytes])

  def normalize(self, text: str) -> str:
    """Returns the text, with U+FFFD for lone surrogates, which UTF-8 cannot encode."""
    return replace_surrogates(text)

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """See Vocabulary."""
    ids_of_word = self._ids_of_word
    return [[i for word in split_words(text) for i in ids_of_word[word]] for text in texts]

  def encode_with_offsets(self, text: str) -> TokensWithOffsets:
    """See Vocabulary."""
    ids = self.encode_batch([text])[0]
    token_ends = np.cumsum(np.array([len(self.piece_bytes[i]) for i in ids], np.int64))
    token_starts = np.concatenate([[0], token_ends])[: len(ids)]
    lengths = np.array([len(encode_utf8(character)) for character in text], np.int64)
    limits = np.concatenate([[0], np.cumsum(lengths)])  # in bytes, of each character
    first = np.searchsorted(limits, token_starts, side="right") - 1
    after_last = np.searchsorted(limits, token_ends, side="left")
    # For each offset the next start, and the end before it, of a character that is not whitespace.
    positions = np.arange(len(text))
    is_space = np.array([character.isspace() for character in text], bool)
    next_starts = np.minimum.accumulate(np.append(np.where(is_space, len(text), positions), len(text))[::-1])[::-1]
    ends_before = np.maximum.accumulate(np.append(0, np.where(is_space, 0, positions + 1)))
    return TokensWithOffsets(
      np.array(ids, np.int32), next_starts[first].astype(np.int32), ends_before[after_last].astype(np.int32)
    )

  def decode(self, ids: Sequence[int]) -> str:
    """See Vocabulary. Bytes that are not UTF-8 become U+FFFD."""
    return b"".join(self.piece_bytes[i] for i in ids).decode("utf-8", errors="replace")

  def piece_texts(self) -> list[str]:
    """See Vocabulary. A part of a character is U+FFFD."""
    return [
      data.decode("utf-8", errors="replace").strip() if data else piece
      for piece, data in zip(self.pieces, self.piece_bytes, strict=True)
    ]

  @functools.cached_property
  def ids_inside_word(self) -> np.ndarray:
    """See Vocabulary. Text is encoded without a space before it, so nothing changes."""
    return np.arange(len(self.pieces), dtype=np.int32)


def _starts_word(data: bytes) -> bool:
  """Returns whether a piece with these bytes starts a word."""
  if not data or 0x80 <= data[0] < 0xC0:  # a special piece, or one that continues a character
    return False
  num_bytes = 1 + sum(data[0] >= first for first in (0xC0, 0xE0, 0xF0))  # of the first character
  if len(data) >= num_bytes:
    character = data[:num_bytes].decode("utf-8", errors="replace")
    return character.isspace() or starts_word(character)
  # The first and the last character that can begin with these bytes.
  candidates = [data.ljust(num_bytes, filler).decode("utf-8", errors="replace") for filler in (b"\x80", b"\xbf")]
  return all(len(character) == 1 and is_written_without_spaces(character) for character in candidates)
