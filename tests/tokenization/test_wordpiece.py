"""WordPiece vocabularies give the ids of the original BERT, in Python and in a graph, and the ranges of tokens."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.graph import make_graph_tokenizer
from albert.tokenization.recorded_settings import tokenizer_config
from albert.tokenization.tokenizer import Tokenizer, encode_with_masks
from albert.tokenization.vocabulary import SpecialIds, TokenizerConfig, read_vocabulary_files
from albert.tokenization.wordpiece import WordRules, is_newer, split_words
from tests.tokenization import wordpiece_reference
from tests.tokenization.reference import find_differences
from tests.tokenization.script_texts import texts_of_all_scripts
from tests.tokenization.wordpiece_reference import reference_ids, vocabulary_pieces, write_vocabulary

PIECES = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"一二三!,.[]`'\"", "cap", "##tain", "##s", "the",
          "mask", "naive", "##12", "19", "a"]  # fmt: skip


@pytest.fixture
def vocabulary(tmp_path: Path) -> str:
  return write_vocabulary(tmp_path / "vocab.txt", PIECES)


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
  return write_vocabulary(tmp_path_factory.mktemp("wordpiece") / "vocab.txt", vocabulary_pieces())


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
  return [tokenizer.piece(i) for i in tokenizer.encode(text)]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("The CAPTAINS,", ["the", "cap", "##tain", "##s", ","]),
    ("naïve\x00\x0b\u200b\ufffd 1912!", ["naive", "19", "##12", "!"]),
    ("the\ttheir\u3000a", ["the", "[UNK]", "a"]),
    ("一二三the", ["一", "二", "三", "the"]),
    ("[MASK]", ["[", "mask", "]"]),
    ("th\u00ade", ["the"]),
    ("", []),
  ],
)
def test_pieces_of_short_texts(vocabulary: str, text: str, expected: list[str]) -> None:
  assert pieces_of(Tokenizer(vocabulary), text) == expected


def test_special_ids_are_those_of_the_file(vocabulary: str) -> None:
  tokenizer = Tokenizer(vocabulary)
  assert tokenizer.special_ids == SpecialIds(pad=0, unk=2, cls=3, sep=4, mask=5)
  assert np.flatnonzero(tokenizer.is_special).tolist() == [0, 1, 2, 3, 4, 5]
  batch = tokenizer(["the"], ["a 一"])
  assert batch["input_ids"].tolist() == [[3, PIECES.index("the"), 4, PIECES.index("a"), PIECES.index("一"), 4]]
  assert batch["segment_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]
  assert encode_with_masks(tokenizer, "the [MASK].") == [PIECES.index("the"), 5, PIECES.index(".")]
  assert tokenizer.decode(batch["input_ids"][0]) == "the a 一"
  assert tokenizer.decode(tokenizer.encode("captains!")) == "captains !"


def test_words_of_200_characters_are_cut_and_longer_ones_are_unknown(tmp_path: Path) -> None:
  tokenizer = Tokenizer(write_vocabulary(tmp_path / "vocab.txt", [*PIECES, "##a"]))
  assert len(tokenizer.encode("a" * 200)) == 200
  assert pieces_of(tokenizer, "a" * 201) == ["[UNK]"]


def texts_without_newer_characters(count: int, seed: int) -> list[str]:
  """Python's own Unicode data, which the reference uses, may be newer than Unicode 13.0."""
  texts = texts_of_all_scripts(count, seed)
  return ["".join(c for c in text if c.isascii() or not is_newer(c)) for text in texts]


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("do_lower_case", "keep_accents"), [(True, False), (False, False), (True, True)])
def test_ids_are_those_of_the_original_rules(
  large_vocabulary: str, count: int, do_lower_case: bool, keep_accents: bool
) -> None:
  tokenizer = Tokenizer(large_vocabulary, do_lower_case, keep_accents=keep_accents)
  texts = texts_without_newer_characters(count, seed=5)
  for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
    assert ids == reference_ids(text, tokenizer.pieces, do_lower_case, keep_accents), text


def test_characters_newer_than_unicode_13_are_letters() -> None:
  # A nonspacing mark, a punctuation mark and a format character of Unicode 14.0.
  assert split_words("a\u1dfaB\u2e53c\u0890", WordRules(True, True)) == ["a\u1dfab\u2e53c\u0890"]


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
  "switches",
  [
    {},
    {"do_lower_case": False, "convert_quotes": True},
    pytest.param({"keep_accents": True}, marks=pytest.mark.thorough),
  ],
)
def test_a_graph_gives_the_same_ids_and_offsets(large_vocabulary: str, count: int, switches: dict[str, bool]) -> None:
  marks = "\U0001d16e\U0001d16d\U0001d165 x"  # the canonical decomposition sorts these marks
  texts = [*texts_of_all_scripts(count, seed=7), "``a'' ```b'`` '''c", marks, "a" * 200, "a" * 201, "中" * 300]
  assert find_differences(large_vocabulary, texts, **switches) == []
  graph = make_graph_tokenizer(TokenizerConfig(large_vocabulary, **switches))
  data = tf.constant([text.encode() for text in texts])
  assert graph.tokenize(data).to_list() == graph.reference.encode_batch(texts)


