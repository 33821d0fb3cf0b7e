"""New masks each time an example is seen (dynamic masking; RoBERTa, section 4.1), by the rules of data preparation.

Masks are a pure function of a seed and of the example's number in the training stream, which tells the epoch and the
example. What masks a shard holds is taken back first, so shards serve whether or not they were written with masks.

Legend: B examples, S tokens, P predictions, T tokens of all examples end to end.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from albert.data import masking, random_streams, schema
from albert.tokenization.tokenizer import CLS_ID, MASK_ID, SEP_ID, Tokenizer

_CHANGED = (schema.INPUT_IDS, schema.MASKED_LM_POSITIONS, schema.MASKED_LM_IDS, schema.MASKED_LM_WEIGHTS)
_READ = (*_CHANGED, schema.INPUT_MASK)


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
  """Which tokens to hide.

  Attributes:
    word_starts: bool [V], the piece starts a word.
    random_ids: ids that a random replacement is drawn from.
    masked_lm_prob: share of tokens to hide.
    ngram: greatest number of words hidden in one go.
  """

  word_starts: np.ndarray
  random_ids: np.ndarray
  masked_lm_prob: float
  ngram: int

  @classmethod
  def from_tokenizer(cls, tokenizer: Tokenizer, masked_lm_prob: float, ngram: int) -> DynamicMasking:
    """For shards that were written with the tokenizer's vocabulary."""
    return cls(tokenizer.word_starts, np.flatnonzero(~tokenizer.is_special), masked_lm_prob, ngram)

  def mask(self, features: dict[str, np.ndarray], numbers: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Hides other tokens.

    Args:
      features: of the records (albert.data.schema), int64 or float32 [B, length].
      numbers: int64 [B], of the examples; each number has masks of its own.
      seed: of all masks.
    Returns: those of the features that change.
    """
    ids = unmasked_ids(features)
    is_token = features[schema.INPUT_MASK] > 0  # [B, S]
    flat = ids[is_token]  # [T]
    lengths = is_token.sum(axis=1)
    row_splits = np.concatenate([[0], np.cumsum(lengths)])
    num_predictions = features[schema.MASKED_LM_IDS].shape[1]
    masked = masking.mask_tokens(
      flat,
      self.word_starts[flat],
      (flat != CLS_ID) & (flat != SEP_ID),
      row_splits,
      budgets=masking.num_predictions(lengths, self.masked_lm_prob, num_predictions),
      keys=random_streams.draw(random_streams.draw(seed, 0), numbers),
      ngram=self.ngram,
      mask_id=MASK_ID,
      random_ids=self.random_ids,
    )
    ids[is_token] = masked.ids
    rows = np.searchsorted(row_splits, masked.positions, side="right") - 1
    slots = np.arange(rows.size) - np.searchsorted(rows, rows)  # in each row from 0
    positions, labels = np.zeros((2, *features[schema.MASKED_LM_IDS].shape), np.int64)
    weights = np.zeros(positions.shape, np.float32)
    positions[rows, slots] = masked.positions - row_splits[rows]
    labels[rows, slots] = masked.labels
    weights[rows, slots] = 1
    return dict(zip(_CHANGED, (ids, positions, labels, weights), strict=True))

  def mask_tensors(self, features: dict[str, tf.Tensor], numbers: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    """`mask` as a stage of tf.data. It runs on the host's processors, beside the training step."""

    def run(examples: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
      changed = self.mask(dict(zip(_READ, values, strict=True)), examples, seed)
      return [changed[name] for name in _CHANGED]

    read = [features[name] for name in _READ]
    changed = tf.numpy_function(run, [numbers, *read], [features[name].dtype for name in _CHANGED], stateful=False)
    for name, value in zip(_CHANGED, changed, strict=True):
      value.set_shape(features[name].shape)
    return features | dict(zip(_CHANGED, changed, strict=True))


def unmasked_ids(features: dict[str, np.ndarray]) -> np.ndarray:
  """The tokens [B, S] as they were before masks, in an array of its own."""
  ids = features[schema.INPUT_IDS].copy()
  rows, slots = np.nonzero(features[schema.MASKED_LM_WEIGHTS])
  ids[rows, features[schema.MASKED_LM_POSITIONS][rows, slots]] = features[schema.MASKED_LM_IDS][rows, slots]
  return ids
