"""normalize_text equals a slow version on every character, and gives the same texts with every version of Python."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from albert.tokenization.normalization import has_newer_characters, normalize_text
from tests.tokenization.reference import reference_normalize


@pytest.mark.parametrize(
  ("text", "lower_cased", "cased"),
  [
    ("Born in 92000, this is falsé.", "born in 92000, this is false.", "Born in 92000, this is false."),
    ("  many   spaces\tand\n newline ", "many spaces and newline", "many spaces and newline"),
    ("naïve Ångström ﬁne ½ ²", "naive angstrom fine 1⁄2 2", "naive Angstrom fine 1⁄2 2"),
    ("``Hello,'' ''x''", "``hello,'' ''x''", "``Hello,'' ''x''"),
    ("[CLS] <unk>", "[cls] <unk>", "[CLS] <unk>"),
    ("ΟΔΟΣ ΣΑΣ", "οδος σας", "ΟΔΟΣ ΣΑΣ"),
    ("İ ß", "i ß", "I ß"),
    ("a\x1cb\x85c\xa0d\u3000e", "a b c d e", "a b c d e"),
    ("\ud83d x", "\ufffd x", "\ufffd x"),
  ],
)  # fmt: skip
def test_texts_are_normalized_as_by_the_original(text: str, lower_cased: str, cased: str) -> None:
  assert normalize_text(text) == lower_cased
  assert normalize_text(text, do_lower_case=False) == cased


def test_keep_accents_neither_decomposes_nor_drops_characters() -> None:
  text = "Schön  a\u0301 ½ ﬁ İ ``ΑΣ'' \ud800"
  assert normalize_text(text, keep_accents=True) == "schön a\u0301 ½ ﬁ i\u0307 ``ας'' \ufffd"
  cased = normalize_text(text, do_lower_case=False, keep_accents=True, convert_quotes=True)
  assert cased == 'Schön a\u0301 ½ ﬁ İ "ΑΣ" \ufffd'


def test_convert_quotes_makes_double_quotes_of_two_backquotes_or_apostrophes() -> None:
  assert normalize_text("``Hello,'' ''bye'' ```", convert_quotes=True) == '"hello," "bye" "`'


def test_normalize_text_equals_the_slow_version_on_every_code_point() -> None:
  # All but unassigned ones (planes 4 to 13, and most of 3 and 14) and most private ones (planes 15 and 16).
  code_points = [*range(0x20, 0xD800), *range(0xE000, 0x31400), *range(0xE0000, 0xE0200), *range(0x10FF00, 0x110000)]
  digest = hashlib.sha256()
  num_skipped = 0
  for start in range(0, len(code_points), 16):
    text = " ".join(f"A{chr(c)}Σ{chr(c)}" for c in code_points[start : start + 16])
    for do_lower_case in (True, False):
      normalized = normalize_text(text, do_lower_case=do_lower_case)
      digest.update(normalized.encode())
      if has_newer_characters(text):
        num_skipped += 1
      else:
        assert normalized == reference_normalize(text, do_lower_case), hex(code_points[start])
  assert num_skipped < 2 * 80  # 80 of the texts, lower-cased and cased
  # Recorded with Python 3.10. Python 3.11 to 3.13 have newer Unicode data, but give the same texts.
  assert digest.hexdigest() == "f77b02a9bb3bef71cd5bde1807afd8761c8fa5f0b3411ef04b305fac9e42229a"


def test_letters_newer_than_unicode_13_are_kept() -> None:
  # U+10780 decomposes from Unicode 14.0 on, U+2C2F has a lower case, U+1DFA combines.
  assert normalize_text("A\U00010780B \u2c2f e\u1dfa") == "a\U00010780b \u2c2f e\u1dfa"
  assert normalize_text("Α\u2c2fΣ ΑΣ\u2c2f") == "α\u2c2fσ ας\u2c2f"


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=40), st.booleans())
@example("Σ", True)
@example("a\u0301Σ\u0345 \u0345", True)
def test_normalize_text_equals_the_slow_version_on_any_text(text: str, do_lower_case: bool) -> None:
  assume(not has_newer_characters(text))
  assert normalize_text(text, do_lower_case=do_lower_case) == reference_normalize(text, do_lower_case)
