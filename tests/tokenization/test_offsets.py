"""OffsetTokenizer: its ids are those of Tokenizer, and the text in the range of each token is the text of its piece."""

from __future__ import annotations

import functools
import os
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.tokenization.normalization import decompose, normalize_text
from albert.tokenization.offsets import OffsetTokenizer, TokensWithOffsets, _origins
from albert.tokenization.tokenizer import UNK_ID, WORD_START
from tests.conftest import SaveModel

PLAIN = [(piece, -8.0) for piece in "abcdefghijklmnopqrstuvwxyz0123456789,.'/\"½東京⁄ßς"]
WORDS = [("▁the", -2.0), ("▁cat", -2.5), ("▁1999,", -3.0), ("999,", -3.5), ("▁1999", -4.0), ("▁", -5.0), ("ea", -4.0)]


def pieces_and_ranges(tokenizer: OffsetTokenizer, text: str) -> list[tuple[str, str]]:
  tokens = tokenizer.encode_with_offsets(text)
  assert tokens.ids.tolist() == tokenizer.encode(text)
  return [(tokenizer.piece(int(i)), text[start:end]) for i, start, end in zip(*tokens, strict=True)]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("The\u00a0 \tcat ", [("▁the", "The"), ("▁cat", "cat")]),
    ("in 1999, 1999", [("▁", ""), ("i", "i"), ("n", "n"), ("▁1999", "1999"), (",", ","), ("▁1999", "1999")]),
    ("a1999,b", [("▁", ""), ("a", "a"), ("1", "1"), *[(c, c) for c in "999,b"]]),
    # Accents are dropped, both as part of a character and as combining characters. The letter's range includes them.
    ("éa e\u0301a", [("▁", ""), ("ea", "éa"), ("▁", ""), ("ea", "e\u0301a")]),
    ("\u0301a", [("▁", ""), ("a", "\u0301a")]),
    # If a character becomes several tokens, each has its range.
    ("½", [("▁", ""), ("1", "½"), ("⁄", "½"), ("2", "½")]),
    ("8½", [("▁", ""), ("8", "8"), ("1", "½"), ("⁄", "½"), ("2", "½")]),
    ("İß ΣΑΣ", [("▁", ""), ("i", "İ"), ("ß", "ß"), ("▁", ""), ("<unk>", "ΣΑ"), ("ς", "Σ")]),
    ("東😀京", [("▁", ""), ("東", "東"), ("<unk>", "😀"), ("京", "京")]),
    ("▁the", [("▁", ""), ("▁the", "▁the")]),
    ("", []),
    (" \u0301 ", []),
  ],
)
def test_ranges_with_a_hand_made_model(save_model: SaveModel, text: str, expected: list[tuple[str, str]]) -> None:
  assert pieces_and_ranges(OffsetTokenizer(save_model(WORDS + PLAIN)), text) == expected


def test_quotes_that_become_one_character(save_model: SaveModel) -> None:
  tokenizer = OffsetTokenizer(save_model(WORDS + PLAIN), convert_quotes=True)
  pieces = pieces_and_ranges(tokenizer, "``the'' '''")
  assert pieces == [("▁", ""), ('"', "``"), *[(c, c) for c in "the"], ('"', "''"), ("▁", ""), ('"', "''"), ("'", "'")]


def test_an_unknown_that_ends_in_a_comma_is_split_where_the_comma_is_no_piece(save_model: SaveModel) -> None:
  tokenizer = OffsetTokenizer(save_model([("▁", -5.0), ("a", -8.0)]))
  # Neither digits nor the comma are pieces: the <unk> "9," is split into two, each with its own range.
  assert pieces_and_ranges(tokenizer, "a 9,") == [
    ("▁", ""), ("a", "a"), ("▁", ""), ("<unk>", "9"), ("<unk>", ",")
  ]  # fmt: skip


def test_a_long_text_in_parts(spm_model: str, corpus_file: str) -> None:
  tokenizer = OffsetTokenizer(spm_model)
  text = " \n".join(Path(corpus_file).read_text(encoding="utf-8").split("\n")[:300])
  whole = tokenizer.encode_with_offsets(text)
  assert len(text) > tokenizer._max_part_chars  # this text is encoded in parts
  assert whole.ids.tolist() == tokenizer.encode(text)
  check_ranges(tokenizer, text, whole)


def reference_ranges(tokenizer: OffsetTokenizer, text: str) -> list[tuple[int, int]]:
  """Returns the range of each token of a text without commas, computed one character at a time."""
  words = [match.span() for match in re.finditer(r"\S+", text)]
  origins: list[int] = []  # for each character of the normalized text; -1 for the space between two words
  for number, (begin, end) in enumerate(words):
    origins += [-1] if number else []
    origins += [i for i in range(begin, end) for _ in decompose(ord(text[i]))]
  word_of = {i: word for word in words for i in range(*word)}
  written = {i: tokenizer._processor.normalize(f"a{decompose(ord(text[i]))}a")[2:-1] for i in word_of}

  def place(characters: list[int]) -> tuple[int, int]:
    begin, end = word_of[characters[0]]
    with_text = [i for i in range(begin, end) if written[i].strip(WORD_START)]
    start = begin if characters[0] == with_text[0] else characters[0]
    if characters[-1] == with_text[-1]:
      return start, end
    return start, next(i for i in range(characters[-1] + 1, end) if written[i])

  normalized = tokenizer.normalize(text).encode()
  spans: list[tuple[int, int] | None] = []
  for piece in tokenizer._processor.encode(normalized.decode(), out_type="proto").pieces:
    span = slice(*(len(normalized[:place].decode()) for place in (piece.begin, piece.end)))
    own = [i for i in origins[span] if i >= 0 and written[i].strip(WORD_START)]
    spans.append(place(own) if own and piece.surface.strip() and piece.piece != WORD_START else None)
  places = []
  for index, span in enumerate(spans):
    before = [other[1] for other in spans[:index] if other] or [0]
    behind = [other[0] for other in spans[index:] if other] or before[-1:]
    places.append(span or (behind[0], before[-1]))
  return places


