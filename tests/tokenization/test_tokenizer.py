"""Compares Tokenizer with ids recorded from the original ALBERT, if they are available, and with a slow reference.

ALBERT_GOLDEN_DIR (holding tokenization.json) and ALBERT_DATA_DIR (holding vocab/30k-clean.model) turn on the
comparison with what the original code gave.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import pickle
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.normalization import decompose
from albert.tokenization.offsets import OffsetTokenizer
from albert.tokenization.pieces import starts_word
from albert.tokenization.tokenizer import (
  CLS_ID,
  MASK_ID,
  PAD_ID,
  SEP_ID,
  UNK_ID,
  Tokenizer,
  load_tokenizer,
)
from tests.conftest import SaveModel
from tests.tokenization.reference import TEXTS, random_texts, reference_encode


@pytest.fixture(scope="module")
def processor(spm_model: str) -> sentencepiece.SentencePieceProcessor:
  return sentencepiece.SentencePieceProcessor(model_file=spm_model)


@pytest.fixture(scope="module")
def tokenizer(spm_model: str) -> Tokenizer:
  return Tokenizer(spm_model)


@pytest.mark.skipif(
  not {"ALBERT_GOLDEN_DIR", "ALBERT_DATA_DIR"} <= set(os.environ), reason="ALBERT_{GOLDEN,DATA}_DIR are not set"
)
def test_original_golden() -> None:
  model_file = str(Path(os.environ["ALBERT_DATA_DIR"], "vocab", "30k-clean.model"))
  tokenizers = {lower: Tokenizer(model_file, lower) for lower in (True, False)}
  cases = json.loads(Path(os.environ["ALBERT_GOLDEN_DIR"], "tokenization.json").read_text(encoding="utf-8"))
  assert len(cases) > 60
  for case in cases:
    tokenizer = tokenizers[case["do_lower_case"]]
    assert tokenizer.normalize(case["text"]) == case["normalized"]
    assert tokenizer.encode(case["text"]) == case["ids"], case["text"]


@pytest.mark.parametrize("do_lower_case", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_encode_equals_reference(
  spm_model: str, processor: sentencepiece.SentencePieceProcessor, do_lower_case: bool
) -> None:
  tokenizer = Tokenizer(spm_model, do_lower_case)
  texts = TEXTS + random_texts(2000, seed=1)
  expected = [reference_encode(processor, tokenizer.normalize(text)) for text in texts]
  assert tokenizer.encode_batch(texts) == expected
  assert [tokenizer.encode(text) for text in texts] == expected
  ids, offsets = tokenizer.encode_batch_flat(texts)
  assert (ids.dtype, offsets.dtype) == (np.int32, np.int64)
  assert [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == expected


@functools.cache
def load_both(model_file: str, do_lower_case: bool) -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
  tokenizer = Tokenizer(model_file, do_lower_case)
  return tokenizer, sentencepiece.SentencePieceProcessor(model_proto=tokenizer.exact_model)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), st.booleans())
@example("x1,9, 1999,", True)
def test_encode_of_any_text_equals_sentencepiece(spm_model: str, text: str, do_lower_case: bool) -> None:
  """Encoding in parts gives the ids that SentencePiece gives for the whole text, with exact scores."""
  tokenizer, processor = load_both(spm_model, do_lower_case)
  assert tokenizer.encode(text) == reference_encode(processor, tokenizer.normalize(text))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_ids_of_known_letters_are_the_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
  """For any text of letters in the vocabulary, decode(encode(text)) is the normalized text."""
  known = sorted({piece for piece in tokenizer.pieces[CLS_ID + 3 :] if len(piece) == 1 and piece != "▁"})
  assert {"a", "y", "9", ","} <= set(known)
  text = data.draw(st.text(st.sampled_from([*known, " "]), max_size=60))
  ids = tokenizer.encode(text)
  assert UNK_ID not in ids
  assert tokenizer.decode(ids) == tokenizer.normalize(text) == " ".join(text.split())


def test_encode_of_empty_texts(tokenizer: Tokenizer) -> None:
  assert tokenizer.encode("") == tokenizer.encode(" \u3000") == []
  assert tokenizer.encode_batch([]) == []
  ids, offsets = tokenizer.encode_batch_flat([])
  assert (ids.shape, offsets.tolist()) == ((0,), [0])


def test_pieces_of_several_words(save_model: SaveModel) -> None:
  tokenizer = Tokenizer(save_model([("▁", -1.0), ("a", -1.0), ("b", -1.0), ("▁a▁b", -1.0), (",", -9.0)]))
  assert not tokenizer.words_are_independent
  assert tokenizer.encode("a  b a") == [8, 5, 6]


def test_long_texts_are_encoded_as_their_words(tokenizer: Tokenizer) -> None:
  texts = [" ".join(random_texts(20, seed=seed)) for seed in range(20)] + ["captain" * 300 + " 1999, " * 300]
  for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
    words = tokenizer.normalize(text).split(" ")
    assert ids == list(itertools.chain.from_iterable(map(tokenizer.encode, words)))


def test_control_symbols_never_come_from_text(spm_model: str, save_model: SaveModel) -> None:
  text = "[CLS] [SEP] [MASK] <pad> x[MASK]y [CLS]9, ▁[CLS]"
  # The second vocabulary has none of these characters, so each symbol becomes one <unk>.
  for model_file in (spm_model, save_model([("▁", -1.0), ("x", -1.0), ("9", -1.0)])):
    for do_lower_case in (True, False):
      ids = Tokenizer(model_file, do_lower_case).encode(text)
      assert ids
      assert {PAD_ID, CLS_ID, SEP_ID, MASK_ID}.isdisjoint(ids)


@settings(max_examples=100, deadline=None)
@given(
  st.lists(st.sampled_from(["captain", "Paris", "the", "1999", "2,500", "home.", "o'clock", "rain;"]), max_size=20)
)
def test_decode_is_the_inverse(tokenizer: Tokenizer, words: list[str]) -> None:
  ids = tokenizer.encode(" ".join(words))
  assert UNK_ID not in ids
  assert tokenizer.decode(ids) == " ".join(words).lower()


def test_decode_takes_arrays_and_drops_control_symbols(tokenizer: Tokenizer) -> None:
  ids = np.array([CLS_ID, *tokenizer.encode("the captain"), SEP_ID], np.int32)
  assert tokenizer.decode(ids.tolist()) == tokenizer.decode(ids) == "the captain"
  with pytest.raises(UserError, match=f"id {tokenizer.vocab_size} is outside the {tokenizer.vocab_size} pieces"):
    tokenizer.decode([tokenizer.vocab_size])


def test_word_starts_and_special_pieces(save_model: SaveModel) -> None:
  pieces = ["▁the", "ing", "'", "(", "'s", "9", "中", "か", "ก", "é", "▁", "€", "🙂"]
  model_file = save_model([(piece, -1.0) for piece in [*pieces, "old"]], {"old": 5})
  tokenizer = Tokenizer(model_file)
  starts = dict(zip(tokenizer.pieces, tokenizer.word_starts.tolist(), strict=True))
  assert [piece for piece in pieces if not starts[piece]] == ["ing", "9", "é"]
  assert tokenizer.is_special.tolist() == [True] * 5 + [False] * len(pieces) + [True]
  assert tokenizer.word_starts.dtype == tokenizer.is_special.dtype == bool
  assert (tokenizer.piece(5), tokenizer.vocab_size) == ("▁the", 19)


def test_byte_pieces_start_a_word_only_where_every_character_that_they_begin_does(save_model: SaveModel) -> None:
  byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
  ordinary = ["<0x2", "▁the", "ing", "中"]
  model_file = save_model([(piece, -1.0) for piece in [*byte_pieces, *ordinary]], dict.fromkeys(byte_pieces, 6))
  tokenizer = Tokenizer(model_file)
  starts = tokenizer.word_starts[5:261]
  assert tokenizer.word_starts[261:].tolist() == [True, True, False, True]
  # Whether each character that normalization keeps would start a word if it were an ordinary piece.
  pieces: dict[int, list[str]] = {byte: [] for byte in range(256)}
  for code_point in range(0xA000):
    if unicodedata.category(chr(code_point)) not in ("Cs", "Co", "Cn") and decompose(code_point) == chr(code_point):
      pieces[chr(code_point).encode()[0]].append(chr(code_point))
  for byte in [*range(0x80), *range(0xE3, 0xEA)]:
    by_character = {starts_word(character) for character in pieces[byte]}
    assert by_character == {bool(starts[byte])}, hex(byte)
  assert not starts[0x80:0xE3].any()
  assert not starts[0xEA:].any()


def test_pickle_and_hash(tmp_path: Path, spm_model: str) -> None:
  tokenizer = Tokenizer(spm_model, do_lower_case=False, convert_quotes=True)
  copy = pickle.loads(pickle.dumps(tokenizer))
  assert copy.config == TokenizerConfig(spm_model, do_lower_case=False, convert_quotes=True)
  assert copy.encode("The ``captain''") == tokenizer.encode("The ``captain''")
  assert copy.sha256 == hashlib.sha256(Path(spm_model).read_bytes()).hexdigest()


def test_tokenizers_are_cached_by_config_class_and_file(save_model: SaveModel) -> None:
  config = TokenizerConfig(save_model([("▁", -1.0), ("a", -1.0), (",", -1.0)]))
  tokenizer = load_tokenizer(config)
  assert load_tokenizer(TokenizerConfig(config.model_file)) is tokenizer
  assert load_tokenizer(TokenizerConfig(config.model_file, do_lower_case=False)) is not tokenizer
  assert isinstance(load_tokenizer(config, OffsetTokenizer), OffsetTokenizer)
  other = save_model([("▁", -1.0), ("b", -1.0), ("bb", -1.0), (",", -1.0)])
  Path(config.model_file).write_bytes(Path(other).read_bytes())
  assert load_tokenizer(config).pieces[-3:] == ["b", "bb", ","]


def test_a_damaged_vocabulary_is_refused(spm_model: str, tmp_path: Path) -> None:
  """SentencePiece itself accepts pieces that are not UTF-8."""
  model = Path(spm_model).read_bytes()
  assert b"\xe2\x96\x81the" in model
  path = tmp_path / "damaged.model"
  path.write_bytes(model.replace(b"\xe2\x96\x81the", b"\xe2\x96\x01the", 1))
  with pytest.raises(UserError, match=r"damaged.model: not a SentencePiece model: give the \.model file"):
    Tokenizer(str(path))


@pytest.mark.parametrize(
  ("contents", "message"),
  [(None, "cannot read it"), (b"", "not a SentencePiece model"), (b"plain text\n" * 9, "not a SentencePiece model")],
)
def test_bad_model_file(tmp_path: Path, contents: bytes | None, message: str) -> None:
  path = tmp_path / "x.model"
  if contents is not None:
    path.write_bytes(contents)
  with pytest.raises(UserError, match=f"x.model.*{message}"):
    Tokenizer(str(path))


@pytest.mark.parametrize("kinds", [{"[CLS]": 4}, {"<pad>": 1}])
def test_control_symbols_of_the_wrong_kind(save_model: SaveModel, kinds: dict[str, Any]) -> None:
  with pytest.raises(UserError, match=r"not the control symbol.*train_vocab\.py"):
    Tokenizer(save_model([("x", -1.0)], kinds))


def test_model_without_control_symbols(tmp_path: Path, corpus_file: str) -> None:
  sentencepiece.SentencePieceTrainer.train(
    input=corpus_file, model_prefix=str(tmp_path / "m"), vocab_size=100, minloglevel=2
  )
  with pytest.raises(UserError, match=r"id 0 is '<unk>', not the control symbol '<pad>'"):
    Tokenizer(str(tmp_path / "m.model"))
