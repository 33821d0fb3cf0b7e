"""Tokenizer gives the ids of Tokenizer, and for each token the range of the text that its piece stands for."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.tokenization.normalization import decompose, normalize_text
from albert.tokenization.sentence_piece import _origins
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import UNK_ID, WORD_START, TokenizerConfig, TokensWithOffsets
from tests.conftest import PieceType, SaveModel
from tests.tokenization.reference import sentence_piece

# (piece, score) of a hand-made model.
CHARACTERS = [(piece, -8.0) for piece in "abcdefghijklmnopqrstuvwxyz0123456789,.'/\"½東京⁄ßς"]
WORDS = [("▁the", -2.0), ("▁cat", -2.5), ("▁1999,", -3.0), ("999,", -3.5), ("▁1999", -4.0), ("▁", -5.0), ("ea", -4.0)]


def pieces_and_texts(tokenizer: Tokenizer, text: str) -> list[tuple[str, str]]:
  tokens = tokenizer.encode_with_offsets(text)
  assert tokens.ids.tolist() == tokenizer.encode(text)
  return [(tokenizer.piece(int(i)), text[start:end]) for i, start, end in zip(*tokens, strict=True)]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("The\u00a0 \tcat ", [("▁the", "The"), ("▁cat", "cat")]),
    ("in 1999, 1999", [("▁", ""), ("i", "i"), ("n", "n"), ("▁1999", "1999"), (",", ","), ("▁1999", "1999")]),
    ("a1999,b", [("▁", ""), *[(c, c) for c in "a1999,b"]]),
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
  assert pieces_and_texts(Tokenizer(save_model(WORDS + CHARACTERS)), text) == expected


def test_the_range_of_a_converted_quote_has_two_characters(save_model: SaveModel) -> None:
  tokenizer = Tokenizer(save_model(WORDS + CHARACTERS), convert_quotes=True)
  pieces = pieces_and_texts(tokenizer, "``the'' '''")
  assert pieces == [("▁", ""), ('"', "``"), *[(c, c) for c in "the"], ('"', "''"), ("▁", ""), ('"', "''"), ("'", "'")]


def test_an_unknown_number_and_the_unknown_comma_after_it_are_two_tokens(save_model: SaveModel) -> None:
  tokenizer = Tokenizer(save_model([("▁", -5.0), ("a", -8.0)]))
  # SentencePiece gives one <unk> for "9,", since neither digits nor the comma are pieces. The comma rule splits it.
  assert pieces_and_texts(tokenizer, "a 9,") == [
    ("▁", ""), ("a", "a"), ("▁", ""), ("<unk>", "9"), ("<unk>", ",")
  ]  # fmt: skip


def test_ranges_are_right_in_a_text_that_is_longer_than_one_encoded_part(spm_model: str, corpus_file: str) -> None:
  tokenizer = Tokenizer(spm_model)
  text = " \n".join(Path(corpus_file).read_text(encoding="utf-8").split("\n")[:300])
  assert len(text) > sentence_piece(tokenizer).max_part_chars
  tokens = tokenizer.encode_with_offsets(text)
  assert tokens.ids.tolist() == tokenizer.encode(text)
  assert_ranges_are_right(tokenizer, text, tokens)


class ReferenceRanges:
  """Computes the ranges of tokens slowly, one character at a time.

  A position is the index of a character in the text. Offsets in the normalized text have the suffix _in_normalized.

  Args:
    tokenizer: the tokenizer.
    text: a text without commas.
  """

  def __init__(self, tokenizer: Tokenizer, text: str):
    self._processor = sentence_piece(tokenizer).processor
    self._normalized = tokenizer.normalize(text)
    self._words = [match.span() for match in re.finditer(r"\S+", text)]
    self._word_of_position = {position: word for word in self._words for position in range(*word)}
    # Each character of the text as SentencePiece writes it; "" if it is dropped. It is written between two `a`, and the
    # result is cut, because SentencePiece puts "▁" before a text and drops spaces at its ends.
    self._written = {i: self._processor.normalize(f"a{decompose(ord(text[i]))}a")[2:-1] for i in self._word_of_position}
    # For each normalized character, the position that it comes from; -1 for the space between two words.
    self._origins: list[int] = []
    for number, (begin, end) in enumerate(self._words):
      if number > 0:
        self._origins.append(-1)
      for position in range(begin, end):
        self._origins += [position] * len(decompose(ord(text[position])))

  def ranges(self) -> list[tuple[int, int]]:
    """Returns the range of each token.

    A token without text has the start of the next token with text, and the end of the one before it. So it is empty.
    """
    pieces = self._processor.encode(self._normalized, out_type="proto").pieces
    ranges = [self._range_of_piece(piece) for piece in pieces]
    filled = []
    for index, piece_range in enumerate(ranges):
      ends_before = [end for _, end in filter(None, ranges[:index])] or [0]
      starts_after = [start for start, _ in filter(None, ranges[index:])] or ends_before[-1:]
      filled.append(piece_range or (starts_after[0], ends_before[-1]))
    return self._share_ranges_of_characters([piece.piece for piece in pieces], filled)

  def _share_ranges_of_characters(self, pieces: list[str], ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Gives each byte of a character the range of its last byte, with which SentencePiece reports the character."""
    shared: list[tuple[int, int]] = []
    undecoded = b""
    for piece, piece_range in zip(pieces, ranges, strict=True):
      is_byte = re.fullmatch("<0x[0-9A-F]{2}>", piece) and self._processor.is_byte(self._processor.piece_to_id(piece))
      undecoded += bytes([int(piece[3:5], 16)]) if is_byte else b"."
      with contextlib.suppress(UnicodeDecodeError):  # raised if the last byte of a character is missing
        undecoded.decode()
        shared += [piece_range] * len(undecoded)
        undecoded = b""
    return shared

  def _range_of_piece(self, piece: Any) -> tuple[int, int] | None:
    """Returns the range of a piece; None if it stands for no text."""
    if not piece.surface.strip() or piece.piece == WORD_START:
      return None
    encoded = self._normalized.encode()  # piece.begin and piece.end count its bytes
    begin_in_normalized = len(encoded[: piece.begin].decode())
    end_in_normalized = len(encoded[: piece.end].decode())
    origins = self._origins[begin_in_normalized:end_in_normalized]
    positions = [position for position in origins if position >= 0 and self._has_text(position)]
    return self._extended_range(positions[0], positions[-1]) if positions else None

  def _has_text(self, position: int) -> bool:
    return self._written[position].strip(WORD_START) != ""

  def _extended_range(self, first: int, last: int) -> tuple[int, int]:
    """Extends the range of a piece by dropped characters: those after it, and those at the edges of its word.

    Args:
      first, last: the positions of the first and the last character of the piece that have text.
    """
    begin, end = self._word_of_position[first]
    positions_with_text = [position for position in range(begin, end) if self._has_text(position)]
    start = begin if first == positions_with_text[0] else first
    if last == positions_with_text[-1]:
      return start, end
    return start, next(position for position in range(last + 1, end) if self._written[position])


