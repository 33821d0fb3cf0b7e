"""Tokenizes texts that are divided into words, in overlapping windows: `[CLS] part of the text [SEP]`.

Worker processes import this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.tagging.files import TaggedText
from albert.tasks.tagging.schemes import Scheme
from albert.tokenization.packing import max_context_windows, window_starts
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import SpecialIds, TokenizerConfig

# P pieces of a text, L tokens of a window.

# The label of an example, which is one window: the index of its text among all texts of the split.
TEXT_INDEX = "text_index"
# Token features. They are 0 except at the first piece of a word, in the window that has the most context around it.
# 1 + the index of the word's tag; 1 if its tag is not known.
WORD_TAGS = "word_tags"
# 1 + the index of the word in its text.
WORD_NUMBERS = "word_numbers"
_NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class TaggingFeaturizer:
  """Tokenizes a chunk of texts. Each window becomes an example. The featurizer can be pickled.

  Attributes:
    tokenizer_config: settings of the tokenizer.
    max_seq_length: maximum tokens of a window, [CLS] and [SEP] included.
    doc_stride: tokens between the starts of two successive windows.
    scheme: how tags mark spans.
    tags: all tags, in the order of the model's logits.
  """

  tokenizer_config: TokenizerConfig
  max_seq_length: int
  doc_stride: int
  scheme: Scheme
  tags: tuple[str, ...]

  def __call__(self, texts: Sequence[TaggedText]) -> TokenizedExamples:
    """Makes the windows of all texts, in order; at least one for each text."""
    tokenizer = load_tokenizer(self.tokenizer_config)
    all_ids, piece_offsets = tokenizer.encode_batch_flat(word for text in texts for word in text.spaced_words())
    tag_indices = {tag: index for index, tag in enumerate(self.tags)}
    windows: list[np.ndarray] = []
    text_indices: list[int] = []
    first_word = 0
    for text in texts:
      offsets = piece_offsets[first_word : first_word + len(text.words) + 1]
      first_word += len(text.words)
      word_tags = [1 + tag_indices[tag] for tag in self.scheme.tags_of_spans(text.spans, len(text.words))]
      text_block = _make_block(all_ids[offsets[0] : offsets[-1]], offsets - offsets[0], np.array(word_tags, np.int32))
      text_windows = self._cut(text_block, tokenizer.special_ids)
      windows += text_windows
      text_indices += [text.index] * len(text_windows)
    ids, tags, numbers = np.concatenate(windows, axis=1)
    return TokenizedExamples(
      input_ids=np.ascontiguousarray(ids),
      sequence_lengths=np.array([window.shape[1] for window in windows], np.int32),
      sequence_counts=np.ones(len(windows), np.int32),
      labels={TEXT_INDEX: np.array(text_indices, np.int32)},
      token_features={WORD_TAGS: np.ascontiguousarray(tags), WORD_NUMBERS: np.ascontiguousarray(numbers)},
    )

  def _cut(self, block: np.ndarray, special_ids: SpecialIds) -> list[np.ndarray]:
    """Cuts the block of a text (see _make_block) into windows, int32 [3, L] each, with [CLS] and [SEP]."""
    num_pieces = block.shape[1]
    room = self.max_seq_length - _NUM_SPECIAL_TOKENS
    starts = window_starts(num_pieces, room, self.doc_stride)
    best_windows = max_context_windows(num_pieces, starts, room) if len(starts) > 1 else np.zeros(num_pieces, np.int32)
    # The blocks of [CLS] and [SEP], which are no words.
    cls, sep = (np.array([[token_id], [0], [0]], np.int32) for token_id in (special_ids.cls, special_ids.sep))
    windows = []
    for window, start in enumerate(starts):
      part = block[:, start : start + room].copy()
      part[1:, best_windows[start : start + room] != window] = 0
      windows.append(np.concatenate([cls, part, sep], axis=1))
    return windows


def _make_block(ids: np.ndarray, offsets: np.ndarray, word_tags: np.ndarray) -> np.ndarray:
  """Returns the ids, WORD_TAGS and WORD_NUMBERS of P pieces, [3, P]. Word i has the pieces from offsets[i] on."""
  block = np.zeros((3, len(ids)), np.int32)
  block[0] = ids
  words = np.flatnonzero(np.diff(offsets))
  block[1, offsets[words]] = word_tags[words]
  block[2, offsets[words]] = 1 + words
  return block
