"""Offsets with a vocabulary that has pieces for the bytes of characters that it lacks (byte fallback)."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import english_like_documents, train_small_model
from tests.tokenization.reference import TEXTS
from tests.tokenization.script_texts import texts_of_all_scripts
from tests.tokenization.test_offsets import ReferenceRanges
from tests.tokenization.test_sentence_piece_graph_offsets import find_differences


@pytest.fixture(params=["unigram", "bpe"])
def byte_model(request: pytest.FixtureRequest, tmp_path: Path) -> str:
  """The path of a trained model with byte fallback, which knows English letters, digits and a few Han characters."""
  lines = [line.lower() for document in english_like_documents(40) for line in document]
  lines += ["中国 in 1999, 9,9,9 ( 2,500 )."] * 9
  is_unigram = request.param == "unigram"
  return train_small_model(
    tmp_path / "bytes.model",
    lines,
    vocab_size=500,
    model_type=request.param,
    byte_fallback=True,
    character_coverage=1,
    hard_vocab_limit=not is_unigram,
  )


@pytest.mark.thorough
def test_offsets_equal_the_slow_reference_in_texts_of_all_scripts(byte_model: str) -> None:
  tokenizer = Tokenizer(byte_model)
  num_texts = num_byte_tokens = 0
  for text in (text.replace(",", "") for text in texts_of_all_scripts(12_500, seed=31)):
    if len(text) > 400 or "," in tokenizer.normalize(text):
      continue  # the reference takes seconds for long texts, and lacks the comma rule; the test below has such texts
    num_texts += 1
    tokens = tokenizer.encode_with_offsets(text)
    assert tokens.ids.tolist() == tokenizer.encode(text)
    ranges = list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True))
    assert ranges == ReferenceRanges(tokenizer, text).ranges(), text
    num_byte_tokens += sum(tokenizer.piece(i).startswith("<0x") for i in tokens.ids.tolist())
  assert num_texts >= 10_000
  assert num_byte_tokens > 100_000


@pytest.mark.thorough
def test_a_graph_gives_the_same_offsets_in_texts_of_all_scripts(byte_model: str) -> None:
  tokenizer = Tokenizer(byte_model)
  # In longer words of a unigram model the sums of scores are rounded, and the two versions of SentencePiece may choose
  # different pieces of equal score, with and without byte fallback (SentencePieceVocabulary.max_part_chars).
  longest = 90
  texts = [*TEXTS, "川の中国🙂 99,", *texts_of_all_scripts(13_000, seed=32)]
  texts = [text for text in texts if all(len(word) <= longest for word in tokenizer.normalize(text).split())]
  assert len(texts) >= 10_000
  assert find_differences(byte_model, texts) == []