def with_settings(directory: Path, form: str, pieces: list[str], **settings: bool | None) -> str:
  """Writes a vocabulary with settings of BertTokenizer: vocab.txt, or tokenizer.json alone."""
  if form == "tokenizer.json":
    names = {"do_lower_case": "lowercase", "tokenize_chinese_chars": "handle_chinese_chars"}
    values = wordpiece_reference.tokenizer_values(
      pieces, **{names.get(name, name): value for name, value in settings.items()}
    )
    (directory / form).write_text(json.dumps(values))
    return str(directory / form)
  (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"} | settings))
  return write_vocabulary(directory / form, pieces)


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize(
  ("settings", "expected"),
  [
    ({"do_lower_case": False, "strip_accents": True}, ["A", "[UNK]", "na", "naive", "一", "二"]),
    ({"tokenize_chinese_chars": False}, ["a", "[UNK]", "na", "naive", "[UNK]"]),
    ({"strip_accents": False, "tokenize_chinese_chars": False}, ["a", "é", "na", "naïve", "[UNK]"]),
  ],
)
def test_settings_of_bert_tokenizer_are_followed_and_copied(
  tmp_path: Path, form: str, settings: dict[str, bool], expected: list[str]
) -> None:
  pieces = [*PIECES, "na", "naïve", "A", "É", "é"]
  path = with_settings(tmp_path, form, pieces, **{"do_lower_case": True, "tokenize_chinese_chars": True} | settings)
  tokenizer = Tokenizer(path)
  assert pieces_of(tokenizer, "A É na naïve 一二") == expected
  (tmp_path / "run").mkdir()
  for name, content in read_vocabulary_files(path).items():
    (tmp_path / "run" / name).write_bytes(content)
  switches = tokenizer.config.switches() | {"convert_quotes": True}
  (tmp_path / "run/config.json").write_text(json.dumps({"task": "classifier", "data": switches}))
  copy = Tokenizer.from_pretrained(tmp_path / "run")
  assert copy.config.convert_quotes
  assert (copy.sha256, pieces_of(copy, "A É na naïve 一二")) == (tokenizer.sha256, expected)


def test_other_settings_are_another_vocabulary(tmp_path: Path) -> None:
  plain = Tokenizer(write_vocabulary(tmp_path / "vocab.txt", PIECES))
  path = with_settings(tmp_path, "vocab.txt", PIECES, tokenize_chinese_chars=False)
  assert Tokenizer(path).sha256 != plain.sha256
  (tmp_path / "other").mkdir()
  with pytest.raises(UserError, match=r"tokenize_chinese_chars is false, but .*other/vocab\.txt is used with true"):
    tokenizer_config(write_vocabulary(tmp_path / "other/vocab.txt", PIECES), str(tmp_path))


@pytest.mark.parametrize(
  ("form", "count"), [("vocab.txt", 300), pytest.param("tokenizer.json", 10_000, marks=pytest.mark.thorough)]
)
def test_a_graph_follows_the_settings_of_bert_tokenizer(tmp_path: Path, form: str, count: int) -> None:
  settings = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}
  path = with_settings(tmp_path, form, vocabulary_pieces(), **settings)
  texts = [*texts_of_all_scripts(count, seed=7), "a" * 100, "a" * 101, "中" * 101]
  assert find_differences(path, texts, **tokenizer_config(path).switches()) == []


@pytest.mark.parametrize(
  ("path", "value", "message"),
  [
    ("normalizer", {"type": "NFKC"}, r"normalizer is \['NFKC'\]"),
    ("normalizer.clean_text", False, "normalizer.clean_text is false"),
    ("pre_tokenizer", None, "pre_tokenizer is null"),
    ("model.continuing_subword_prefix", "@@", "model.continuing_subword_prefix is '@@'"),
    ("model.vocab", {"[PAD]": 1}, r"the piece of the id 0 is '\[PAD\]'"),
    ("model.max_input_chars_per_word", None, "model.max_input_chars_per_word is null"),
    ("added_tokens", [{"id": 30, "content": "<url>", "special": False}], "an added token is '<url>'"),
    ("normalizer.lowercase", "yes", "normalizer is "),
  ],
)
def test_a_tokenizer_json_with_other_components_is_refused(tmp_path: Path, path: str, value: Any, message: str) -> None:
  content = wordpiece_reference.tokenizer_values(PIECES)
  *stages, last = path.split(".")
  functools.reduce(dict.__getitem__, stages, content)[last] = value
  (tmp_path / "tokenizer.json").write_text(json.dumps(content))
  with pytest.raises(UserError, match=rf"tokenizer\.json: {message}"):
    Tokenizer(tmp_path / "tokenizer.json")


