"""Tokenizes texts and pairs of texts: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`; long texts in windows.

Worker processes import this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.glue.files import TextRows
from albert.tokenization.packing import pack_pair, pack_single, pack_windows
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import TokenizerConfig

LABEL_IDS = "label_ids"
SCORES = "scores"
IS_RIGHT = "is_right"


@dataclasses.dataclass(frozen=True)
class TextFeaturizer:
  """Tokenizes a chunk of rows. It can be pickled.

  Attributes:
    tokenizer_config: settings of the tokenizer.
    max_seq_length: maximum tokens of a sequence. In a pair that is too long, the longer text loses its last token
      until the pair fits (see pack_pair).
  """

  tokenizer_config: TokenizerConfig
  max_seq_length: int

  def __call__(self, rows: TextRows) -> TokenizedExamples:
    """Tokenizes each row.

    Returns: N examples. Their label is "label_ids", int32 [N] or [N, C]; for a regression it is "scores", float32 [N].
    """
    ids, lengths, counts, cut_tokens = self.sequences(rows)
    label_name = LABEL_IDS if rows.labels.dtype == np.int32 else SCORES
    return TokenizedExamples(ids, lengths, counts, {label_name: rows.labels}, cut_tokens=cut_tokens)

  def sequences(self, rows: TextRows) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Makes the sequences of each row: one.

    Returns: the ids of all sequences, concatenated, int32; the length of each sequence, int32 [Q]; and the number of
      sequences of each row and of its tokens that are cut off, int32 [N].
    """
    ids, lengths, cut_tokens = self.encode(*rows.texts)
    return ids, lengths, np.ones(len(rows), np.int32), cut_tokens

  def encode(self, *texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokenizes N texts, or the first and the second texts of N pairs.

    Returns: the ids of all sequences, concatenated, int32; and the length of each sequence and the number of tokens
      that it lacks, int32 [N].
    """
    tokenizer = load_tokenizer(self.tokenizer_config)
    encoded = list(map(tokenizer.encode_batch_flat, texts))
    if len(encoded) == 1:
      ids, lengths = pack_single(encoded[0], self.max_seq_length, tokenizer.special_ids)
    else:
      ids, lengths = pack_pair(encoded[0], encoded[1], self.max_seq_length, tokenizer.special_ids)
    num_tokens = sum(np.diff(offsets) for _, offsets in encoded)
    num_special = 1 + len(encoded)  # [CLS], and [SEP] after each text
    return ids, lengths, (num_tokens + num_special - lengths).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class WindowFeaturizer(TextFeaturizer):
  """Tokenizes each text to one or more overlapping windows (--long_texts=windows). It can be pickled.

  Attributes:
    doc_stride: tokens between the starts of two successive windows.
    max_windows: maximum number of windows of a text; the rest of the text is cut off.
  """

  doc_stride: int
  max_windows: int

  def sequences(self, rows: TextRows) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Makes the windows of each text, see TextFeaturizer.sequences."""
    tokenizer = load_tokenizer(self.tokenizer_config)
    encoded = tokenizer.encode_batch_flat(rows.texts[0])
    packed = pack_windows(encoded, self.max_seq_length, self.doc_stride, self.max_windows, tokenizer.special_ids)
    ids, lengths, counts = packed
    room = self.max_seq_length - 2  # [CLS] and [SEP]
    last_lengths = lengths[np.cumsum(counts) - 1] - 2
    num_read = (counts - 1) * min(self.doc_stride, room) + last_lengths
    return ids, lengths, counts, (np.diff(encoded[1]) - num_read).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class RankingFeaturizer(TextFeaturizer):
  """Tokenizes each row's question with each of its candidates (--formulation=ranking). It can be pickled.

  Attributes:
    right_class: the class of the rows whose own sentence answers the question.
  """

  right_class: int

  def __call__(self, rows: TextRows) -> TokenizedExamples:
    """Makes a sequence for the row's own sentence, and one for each other candidate.

    Returns: N examples. Their label is "is_right", int32 [N]: 1 if the row's own sentence answers the question.
    """
    pairs = [
      (question, candidate)
      for question, sentence, others in zip(*rows.texts, rows.candidates, strict=True)
      for candidate in (sentence, *others)
    ]
    ids, lengths, cut_tokens = self.encode(*map(list, zip(*pairs, strict=True)))
    counts = np.array([1 + len(others) for others in rows.candidates], np.int32)
    is_right = {IS_RIGHT: (rows.labels == self.right_class).astype(np.int32)}
    most_cut = np.maximum.reduceat(cut_tokens, np.cumsum(counts) - counts)
    return TokenizedExamples(ids, lengths, counts, is_right, cut_tokens=most_cut)
