"""Packing of ids: compared with a loop that removes tokens one by one, and with the TensorFlow ops for serving."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert.data.examples import TokenizedExamples
from albert.errors import UserError
from albert.tasks.glue.features import TextFeaturizer
from albert.tokenization import graph_packing, packing
from albert.tokenization.tokenizer import Tokenizer

CLS, SEP = 2, 3


def ragged(rows: list[list[int]]) -> packing.Ragged:
  return np.array([token for row in rows for token in row], np.int32), np.cumsum([0, *map(len, rows)])


def unpacked(packed: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
  ids, lengths = packed
  assert ids.dtype == lengths.dtype == np.int32
  return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def packed_by_loop(a: list[int], b: list[int], max_length: int) -> list[int]:
  a, b = list(a), list(b)
  while len(a) + len(b) > max_length - 3:
    (a if len(a) > len(b) else b).pop()
  return [CLS, *a, SEP, *b, SEP]


@pytest.fixture(scope="module")
def pairs() -> tuple[list[list[int]], list[list[int]]]:
  """Returns texts a and b of all pairs of lengths from 0 to 14, with different ids at each position."""
  lengths = [(n, m) for n in range(15) for m in range(15)]
  return (
    [list(range(100 + n, 100 + 2 * n)) for n, _ in lengths],
    [list(range(500 + m, 500 + 2 * m)) for _, m in lengths],
  )


@pytest.mark.parametrize("max_length", [5, 12, 13, 40])
def test_pairs_are_truncated_as_by_the_loop(pairs: tuple[list[list[int]], list[list[int]]], max_length: int) -> None:
  packed = unpacked(packing.pack_pair(ragged(pairs[0]), ragged(pairs[1]), max_length))
  assert packed == [packed_by_loop(a, b, max_length) for a, b in zip(*pairs, strict=True)]


def test_the_serving_graph_packs_in_the_same_way(pairs: tuple[list[list[int]], list[list[int]]]) -> None:
  first, second = (tf.ragged.constant(rows, tf.int32) for rows in pairs)
  graph = graph_packing.pack_pair(first, second, 16)
  expected_rows = unpacked(packing.pack_pair(ragged(pairs[0]), ragged(pairs[1]), 16))
  for row, mask, expected in zip(graph["input_ids"].numpy(), graph["input_mask"].numpy(), expected_rows, strict=True):
    assert row[mask == 1].tolist() == expected
  graph = graph_packing.pack_single(first, 9)
  expected_rows = unpacked(packing.pack_single(ragged(pairs[0]), 9))
  for row, mask, expected in zip(graph["input_ids"].numpy(), graph["input_mask"].numpy(), expected_rows, strict=True):
    assert row[mask == 1].tolist() == expected


def test_single_texts_are_cut_at_their_end() -> None:
  packed = packing.pack_single(ragged([[7, 8, 9], [], [6, 7, 8, 9, 10]]), 5)
  assert unpacked(packed) == [[CLS, 7, 8, 9, SEP], [CLS, SEP], [CLS, 6, 7, 8, SEP]]


def test_too_short_a_sequence_is_refused() -> None:
  with pytest.raises(UserError, match="max_seq_length=2: too short"):
    packing.pack_single(ragged([[7]]), 2)
  with pytest.raises(UserError, match="max_seq_length=4: too short"):
    packing.pack_pair(ragged([[7]]), ragged([[7]]), 4)


def test_a_call_of_the_tokenizer_gives_what_fine_tuning_computes(spm_model):
  tokenizer = Tokenizer(spm_model)
  texts = ["nobody", "the captain sold the garden behind the house for a long winter", "", "a letter"]
  pairs = ["her sister and the captain", "an orange umbrella", "a story about horses and then went home", ""]
  for second, length in ((None, 9), (pairs, 11), (pairs, 512)):
    ids, lengths = TextFeaturizer(tokenizer.config, length).encode(texts, second)
    examples = TokenizedExamples(ids, lengths, np.ones(len(texts), np.int32))
    expected = examples.padded_batch(np.arange(len(texts)), length=int(lengths.max()))
    features = tokenizer(iter(texts), second, max_length=length)
    assert list(features) == ["input_ids", "input_mask", "segment_ids"]
    for name, values in features.items():
      assert values.dtype == np.int32
      np.testing.assert_array_equal(values, expected[name])


def test_a_call_of_the_tokenizer_refuses_what_is_no_list_of_texts(spm_model):
  tokenizer = Tokenizer(spm_model)
  assert tokenizer([])["input_ids"].shape == (0, 0)
  with pytest.raises(UserError, match="texts is the single text 'nobody': give a list of texts"):
    tokenizer("nobody")
  with pytest.raises(UserError, match=r"text_pairs\[1\] is null, of type NoneType: give texts only"):
    tokenizer(["a", "b"], ["c", None])
  with pytest.raises(UserError, match="2 texts, but 1 text_pairs"):
    tokenizer(["a", "b"], ["c"])
  with pytest.raises(UserError, match="max_seq_length=2: too short"):
    tokenizer(["a"], max_length=2)
