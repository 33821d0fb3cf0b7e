"""SentencePiece models: BPE models, whose words are encoded alone and kept, and every option of the trainer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.tokenization.kinds import sentence_piece as module
from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import english_like_documents, train_small_model
from tests.thorough import thorough_except
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
  assert vocabulary.words_are_independent == (name not in ("no normalization", "pieces of several words"))
  assert vocabulary.comma_rule.ids_decide == (name != "no comma")
  texts = [*TEXTS, *random_texts(2000, seed=41), *texts_of_all_scripts(10_000, seed=42)]
  expected = [encode_with_the_library(tokenizer, text) for text in texts]
  assert tokenizer.encode_batch(texts) == expected
  assert tokenizer.encode_batch(texts[::-1]) == expected[::-1]  # now with the ids of most words kept
  # The whole text at once.
  assert [reference_encode(vocabulary.processor, tokenizer.normalize(text)) for text in texts] == expected


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
  """Trains a small model with some of OPTIONS on the text of `make_tokenizer`."""
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


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
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
  with pytest.raises(UserError, match=rf"{path}: trained with {name}: .* train the vocabulary without this option"):
    Tokenizer(path)
