"""Tests of the features of texts and pairs, compared with the tokenizer, the serving graph and other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.data import feature_cache
from albert.data.feature_cache import make_examples
from albert.tasks.glue.data import TextRows
from albert.tasks.glue.features import TextFeaturizer
from albert.tasks.glue.ranking import RankingExample, RankingExamples, RankingFeaturizer
from albert.tokenization import graph_packing
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.graph import GraphTokenizer
from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import english_like_documents

TEXTS = [" ".join(document) for document in english_like_documents(40, seed=2)]
SECOND = ["", *reversed(TEXTS[1:])]
MAX_LENGTH = 40


def make_rows(labels: np.ndarray, second: list[str] | None = SECOND) -> TextRows:
  return TextRows([str(i) for i in range(len(TEXTS))], TEXTS, second, labels)


def split_sequences(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
  return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def test_pairs_are_packed_row_by_row(spm_model: str) -> None:
  rows = make_rows(np.arange(40, dtype=np.int32) % 3)
  examples = TextFeaturizer(TokenizerConfig(spm_model), MAX_LENGTH)(rows)
  tokenizer = Tokenizer(spm_model)
  for ids, first, second in zip(
    split_sequences(examples.input_ids, examples.sequence_lengths), TEXTS, SECOND, strict=True
  ):
    a, b = tokenizer.encode(first), tokenizer.encode(second)
    while len(a) + len(b) > MAX_LENGTH - 3:
      (a if len(a) > len(b) else b).pop()
    assert ids == [2, *a, 3, *b, 3]
  assert examples.sequence_counts.tolist() == [1] * 40
  assert examples.labels["label_ids"].tolist() == rows.labels.tolist()


def test_single_texts_and_scores(spm_model: str) -> None:
  rows = make_rows(np.linspace(0, 5, 40, dtype=np.float32), None)
  examples = TextFeaturizer(TokenizerConfig(spm_model), MAX_LENGTH)(rows)
  tokenizer = Tokenizer(spm_model)
  expected = [[2, *tokenizer.encode(text)[: MAX_LENGTH - 2], 3] for text in TEXTS]
  assert split_sequences(examples.input_ids, examples.sequence_lengths) == expected
  np.testing.assert_array_equal(examples.labels["scores"], rows.labels)


def test_the_serving_graph_gives_the_same_batch(spm_model: str) -> None:
  examples = TextFeaturizer(TokenizerConfig(spm_model), MAX_LENGTH)(make_rows(np.zeros(40, np.int32)))
  batch = examples.padded_batch(np.arange(40), length=MAX_LENGTH)
  graph = GraphTokenizer(spm_model)
  served = graph_packing.pack_pair(graph.tokenize(tf.constant(TEXTS)), graph.tokenize(tf.constant(SECOND)), MAX_LENGTH)
  for name, values in served.items():
    np.testing.assert_array_equal(values.numpy(), batch[name])


def test_ranking_examples_have_a_sequence_for_each_candidate(spm_model: str) -> None:
  ranking_examples = RankingExamples(
    TextRows(["a", "b"], ["Who sold it?", "And the garden?"], ["Nobody sold it.", "Yes."], np.array([0, 1], np.int32)),
    [
      RankingExample("Who sold it?", ("Nobody sold it.", "The captain."), True),
      RankingExample("And the garden?", ("Yes.",), False),
    ],
  )
  pair_featurizer = TextFeaturizer(TokenizerConfig(spm_model), MAX_LENGTH)
  examples = RankingFeaturizer(pair_featurizer)(ranking_examples[:])
  expected = pair_featurizer(
    TextRows(
      ["", "", ""],
      ["Who sold it?", "Who sold it?", "And the garden?"],
      ["Nobody sold it.", "The captain.", "Yes."],
      np.zeros(3, np.int32),
    )
  )
  np.testing.assert_array_equal(examples.input_ids, expected.input_ids)
  np.testing.assert_array_equal(examples.sequence_lengths, expected.sequence_lengths)
  assert examples.sequence_counts.tolist() == [2, 1]
  assert examples.labels["is_right"].tolist() == [1, 0]


def test_several_processes_make_the_same_features_as_one(spm_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
  featurizer = pickle.loads(pickle.dumps(TextFeaturizer(TokenizerConfig(spm_model), MAX_LENGTH)))
  # So that processes are started even for a little work.
  monkeypatch.setattr(feature_cache, "_MAX_SECONDS_OF_ONE_PROCESS", 0.0)
  started = []
  workers = feature_cache.Workers
  monkeypatch.setattr(feature_cache, "Workers", lambda number, *rest: started.append(number) or workers(number, *rest))
  num_rows = 4_000
  texts = [text.split(".")[0] for text in TEXTS * (num_rows // len(TEXTS))]
  rows = TextRows([str(i) for i in range(num_rows)], texts, texts[::-1], np.arange(num_rows, dtype=np.int32))
  examples = make_examples(rows, featurizer, name="test", key={}, cache_dir="", num_processes=2)
  assert started == [2]
  expected = featurizer(rows)
  np.testing.assert_array_equal(examples.input_ids, expected.input_ids)
  np.testing.assert_array_equal(examples.labels["label_ids"], expected.labels["label_ids"])


def test_making_features_needs_no_tensorflow() -> None:
  code = "import sys, albert.tasks.glue.features, albert.tasks.glue.ranking; sys.exit('tensorflow' in sys.modules)"
  root = Path(__file__).parents[3]
  assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=60).returncode == 0
