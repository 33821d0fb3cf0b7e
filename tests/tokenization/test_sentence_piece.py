"""SentencePiece models: BPE models, whose words are encoded alone and kept, and every option of the trainer; the comma
rule; and scores that are rounded to multiples of 1/8192, which can be added exactly, so a word has the same ids in any
text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.tokenization import vocabulary as module
from albert.tokenization.sentence_piece import with_exact_scores
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import UNK_ID
from tests.conftest import PieceType, SaveModel, english_like_documents, train_small_model
from tests.thorough import thorough_except
from tests.tokenization.reference import TEXTS, random_texts, reference_encode, sentence_piece


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  """A BPE model with byte fallback, trained on lower-cased sentences with numbers and a few Han characters."""
  lines = [line.lower() for document in english_like_documents(60) for line in document]
  lines += ["中国 in 1999, 9,9,9 ( 2,500 )."] * 9
  path = tmp_path_factory.mktemp("bytes") / "bpe.model"
  settings = {"vocab_size": 1000, "byte_fallback": True, "character_coverage": 1}
  return Tokenizer(train_small_model(path, lines, model_type="bpe", **settings))


def encode_with_the_library(tokenizer: Tokenizer, text: str) -> list[int]:
  """Encodes each part of a text with the library alone, and applies a slow comma rule."""
  vocabulary = sentence_piece(tokenizer)
  parts = vocabulary.split_into_parts(tokenizer.normalize(text))
  return [i for part in parts for i in reference_encode(vocabulary.processor, part)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.sampled_from([*TEXTS, "1999,", "the captain", "▁ a▁", "¨¨"]))))
def test_ids_equal_those_of_the_library(byte_tokenizer: Tokenizer, texts: list[str]) -> None:
  assert sentence_piece(byte_tokenizer).max_part_chars == 1
  assert byte_tokenizer.encode_batch(texts) == [encode_with_the_library(byte_tokenizer, text) for text in texts]


def test_the_number_and_the_length_of_kept_words_are_bounded(
  byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
  tokenizer = Tokenizer.from_config(byte_tokenizer.config)  # with no words yet
  kept = sentence_piece(tokenizer)._ids_of_part
  monkeypatch.setattr(module, "MAX_CACHED_WORDS", 3)
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


# Options of SentencePiece's trainer that change how text is encoded, or which pieces there are.
OPTIONS: dict[str, dict[str, Any]] = {
  "none": {},
  "no prefix": {"add_dummy_prefix": False},
  "extra spaces": {"remove_extra_whitespaces": False},
  "pieces of spaces": {"remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True},
  "no prefix, extra spaces": {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
  "pieces of several words": {"split_by_whitespace": False},
  "no normalization": {"normalization_rule_name": "identity"},
  "lower case": {"normalization_rule_name": "nfkc_cf"},
  "bytes": {"byte_fallback": True},
  "pieces of several scripts": {"split_by_unicode_script": False, "split_by_number": False},
  "symbols": {"user_defined_symbols": ["<url>", "ab", "9,", "the", "new york", " x"]},
  "symbols that are normalized": {"user_defined_symbols": ["A", "\u200b", "각"], "normalization_rule_name": "nfkc_cf"},
  "symbols with spaces": {"user_defined_symbols": ["new▁york", "captain▁", "▁9"]},
  "a space as a symbol": {"user_defined_symbols": ["▁", "ab"]},
}


def model_with_options(directory: Path, option: str, model_type: str) -> str:
  """Trains a small model with some of OPTIONS on similar sentences."""
  lines = [line.lower() for document in english_like_documents(20) for line in document]
  lines += ["中国 in 1999, 9,9,9 ( 2,500 ).", "new york is a  city\tin new york"] * 9
  size: dict[str, Any] = {"vocab_size": 450} if model_type == "bpe" else {"hard_vocab_limit": False}
  settings = {"character_coverage": 1, **size, **OPTIONS[option]}
  return train_small_model(directory / f"{option}.model", lines, model_type=model_type, **settings)


_ODD_WORDS = (
  "the captain sold a small garden new york <url> <url>x x ab 9, 1999, 2,500 中国 ¨ ¨¨ \u200b \u200ba ▁ a▁ ▁9 \x01 . - "
  "(a) cap .¨ naïve 東京 각 A"
)


def texts_with_odd_spaces(count: int) -> list[str]:
  """Returns texts of words and of characters that SentencePiece drops, or writes as spaces."""
  rng = random.Random(8)
  words = _ODD_WORDS.split(" ")
  texts = [" ".join(rng.choices(words, k=rng.randrange(1, 80))) for _ in range(count // 2)]
  return texts + ["".join(rng.choices([*words, " "], k=rng.randrange(1, 30))) for _ in range(count - count // 2)]


@pytest.mark.parametrize("model_type", ["unigram", "bpe", "char"])
@pytest.mark.parametrize("option", thorough_except(["no prefix", "extra spaces", "symbols with spaces"], OPTIONS))
def test_ids_equal_those_of_sentencepiece_with_every_option(option: str, model_type: str, tmp_path: Path) -> None:
  path = model_with_options(tmp_path, option, model_type)
  library = sentencepiece.SentencePieceProcessor(model_file=path)
  tokenizer = Tokenizer(path)
  texts = [*TEXTS, *random_texts(200, seed=43), *texts_with_odd_spaces(400)]
  texts.remove("9, 19, 99, 1999, 9,9,9,9, x9, ,9 ,, 9,, 7,")  # has segmentations of equal rounded scores
  expected = [reference_encode(library, tokenizer.normalize(text)) for text in texts]
  assert tokenizer.encode_batch(texts) == expected
  assert [tokenizer.encode_with_offsets(text).ids.tolist() for text in texts] == expected


@pytest.mark.parametrize(
  ("options", "name"),
  [
    ({"treat_whitespace_as_suffix": True}, "--treat_whitespace_as_suffix=true"),
    ({"normalization_rule_tsv": "rules.tsv"}, "--normalization_rule_tsv"),
    ({}, "--escape_whitespaces=false"),
  ],
)
def test_options_that_hide_where_words_begin_are_refused(options: dict[str, Any], name: str, tmp_path: Path) -> None:
  if "normalization_rule_tsv" in options:
    (tmp_path / "rules.tsv").write_text("2E 20\t2E\n")
    options = {"normalization_rule_tsv": str(tmp_path / "rules.tsv")}
  path = tmp_path / "spiece.model"
  train_small_model(path, ["a small dog sold it"] * 9, hard_vocab_limit=False, **options)
  if not options:  # spm_train has no flag for it: a second normalizer_spec (field 3) in the file sets its field 5
    path.write_bytes(path.read_bytes() + b"\x1a\x02\x28\x00")
  with pytest.raises(UserError, match=rf"{path}: trained with {name}, so words cannot be told apart: train the"):
    Tokenizer(path)


def test_pieces_that_end_in_a_digit_and_a_comma_are_split(save_model: SaveModel) -> None:
  scores = [("▁", -1.0), ("9", -3.0), ("8", -3.0), (",", -3.0), ("▁9", -3.5), ("▁99,", -1.0), ("9,", -4.0),
            ("8,", -0.5), ("x", -2.0), ("▁99", -4.0), ("x,", -1.0)]  # fmt: skip
  tokenizer = Tokenizer(save_model(scores))
  piece_ids = {piece: tokenizer.pieces.index(piece) for piece, _ in scores}
  # "▁99," -> "▁99" ","
  assert tokenizer.encode("99,") == [piece_ids["▁99"], piece_ids[","]]
  # "8," after "x" has no ▁, so the ▁ that encoding "8" again adds is removed.
  assert tokenizer.encode("x8,") == [piece_ids["▁"], piece_ids["x"], piece_ids["8"], piece_ids[","]]
  # "x," has no digit and is not split.
  assert tokenizer.encode("x,") == [piece_ids["▁"], piece_ids["x,"]]
  assert set(sentence_piece(tokenizer).comma_rule.splits) == {piece_ids["▁99,"], piece_ids["9,"], piece_ids["8,"]}
  # "9," has no ▁. Encoding "9" again gives "▁9"; without its ▁, this is the piece "9".
  assert sentence_piece(tokenizer).comma_rule.splits[piece_ids["9,"]] == [piece_ids["9"], piece_ids[","]]


def test_a_number_that_is_no_piece_without_its_comma_is_unknown(save_model: SaveModel) -> None:
  # Encoding "97" again gives "▁97". Without ▁ this is "97", which is not a piece: <unk>, as in the original.
  tokenizer = Tokenizer(save_model([("▁", -1.0), ("9", -9.0), ("7", -9.0), (",", -9.0), ("▁97", -1.0), ("97,", -1.0)]))
  word_start, comma, number_with_comma = (tokenizer.pieces.index(piece) for piece in ("▁", ",", "97,"))
  assert sentence_piece(tokenizer).comma_rule.splits == {number_with_comma: [UNK_ID, comma]}
  assert tokenizer.encode("97,") == [word_start, UNK_ID, comma]


def test_an_unknown_number_and_comma_are_two_unknown_tokens(save_model: SaveModel) -> None:
  # Neither "," nor "7" are pieces, so SentencePiece gives one <unk> for "7,". The rule splits it.
  model_file = save_model([("▁", -1.0), ("a", -1.0)])
  processor = sentencepiece.SentencePieceProcessor(model_file=model_file)
  tokenizer = Tokenizer(model_file)
  word_start, a = tokenizer.pieces.index("▁"), tokenizer.pieces.index("a")
  assert tokenizer.encode("a7,") == [word_start, a, UNK_ID, UNK_ID]
  assert tokenizer.encode("a,7") == [word_start, a, UNK_ID]
  texts = ["a7,", "7,", "a,7", "7,a 77, a7,,", "z, 7", "", *random_texts(300, seed=2)]
  assert tokenizer.encode_batch(texts) == [reference_encode(processor, tokenizer.normalize(text)) for text in texts]


@pytest.fixture(scope="module")
def tokenizer(spm_model: str) -> Tokenizer:
  return Tokenizer(spm_model)


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
