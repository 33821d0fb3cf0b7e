"""Finds the most probable tags of texts among those that the scheme allows, by the Viterbi algorithm.

T words of all texts, N texts, C tags. This module does not import TensorFlow.
"""

from __future__ import annotations

import numpy as np


def best_tags(log_probabilities: np.ndarray, lengths: np.ndarray, transitions: np.ndarray) -> np.ndarray:
  """Finds the sequence of tags of each text that has the largest sum of log probabilities.

  Of several sequences with the same sum, the one whose last tag, then the tag before it, and so on, comes first wins.

  Args:
    log_probabilities: float [T, C], of each word of all texts, concatenated.
    lengths: int [N], the number of words of each text.
    transitions: bool [C, C], whether the tag of a column may follow that of a row. The first tag must be O: a text
      begins and ends as if there was an O before it and after it.
  Returns: int32 [T], the index of the tag of each word.
  """
  costs = np.where(transitions, 0.0, -np.inf)  # [C, C]
  scores = log_probabilities.astype(np.float64)
  previous_tags = np.zeros(scores.shape, np.int32)
  starts = np.cumsum(lengths) - lengths
  by_length = np.argsort(-lengths, kind="stable")
  max_length = int(lengths.max(initial=0))
  # The texts that have a word at each position: the first ones by length.
  num_active = [int(np.count_nonzero(lengths > position)) for position in range(max_length)]
  for position in range(max_length):
    words = starts[by_length[: num_active[position]]] + position
    if position == 0:
      scores[words] += costs[0]
      continue
    paths = scores[words - 1][:, :, None] + costs  # [texts, C, C]
    previous_tags[words] = paths.argmax(axis=1)
    scores[words] += paths.max(axis=1)
  tags = np.zeros(len(scores), np.int32)
  for position in reversed(range(max_length)):
    words = starts[by_length[: num_active[position]]] + position
    is_last = lengths[by_length[: num_active[position]]] == position + 1
    last_tags = (scores[words] + costs[:, 0]).argmax(axis=1)
    next_words = np.minimum(words + 1, len(scores) - 1)
    tags[words] = np.where(is_last, last_tags, previous_tags[next_words, tags[next_words]])
  return tags
