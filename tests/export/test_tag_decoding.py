"""The tags and spans of the graph are those of albert.tasks.tagging."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert.export.tagging import TagDecoder
from albert.tasks.tagging.schemes import SCHEMES, best_tags


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("lengths", [[3, 0, 7, 1], [5], [0, 0], []])
def test_tags_and_spans_are_those_of_the_decoder_in_python(name: str, lengths: list[int]) -> None:
  scheme = SCHEMES[name]
  tags = scheme.tags(["LOC", "a-b"])
  scores = np.random.default_rng(3).normal(size=(sum(lengths), len(tags))).astype(np.float32)
  scores[::3] = 0.0  # ties
  expected = best_tags(scores, np.array(lengths, np.int64), scheme.transitions(tags))
  ragged = tf.RaggedTensor.from_row_lengths(tf.constant(scores), tf.constant(lengths, tf.int64))
  decoder = TagDecoder(scheme, tags)
  assert decoder.best_tags(ragged).numpy().tolist() == expected.tolist()
  found = decoder.spans(ragged)
  spans = list(zip(found.first_words.numpy(), found.last_words.numpy() + 1, found.types.numpy(), strict=True))
  start, expected_spans = 0, []
  for length in lengths:
    for span in scheme.spans([tags[index] for index in expected[start : start + length]]):
      expected_spans.append((start + span.start, start + span.end, span.type.encode()))
    start += length
  assert spans == expected_spans
  sums = [scores[range(first, end), expected[first:end]].sum(dtype=np.float64) for first, end, _ in expected_spans]
  np.testing.assert_allclose(found.log_probabilities, sums)
