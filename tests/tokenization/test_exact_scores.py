"""With rounded scores, the ids of a word do not depend on the text around it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sentencepiece

from albert.tokenization.exact_scores import with_exact_scores
from albert.tokenization.tokenizer import (
  Tokenizer,
)
from tests.conftest import SaveModel
from tests.tokenization.reference import random_texts


@pytest.fixture(scope="module")
def tokenizer(spm_model: str) -> Tokenizer:
  return Tokenizer(spm_model)


def test_a_word_has_the_same_ids_wherever_it_stands(tokenizer: Tokenizer) -> None:
  rng = random.Random(3)
  for text in random_texts(200, seed=3):
    cut = rng.randrange(len(text) + 1)
    assert tokenizer.encode(f"{text[:cut]} {text[cut:]}") == tokenizer.encode(text[:cut]) + tokenizer.encode(text[cut:])


def test_equally_good_segmentations(save_model: SaveModel) -> None:
  # The exact scores of "a" "aa" and "aa" "a" are equal. In float32 their sums would depend on the text before them.
  tokenizer = Tokenizer(save_model([("▁", -0.7), ("a", -1.1), ("aa", -1.3), ("b", -2.7), (",", -9.0)]))
  a, aa = tokenizer.pieces.index("a"), tokenizer.pieces.index("aa")
  for count in range(1, 60):
    assert tokenizer.encode("b" * count + "aaaaa")[-3:] == [a, aa, aa]


def test_exact_scores(spm_model: str, tokenizer: Tokenizer) -> None:
  original = sentencepiece.SentencePieceProcessor(model_file=spm_model)
  exact = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.exact_model)
  assert [exact.id_to_piece(i) for i in range(exact.get_piece_size())] == tokenizer.pieces
  symbols = 0
  best = max(original.get_score(i) for i in range(13, exact.get_piece_size()))
  for i in range(exact.get_piece_size()):
    assert (exact.get_score(i) * 8192).is_integer()
    is_symbol = tokenizer.pieces[i] in list('()"-.–£€')
    symbols += is_symbol
    # SentencePiece scores a user-defined symbol by its length and the best score.
    expected = best - 0.1 if is_symbol else original.get_score(i)
    assert abs(exact.get_score(i) - expected) <= 0.5 / 8192 + 1e-6
  assert symbols == 8
  assert with_exact_scores(tokenizer.exact_model) == tokenizer.exact_model


def test_models_of_another_type_keep_their_scores(tmp_path: Path, corpus_file: str) -> None:
  sentencepiece.SentencePieceTrainer.train(
    input=corpus_file, model_prefix=str(tmp_path / "m"), vocab_size=100, model_type="bpe", minloglevel=2
  )
  model = (tmp_path / "m.model").read_bytes()
  assert with_exact_scores(model) == model
