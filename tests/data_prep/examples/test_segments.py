"""data_prep.examples.segments equals a slow reference in plain Python, which loops over sentences as the original."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.tokenization.vocabulary import CLS_ID, SEP_ID
from data_prep.documents import Documents, cut_long_sentences, merge_documents
from data_prep.examples import segments
from data_prep.examples.packing import assemble
from data_prep.examples.settings import (
  DOC_SENTENCES,
  FULL_SENTENCES,
  NONE,
  NSP,
  SENTENCE_PAIR,
  SOP,
  PreparationSettings,
)
from tests.data.reference_draws import LOW_64_BITS
from tests.data_prep.segment_reference import Pair, Reference, Sentence, make_rules


def make_documents(texts: list[list[Sentence]]) -> Documents:
  """Makes documents whose token ids are 100, 101, ..., so that all tokens differ.

  The first token of each sentence starts a word, whatever `texts` says.
  """
  word_starts = [is_start for text in texts for sentence in text for is_start in [True, *sentence[1:]]]
  sizes = [len(sentence) for text in texts for sentence in text]
  return Documents(
    ids=np.arange(100, 100 + len(word_starts), dtype=np.int32),
    word_starts=np.array(word_starts, bool),
    sentence_ends=np.cumsum(np.array(sizes, np.int64)),
    splits=np.cumsum([0] + [sum(map(len, text)) for text in texts]),
    file_ordinals=np.zeros(len(texts), np.int64),
    offsets=np.arange(len(texts)) * 10,
  )


# Two to four documents of one to eight sentences of one to nine tokens.
texts_strategy = st.lists(
  st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=8), min_size=2, max_size=4
)
# Random keys. The sum of a key and the number of a document must fit into 64 bits, too.
keys_strategy = st.integers(0, LOW_64_BITS - 10)


def make_instances(
  texts: list[list[Sentence]], rules: PreparationSettings, documents: list[int], keys: list[int]
) -> segments.InstanceSegments:
  """Makes the instances of some documents, each with its key, with the function under test."""
  return segments.make_instances(make_documents(texts), rules, np.array(documents), np.array(keys, np.uint64))


def as_pairs(instances: segments.InstanceSegments, document: int) -> list[Pair]:
  return [
    (
      list(range(instances.a_start[row], instances.a_end[row])),
      list(range(instances.b_start[row], instances.b_end[row])),
      int(instances.labels[row]),
    )
    for row in np.flatnonzero(instances.documents == document)
  ]


def documents_with_enough_words(reference: Reference) -> list[int]:
  return [
    document for document, text in enumerate(reference.texts) if reference.num_words(text) >= reference.rules.min_words
  ]


def make_pairs(texts: list[list[Sentence]], rules: PreparationSettings, key: int) -> dict[int, list[Pair]]:
  """Returns the pairs of each document that has enough words. The key of document d is `key` + d."""
  documents = documents_with_enough_words(Reference(texts, rules))
  if not documents:
    return {}
  instances = make_instances(texts, rules, documents, [key + document for document in documents])
  return {document: as_pairs(instances, document) for document in documents}


@settings(max_examples=150, deadline=None)
@given(
  texts_strategy,
  st.sampled_from([SOP, NSP, NONE]),
  st.integers(8, 24),
  st.sampled_from([0.0, 0.3, 1.0]),
  keys_strategy,
)
def test_instances_equal_reference(
  texts: list[list[Sentence]], prediction: str, max_seq_length: int, short_seq_prob: float, key: int
) -> None:
  rules = make_rules(max_seq_length, short_seq_prob, prediction)
  for document, pairs in make_pairs(texts, rules, key).items():
    assert pairs == Reference(texts, rules).instances(document, key + document)


# Texts, max_seq_length, short_seq_prob, key.
inputs_strategy = st.tuples(texts_strategy, st.integers(8, 24), st.sampled_from([0.0, 0.3, 1.0]), keys_strategy)


@settings(max_examples=60, deadline=None)
@given(inputs_strategy, st.sampled_from([SOP, NSP]))
def test_sentence_pairs_equal_reference(inputs: tuple[list[list[Sentence]], int, float, int], prediction: str) -> None:
  texts, max_seq_length, short_seq_prob, key = inputs
  rules = make_rules(max_seq_length, short_seq_prob, prediction, SENTENCE_PAIR)
  for document, pairs in make_pairs(texts, rules, key).items():
    assert pairs == Reference(texts, rules).sentence_pairs(document, key + document)


@settings(max_examples=60, deadline=None)
@given(inputs_strategy)
def test_document_sentences_equal_reference(inputs: tuple[list[list[Sentence]], int, float, int]) -> None:
  texts, max_seq_length, short_seq_prob, key = inputs
  rules = make_rules(max_seq_length, short_seq_prob, NONE, DOC_SENTENCES)
  reference = Reference(texts, rules)
  pairs = make_pairs(texts, rules, key)
  assert len(pairs) == len(texts)
  for document, sentences in enumerate(reference.texts):
    assert pairs[document] == reference.whole_sentences(sentences, [], key + document)


def join_documents(texts: list[list[Sentence]]) -> tuple[list[list[int]], list[list[int]]]:
  """Joins all documents to one, with a separator of one token before each document but the first.

  Returns:
    The tokens of each sentence and of each separator in order, and those of the separators alone. Tokens are numbered
    over all documents, and separators count.
  """
  sentences: list[list[int]] = []
  separators: list[list[int]] = []
  num_tokens = 0
  for document, text in enumerate(texts):
    if document > 0:
      separators.append([num_tokens])
      sentences.append([num_tokens])
      num_tokens += 1
    for sentence in text:
      sentences.append(list(range(num_tokens, num_tokens + len(sentence))))
      num_tokens += len(sentence)
  return sentences, separators


@settings(max_examples=60, deadline=None)
@given(inputs_strategy)
def test_full_sentences_equal_reference(inputs: tuple[list[list[Sentence]], int, float, int]) -> None:
  texts, max_seq_length, short_seq_prob, key = inputs
  rules = make_rules(max_seq_length, short_seq_prob, NONE, FULL_SENTENCES)
  sentences, separators = join_documents(texts)
  merged = merge_documents(make_documents(texts), SEP_ID)
  assert np.flatnonzero(merged.ids == SEP_ID).tolist() == [separator[0] for separator in separators]
  np.testing.assert_array_equal(merged.ids[merged.ids != SEP_ID], make_documents(texts).ids)
  instances = segments.make_instances(merged, rules, np.array([0]), np.array([key], np.uint64))
  expected = Reference(texts, rules).whole_sentences(sentences, separators, key)
  assert as_pairs(instances, 0) == expected
  tokens = assemble(merged, instances, cls_id=CLS_ID, sep_id=SEP_ID)
  np.testing.assert_array_equal(tokens.maskable, tokens.ids >= 100)  # all but [CLS] and [SEP]
  for ids in np.split(tokens.ids, tokens.row_splits[1:-1]):  # [CLS] text [SEP], without separators at the text's ends
    assert ids[0] == CLS_ID
    assert ids[1] != SEP_ID
    assert ids[-1] == SEP_ID
    assert ids[-2] != SEP_ID


def test_long_sentences_are_cut_at_words_and_nothing_is_lost() -> None:
  """Sentences of 3, 17 and 10 tokens are cut to at most 8 tokens."""
  word_starts = np.zeros(30, bool)
  word_starts[[0, 4, 9, 11, 20]] = True
  ends, new_word_starts = cut_long_sentences(np.array([3, 20, 30]), word_starts, 8)
  # 3 to 20: cut at 11, where a word starts, and at 19, after 8 tokens without a word start. 20 to 30: cut at 28, too.
  assert ends.tolist() == [3, 11, 19, 20, 28, 30]
  assert np.flatnonzero(new_word_starts).tolist() == [0, 3, 4, 9, 11, 19, 20, 28]


def test_stream_keys_depend_on_seed_file_offset_and_duplicate() -> None:
  def stream_key(seed: int, ordinal: int, offset: int, duplicate: int) -> int:
    (key,) = segments.stream_keys(seed, np.array([ordinal]), np.array([offset]), np.array([duplicate]))
    return int(key)

  key = stream_key(1, 2, 3, 4)
  for seed, ordinal, offset, duplicate in ((0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0), (1, 3, 2, 4)):
    assert stream_key(seed, ordinal, offset, duplicate) != key


def test_assemble_adds_special_tokens() -> None:
  documents = make_documents([[[True, True, False], [True, True]]])
  # Segments [0, 3) and [3, 5) in order, swapped, and as one segment.
  columns = {
    "a_start": [0, 3, 0],
    "a_end": [3, 5, 5],
    "b_start": [3, 0, 5],
    "b_end": [5, 3, 5],
    "labels": [0, 1, 0],
    "documents": [0, 0, 0],
  }
  arrays = {name: np.array(column) for name, column in columns.items()}
  instances = segments.InstanceSegments(**arrays, keys=np.zeros(3, np.uint64))
  tokens = assemble(documents, instances, cls_id=CLS_ID, sep_id=SEP_ID)
  ids_of_instances = [ids.tolist() for ids in np.split(tokens.ids, tokens.row_splits[1:-1])]
  assert ids_of_instances == [
    [CLS_ID, 100, 101, 102, SEP_ID, 103, 104, SEP_ID],
    [CLS_ID, 103, 104, SEP_ID, 100, 101, 102, SEP_ID],
    [CLS_ID, 100, 101, 102, 103, 104, SEP_ID],
  ]
  assert tokens.b_starts.tolist() == [5, 4, 7]
  np.testing.assert_array_equal(tokens.maskable, tokens.ids >= 100)
