"""SentencePiece models whose texts are encoded word by word with the ids of words kept, such as BPE models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.tokenization.kinds import sentence_piece as module
from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import english_like_documents, train_small_model
from tests.tokenization.reference import TEXTS, random_texts, reference_encode, sentence_piece
from tests.tokenization.script_texts import texts_of_all_scripts

# Settings of SentencePiece's trainer, by name.
MODELS: dict[str, dict[str, Any]] = {
  "1,000 pieces": {"vocab_size": 1000},
  "bytes": {"vocab_size": 1000, "byte_fallback": True},
  "parts of several words": {"vocab_size": 300},
  "no normalization": {"vocab_size": 1000, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
  "pieces of several words": {"vocab_size": 1000, "split_by_whitespace": False},
  "no comma": {"vocab_size": 1000},  # <unk> may stand for a number with a comma
}


def make_tokenizer(name: str, directory: Path) -> Tokenizer:
  """Trains a BPE model on lower-cased sentences with numbers and a few Han characters."""
  lines = [line.lower() for document in english_like_documents(60) for line in document]
  lines += ["中国 in 1999, 9,9,9 ( 2,500 )."] * 9
  if name == "no comma":
    lines = [line.replace(",", "") for line in lines]
  path = directory / "bpe.model"
  return Tokenizer(train_small_model(path, lines, model_type="bpe", character_coverage=1, **MODELS[name]))


def encode_with_the_library(tokenizer: Tokenizer, text: str) -> list[int]:
  """Encodes each part of a text with the library alone, and applies a slow comma rule."""
  vocabulary = sentence_piece(tokenizer)
  parts = vocabulary.split_into_parts(tokenizer.normalize(text))
  return [i for part in parts for i in reference_encode(vocabulary.processor, part)]


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  return make_tokenizer("bytes", tmp_path_factory.mktemp("bytes"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.sampled_from([*TEXTS, "1999,", "the captain", "▁ a▁", "¨¨"]))))
def test_ids_equal_those_of_the_library(byte_tokenizer: Tokenizer, texts: list[str]) -> None:
  assert sentence_piece(byte_tokenizer).max_part_chars == 1
  assert byte_tokenizer.encode_batch(texts) == [encode_with_the_library(byte_tokenizer, text) for text in texts]


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_ids_equal_those_of_the_library_in_texts_of_all_scripts(name: str, tmp_path: Path) -> None:
  tokenizer = make_tokenizer(name, tmp_path)
  vocabulary = sentence_piece(tokenizer)
  assert 1 <= vocabulary.max_part_chars <= 5
  assert vocabulary.words_are_independent == (name != "pieces of several words")
  assert vocabulary.comma_rule.ids_decide == (name != "no comma")
  texts = [*TEXTS, *random_texts(2000, seed=41), *texts_of_all_scripts(10_000, seed=42)]
  expected = [encode_with_the_library(tokenizer, text) for text in texts]
  assert tokenizer.encode_batch(texts) == expected
  assert tokenizer.encode_batch(texts[::-1]) == expected[::-1]  # now with the ids of most words kept
  if name == "no normalization":
    return  # a text of two words then has another token for the space
  # The whole text at once. SentencePiece drops a ▁ at the end of a text, so it matters where a text with ▁ is cut.
  for text, ids in zip(map(tokenizer.normalize, texts), expected, strict=True):
    assert "▁" in text or reference_encode(vocabulary.processor, text) == ids


def test_the_number_and_the_length_of_kept_words_are_bounded(
  byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
  tokenizer = Tokenizer.from_config(byte_tokenizer.config)  # with no words yet
  kept = sentence_piece(tokenizer)._ids_of_part
  monkeypatch.setattr(module, "_MAX_CACHED_PARTS", 3)
  words = ["the", "captain", "sold", "the", "x" * 32, "y" * 33, "the"]
  for word in words:
    assert tokenizer.encode(f"{word} {word}") == 2 * encode_with_the_library(byte_tokenizer, word)
    assert (word in kept) == (len(word) <= 32)
    assert len(kept) <= 3
  assert set(kept) == {"x" * 32, "the"}


def test_changing_the_ids_of_a_text_does_not_change_those_of_the_next(byte_tokenizer: Tokenizer) -> None:
  ids = byte_tokenizer.encode("captain")
  expected = list(ids)
  ids.append(-1)
  assert byte_tokenizer.encode("captain") == expected


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_a_text_that_becomes_spaces_only_takes_no_ids_from_the_next_text(
  model: str, spm_model: str, byte_tokenizer: Tokenizer
) -> None:
  tokenizer = Tokenizer(spm_model) if model == "unigram" else byte_tokenizer
  spaces, two_parts = "¨" * 999, "the captain " * sentence_piece(tokenizer).max_part_chars
  assert tokenizer.normalize(spaces).isspace()
  texts = [spaces, two_parts[: sentence_piece(tokenizer).max_part_chars + 4]]
  assert [len(sentence_piece(tokenizer).split_into_parts(tokenizer.normalize(text))) for text in texts] == [0, 2]
  assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
  assert tokenizer.encode(spaces) == []
