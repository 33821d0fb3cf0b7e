"""SentencePieceGraphTokenizer, which runs in the TensorFlow graph, gives the normalized texts and ids of Tokenizer."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.sentence_piece_graph import SentencePieceGraphTokenizer, SentencePieceOffsetGraphTokenizer
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import TokenizerConfig
from tests.conftest import SaveModel, english_like_documents
from tests.thorough import thorough_except
from tests.tokenization.reference import TEXTS, find_differences, random_texts
from tests.tokenization.test_sentence_piece import OPTIONS, model_with_options, texts_with_odd_spaces


def assert_equal_ids(model_file: str, texts: list[str], **switches: bool) -> None:
  assert find_differences(model_file, texts, with_offsets=False, **switches)[:3] == []


def code_point_texts() -> list[str]:
  """Returns texts in which every code point stands between letters, Σ, digits and commas.

  There are eight code points in each text. Every third code point of the BMP is also a text of its own.
  """
  # All but unassigned ones (planes 4 to 13, and most of 3 and 14) and private ones (planes 15 and 16).
  code_points = (*range(0xD800), *range(0xE000, 0x31400), *range(0xE0000, 0xE0200))
  # Without the 66 noncharacters of Unicode: U+FDD0 to U+FDEF, and the last two code points of each plane.
  characters = [chr(c) for c in code_points if c & 0xFFFE != 0xFFFE and not 0xFDD0 <= c <= 0xFDEF]
  contexts = [f"A{c}Σ {c}19{c}9,{c} Σ{c}b" for c in characters]
  return ["".join(contexts[i : i + 8]) for i in range(0, len(contexts), 8)] + characters[:0x10000:3]


def repeated_texts(count: int) -> list[str]:
  """Returns long words of few different letters. Most have many segmentations with equal scores."""
  rng = random.Random(4)
  alphabets = ["ab", "la", "19", "aei", "co", "!?.", "0123456789,", "e", "-.", "abcdefghijklmnopqrstuvwxyz"]
  return ["".join(rng.choices(rng.choice(alphabets), k=rng.randrange(1, 200))) for _ in range(count)]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_same_ids_for_sentences_and_random_texts(model_file: str, do_lower_case: bool) -> None:
  documents = english_like_documents(200, seed=9)
  sentences = list(itertools.chain.from_iterable(documents))
  passages = [" ".join(document * 10) for document in documents[:50]]
  assert len(sentences) > 1000
  assert_equal_ids(model_file, TEXTS + sentences + passages + random_texts(4000, seed=5), do_lower_case=do_lower_case)


@pytest.mark.thorough
def test_same_ids_for_every_code_point(model_file: str) -> None:
  assert_equal_ids(model_file, code_point_texts())


def test_same_ids_for_repeated_letters(model_file: str) -> None:
  assert_equal_ids(model_file, repeated_texts(4000))


@pytest.mark.parametrize("do_lower_case", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_same_ids_if_accents_are_kept(model_file: str, do_lower_case: bool) -> None:
  texts = [*TEXTS, "Schön İΣ ΑΣİ", *random_texts(1000, seed=5), *code_point_texts()[::9]]
  assert_equal_ids(model_file, texts, do_lower_case=do_lower_case, keep_accents=True)


def test_same_ids_with_converted_quotes(spm_model: str) -> None:
  assert_equal_ids(spm_model, ["``Hello,'' ''bye'' ``` ''''' `", *random_texts(50, seed=6)], convert_quotes=True)


def test_invalid_utf8_is_replaced_as_python_does(spm_model: str) -> None:
  rng = random.Random(7)
  some_bytes = b"A \x80\xbf\xc0\xc3\xe2\x82\xac\xed\xa0\xf0\x9f\x98\x80\xf4\x90\xff\xe0\x9f"
  encoded = [bytes(rng.choices(some_bytes, k=rng.randrange(1, 12))) for _ in range(3000)]
  texts = [text.decode("utf-8", errors="replace") for text in encoded]
  graph, python = SentencePieceOffsetGraphTokenizer(TokenizerConfig(spm_model)), Tokenizer(spm_model)
  offsets = zip(*(values.to_list() for values in graph.tokenize_with_offsets(tf.constant(encoded))), strict=True)
  for text, found in zip(texts, offsets, strict=True):
    assert [array.tolist() for array in python.encode_with_offsets(text)] == list(found)
  normalized = graph.normalize(tf.constant(encoded)).to_list()
  assert ["".join(map(chr, text)) for text in normalized] == list(map(python.normalize, texts))
  assert graph.tokenize(tf.constant(encoded)).to_list() == python.encode_batch(texts)


def test_empty_texts_and_an_empty_batch_have_no_ids(spm_model: str) -> None:
  graph = SentencePieceOffsetGraphTokenizer(TokenizerConfig(spm_model))
  assert [values.to_list() for values in graph.tokenize_with_offsets(tf.constant([], tf.string))] == [[], [], []]
  assert graph.tokenize(tf.constant(["", " ", "\u3000\u200b"])).to_list() == [[], [], []]
  empty = graph.tokenize(tf.zeros([0], tf.string))
  assert (empty.to_list(), empty.dtype) == ([], tf.int32)


def test_same_ids_if_a_piece_has_several_words(save_model: SaveModel) -> None:
  pieces = [("▁", -1.0), ("a", -1.0), ("b", -1.0), ("▁a▁b", -1.0), (",", -9.0), ("9", -1.0), ("9,", -1.0)]
  assert_equal_ids(save_model(pieces), ["a  b a", "a b", "9,9,", "¨a¨b"])


def test_a_vocabulary_without_comma_is_refused(save_model: SaveModel) -> None:
  with pytest.raises(UserError, match=r'"," is not a piece of this vocabulary'):
    SentencePieceGraphTokenizer(TokenizerConfig(save_model([("▁", -1.0), ("a", -1.0)])))


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("option", thorough_except(["no prefix", "extra spaces", "no normalization"], OPTIONS))
def test_ids_equal_those_of_python_with_each_option(option: str, model_type: str, tmp_path: Path) -> None:
  model = model_with_options(tmp_path, option, model_type)
  assert_equal_ids(model, [*TEXTS, *random_texts(300, seed=44), *texts_with_odd_spaces(300)])