def assert_ranges_are_right(tokenizer: Tokenizer, text: str, tokens: TokensWithOffsets) -> None:
  """Asserts that ranges never go back, have no whitespace at their ends, and contain the text of their pieces."""
  assert np.all(np.diff(tokens.starts) >= 0)
  assert np.all(np.diff(tokens.ends) >= 0)
  for token_id, start, end in zip(*tokens, strict=True):
    range_text, piece = text[start:end], tokenizer.piece(int(token_id)).replace(WORD_START, "")
    assert range_text == range_text.strip()
    if piece and token_id != UNK_ID:
      # SentencePiece composes characters that were decomposed, and Σ is lower-cased to ς only at the end of a word.
      written = sentence_piece(tokenizer).processor.normalize(tokenizer.normalize(range_text)).replace(WORD_START, "")
      assert piece.replace("ς", "σ") in written.replace("ς", "σ")


@functools.cache
def make_tokenizer(model: str, do_lower_case: bool, convert_quotes: bool = False) -> Tokenizer:
  return Tokenizer(model, do_lower_case, convert_quotes=convert_quotes)


UNUSUAL_STRINGS = (
  "the ", "cat", "1999,", "2,000,", "é", "e\u0301", "½", "ﬁ", "Σ", "한", "ß", "İ", "…", "``", "''", "東",
  "\u00a0", "\u200b", "\u200d", "\x01", "\ufeff", "ﷺ", "\u00ad",
  "\n", " ", "▁", "\u0301", "😀", "\ud800", "¨", "٣", "ｱﾞ",
)  # fmt: skip
unusual_texts = st.lists(st.sampled_from(UNUSUAL_STRINGS), max_size=12).map("".join)


