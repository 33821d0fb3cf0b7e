"""Tokenizer gives the ids of a slow tokenizer, and those recorded from the original ALBERT.

The recorded ids are compared if ALBERT_GOLDEN_DIR, which holds tokenization.json, and ALBERT_DATA_DIR, which holds
vocab/30k-clean.model, are set.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.tokenization.normalization import decompose
from albert.tokenization.recorded_settings import tokenizer_config
from albert.tokenization.tokenizer import Tokenizer, encode_with_masks, load_tokenizer, masked_batch
from albert.tokenization.vocabulary import CLS_ID, MASK_ID, PAD_ID, SEP_ID, UNK_ID, TokenizerConfig, starts_word
from tests.conftest import PieceType, SaveModel
from tests.tokenization.reference import TEXTS, random_texts, reference_encode, sentence_piece
from tests.tokenization.wordpiece_reference import write_vocabulary


@pytest.fixture(scope="module")
def processor(spm_model: str) -> sentencepiece.SentencePieceProcessor:
  return sentencepiece.SentencePieceProcessor(model_file=spm_model)


@pytest.fixture(scope="module")
def tokenizer(spm_model: str) -> Tokenizer:
  return Tokenizer(spm_model)


@pytest.mark.skipif(
  not {"ALBERT_GOLDEN_DIR", "ALBERT_DATA_DIR"} <= set(os.environ), reason="ALBERT_{GOLDEN,DATA}_DIR are not set"
)
def test_ids_equal_those_recorded_from_the_original() -> None:
  model_file = str(Path(os.environ["ALBERT_DATA_DIR"], "vocab", "30k-clean.model"))
  tokenizers = {do_lower_case: Tokenizer(model_file, do_lower_case) for do_lower_case in (True, False)}
  recorded_texts = json.loads(Path(os.environ["ALBERT_GOLDEN_DIR"], "tokenization.json").read_text(encoding="utf-8"))
  assert len(recorded_texts) > 60
  for recorded in recorded_texts:
    tokenizer = tokenizers[recorded["do_lower_case"]]
    assert tokenizer.normalize(recorded["text"]) == recorded["normalized"]
    assert tokenizer.encode(recorded["text"]) == recorded["ids"], recorded["text"]


@pytest.mark.parametrize("do_lower_case", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_ids_equal_those_of_the_slow_tokenizer(
  spm_model: str, processor: sentencepiece.SentencePieceProcessor, do_lower_case: bool
) -> None:
  tokenizer = Tokenizer(spm_model, do_lower_case)
  texts = TEXTS + random_texts(2000, seed=1)
  expected = [reference_encode(processor, tokenizer.normalize(text)) for text in texts]
  assert tokenizer.encode_batch(texts) == expected
  assert [tokenizer.encode(text) for text in texts] == expected
  ids, offsets = tokenizer.encode_batch_flat(texts)
  assert (ids.dtype, offsets.dtype) == (np.int32, np.int64)
  assert [ids[start:end].tolist() for start, end in itertools.pairwise(offsets)] == expected


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_decoding_gives_the_normalized_text_for_characters_of_the_vocabulary(
  tokenizer: Tokenizer, data: st.DataObject
) -> None:
  characters = sorted({piece for piece in tokenizer.pieces[MASK_ID + 1 :] if len(piece) == 1 and piece != "▁"})
  assert {"a", "y", "9", ","} <= set(characters)
  text = data.draw(st.text(st.sampled_from([*characters, " "]), max_size=60))
  ids = tokenizer.encode(text)
  assert UNK_ID not in ids
  assert tokenizer.decode(ids) == tokenizer.normalize(text) == " ".join(text.split())


def test_empty_texts_and_lists_have_no_ids(tokenizer: Tokenizer) -> None:
  assert tokenizer.encode("") == tokenizer.encode(" \u3000") == []
  assert tokenizer.encode_batch([]) == []
  ids, offsets = tokenizer.encode_batch_flat([])
  assert (ids.shape, offsets.tolist()) == ((0,), [0])


def test_a_piece_may_have_several_words(save_model: SaveModel) -> None:
  tokenizer = Tokenizer(save_model([("▁", -1.0), ("a", -1.0), ("b", -1.0), ("▁a▁b", -1.0), (",", -9.0)]))
  assert not sentence_piece(tokenizer).words_are_independent
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


def test_decode_takes_arrays_and_drops_control_symbols(tokenizer: Tokenizer) -> None:
  ids = np.array([CLS_ID, *tokenizer.encode("the captain"), SEP_ID], np.int32)
  assert tokenizer.decode(ids.tolist()) == tokenizer.decode(ids) == "the captain"
  with pytest.raises(UserError, match="give the ids of one text"):
    tokenizer.decode(np.array([[5, 6]]))
  with pytest.raises(UserError, match=r"texts\[0\] is \['a'\], of type list"):
    tokenizer.encode(["a"])  # type: ignore[arg-type]
  with pytest.raises(UserError, match=f"id {tokenizer.vocab_size} is outside the {tokenizer.vocab_size} pieces"):
    tokenizer.decode([tokenizer.vocab_size])


def test_pieces_that_start_a_word_and_special_pieces_are_known(save_model: SaveModel) -> None:
  pieces = ["▁the", "ing", "'", "(", "'s", "9", "中", "か", "ก", "é", "▁", "€", "🙂"]
  model_file = save_model([(piece, -1.0) for piece in [*pieces, "old"]], {"old": PieceType.UNUSED})
  tokenizer = Tokenizer(model_file)
  starts = dict(zip(tokenizer.pieces, tokenizer.word_starts.tolist(), strict=True))
  assert [piece for piece in pieces if not starts[piece]] == ["ing", "9", "é"]
  assert tokenizer.is_special.tolist() == [True] * 5 + [False] * len(pieces) + [True]
  assert tokenizer.word_starts.dtype == tokenizer.is_special.dtype == bool
  assert (tokenizer.piece(5), tokenizer.vocab_size) == ("▁the", 19)


def test_byte_pieces_start_a_word_only_where_every_character_that_they_begin_does(save_model: SaveModel) -> None:
  byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
  ordinary = ["<0x2", "▁the", "ing", "中"]
  model_file = save_model(
    [(piece, -1.0) for piece in [*byte_pieces, *ordinary]], dict.fromkeys(byte_pieces, PieceType.BYTE)
  )
  tokenizer = Tokenizer(model_file)
  starts = tokenizer.word_starts[5 : 5 + 256]  # of the byte pieces, which follow the 5 special ones
  assert tokenizer.word_starts[5 + 256 :].tolist() == [True, True, False, True]
  # The characters that normalization keeps, by the first byte of their UTF-8.
  characters: dict[int, list[str]] = {byte: [] for byte in range(256)}
  for character in map(chr, range(0xA000)):
    if unicodedata.category(character) not in ("Cs", "Co", "Cn") and decompose(ord(character)) == character:
      characters[character.encode()[0]].append(character)
  for byte in [*range(0x80), *range(0xE3, 0xEA)]:
    assert {starts_word(character) for character in characters[byte]} == {bool(starts[byte])}, hex(byte)
  assert not starts[0x80:0xE3].any()
  assert not starts[0xEA:].any()


def test_a_tokenizer_that_is_unpickled_in_another_directory_is_the_same(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_model: SaveModel
) -> None:
  for directory, piece in {"here": "a", "there": "b"}.items():
    (tmp_path / directory).mkdir()
    shutil.copyfile(save_model([("▁", -1.0), (piece, -1.0)]), tmp_path / directory / "spiece.model")
  monkeypatch.chdir(tmp_path / "here")
  tokenizer = Tokenizer("spiece.model")
  monkeypatch.chdir(tmp_path / "there")
  pickled = pickle.dumps(tokenizer)
  assert pickle.loads(pickled).pieces[-1] == "a"
  shutil.copyfile(tmp_path / "there" / "spiece.model", tmp_path / "here" / "spiece.model")
  with pytest.raises(UserError, match=r"here/spiece\.model: is not the vocabulary that was pickled \(SHA-256 .*\): "):
    pickle.loads(pickled)


def test_tokenizers_are_cached_by_config_and_file(save_model: SaveModel) -> None:
  config = TokenizerConfig(save_model([("▁", -1.0), ("a", -1.0), (",", -1.0)]))
  tokenizer = load_tokenizer(config)
  assert load_tokenizer(TokenizerConfig(config.model_file)) is tokenizer
  assert load_tokenizer(TokenizerConfig(config.model_file, do_lower_case=False)) is not tokenizer
  other_model_file = save_model([("▁", -1.0), ("b", -1.0), ("bb", -1.0), (",", -1.0)])
  Path(config.model_file).write_bytes(Path(other_model_file).read_bytes())
  assert load_tokenizer(config).pieces[-3:] == ["b", "bb", ","]


@pytest.mark.parametrize(
  ("contents", "message"),
  [
    (None, "cannot read it"),
    (b"", r"not a SentencePiece model: give the \.model file"),
    (b"plain text\n" * 9, "not a SentencePiece model"),
    (b"\xe2\x96\x01the", "not a SentencePiece model"),  # the library accepts pieces that are not UTF-8
  ],
)
def test_a_file_that_is_no_sentencepiece_model_is_refused(
  spm_model: str, tmp_path: Path, contents: bytes | None, message: str
) -> None:
  path = tmp_path / "x.model"
  if contents and b"the" in contents:
    path.write_bytes(Path(spm_model).read_bytes().replace("▁the".encode(), contents, 1))
  elif contents is not None:
    path.write_bytes(contents)
  with pytest.raises(UserError, match=f"x.model.*{message}"):
    Tokenizer(str(path))


@pytest.mark.parametrize("piece_type", [PieceType.USER_DEFINED, PieceType.NORMAL, PieceType.CONTROL])
def test_special_pieces_of_any_type_are_not_in_text(save_model: SaveModel, piece_type: PieceType) -> None:
  pieces = [("▁", -1.0), *((character, -2.0) for character in "x[CLS]<pad>")]
  tokenizer = Tokenizer(save_model(pieces, {"[CLS]": piece_type, "<pad>": piece_type}), do_lower_case=False)
  assert tokenizer.special_ids == (0, 1, 2, 3, 4)
  text = "x[CLS]<pad>"
  assert tokenizer.decode(tokenizer.encode(text)) == text
  assert not {0, 2} & {*tokenizer.encode(text)}


def test_a_vocabulary_without_a_special_piece_is_refused(save_model: SaveModel, tmp_path: Path) -> None:
  path = tmp_path / "x.model"
  path.write_bytes(Path(save_model([("x", -1.0)])).read_bytes().replace(b"[MASK]", b"[mask]"))
  with pytest.raises(UserError, match=r"none of its 6 pieces is \[MASK\] or <mask>: .*train_vocab\.py"):
    Tokenizer(path)


def test_a_batch_of_texts_with_masks_holds_the_ids_of_each_text(tokenizer: Tokenizer) -> None:
  texts = ["the [MASK] sold the [MASK].", "", "[MASK]", "the captain " * 20]
  max_length = 12
  batch = masked_batch(tokenizer, texts, max_length=max_length)
  assert batch["input_ids"].shape == (4, max_length)
  for text, ids, mask, segments in zip(texts, *batch.values(), strict=True):
    expected = [CLS_ID, *encode_with_masks(tokenizer, text)[: max_length - 2], SEP_ID]  # without [CLS] and [SEP]
    assert ids[: mask.sum()].tolist() == expected
    assert not ids[mask.sum() :].any()
    assert not segments.any()
  assert (batch["input_ids"] == MASK_ID).sum(axis=1).tolist() == [2, 0, 1, 0]
  assert masked_batch(tokenizer, [])["input_ids"].shape == (0, 0)


def test_a_string_is_one_text(spm_model: str) -> None:
  tokenizer = Tokenizer(spm_model)
  for batches in ((masked_batch(tokenizer, text) for text in ("a [MASK]", ["a [MASK]"])), map(tokenizer, ("a", ["a"]))):
    of_string, of_list = (batch["input_ids"].tolist() for batch in batches)
    assert of_string == of_list


def test_pieces_that_do_not_fit_the_settings_give_one_warning(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  path = write_vocabulary(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Paris", "été", "a"])
  for _ in range(2):
    load_tokenizer(tokenizer_config(path))
  remedy = f'put {{"do_lower_case": false, "strip_accents": false}} into {tmp_path}/tokenizer_config.json'
  assert capsys.readouterr().err.count(remedy) == 1
