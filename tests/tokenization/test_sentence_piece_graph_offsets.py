"""SentencePieceOffsetGraphTokenizer, which runs in the TensorFlow graph, gives the ids and offsets of Tokenizer.

If ALBERT_DATA_DIR is set, the original vocabulary is tested, too. It is vocab/30k-clean.model in this directory.
"""

from __future__ import annotations

import os
import random
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.sentence_piece_graph import SentencePieceOffsetGraphTokenizer
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import TokenizerConfig
from tests.conftest import SaveModel, english_like_documents
from tests.thorough import thorough_except
from tests.tokenization.reference import TEXTS, random_texts
from tests.tokenization.test_offsets import CHARACTERS, UNUSUAL_STRINGS, WORDS

HAND_MADE = (
  "The\u00a0 \tcat ", "in 1999, 1999", "a1999,b",
  "éa e\u0301a", "\u0301a", "½", "8½", "İß ΣΑΣ", "東😀京", "▁the", "a▁b", "",
  "a\u0301 b", "a\u00a8b", "``the'' '''", "a'''b ''' ```", " 1,000, ",
)  # fmt: skip

# Words that normalization leaves empty, or that consist of the character with which SentencePiece writes a space.
EMPTY_WORDS = (" \u0301 ", "a \u0301 b", "x ▁", "a ▁ b", "▁")


def find_differences(
  model: str, texts: list[str], **switches: bool
) -> list[tuple[str, list[list[int]], list[list[int]]]]:
  """Returns (text, result in Python, result in the graph) for each text whose ids or offsets differ."""
  python = Tokenizer(model, **switches)
  graph = SentencePieceOffsetGraphTokenizer(TokenizerConfig(model, **switches))

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
  def tokenize_in_graph(batch: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
    return tuple(graph.tokenize_with_offsets(batch))

  differences: list[tuple[str, list[list[int]], list[list[int]]]] = []
  for start in range(0, len(texts), 1024):
    batch = texts[start : start + 1024]
    ids, starts, ends = (ragged.to_list() for ragged in tokenize_in_graph(tf.constant([t.encode() for t in batch])))
    for row, text in enumerate(batch):
      expected = [array.tolist() for array in python.encode_with_offsets(text)]
      in_graph = [ids[row], starts[row], ends[row]]
      if in_graph != expected:
        differences.append((text, expected, in_graph))
  return differences


def unusual_texts(count: int) -> list[str]:
  """Returns random concatenations of the strings of UNUSUAL_STRINGS."""
  rng = random.Random(0)
  strings = [string for string in UNUSUAL_STRINGS if string != "\ud800"]  # UTF-8 has no lone surrogates
  return ["".join(rng.choices(strings, k=rng.randrange(12))) for _ in range(count)]


@pytest.mark.thorough
@pytest.mark.parametrize("convert_quotes", [False, True])
def test_ids_and_offsets_are_equal_for_a_hand_made_model(save_model: SaveModel, convert_quotes: bool) -> None:
  texts = [*HAND_MADE, *unusual_texts(300)]
  assert find_differences(save_model(WORDS + CHARACTERS), texts, convert_quotes=convert_quotes) == []


def test_ids_and_offsets_are_equal_for_a_trained_model(spm_model: str) -> None:
  documents = [" ".join(document) for document in english_like_documents(40, seed=5)]
  texts = [*HAND_MADE, *EMPTY_WORDS, *TEXTS, *documents, *random_texts(1000, seed=3), *unusual_texts(300)]
  assert find_differences(spm_model, texts) == []


def test_ids_and_offsets_are_equal_if_accents_are_kept(spm_model: str) -> None:
  texts = [*HAND_MADE, *EMPTY_WORDS, *TEXTS, *unusual_texts(300)]
  for text, (ids, starts, _), (ids_in_graph, starts_in_graph, _) in find_differences(
    spm_model, texts, keep_accents=True
  ):
    assert (ids, starts) == (ids_in_graph, starts_in_graph)
    # Only ends differ, in texts with a character for which SentencePiece writes several, such as ½.
    assert any(len(unicodedata.normalize("NFKC", character)) > 1 for character in text)


@pytest.mark.thorough
@pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="ALBERT_DATA_DIR is not set")
def test_ids_and_offsets_are_equal_for_the_original_vocabulary() -> None:
  model = str(Path(os.environ["ALBERT_DATA_DIR"], "vocab", "30k-clean.model"))
  assert (
    find_differences(model, [*HAND_MADE, *EMPTY_WORDS, *TEXTS, *random_texts(2000, seed=4), *unusual_texts(1000)]) == []
  )


