"""Packing of ids into [CLS] a [SEP] b [SEP] equals a loop that removes tokens one by one, also in the serving graph."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import tensorflow as tf

from albert.data.examples import TokenizedExamples
from albert.errors import UserError
from albert.tasks.glue.features import TextFeaturizer
from albert.tokenization import packing, packing_graph
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import CLS_ID, SENTENCE_PIECE_IDS, SEP_ID, SpecialIds

# Ids that are in no text below.
BERT_IDS = SpecialIds(pad=0, unk=2000, cls=2001, sep=2002, mask=2003)


def to_ragged(rows: list[list[int]]) -> packing.Ragged:
  """Returns the concatenated rows, and where each row starts and the last one ends."""
  return np.array([token for row in rows for token in row], np.int32), np.cumsum([0, *map(len, rows)])


def to_rows(packed: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
  """Returns each packed sequence as a list."""
  ids, lengths = packed
  assert ids.dtype == lengths.dtype == np.int32
  return [sequence.tolist() for sequence in np.split(ids, np.cumsum(lengths)[:-1])]


def pack_by_loop(a: list[int], b: list[int], max_length: int) -> list[int]:
  """Packs a pair as the original ALBERT does: it removes the last token of the longer text, or of b."""
  a, b = list(a), list(b)
  while len(a) + len(b) > max_length - 3:  # without [CLS] and two [SEP]
    longer = a if len(a) > len(b) else b
    longer.pop()
  return [CLS_ID, *a, SEP_ID, *b, SEP_ID]


@pytest.fixture(scope="module")
def pairs() -> tuple[list[list[int]], list[list[int]]]:
  """Returns texts a and b of all pairs of lengths from 0 to 14, with different ids at each position."""
  lengths = [(length_a, length_b) for length_a in range(15) for length_b in range(15)]
  # The first id also differs from length to length.
  return (
    [list(range(100 + length_a, 100 + 2 * length_a)) for length_a, _ in lengths],
    [list(range(500 + length_b, 500 + 2 * length_b)) for _, length_b in lengths],
  )


@pytest.mark.parametrize("max_length", [5, 12, 13, 40])
def test_pairs_are_truncated_as_by_the_loop(pairs: tuple[list[list[int]], list[list[int]]], max_length: int) -> None:
  texts_a, texts_b = pairs
  packed = to_rows(packing.pack_pair(to_ragged(texts_a), to_ragged(texts_b), max_length, SENTENCE_PIECE_IDS))
  assert packed == [pack_by_loop(a, b, max_length) for a, b in zip(texts_a, texts_b, strict=True)]


def test_the_serving_graph_packs_in_the_same_way(pairs: tuple[list[list[int]], list[list[int]]]) -> None:
  first, second = map(to_ragged, pairs)
  tensor_a, tensor_b = tf.ragged.constant(pairs[0], tf.int32), tf.ragged.constant(pairs[1], tf.int64)
  for max_length in (5, 16, 40):
    for batch, packed in (
      (
        packing_graph.pack_pair(tensor_a, tensor_b, max_length, BERT_IDS),
        packing.pack_pair(first, second, max_length, BERT_IDS),
      ),
      (packing_graph.pack_single(tensor_a, max_length, BERT_IDS), packing.pack_single(first, max_length, BERT_IDS)),
    ):
      expected = packing.padded(*packed, pad_id=BERT_IDS.pad)
      assert list(batch) == list(expected)
      for name, values in expected.items():
        assert (batch[name].dtype, batch[name].shape[1]) == (tf.int32, max_length)
        filler = BERT_IDS.pad if name == "input_ids" else 0
        width = max_length - values.shape[1]
        np.testing.assert_array_equal(batch[name], np.pad(values, [(0, 0), (0, width)], constant_values=filler))


def test_single_texts_are_cut_at_their_end() -> None:
  packed = packing.pack_single(to_ragged([[7, 8, 9], [], [6, 7, 8, 9, 10]]), 5, SENTENCE_PIECE_IDS)
  assert to_rows(packed) == [[CLS_ID, 7, 8, 9, SEP_ID], [CLS_ID, SEP_ID], [CLS_ID, 6, 7, 8, SEP_ID]]


def test_a_length_without_room_for_a_token_of_each_text_is_refused() -> None:
  with pytest.raises(UserError, match="need at least 3"):
    packing.pack_single(to_ragged([[7]]), 2, BERT_IDS)
  with pytest.raises(UserError, match="need at least 5"):
    packing.pack_pair(to_ragged([[7]]), to_ragged([[7]]), 4, BERT_IDS)
  with pytest.raises(UserError, match="need at least 3"):
    packing_graph.pack_single(tf.ragged.constant([[7]]), 2, BERT_IDS)


def test_a_call_of_the_tokenizer_gives_the_features_of_fine_tuning(spm_model):
  tokenizer = Tokenizer(spm_model)
  texts = ["nobody", "the captain sold the garden behind the house for a long winter", "", "a letter"]
  second_texts = ["her sister and the captain", "an orange umbrella", "a story about horses and then went home", ""]
  for text_pairs, max_length in ((None, 9), (second_texts, 11), (second_texts, 512)):
    columns = [texts] if text_pairs is None else [texts, text_pairs]
    ids, lengths, _ = TextFeaturizer(tokenizer.config, max_length).encode(*columns)
    examples = TokenizedExamples(ids, lengths, np.ones(len(texts), np.int32))
    expected = examples.padded_batch(np.arange(len(texts)), length=int(lengths.max()))
    features = tokenizer(iter(texts), text_pairs, max_length=max_length)
    assert list(features) == ["input_ids", "input_mask", "segment_ids"]
    for name, values in features.items():
      assert values.dtype == np.int32
      np.testing.assert_array_equal(values, expected[name])


def test_a_call_of_the_tokenizer_refuses_bad_lists_of_texts(spm_model):
  tokenizer = Tokenizer(spm_model)
  assert tokenizer([])["input_ids"].shape == (0, 0)
  for texts in (None, {"text": ["a"]}, pandas.DataFrame({"text": ["a"]})):
    message = rf"texts is a {type(texts).__name__}: give a list of texts, such as one column"
    with pytest.raises(UserError, match=message):
      tokenizer(texts)  # type: ignore[arg-type]
  with pytest.raises(UserError, match=r"text_pairs\[1\] is null, of type NoneType: give texts only"):
    tokenizer(["a", "b"], ["c", None])  # type: ignore[list-item]
  with pytest.raises(UserError, match="2 texts, but 1 text_pairs"):
    tokenizer(["a", "b"], ["c"])
  with pytest.raises(UserError, match="need at least 3"):
    tokenizer(["a"], max_length=2)