def check_ranges(tokenizer: OffsetTokenizer, text: str, tokens: TokensWithOffsets) -> None:
  """Asserts that ranges never go back, have no whitespace at their ends, and contain the text of their pieces."""
  assert np.all(np.diff(tokens.starts) >= 0)
  assert np.all(np.diff(tokens.ends) >= 0)
  for i, start, end in zip(*tokens, strict=True):
    span_text, piece = text[start:end], tokenizer.piece(int(i)).replace(WORD_START, "")
    assert span_text == span_text.strip()
    if piece and i != UNK_ID:
      # SentencePiece composes characters that were decomposed, and Σ is lower-cased to ς only at the end of a word.
      read = tokenizer._processor.normalize(tokenizer.normalize(span_text)).replace(WORD_START, "")
      assert piece.replace("ς", "σ") in read.replace("ς", "σ")


@functools.cache
def make_tokenizer(model: str, do_lower_case: bool, convert_quotes: bool = False) -> OffsetTokenizer:
  return OffsetTokenizer(model, do_lower_case, convert_quotes=convert_quotes)


UNUSUAL = ("the ", "cat", "1999,", "2,000,", "é", "e\u0301", "½", "ﬁ", "Σ", "한", "ß", "İ", "…", "``", "''", "東",
           "\u00a0", "\u200b", "\u200d", "\x01", "\ufeff", "ﷺ", "\u00ad",
           "\n", " ", "▁", "\u0301", "😀", "\ud800", "¨", "٣", "ｱﾞ")  # fmt: skip
unusual = st.lists(st.sampled_from(UNUSUAL), max_size=12).map("".join)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=30), unusual), st.booleans(), st.booleans())
def test_ranges_in_any_text(spm_model: str, text: str, do_lower_case: bool, convert_quotes: bool) -> None:
  tokenizer = make_tokenizer(spm_model, do_lower_case, convert_quotes)
  tokens = tokenizer.encode_with_offsets(text)
  assert tokens.ids.tolist() == tokenizer.encode(text)
  check_ranges(tokenizer, text, tokens)


@settings(
  max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.one_of(st.text(max_size=30), unusual))
def test_ranges_equal_a_slow_reference(spm_model: str, text: str) -> None:
  text = text.replace(",", "")
  tokenizer = make_tokenizer(spm_model, True)
  tokens = tokenizer.encode_with_offsets(text)
  assert list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)) == reference_ranges(tokenizer, text)


@pytest.mark.thorough
def test_every_character_has_an_origin() -> None:
  """`_origins` and `normalize_text` agree on the number of characters, for all of Unicode."""
  for first in [*range(0, 0x30000, 1024), *range(0xE0000, sys.maxunicode, 1024 * 64)]:
    text = "".join(f"a{chr(c)} " for c in range(first, first + 1024))
    assert len(_origins(text, convert_quotes=False)[0]) == len(normalize_text(text))


def test_bytes_for_unknown_characters_are_refused(save_model: SaveModel, monkeypatch: pytest.MonkeyPatch) -> None:
  tokenizer = OffsetTokenizer(save_model(WORDS + PLAIN))
  monkeypatch.setattr(tokenizer, "_split", lambda surface: ([5, 6], [3, 6]))  # as <0x2C> has six characters
  with pytest.raises(UserError, match=r"its pieces for '1999,' have 9 characters instead of 5"):
    tokenizer.encode_with_offsets("1999,")


def test_another_process_opens_the_model_again(save_model: SaveModel) -> None:
  tokenizer = OffsetTokenizer(save_model(WORDS + PLAIN), False, convert_quotes=True)
  again = pickle.loads(pickle.dumps(tokenizer))
  assert type(again) is OffsetTokenizer
  assert (again.config.do_lower_case, again.config.convert_quotes) == (False, True)
  assert pieces_and_ranges(again, "``the") == pieces_and_ranges(tokenizer, "``the")


@pytest.mark.thorough
@pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="ALBERT_DATA_DIR is not set")
def test_ranges_in_any_text_of_the_original_vocabulary() -> None:
  model = str(Path(os.environ["ALBERT_DATA_DIR"], "vocab", "30k-clean.model"))

  @settings(max_examples=300, deadline=None)
  @given(st.one_of(st.text(max_size=30), unusual), st.booleans())
  def check(text: str, do_lower_case: bool) -> None:
    tokenizer = make_tokenizer(model, do_lower_case)
    tokens = tokenizer.encode_with_offsets(text)
    assert tokens.ids.tolist() == tokenizer.encode(text)
    check_ranges(tokenizer, text, tokens)

  check()
