"""Compares data_prep.segments with a slow reference in plain Python, which loops over sentences like the original."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import segments
from data_prep.documents import Documents, cut_long_sentences, merge_documents
from data_prep.segments import DOC_SENTENCES, FULL_SENTENCES, NONE, NSP, SENTENCE_PAIR, SOP, SegmentRules
from data_prep.token_sequences import assemble
from tests.data.reference_draws import MASK_64, draw, to_int_below, to_unit_float

SHORT, TARGET, SPLIT, LABEL, DONOR, DONOR_START, INSTANCE = range(7)
Sentence = list[bool]  # for each token, whether it starts a word
Pair = tuple[list[int], list[int], int]  # tokens of both segments, label


def make_documents(texts: list[list[Sentence]]) -> Documents:
  """Documents whose token ids are 100, 101, ..., so that all tokens differ."""
  starts = [token for text in texts for sentence in text for token in [True, *sentence[1:]]]
  sizes = [len(sentence) for text in texts for sentence in text]
  return Documents(
    ids=np.arange(100, 100 + len(starts), dtype=np.int32),
    word_starts=np.array(starts, bool),
    sentence_ends=np.cumsum(np.array(sizes, np.int64)),
    splits=np.cumsum([0] + [sum(map(len, text)) for text in texts]),
    file_ordinals=np.zeros(len(texts), np.int64),
    offsets=np.arange(len(texts)) * 10,
  )


class Reference:
  """The reference: it cuts one stream at a time, and uses lists of tokens instead of offsets."""

  def __init__(self, texts: list[list[Sentence]], rules: SegmentRules):
    self.rules = rules
    self.texts: list[list[list[int]]] = []
    self.starts: dict[int, bool] = {}
    for text in texts:
      self.texts.append([])
      for sentence in text:
        tokens = list(range(len(self.starts), len(self.starts) + len(sentence)))
        self.starts |= dict(zip(tokens, [True, *sentence[1:]], strict=True))
        self.texts[-1].append(tokens)

  def num_words(self, sentences: list[list[int]]) -> int:
    return sum(self.starts[token] for sentence in sentences for token in sentence)

  def chunk(self, rest: list[list[int]], target: int) -> int:
    """Returns how many of the remaining sentences of a document form the next chunk."""
    count = 0
    while count < len(rest):
      count += 1
      enough = self.num_words(rest[:count]) >= self.rules.min_words
      if enough and sum(map(len, rest[:count])) >= target:
        break
    return len(rest) if self.num_words(rest[count:]) < self.rules.min_words else count

  def split(self, chunk: list[list[int]], bits: int) -> int:
    """Returns the number of tokens in the first segment."""
    if len(chunk) > 1:
      return sum(map(len, chunk[: 1 + to_int_below(bits, len(chunk) - 1)]))
    places = [i for i, token in enumerate(chunk[0]) if i and self.starts[token]]
    return places[to_int_below(bits, len(places))]

  def donor(self, document: int, target: int, bits: tuple[int, int]) -> list[int]:
    others = [text for index, text in enumerate(self.texts) if index != document]
    text = others[to_int_below(bits[0], len(others))]
    tokens: list[int] = []
    for sentence in text[to_int_below(bits[1], len(text)) :]:
      tokens += sentence
      if len(tokens) >= target:
        break
    return tokens

  def truncate(self, a: list[int], b: list[int], key: int) -> tuple[list[int], list[int]]:
    a, b = list(a), list(b)
    streams = [draw(draw(key, 2), index) for index in (0, 1)]
    lost = [0, 0]
    while len(a) + len(b) > self.rules.max_num_tokens:
      index = 0 if len(a) > len(b) else 1
      # The n-th toss of a segment is a bit of a random number: 64 tosses in each, in the order of NumPy's unpackbits.
      word = draw(streams[index], lost[index] // 64)
      byte = word >> (8 * (lost[index] % 64 // 8)) & 255
      front = byte >> (7 - lost[index] % 8) & 1
      (a, b)[index].pop(0 if front else -1)
      lost[index] += 1
    return a, b

  def instances(self, document: int, key: int) -> list[Pair]:
    rules, pairs, step = self.rules, [], 0
    longest = rules.max_num_tokens
    rest = [list(sentence) for sentence in self.texts[document]]
    while self.num_words(rest) >= rules.min_words:
      bits = [draw(key, step * 7 + purpose) for purpose in range(7)]
      step += 1
      short = to_unit_float(bits[SHORT]) < rules.short_seq_prob
      target = 2 + to_int_below(bits[TARGET], longest - 1) if short else longest
      count = self.chunk(rest, target)
      chunk, rest = rest[:count], rest[count:]
      tokens = [token for sentence in chunk for token in sentence]
      if rules.sentence_prediction == NONE:
        pairs.append((*self.truncate(tokens, [], bits[INSTANCE]), 0))
        continue
      middle = self.split(chunk, bits[SPLIT])
      a, b, label = tokens[:middle], tokens[middle:], int(to_unit_float(bits[LABEL]) < 0.5)
      if label and rules.sentence_prediction == SOP:
        a, b = b, a
      elif label:
        b = self.donor(document, target - len(a), (bits[DONOR], bits[DONOR_START]))
        # The replaced sentences go back to the document's remaining sentences.
        unused = []
        for sentence in chunk:
          kept = [token for token in sentence if token >= tokens[middle]]
          unused += [kept] if kept else []
        rest = unused + rest
      pairs.append((*self.truncate(a, b, bits[INSTANCE]), label))
    return pairs

  def sentence_pairs(self, document: int, key: int) -> list[Pair]:
    """RoBERTa's sentence pairs: the next two sentences, or the next one and a random one."""
    rest, pairs, step = list(self.texts[document]), [], 0
    before: list[int] = []
    while rest:
      bits = [draw(key, step * 7 + purpose) for purpose in range(7)]
      step += 1
      label = int(to_unit_float(bits[LABEL]) < 0.5)
      if label and self.rules.sentence_prediction == NSP:
        before, rest = rest[0], rest[1:]
        a, b = before, self.donor(document, 1, (bits[DONOR], bits[DONOR_START]))
      elif len(rest) > 1:
        a, b, before, rest = rest[0], rest[1], rest[1], rest[2:]
      elif before:
        a, b, rest = before, rest[0], []
      else:
        middle = self.split(rest, bits[SPLIT])
        a, b, rest = rest[0][:middle], rest[0][middle:], []
      if label and self.rules.sentence_prediction == SOP:
        a, b = b, a
      pairs.append((*self.truncate(a, b, bits[INSTANCE]), label))
    return pairs

  def whole_sentences(self, sentences: list[list[int]], separators: list[list[int]], key: int) -> list[Pair]:
    """As many sentences as fit into the target length, without separators at the ends."""
    rest, pairs, step = list(sentences), [], 0
    longest = self.rules.max_num_tokens
    while rest:
      bits = [draw(key, step * 7 + purpose) for purpose in range(7)]
      step += 1
      short = to_unit_float(bits[SHORT]) < self.rules.short_seq_prob
      target = 2 + to_int_below(bits[TARGET], longest - 1) if short else longest
      if rest[0] in separators:
        rest.pop(0)
      chunk = [rest.pop(0)]
      while rest and sum(map(len, [*chunk, rest[0]])) <= target:
        chunk.append(rest.pop(0))
      if chunk[-1] in separators:
        chunk.pop()
      tokens = [token for sentence in chunk for token in sentence]
      pairs.append((*self.truncate(tokens, [], bits[INSTANCE]), 0))
    return pairs


