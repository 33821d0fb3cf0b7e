"""Dynamic masking (RoBERTa, section 4.1): an example gets new masks each time it is seen.

Tokens are masked by the same rules as in data preparation. The masks are a pure function of a seed and of the example's
number in the training stream, which is different in every epoch. If a shard was written with masks, they are removed
first, so the same shards serve static and dynamic masking.

Legend: B examples, S tokens of an example, P predictions, T tokens of all examples, V pieces.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from albert.data import masking, random_streams, schema
from albert.tokenization.tokenizer import CLS_ID, MASK_ID, SEP_ID, Tokenizer

# The features that masking changes, and those that it reads.
_CHANGED_FEATURES = (schema.INPUT_IDS, schema.MASKED_LM_POSITIONS, schema.MASKED_LM_IDS, schema.MASKED_LM_WEIGHTS)
_READ_FEATURES = (*_CHANGED_FEATURES, schema.INPUT_MASK)


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
  """Draws new masks for examples.

  Attributes:
    word_starts: bool [V], True for pieces that start a word.
    random_ids: int [number of ids], the ids that random replacements are drawn from.
    masked_lm_prob: fraction of the tokens to mask.
    ngram: largest number of words in a masked span.
  """

  word_starts: np.ndarray
  random_ids: np.ndarray
  masked_lm_prob: float
  ngram: int

  @classmethod
  def from_tokenizer(cls, tokenizer: Tokenizer, masked_lm_prob: float, ngram: int) -> DynamicMasking:
    """Makes the masking for shards that were written with the tokenizer's vocabulary."""
    return cls(tokenizer.word_starts, np.flatnonzero(~tokenizer.is_special), masked_lm_prob, ngram)

  def mask(self, features: dict[str, np.ndarray], numbers: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Masks a batch of examples.

    Args:
      features: the features of the records (albert.data.schema), int64 or float32 [B, length]. Masks that they contain
        are removed first.
      numbers: int64 [B], the number of each example in the training stream. Each number has different masks.
      seed: the seed of all masks.

    Returns:
      The features that change, with the shapes and types of the input: input_ids, masked_lm_positions, masked_lm_ids
      and masked_lm_weights.
    """
    ids = unmasked_ids(features)  # [B, S]
    is_token = features[schema.INPUT_MASK] > 0  # [B, S]
    tokens = ids[is_token]  # [T]
    lengths = is_token.sum(axis=1)
    row_splits = np.concatenate([[0], np.cumsum(lengths)])
    max_predictions = features[schema.MASKED_LM_IDS].shape[1]
    masked = masking.mask_tokens(
      tokens,
      self.word_starts[tokens],
      (tokens != CLS_ID) & (tokens != SEP_ID),
      row_splits,
      budgets=masking.num_predictions(lengths, self.masked_lm_prob, max_predictions),
      keys=random_streams.draw(random_streams.draw(seed, 0), numbers),
      ngram=self.ngram,
      mask_id=MASK_ID,
      random_ids=self.random_ids,
    )
    ids[is_token] = masked.ids
    # Prediction number i of the whole batch belongs to rows[i], where it is prediction number slots[i].
    rows = np.searchsorted(row_splits, masked.positions, side="right") - 1
    slots = np.arange(rows.size) - np.searchsorted(rows, rows)
    positions, labels = np.zeros((2, *features[schema.MASKED_LM_IDS].shape), np.int64)
    weights = np.zeros(positions.shape, np.float32)
    positions[rows, slots] = masked.positions - row_splits[rows]
    labels[rows, slots] = masked.labels
    weights[rows, slots] = 1
    return dict(zip(_CHANGED_FEATURES, (ids, positions, labels, weights), strict=True))

  def mask_tensors(self, features: dict[str, tf.Tensor], numbers: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    """Applies `mask` to a batch of tensors in a tf.data pipeline, on the host's CPU.

    Args and Returns: see `mask`; all features are returned.
    """

    def mask_arrays(numbers: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
      changed = self.mask(dict(zip(_READ_FEATURES, values, strict=True)), numbers, seed)
      return [changed[name] for name in _CHANGED_FEATURES]

    inputs = [numbers, *(features[name] for name in _READ_FEATURES)]
    output_types = [features[name].dtype for name in _CHANGED_FEATURES]
    changed = tf.numpy_function(mask_arrays, inputs, output_types, stateful=False)
    for name, value in zip(_CHANGED_FEATURES, changed, strict=True):
      value.set_shape(features[name].shape)
    return features | dict(zip(_CHANGED_FEATURES, changed, strict=True))


def unmasked_ids(features: dict[str, np.ndarray]) -> np.ndarray:
  """Returns the ids [B, S] as they were before masking, in a new array."""
  ids = features[schema.INPUT_IDS].copy()
  rows, slots = np.nonzero(features[schema.MASKED_LM_WEIGHTS])
  ids[rows, features[schema.MASKED_LM_POSITIONS][rows, slots]] = features[schema.MASKED_LM_IDS][rows, slots]
  return ids
