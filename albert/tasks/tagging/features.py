"""Tokenizes texts that are divided into words, in overlapping windows: `[CLS] part of the text [SEP]`.

Worker processes import this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.squad.features import cut_windows
from albert.tasks.tagging.files import TaggedText
from albert.tasks.tagging.schemes import Scheme
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import TokenizerConfig

# The label of an example, which is one window: the index of its text among all texts of the split.
TEXT_INDEX = "text_index"
# Token features. They are 0 except at the first piece of a word, in the window that has the most context around it.
# 1 + the index of the word's tag; 1 if its tag is not known.
WORD_TAGS = "word_tags"
# 1 + the index of the word in its text.
WORD_NUMBERS = "word_numbers"


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
    # The blocks of [CLS] and [SEP], which are no words.
    cls, sep = (np.array([[token_id], [0], [0]], np.int32) for token_id in tokenizer.special_ids[2:4])
    windows: list[np.ndarray] = []
    text_indices: list[int] = []
    first_word = 0
    for text in texts:
      offsets = piece_offsets[first_word : first_word + len(text.words) + 1]
      first_word += len(text.words)
      ids = all_ids[offsets[0] : offsets[-1]]
      word_tags = [1 + tag_indices.get(tag, 0) for tag in self.scheme.tags_of_spans(text.spans, len(text.words))]
      words = np.flatnonzero(np.diff(offsets))  # those with pieces
      features = np.zeros((2, len(ids)), np.int32)  # WORD_TAGS and WORD_NUMBERS of all pieces
      features[:, offsets[words] - offsets[0]] = np.array(word_tags, np.int32)[words], 1 + words
      for part, is_max_context in cut_windows(len(ids), self.max_seq_length - 2, self.doc_stride):  # [CLS] and [SEP]
        window = np.vstack([ids[part], features[:, part] * is_max_context])
        windows.append(np.concatenate([cls, window, sep], axis=1))
        text_indices.append(text.index)
    input_ids, tags, numbers = np.concatenate(windows, axis=1)
    return TokenizedExamples(
      input_ids=input_ids,
      sequence_lengths=np.array([window.shape[1] for window in windows], np.int32),
      sequence_counts=np.ones(len(windows), np.int32),
      labels={TEXT_INDEX: np.array(text_indices, np.int32)},
      token_features={WORD_TAGS: tags, WORD_NUMBERS: numbers},
    )