texts_strategy = st.lists(
  st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=8), min_size=2, max_size=4
)


def cut(
  texts: list[list[Sentence]], rules: SegmentRules, streams: list[int], keys: list[int]
) -> segments.InstanceSegments:
  return segments.make_instances(make_documents(texts), rules, np.array(streams), np.array(keys, np.uint64))


def as_pairs(instances: segments.InstanceSegments, document: int) -> list[Pair]:
  mine = np.flatnonzero(instances.documents == document)
  return [
    (
      list(range(instances.a_start[i], instances.a_end[i])),
      list(range(instances.b_start[i], instances.b_end[i])),
      int(instances.labels[i]),
    )
    for i in mine
  ]


def cut_usable(texts: list[list[Sentence]], rules: SegmentRules, key: int) -> dict[int, list[Pair]]:
  """Returns the pairs of each document that has enough words. The key of document d is `key` + d."""
  reference = Reference(texts, rules)
  streams = [d for d, text in enumerate(reference.texts) if reference.num_words(text) >= rules.min_words]
  if not streams:
    return {}
  instances = cut(texts, rules, streams, [key + d for d in streams])
  return {document: as_pairs(instances, document) for document in streams}


@settings(max_examples=150, deadline=None)
@given(
  texts_strategy,
  st.sampled_from([SOP, NSP, NONE]),
  st.integers(8, 24),
  st.sampled_from([0.0, 0.3, 1.0]),
  st.integers(0, MASK_64 - 10),
)
def test_instances_equal_reference(
  texts: list[list[Sentence]], prediction: str, length: int, short: float, key: int
) -> None:
  rules = SegmentRules(length, short, prediction)
  for document, pairs in cut_usable(texts, rules, key).items():
    assert pairs == Reference(texts, rules).instances(document, key + document)