def test_bytes_that_are_not_utf_8_are_dropped_as_u_fffd(vocabulary: str) -> None:
  graph = make_graph_tokenizer(TokenizerConfig(vocabulary))
  assert graph.tokenize(tf.constant([b"th\xffe \xfe a"])).to_list() == [graph.reference.encode("the a")]
  assert graph.tokenize(tf.constant([], tf.string)).to_list() == []


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    (" The  captains.", ["The", "cap", "tain", "s", "."]),
    # A dropped character belongs to the token before it, at the start of a word to the token after it.
    ("\x00th\u00ade\u0301\x07, x\u200b", ["\x00th\u00ade\u0301\x07", ",", "x\u200b"]),
    ("na\u0308ı 一二", ["na\u0308ı", "一", "二"]),
    ("``a''", ["``", "a", "''"]),
  ],
)
def test_ranges_of_tokens(vocabulary: str, text: str, expected: list[str]) -> None:
  tokens = Tokenizer(vocabulary, convert_quotes=True).encode_with_offsets(text)
  assert [text[start:end] for start, end in zip(tokens.starts, tokens.ends, strict=True)] == expected


def test_ranges_are_ordered_without_spaces_and_hold_the_text_of_their_pieces(large_vocabulary: str) -> None:
  tokenizer = Tokenizer(large_vocabulary)
  for text in texts_of_all_scripts(400, seed=11):
    tokens = tokenizer.encode_with_offsets(text)
    assert tokens.ids.tolist() == tokenizer.encode(text)
    assert (np.diff(tokens.starts) >= 0).all()
    assert (np.diff(tokens.ends) >= 0).all()
    for token_id, start, end in zip(tokens.ids, tokens.starts, tokens.ends, strict=True):
      assert text[start:end] == text[start:end].strip() != ""
      piece = tokenizer.piece(token_id).removeprefix("##")
      if token_id != tokenizer.special_ids.unk:
        # A character that decomposes to several may be in the ranges of several tokens.
        assert piece in "".join(split_words(text[start:end], WordRules(True, True))) or "Σ" in text


def test_pieces_start_words_unless_they_continue_one_or_are_han_characters(tmp_path: Path) -> None:
  pieces = [*PIECES, "##", "##中"]
  starts = Tokenizer(write_vocabulary(tmp_path / "vocab.txt", pieces)).word_starts
  assert np.array(pieces)[~starts].tolist() == ["##tain", "##s", "##12"]


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (
      b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n",
      r"vocab\.txt: none of its 5 pieces is \[MASK\] or <mask>: give a",
    ),
    (b"[PAD]\nthe\na\nthe\n", r"vocab\.txt, line 4: 'the' is a piece already, on line 2"),
    (b"[PAD]\n\nthe\n", r"vocab\.txt, line 2: no piece"),
    (b"", r"vocab\.txt, line 1: no piece"),
    (b"\n\x0e\n\x05<pad>\x15\x00\xff\x80\x00", r"vocab\.txt, line 3: not UTF-8 .*: give a WordPiece vocabulary"),
  ],
)
def test_bad_files_are_refused_with_their_line(tmp_path: Path, content: bytes, message: str) -> None:
  path = tmp_path / "vocab.txt"
  path.write_bytes(content)
  with pytest.raises(UserError, match=message):
    Tokenizer(path)


def test_a_wordpiece_vocabulary_under_the_name_of_another_kind_is_refused(tmp_path: Path) -> None:
  path = write_vocabulary(tmp_path / "spiece.model", PIECES)
  with pytest.raises(UserError, match=r"spiece\.model: not a SentencePiece model: .*; a WordPiece vocabulary is"):
    Tokenizer(path)


def test_the_vocabulary_beside_weights_is_found(tmp_path: Path, vocabulary: str) -> None:
  (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
  tokenizer = Tokenizer.from_pretrained(tmp_path)
  assert tokenizer.vocabulary.kind == "wordpiece"
  assert tokenizer.config == TokenizerConfig(vocabulary, do_lower_case=False)
