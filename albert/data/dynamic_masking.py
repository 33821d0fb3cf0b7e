"""Dynamic masking (RoBERTa, section 4.1): an example gets new masks each time it is seen.

Tokens are masked by the same rules as in data preparation. The masks are a pure function of a seed and of the example's
number in the training stream. An example has another number in each epoch. If a shard was written with masks, they are
removed first, so the same shards can be used for static and for dynamic masking.

Legend: B examples, S tokens of an example, P predictions of an example, T tokens of all examples, V pieces of the
vocabulary.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from albert.data import masks, random_streams, schema
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import SpecialIds

# The features of a record that masking changes, and the features that it needs.
_CHANGED_FEATURES = (schema.INPUT_IDS, schema.MASKED_LM_POSITIONS, schema.MASKED_LM_IDS, schema.MASKED_LM_WEIGHTS)
_READ_FEATURES = (*_CHANGED_FEATURES, schema.INPUT_MASK)


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
  """Draws new masks for examples.

  Attributes:
    word_starts: bool [V], whether each piece of the vocabulary starts a word.
    random_ids: int, the ids of all pieces that may replace a masked token: those that are not special tokens.
    masked_lm_prob: fraction of the tokens to mask.
    ngram: largest number of words in a masked span.
    special_ids: the ids of [CLS], [SEP] and [MASK].
  """

  word_starts: np.ndarray
  random_ids: np.ndarray
  masked_lm_prob: float
  ngram: int
  special_ids: SpecialIds

  @classmethod
  def from_tokenizer(cls, tokenizer: Tokenizer, masked_lm_prob: float, ngram: int) -> DynamicMasking:
    """Makes the masking for shards that were written with the vocabulary of `tokenizer`."""
    return cls(
      tokenizer.word_starts, np.flatnonzero(~tokenizer.is_special), masked_lm_prob, ngram, tokenizer.special_ids
    )

  def mask(self, features: dict[str, np.ndarray], example_numbers: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Masks a batch of examples.

    Args:
      features: the features of the records (albert.data.schema), int64 or float32 [B, length]. Masks that
        they contain are removed first.
      example_numbers: int64 [B], the number of each example in the training stream. Each number gives other masks.
      seed: the seed of all masks.

    Returns:
      The features that change, with the shapes and types of the input: input_ids, masked_lm_positions, masked_lm_ids
      and masked_lm_weights.
    """
    ids = unmasked_ids(features)  # [B, S]
    is_token = features[schema.INPUT_MASK] > 0  # [B, S]
    tokens = ids[is_token]  # [T]
    lengths = is_token.sum(axis=1)  # [B]
    # Example b consists of the tokens row_splits[b] to row_splits[b + 1] - 1.
    row_splits = np.concatenate([[0], np.cumsum(lengths)])
    max_predictions = features[schema.MASKED_LM_IDS].shape[1]
    # The keys of the examples are numbers of the stream with the key draw(seed, 0). Their counters are example_numbers.
    masked = masks.mask_tokens(
      tokens,
      self.word_starts[tokens],
      (tokens != self.special_ids.cls) & (tokens != self.special_ids.sep),
      row_splits,
      budgets=masks.num_predictions(lengths, self.masked_lm_prob, max_predictions),
      keys=random_streams.draw(random_streams.draw(seed, 0), example_numbers),
      ngram=self.ngram,
      mask_id=self.special_ids.mask,
      random_ids=self.random_ids,
    )
    ids[is_token] = masked.ids
    # One row for each example, padded with zeros: masked token i of the batch goes to row rows[i], column columns[i].
    rows = np.searchsorted(row_splits, masked.positions, side="right") - 1
    columns = np.arange(rows.size) - np.searchsorted(rows, rows)
    shape = (len(lengths), max_predictions)
    positions, labels, weights = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    positions[rows, columns] = masked.positions - row_splits[rows]
    labels[rows, columns] = masked.labels
    weights[rows, columns] = 1
    return {
      schema.INPUT_IDS: ids,
      schema.MASKED_LM_POSITIONS: positions,
      schema.MASKED_LM_IDS: labels,
      schema.MASKED_LM_WEIGHTS: weights,
    }

  def mask_tensors(self, features: dict[str, tf.Tensor], example_numbers: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    """Does the same as `mask` for a batch of tensors in a tf.data pipeline. It runs on the host's CPU.

    Args: see `mask`.
    Returns: all features. Those that `mask` returns are replaced.
    """

    def mask_arrays(example_numbers: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
      masked = self.mask(dict(zip(_READ_FEATURES, values, strict=True)), example_numbers, seed)
      return [masked[name] for name in _CHANGED_FEATURES]

    inputs = [example_numbers, *(features[name] for name in _READ_FEATURES)]
    output_types = [features[name].dtype for name in _CHANGED_FEATURES]
    outputs = tf.numpy_function(mask_arrays, inputs, output_types, stateful=False)
    for name, value in zip(_CHANGED_FEATURES, outputs, strict=True):
      value.set_shape(features[name].shape)  # numpy_function returns tensors of unknown shape
    return features | dict(zip(_CHANGED_FEATURES, outputs, strict=True))


def unmasked_ids(features: dict[str, np.ndarray]) -> np.ndarray:
  """Returns the ids [B, S] as they were before masking, in a new array."""
  ids = features[schema.INPUT_IDS].copy()
  rows, columns = np.nonzero(features[schema.MASKED_LM_WEIGHTS])  # without padding
  positions = features[schema.MASKED_LM_POSITIONS][rows, columns]
  ids[rows, positions] = features[schema.MASKED_LM_IDS][rows, columns]
  return ids