formats_strategy = st.tuples(
  texts_strategy, st.integers(8, 24), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, MASK_64 - 10)
)


@settings(max_examples=60, deadline=None)
@given(formats_strategy, st.sampled_from([SOP, NSP]))
def test_sentence_pairs_equal_reference(case: tuple[list[list[Sentence]], int, float, int], prediction: str) -> None:
  texts, length, short, key = case
  rules = SegmentRules(length, short, prediction, SENTENCE_PAIR)
  for document, pairs in cut_usable(texts, rules, key).items():
    assert pairs == Reference(texts, rules).sentence_pairs(document, key + document)


@settings(max_examples=60, deadline=None)
@given(formats_strategy)
def test_document_sentences_equal_reference(case: tuple[list[list[Sentence]], int, float, int]) -> None:
  texts, length, short, key = case
  rules = SegmentRules(length, short, NONE, DOC_SENTENCES)
  reference = Reference(texts, rules)
  pairs = cut_usable(texts, rules, key)
  assert len(pairs) == len(texts)
  for document, sentences in enumerate(reference.texts):
    assert pairs[document] == reference.whole_sentences(sentences, [], key + document)


@settings(max_examples=60, deadline=None)
@given(formats_strategy)
def test_full_sentences_equal_reference(case: tuple[list[list[Sentence]], int, float, int]) -> None:
  texts, length, short, key = case
  rules = SegmentRules(length, short, NONE, FULL_SENTENCES)
  sentences: list[list[int]] = []
  separators: list[list[int]] = []
  size = 0
  for number, text in enumerate(texts):
    for sentence in ([[True]] if number else []) + text:
      sentences.append(list(range(size, size + len(sentence))))
      size += len(sentence)
    if number:
      separators.append(sentences[-len(text) - 1])
  together = merge_documents(make_documents(texts), 3)
  assert np.flatnonzero(together.ids == 3).tolist() == [token for separator in separators for token in separator]
  np.testing.assert_array_equal(together.ids[together.ids != 3], make_documents(texts).ids)
  instances = segments.make_instances(together, rules, np.array([0]), np.array([key], np.uint64))
  expected = Reference(texts, rules).whole_sentences(sentences, separators, key)
  assert as_pairs(instances, 0) == expected
  tokens = assemble(together, instances, cls_id=2, sep_id=3)
  np.testing.assert_array_equal(tokens.maskable, tokens.ids >= 100)
  for row in np.split(tokens.ids, tokens.row_splits[1:-1]):
    assert row[0] == 2
    assert row[1] != 3
    assert row[-1] == 3
    assert row[-2] != 3


@settings(max_examples=100, deadline=None)
@given(texts_strategy, st.integers(0, MASK_64 - 10))
def test_sop_segments_are_consecutive_in_one_document_and_use_all_text(texts: list[list[Sentence]], key: int) -> None:
  rules = SegmentRules(100, 0.5, SOP)  # longer than any document: nothing is truncated
  documents = make_documents(texts)
  reference = Reference(texts, rules)
  streams = [d for d, text in enumerate(reference.texts) if reference.num_words(text) >= 2]
  if not streams:
    return
  instances = cut(texts, rules, streams, [key] * len(streams))
  for document in streams:
    used: list[int] = []
    for a, b, label in as_pairs(instances, document):
      assert a
      assert b
      first, second = (b, a) if label else (a, b)
      assert first[-1] + 1 == second[0]
      assert documents.word_starts[second[0]]
      used += first + second
    assert sorted(used) == list(range(documents.splits[document], documents.splits[document + 1]))


def _many_documents(num_documents: int, seed: int) -> list[list[Sentence]]:
  rng = np.random.default_rng(seed)
  return [
    [(rng.random(rng.integers(1, 30)) < 0.7).tolist() for _ in range(rng.integers(2, 20))] for _ in range(num_documents)
  ]