@settings(
  max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.one_of(st.text(max_size=30), unusual_texts))
def test_ranges_equal_those_of_the_slow_computation(spm_model: str, text: str) -> None:
  text = text.replace(",", "")
  tokenizer = make_tokenizer(spm_model, True)
  tokens = tokenizer.encode_with_offsets(text)
  ranges = list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True))
  assert ranges == ReferenceRanges(tokenizer, text).ranges()


@pytest.mark.thorough
def test_every_normalized_character_has_an_origin_for_all_of_unicode() -> None:
  for first_code_point in [*range(0, 0x30000, 1024), *range(0xE0000, sys.maxunicode, 1024 * 64)]:
    text = "".join(f"a{chr(code_point)} " for code_point in range(first_code_point, first_code_point + 1024))
    for keep_accents in (False, True):
      origins = _origins(text, TokenizerConfig("", keep_accents=keep_accents))
      assert len(origins) == len(normalize_text(text, keep_accents=keep_accents))


def test_ranges_include_the_accents_that_are_kept(spm_model: str) -> None:
  tokenizer = Tokenizer(spm_model, keep_accents=True)
  text = "Öst schön, a\u0301 cat ½"
  tokens = tokenizer.encode_with_offsets(text)
  assert tokens.ids.tolist() == tokenizer.encode(text)
  ranges = [text[start:end] for start, end in zip(tokens.starts, tokens.ends, strict=True)]
  assert "".join(ranges[:-3]).replace(" ", "") == "Öst schön, a\u0301 cat".replace(" ", "")
  assert ranges[-3:] == ["½"] * 3


def test_pieces_that_do_not_add_up_to_the_text_are_refused(
  save_model: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
  tokenizer = Tokenizer(save_model(WORDS + CHARACTERS))
  # Splits "1999," into the ids 5 and 6, which stand for 3 and 6 characters.
  monkeypatch.setattr(sentence_piece(tokenizer).comma_rule, "split", lambda surface: ([5, 6], ["xxx", "xxxxxx"]))
  with pytest.raises(UserError, match=r"its pieces for '1999,' have 9 characters instead of 5"):
    tokenizer.encode_with_offsets("1999,")


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_pieces(text: str) -> list[str]:
  return [f"<0x{byte:02X}>" for byte in text.encode()]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("The 川a", [("▁the", "The"), ("▁", ""), *[(byte, "川") for byte in byte_pieces("川")], ("a", "a")]),
    ("a\u0301🙂\u200d", [("▁", ""), ("a", "a\u0301"), *[(byte, character) for character in "🙂\u200d"
                         for byte in byte_pieces(character)]]),
    ("Ж1999,", [("▁", ""), *[(byte, "Ж") for byte in byte_pieces("ж")], *[(c, c) for c in "1999,"]]),
    ("☎☎ ½", [("▁", ""), *[(byte, "☎") for byte in byte_pieces("☎☎")], ("▁", ""), *[(c, "½") for c in "1⁄2"]]),
    ("!", [("▁", ""), ("<0x21>", "!")]),
  ],
)  # fmt: skip
def test_the_bytes_of_a_character_have_its_range(
  save_model: SaveModel, text: str, expected: list[tuple[str, str]]
) -> None:
  pieces = [*WORDS, *CHARACTERS, *((byte, 0.0) for byte in BYTES)]
  model = save_model(pieces, dict.fromkeys(BYTES, PieceType.BYTE))
  assert pieces_and_texts(Tokenizer(model), text) == expected