def test_an_empty_batch_has_no_tokens(spm_model: str) -> None:
  tokenizer = SentencePieceOffsetGraphTokenizer(TokenizerConfig(spm_model))
  tokens_and_offsets = tokenizer.tokenize_with_offsets(tf.constant([], tf.string))
  assert [values.to_list() for values in tokens_and_offsets] == [[], [], []]


def test_bytes_that_are_no_utf8_are_replaced_as_python_does(spm_model: str) -> None:
  tokenizer = SentencePieceOffsetGraphTokenizer(TokenizerConfig(spm_model))
  tokens_and_offsets = tokenizer.tokenize_with_offsets(tf.constant([b"\xff the \xfe\xfe river"]))
  text = b"\xff the \xfe\xfe river".decode("utf-8", errors="replace")
  expected = Tokenizer(spm_model).encode_with_offsets(text)
  for values, expected_values in zip(tokens_and_offsets, expected, strict=True):
    np.testing.assert_array_equal(values[0], expected_values)


def test_pieces_of_several_words_are_refused(save_model: SaveModel) -> None:
  model = save_model([("▁", -1.0), (",", -1.0), ("▁a▁b", -1.0), ("a", -2.0)])
  with pytest.raises(UserError, match="pieces of several words"):
    SentencePieceOffsetGraphTokenizer(TokenizerConfig(model))


def test_a_run_of_unknown_characters_of_any_length_is_one_unknown_token(spm_model: str) -> None:
  rng = random.Random(5)
  unknown = ["東", "京都", "\U0010fffd", "\ue000x", "ⴰ", "\u2028東", "각", "ᄀ", "क़", "x\u0301東", "か", "東\x01"]

  def random_run() -> str:
    return rng.choice(unknown) * rng.choice((1, 2, 40, 200)) + rng.choice(("", " ", "a", "1,", " the "))

  texts = ["".join(random_run() for _ in range(rng.randrange(1, 7))) for _ in range(60)]
  assert find_differences(spm_model, [*texts, "東京" * (1 << 14) + " the river", "", "the " + "x" * (1 << 14)]) == []


# The first and the last letter of scripts.
SCRIPTS = {
  "Greek": "αω", "Cyrillic": "ая", "Hebrew": "את", "Arabic": "اي", "Devanagari": "कह", "Bengali": "কহ", "Tamil": "கஹ",
  "Thai": "กฮ", "Tibetan": "ཀཧ", "Myanmar": "ကအ", "Georgian": "აჰ", "Ethiopic": "ሀፐ", "Khmer": "កអ", "Han": "一龥",
  "hiragana": "かん", "katakana": "カン", "Hangul": "가힣", "Hangul letters": "ᄀᇂ", "Yi": "ꀀꒌ", "emoji": "😀🙏",
}  # fmt: skip
# Characters that are dropped or composed, and spaces.
UNUSUAL_TEXTS = {"dropped": "東\x01", "marks": "か\u3099", "vowel signs": "\u09c7\u09be", "▁": "▁", "spaces": "¨"}


def megabyte(letters: str) -> tf.Tensor:
  """Returns a text of a megabyte without spaces."""
  return tf.constant([letters * (1 + 2**20 // len(letters.encode()))])


def seconds(function: Callable[[tf.Tensor], object], text: tf.Tensor) -> float:
  """Returns the processor time of a call."""
  start = time.process_time()
  function(text)
  return time.process_time() - start


@pytest.fixture(scope="module")
def graph(spm_model: str) -> SentencePieceOffsetGraphTokenizer:
  return SentencePieceOffsetGraphTokenizer(TokenizerConfig(spm_model))


@pytest.fixture(scope="module")
def seconds_for_latin(graph: SentencePieceOffsetGraphTokenizer) -> float:
  graph.tokenize_with_offsets(tf.constant(["the"]))  # the first call makes the tables of characters
  return seconds(graph.tokenize_with_offsets, megabyte("abcdefghijklmnopqrstuvwxyz"))


@pytest.mark.parametrize("name", thorough_except(["Hangul"], [*SCRIPTS, *UNUSUAL_TEXTS]))
def test_the_time_for_a_megabyte_without_spaces_does_not_depend_on_the_script(
  name: str, graph: SentencePieceOffsetGraphTokenizer, seconds_for_latin: float
) -> None:
  text = UNUSUAL_TEXTS.get(name) or "".join(map(chr, range(ord(SCRIPTS[name][0]), ord(SCRIPTS[name][1]) + 1)))
  # If the time grew with the square of the length, it would be more than 50 times that for Latin letters.
  assert seconds(graph.tokenize_with_offsets, megabyte(text)) < 12 * seconds_for_latin
  if name == "Hangul":
    assert seconds(graph.tokenize, megabyte(text)) < 12 * seconds_for_latin