@pytest.mark.parametrize("prediction", [SOP, NSP])
def test_labels_are_balanced_and_nsp_donors_are_foreign(prediction: str) -> None:
  texts = _many_documents(600, seed=0)
  documents = make_documents(texts)
  rules = SegmentRules(64, 0.1, prediction)
  streams = np.repeat(np.arange(600), 4)
  keys = segments.stream_keys(
    7, documents.file_ordinals[streams], documents.offsets[streams], np.tile(np.arange(4), 600)
  )
  instances = segments.make_instances(documents, rules, streams, keys)
  labels = instances.labels
  assert labels.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(labels.size))
  owner_a, owner_b = (
    np.searchsorted(documents.splits, start, side="right") - 1 for start in (instances.a_start, instances.b_start)
  )
  np.testing.assert_array_equal(owner_a, instances.documents)
  np.testing.assert_array_equal(owner_a != owner_b, (labels == 1) & (prediction == NSP))
  assert ((instances.a_end - instances.a_start) + (instances.b_end - instances.b_start)).max() <= 61


def test_share_of_short_instances() -> None:
  # One-token sentences end a chunk at its target exactly, so that an instance's length is its target.
  texts: list[list[Sentence]] = [[[True]] * 200_000]
  instances = cut(texts, SegmentRules(103, 0.1, NONE), [0], [11])
  lengths = (instances.a_end - instances.a_start)[:-1]
  short = lengths < 101
  # Targets of 2 to 101 are drawn with probability 0.1; 101 is the full length, too.
  assert short.mean() == pytest.approx(0.1 * 99 / 100, abs=4 * 0.3 / np.sqrt(lengths.size))
  counts = Counter(lengths[short].tolist())
  assert min(counts) == 2
  assert max(counts) == 100


def test_truncation_takes_front_or_back_evenly() -> None:
  bounds = tuple(np.full(4000, value, np.int64) for value in (0, 90, 90, 130))
  keys = draw_keys(4000)
  a_start, a_end, b_start, b_end = segments._truncate(bounds, 61, keys)
  # 130 tokens lose 69: the longer segment loses 50 (from 90 to 40), then the first loses 9 and the second 10.
  assert set((a_end - a_start).tolist()) == {31}
  assert set((b_end - b_start).tolist()) == {30}
  # Half of the 59 lost tokens are lost at the front: mean 29.5, variance 59 / 4.
  assert a_start.mean() == pytest.approx(29.5, abs=4 * np.sqrt(59 / 4 / 4000))
  assert a_start.var() == pytest.approx(59 / 4, rel=0.15)
  assert (b_start - 90).mean() == pytest.approx(5, abs=4 * np.sqrt(10 / 4 / 4000))


def draw_keys(count: int) -> np.ndarray:
  return np.array([draw(3, index) for index in range(count)], np.uint64)


def test_long_sentences_are_cut_at_words_and_nothing_is_lost() -> None:
  starts = np.zeros(30, bool)
  starts[[0, 4, 9, 11, 20]] = True  # sentences of 3, 17 and 10 tokens
  ends, marked = cut_long_sentences(np.array([3, 20, 30]), starts, 8)
  # 3..20: words at 4, 9, 11: cut at 11 (8 tokens), then at 19 (no word start); 20..30: no word at all.
  assert ends.tolist() == [3, 11, 19, 20, 28, 30]
  assert np.flatnonzero(marked).tolist() == [0, 3, 4, 9, 11, 19, 20, 28]


def test_stream_keys_differ_in_every_part() -> None:
  base = segments.stream_keys(1, np.array([2]), np.array([3]), np.array([4]))[0]
  for seed, ordinal, offset, duplicate in ((0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0), (1, 3, 2, 4)):
    other = segments.stream_keys(seed, np.array([ordinal]), np.array([offset]), np.array([duplicate]))[0]
    assert other != base


def test_assemble_by_hand() -> None:
  documents = make_documents([[[True, True, False], [True, True]]])
  column = {
    "a_start": [0, 3, 0],
    "a_end": [3, 5, 5],
    "b_start": [3, 0, 5],
    "b_end": [5, 3, 5],
    "labels": [0, 1, 0],
    "documents": [0, 0, 0],
  }
  arrays = {name: np.array(values) for name, values in column.items()}
  instances = segments.InstanceSegments(**arrays, keys=np.zeros(3, np.uint64))
  tokens = assemble(documents, instances, cls_id=2, sep_id=3)
  rows = [row.tolist() for row in np.split(tokens.ids, tokens.row_splits[1:-1])]
  assert rows == [
    [2, 100, 101, 102, 3, 103, 104, 3],
    [2, 103, 104, 3, 100, 101, 102, 3],
    [2, 100, 101, 102, 103, 104, 3],
  ]
  assert tokens.b_starts.tolist() == [5, 4, 7]
  np.testing.assert_array_equal(tokens.maskable, tokens.ids >= 100)
