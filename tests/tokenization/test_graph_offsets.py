"""OffsetGraphTokenizer gives the same ids and offsets as OffsetTokenizer, text by text.

ALBERT_DATA_DIR (holding vocab/30k-clean.model) adds the original vocabulary to the fixture's.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.graph_offsets import OffsetGraphTokenizer
from albert.tokenization.offsets import OffsetTokenizer
from tests.conftest import SaveModel, english_like_documents
from tests.tokenization.reference import TEXTS, random_texts
from tests.tokenization.test_offsets import PLAIN, UNUSUAL, WORDS

HAND_MADE = (
  "The\u00a0 \tcat ", "in 1999, 1999", "a1999,b",
  "éa e\u0301a", "\u0301a", "½", "8½", "İß ΣΑΣ", "東😀京", "▁the", "a▁b", "",
  "a\u0301 b", "a\u00a8b", "``the'' '''", "a'''b ''' ```", " 1,000, ",
)  # fmt: skip

SPACES = (" \u0301 ", "a \u0301 b", "x ▁", "a ▁ b", "▁")


def differences(model: str, texts: list[str], *, convert_quotes: bool = False) -> list[tuple[str, object, object]]:
  """Returns (text, result in Python, result in the graph) for each text whose ids or offsets differ."""
  python = OffsetTokenizer(model, convert_quotes=convert_quotes)
  graph = OffsetGraphTokenizer(model, convert_quotes=convert_quotes)

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
  def run(batch: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
    return tuple(graph.tokenize_with_offsets(batch))

  differences: list[tuple[str, object, object]] = []
  for start in range(0, len(texts), 1024):
    batch = texts[start : start + 1024]
    rows = zip(*(values.to_list() for values in run(tf.constant([text.encode() for text in batch]))), strict=True)
    for text, row in zip(batch, rows, strict=True):
      expected = [values.tolist() for values in python.encode_with_offsets(text)]
      if expected != list(row):
        differences.append((text, expected, row))
  return differences


def unusual_texts(count: int, without: str = "") -> list[str]:
  rng = random.Random(0)
  parts = [part for part in UNUSUAL if part not in ("\ud800", without)]  # UTF-8 cannot encode a lone surrogate
  return ["".join(rng.choices(parts, k=rng.randrange(12))) for _ in range(count)]


@pytest.mark.thorough
@pytest.mark.parametrize("convert_quotes", [False, True])
def test_hand_made_model(save_model: SaveModel, convert_quotes: bool) -> None:
  # Unlike trained models, this model keeps several ▁ in a row, but a graph tokenizes word by word and never sees them.
  texts = [*HAND_MADE, *unusual_texts(300, without="▁")]
  assert differences(save_model(WORDS + PLAIN), texts, convert_quotes=convert_quotes) == []


def test_trained_model(spm_model: str) -> None:
  documents = [" ".join(document) for document in english_like_documents(40, seed=5)]
  texts = [*HAND_MADE, *SPACES, *TEXTS, *documents, *random_texts(1000, seed=3), *unusual_texts(300)]
  assert differences(spm_model, texts) == []


@pytest.mark.thorough
@pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="ALBERT_DATA_DIR is not set")
def test_original_vocabulary() -> None:
  model = str(Path(os.environ["ALBERT_DATA_DIR"], "vocab", "30k-clean.model"))
  assert differences(model, [*HAND_MADE, *SPACES, *TEXTS, *random_texts(2000, seed=4), *unusual_texts(1000)]) == []


def test_no_texts(spm_model: str) -> None:
  tokens_and_offsets = OffsetGraphTokenizer(spm_model).tokenize_with_offsets(tf.constant([], tf.string))
  assert [values.to_list() for values in tokens_and_offsets] == [[], [], []]


def test_bytes_that_are_no_utf8(spm_model: str) -> None:
  tokens_and_offsets = OffsetGraphTokenizer(spm_model).tokenize_with_offsets(tf.constant([b"\xff the \xfe\xfe river"]))
  text = b"\xff the \xfe\xfe river".decode("utf-8", errors="replace")
  expected = OffsetTokenizer(spm_model).encode_with_offsets(text)
  for values, expected_values in zip(tokens_and_offsets, expected, strict=True):
    np.testing.assert_array_equal(values[0], expected_values)


def test_pieces_of_several_words_are_refused(save_model: SaveModel) -> None:
  with pytest.raises(UserError, match="pieces of several words"):
    OffsetGraphTokenizer(save_model([("▁", -1.0), (",", -1.0), ("▁a▁b", -1.0), ("a", -2.0)]))


@pytest.mark.slow
def test_long_runs_of_unknown_characters(spm_model: str) -> None:
  """A run of unknown characters is one <unk>, whatever its length and whatever text is around it."""
  rng = random.Random(5)
  runs = ["東", "京都", "\U0010ffff", "\ue000x", "ⴰ", "\u2028東", "각", "ᄀ", "क़", "x\u0301東"]
  texts = [
    "".join(
      rng.choice(runs) * rng.choice((1, 40, 63, 64, 65, 200)) + rng.choice(("", " ", "a", "1,", " the "))
      for _ in range(rng.randrange(1, 7))
    )
    for _ in range(60)
  ]
  assert differences(spm_model, [*texts, "東京" * (1 << 14) + " the river", "", "the " + "x" * (1 << 14)]) == []
