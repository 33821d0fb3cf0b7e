"""Scores that are rounded to multiples of 1/8192 can be added exactly, so a word has the same ids in any text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sentencepiece

from albert.tokenization.exact_scores import with_exact_scores
from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import PieceType, SaveModel
from tests.tokenization.reference import random_texts, sentence_piece


@pytest.fixture(scope="module")
def tokenizer(spm_model: str) -> Tokenizer:
  return Tokenizer(spm_model)


def test_the_ids_of_a_text_are_those_of_its_words(tokenizer: Tokenizer) -> None:
  rng = random.Random(3)
  for text in random_texts(200, seed=3):
    cut = rng.randrange(len(text) + 1)
    assert tokenizer.encode(f"{text[:cut]} {text[cut:]}") == tokenizer.encode(text[:cut]) + tokenizer.encode(text[cut:])


def test_the_choice_among_equally_good_segmentations_does_not_depend_on_the_text_before(save_model: SaveModel) -> None:
  # "a" "aa" "aa", "aa" "a" "aa" and "aa" "aa" "a" have the same exact score. With scores in float32, rounding would
  # choose among them.
  tokenizer = Tokenizer(save_model([("▁", -0.7), ("a", -1.1), ("aa", -1.3), ("b", -2.7), (",", -9.0)]))
  a, aa = tokenizer.pieces.index("a"), tokenizer.pieces.index("aa")
  for count in range(1, 60):
    assert tokenizer.encode("b" * count + "aaaaa")[-3:] == [a, aa, aa]


def test_exact_scores_are_the_nearest_multiples_of_1_8192(spm_model: str, tokenizer: Tokenizer) -> None:
  original = sentencepiece.SentencePieceProcessor(model_file=spm_model)
  exact = sentencepiece.SentencePieceProcessor(model_proto=sentence_piece(tokenizer).exact_model)
  assert [exact.id_to_piece(i) for i in range(exact.get_piece_size())] == tokenizer.pieces
  symbols = list('()"-.–£€')  # the user-defined symbols of tests/conftest.py
  assert set(symbols) < set(tokenizer.pieces)
  for i, piece in enumerate(tokenizer.pieces):
    assert (exact.get_score(i) * 8192).is_integer()
    # SentencePiece ignores the score of a user-defined symbol, and computes one from its number of bytes.
    expected = 0.1 * (len(piece.encode()) - 1) if piece in symbols else original.get_score(i)
    assert abs(exact.get_score(i) - expected) <= 0.5 / 8192 + 1e-6
  assert with_exact_scores(sentence_piece(tokenizer).exact_model) == sentence_piece(tokenizer).exact_model


def test_a_user_defined_symbol_has_the_score_that_sentencepiece_gives_it(save_model: SaveModel) -> None:
  # With the score of this other piece, "x" "bb" is the better segmentation of "xbb" exactly if "xb" scores less.
  for symbol in ("xb", "xxxb", "жb", "中国b"):
    bonus = 0.1 * (len(symbol.encode()) - 1)
    for score in (bonus - 0.01, bonus + 0.01):
      pieces = [("▁", -1.0), (",", -9.0), ("b", 0.0), (symbol[:-1], 0.0), ("bb", score), (symbol, 0.0)]
      path = save_model(pieces, {symbol: PieceType.USER_DEFINED})
      library = sentencepiece.SentencePieceProcessor(model_file=path)
      ids = Tokenizer(path).encode(f"{symbol}b")
      assert ids == library.encode(f"{symbol}b")
      assert (library.piece_to_id("bb") in ids) == (score > bonus)


def test_models_of_another_type_keep_their_scores(tmp_path: Path, corpus_file: str) -> None:
  sentencepiece.SentencePieceTrainer.train(
    input=corpus_file, model_prefix=str(tmp_path / "m"), vocab_size=100, model_type="bpe", minloglevel=2
  )
  model = (tmp_path / "m.model").read_bytes()
  assert with_exact_scores(model) == model
