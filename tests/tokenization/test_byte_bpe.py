"""Byte-level BPE vocabularies: ids, losslessness, ranges of tokens and whole words."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.tokenization.byte_bpe import split_words
from albert.tokenization.graph import make_graph_tokenizer
from albert.tokenization.tokenizer import Tokenizer, encode_with_masks
from albert.tokenization.vocabulary import SpecialIds, TokenizerConfig
from tests.tokenization.byte_bpe_reference import (
  SPECIAL_PIECES,
  TRAINING_TEXT,
  characters_of_bytes,
  reference_pieces,
  reference_words,
  tokenizer_values,
  train,
  write_vocabulary,
)
from tests.tokenization.reference import find_differences
from tests.tokenization.script_texts import texts_of_all_scripts


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  return Tokenizer(write_vocabulary(tmp_path_factory.mktemp("byte_bpe")))


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
  return [tokenizer.piece(i) for i in tokenizer.encode(text)]


@pytest.mark.parametrize(
  "text",
  [
    "They're the captains'  letters",
    "it's 're'S  x\n\n y \n\t z   ",
    "''s a's's !'s\n's 'llama 'st",
    "1999,2024 ٣½Ⅷ x² _a_",
    "他卖了一封信。\u3000\u3000船长\x85 \xa0 \u200b\x1c a",
    "   ",
    "\n",
    "",
    "👩‍👩‍👧 naïve\x00\ufffd",
  ],
)
def test_pieces_are_those_of_the_slow_rules(tokenizer: Tokenizer, text: str) -> None:
  assert split_words(text) == reference_words(text)
  assert pieces_of(tokenizer, text) == reference_pieces(text)


def test_pieces_of_texts_in_all_scripts(tokenizer: Tokenizer) -> None:
  for long_text in texts_of_all_scripts(300, seed=5):
    # The reference uses the Unicode data of the Python that runs the test, which may be older.
    text = "".join(c for c in long_text[:300] if unicodedata.category(c) != "Cn")
    assert split_words(text) == reference_words(text), text
    assert pieces_of(tokenizer, text) == reference_pieces(text), text


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.text("the captain's \n\t他信é🙂'"))
def test_decoding_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
  assert tokenizer.decode(tokenizer.encode(text)) == text


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
  assert (
    tokenizer.decode(tokenizer.encode("a\ud800b \udfff")) == "a\ufffdb \ufffd" == tokenizer.normalize("a\ud800b \udfff")
  )


def test_special_ids_and_masks(tokenizer: Tokenizer) -> None:
  assert tokenizer.special_ids == SpecialIds(pad=1, unk=3, cls=0, sep=2, mask=4)
  assert np.flatnonzero(tokenizer.is_special).tolist() == [0, 1, 2, 3, 4]
  assert not set(tokenizer.encode("<s> <mask> </s><pad>")) & set(range(5))
  the, captain, sold = (tokenizer.encode(word) for word in ("The", " captain", " sold"))
  assert encode_with_masks(tokenizer, "The [MASK] sold") == [*the, 4, *sold]
  assert encode_with_masks(tokenizer, "The captain[MASK]\n") == [*the, *captain, 4, *tokenizer.encode("\n")]
  batch = tokenizer(["The captain"], [" sold"])
  assert batch["input_ids"].tolist() == [[0, *the, *captain, 2, *sold, 2]]
  assert tokenizer.decode(batch["input_ids"][0]) == "The captain sold"
  texts = dict(zip(tokenizer.pieces, tokenizer.vocabulary.piece_texts(), strict=True))
  assert (texts["Ġcaptain"], texts["<mask>"], texts["Ċ"], texts[characters_of_bytes()[0xE4]]) == (
    "captain",
    "<mask>",
    "",
    "\ufffd",
  )


def test_a_pair_of_merges_is_applied_at_the_lowest_rank_and_then_from_the_left(tmp_path: Path) -> None:
  """Merges need not be in the order of training: here abcd needs abc, which two merges make."""
  merges = [("b", "c"), ("abc", "d"), ("a", "b"), ("ab", "c"), ("c", "a"), ("a", "a")]
  pieces = [*train()[0][:261], "bc", "abcd", "ab", "abc", "ca", "aa"]
  tokenizer = Tokenizer(write_vocabulary(tmp_path, pieces, merges))
  assert pieces_of(tokenizer, "abcd") == ["a", "bc", "d"]
  assert pieces_of(tokenizer, "aaaaa") == ["aa", "aa", "a"]
  assert pieces_of(tokenizer, "caab") == ["ca", "ab"]


def test_a_file_of_each_form_gives_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
  for as_lists in (False, True):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_values(as_lists), indent=2))
    other = Tokenizer(path)
    assert (other.pieces, other.special_ids) == (tokenizer.pieces, tokenizer.special_ids)
    assert other.encode("The captain's 信") == tokenizer.encode("The captain's 信")
  assert Tokenizer.from_pretrained(tmp_path).config.model_file == str(path)
  folder = Path(tokenizer.model_file).parent
  assert Tokenizer.from_pretrained(folder).sha256 == tokenizer.sha256
  assert pickle.loads(pickle.dumps(tokenizer)).encode("信") == tokenizer.encode("信")


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    (" The  captain's\n\n", ["The", "captain", "'", "s"]),
    ("a\u3000信", None),
    ("👩‍👩‍👧  x ½", None),
    ("  ", None),
    ("", None),
  ],
)
def test_ranges_of_tokens(tokenizer: Tokenizer, text: str, expected: list[str] | None) -> None:
  """The ranges are those of the characters whose bytes a token has, without the whitespace at their ends."""
  tokens = tokenizer.encode_with_offsets(text)
  assert tokens.ids.tolist() == tokenizer.encode(text)
  ranges = list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True))
  if expected:
    assert [text[start:end] for start, end in ranges if start < end] == expected
  owners = [index for index, character in enumerate(text) for _ in character.encode()]
  position = 0
  for token_id, (start, end) in zip(tokens.ids, ranges, strict=True):
    num_bytes = len(tokenizer.piece(token_id))
    characters = [i for i in sorted({*owners[position : position + num_bytes]}) if not text[i].isspace()]
    if characters:
      assert (start, end) == (characters[0], characters[-1] + 1)
    else:
      assert text[end:start].strip() == ""
      assert end <= owners[position] <= start
    position += num_bytes
  assert position == len(owners)
  assert (np.diff(tokens.starts) >= 0).all()
  assert (np.diff(tokens.ends) >= 0).all()


def test_merges_alone_and_converted_quotes_are_refused(tokenizer: Tokenizer) -> None:
  with pytest.raises(UserError, match=r"merges\.txt: has only the merges .*: give the vocab\.json beside it"):
    Tokenizer(Path(tokenizer.model_file).with_name("merges.txt"))
  with pytest.raises(UserError, match=r"--convert_quotes with .*vocab\.json: byte-level BPE keeps the text as it is"):
    Tokenizer(tokenizer.model_file, convert_quotes=True)


@pytest.fixture(scope="module")
def trained_by_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """A folder with the files of a vocabulary that the library tokenizers trained."""
  library = pytest.importorskip("tokenizers")
  directory = tmp_path_factory.mktemp("trained")
  trainer = library.ByteLevelBPETokenizer()
  texts = [*texts_of_all_scripts(800, seed=17), TRAINING_TEXT * 30]
  trainer.train_from_iterator(
    texts, vocab_size=1500, min_frequency=2, special_tokens=[*SPECIAL_PIECES], show_progress=False
  )
  trainer.save_model(str(directory))
  trainer.save(str(directory / "tokenizer.json"))
  return directory


@pytest.mark.thorough
def test_ids_are_those_of_the_library_tokenizers(trained_by_library: Path) -> None:
  library = pytest.importorskip("tokenizers").Tokenizer.from_file(str(trained_by_library / "tokenizer.json"))
  texts = [text for text in texts_of_all_scripts(10_000, seed=19) if not any(piece in text for piece in SPECIAL_PIECES)]
  texts += [text * 3 for text in ("it's 're'S  x\n\n y \n\t z   ", "''s a's's !'s\n's", " \u3000\u3000 a\r\n\r\n")]
  assert len(texts) > 8000
  expected = [encoding.ids for encoding in library.encode_batch(texts)]
  for name in ("vocab.json", "tokenizer.json"):
    tokenizer = Tokenizer(trained_by_library / name)
    for text, ids, expected_ids in zip(texts, tokenizer.encode_batch(texts), expected, strict=True):
      assert ids == expected_ids, text
      assert tokenizer.decode(ids) == text


@pytest.mark.thorough
def test_letters_and_digits_are_those_of_the_library_tokenizers() -> None:
  splitter = pytest.importorskip("tokenizers").pre_tokenizers.ByteLevel(add_prefix_space=False)
  for first in [*range(0, 0xD800, 0x400), *range(0xE000, 0x20000, 0x400), 0x2A400, 0x2B400, 0x2EC00, 0x31000, 0x32000]:
    text = "".join(f"a{c}1{c}!{c}" for c in map(chr, range(first, first + 0x400)))
    ranges = [offsets for _, offsets in splitter.pre_tokenize_str(text)]
    assert [text[start:end] for start, end in ranges] == split_words(text), hex(first)


@pytest.mark.parametrize(
  ("piece", "starts"),
  [
    (" the", True), ("the", False), ("'", True), (".", True), ("\n", True), (" ", True), ("9", False), ("é", False),
    ("信", True), ("กา", True), ("🙂", True), (b"\xe4\xbd", True), (b"\xe4", True), (b"\xa0\xe5", False),
    (b"\xe1", False), (b"\xe0\xb8", True), (b"\xe0", False), (b"\xf0\x9f", False), (b"\xf0\xa0", True),
    (b"\xc3", False), (b"\xff", False),
  ],
)  # fmt: skip
def test_pieces_that_start_words(tmp_path: Path, piece: str | bytes, starts: bool) -> None:
  data = piece.encode() if isinstance(piece, str) else piece
  symbols = [characters_of_bytes()[byte] for byte in data]
  merges = [("".join(symbols[:i]), symbols[i]) for i in range(1, len(symbols))]
  pieces = dict.fromkeys([*SPECIAL_PIECES, *characters_of_bytes().values(), *(left + right for left, right in merges)])
  tokenizer = Tokenizer(write_vocabulary(tmp_path, pieces, merges))
  assert tokenizer.word_starts[tokenizer.pieces.index("".join(symbols))] == starts
  assert not tokenizer.word_starts[tokenizer.is_special].any()


TEXTS_OF_WORDS = [
  "it's 're'S  x\n\n y \n\t z   ",
  "''s a's's !'s\n's",
  " \u3000\u3000 a\r\n\r\n",
  "'ll'l 's",
  "'re're x'",
]


def test_a_graph_gives_the_same_ids_and_offsets(tokenizer: Tokenizer) -> None:
  assert find_differences(tokenizer.model_file, [*TEXTS_OF_WORDS, *texts_of_all_scripts(30, seed=7)]) == []
  graph = make_graph_tokenizer(tokenizer.config)
  ids = graph.tokenize(tf.constant([b"a\xff\xe4\xbd b", b""])).to_list()
  assert ids == [tokenizer.encode("a\ufffd\ufffd b"), []]
  assert graph.tokenize(tf.constant([], tf.string)).to_list() == []


@pytest.mark.thorough
def test_a_graph_gives_the_same_ids_and_offsets_for_a_large_vocabulary(trained_by_library: Path) -> None:
  assert find_differences(str(trained_by_library / "tokenizer.json"), texts_of_all_scripts(10_000, seed=7)) == []


def test_a_graph_merges_in_the_order_of_ranks_even_if_pieces_are_made_twice(tmp_path: Path) -> None:
  """All pairs of a rank may be merged at once only if no merge of a lower rank has the new piece."""
  merges = [("abc", "d"), ("d", "abc"), ("b", "a"), ("ab", "c"), ("a", "b"), ("a", "a"), ("aa", "aa")]
  pieces = [*SPECIAL_PIECES, *characters_of_bytes().values(), "abcd", "dabc", "ba", "abc", "ab", "aa", "aaaa"]
  graph = make_graph_tokenizer(TokenizerConfig(write_vocabulary(tmp_path, pieces, merges)))
  rng = random.Random(3)
  texts = ["".join(rng.choices("abcd", k=rng.randrange(1, 30))) for _ in range(200)] + ["a" * 1000, "abcdabcd"]
  assert graph.tokenize(tf.constant(texts)).to_list() == graph.reference.encode_batch(texts)
  rank_of = {pair: rank for rank, pair in enumerate(merges)}
  for text in texts[:200]:
    symbols = [*text]
    while candidates := [(rank_of[pair], i) for i, pair in enumerate(itertools.pairwise(symbols)) if pair in rank_of]:
      _, i = min(candidates)
      symbols[i : i + 2] = ["".join(symbols[i : i + 2])]
    assert pieces_of(graph.reference, text) == symbols
