"""Tokenizes texts and pairs of texts: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

Worker processes import this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.glue.data import TextRows
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.packing import pack_pair, pack_single
from albert.tokenization.tokenizer import load_tokenizer

LABEL_IDS = "label_ids"
SCORES = "scores"


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
    """Tokenizes each row into one sequence.

    Returns: N examples. Their label is "label_ids", int32 [N] or [N, C]; for a regression it is "scores", float32 [N].
    """
    ids, lengths = self.encode(rows.first, rows.second)
    label_name = LABEL_IDS if rows.labels.dtype == np.int32 else SCORES
    return TokenizedExamples(ids, lengths, np.ones(len(rows), np.int32), {label_name: rows.labels})

  def encode(self, first: Sequence[str], second: Sequence[str] | None) -> tuple[np.ndarray, np.ndarray]:
    """Tokenizes texts, or pairs of texts.

    Args:
      first: N texts.
      second: the second texts of N pairs; None for single texts.
    Returns: the ids of all sequences, concatenated, int32; and the length of each sequence, int32 [N].
    """
    tokenizer = load_tokenizer(self.tokenizer_config)
    encoded = tokenizer.encode_batch_flat(first)
    if second is None:
      return pack_single(encoded, self.max_seq_length, tokenizer.special_ids)
    return pack_pair(encoded, tokenizer.encode_batch_flat(second), self.max_seq_length, tokenizer.special_ids)
