"""Random texts for the part "strings", as bytes: sentences, symbols, emoji, code, control characters, invalid UTF-8."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.conftest import english_like_documents

# The size of the largest texts in bytes.
_LARGE = 1 << 20
_WORDS = ("The", "river", "in", "1999,", "2,000,", "letter's", "o'clock", "garden.", "I", "naïve", "état")
_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>", "<s>", "▁", "▁the", "⁇", "##ing", "_", "___")
_LOOKALIKES = ("ＡＢＣ１２，", "ﬁ", "ﬃ", "ﷺ", "\u212a", "\u212b", "İ", "ı", "ß", "ẞ", "ΣΑΣ", "½", "Ⅷ", "①", "ǆ", "ſ")
_SPACES = (" ", "\t", "\u00a0", "\u2003", "\u3000", "\u1680", "\u205f")
_LINE_ENDS = ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
_INVISIBLE = ("\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u202e", "\u2066", "\ufe0f", "\U000e0061")
_EMOJI = ("👩\u200d👩\u200d👧", "🇫🇷", "👍🏽", "❤\ufe0f", "1\ufe0f\u20e3", "🏴\U000e0067\U000e0062\U000e007f")
_SCRIPTS = (
  "한국어",
  "각",
  "日本語が",
  "中文，标点。",
  "ภาษาไทย",
  "हिन्दी",
  "עִבְרִית",
  "العَرَبِيَّة",
  "ქართული",
  "ⴰⵎⴰ",
  "𝔘𝔫𝔦",
  "𐐨𐑂",
)
# Texts that a program might run, expand or parse by mistake.
_CODE_FRAGMENTS = (
  '{"text": "a"}', "[1, null]", "\\ud800", "\\u0000", "\\n", '"', "'", "\\", "</script>",
  "<b>&amp;&#0;", "%s%n%d", "{0}",
  "{x!r}", "${HOME}", "$(id)", "`id`", "; DROP TABLE x;--", "../../etc/passwd", "=1+1", "NaN",
  "1e999", "-0", "null", "#",
)  # fmt: skip
# Bytes that are not UTF-8: stray, cut, overlong, and encoded surrogates or numbers above U+10FFFF.
_INVALID_BYTES = (
  b"\xff", b"\xfe\xff", b"\x80", b"\xc3", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf",
  b"\xed\xa0\x80", b"\xed\xbf\xbf",
  b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98",
)  # fmt: skip


def is_noncharacter(code_point: int) -> bool:
  """Whether Unicode reserves a code point for internal use. TensorFlow 2.15 and 2.20 decode these differently."""
  is_at_end_of_plane = code_point & 0xFFFE == 0xFFFE
  return 0xFDD0 <= code_point <= 0xFDEF or is_at_end_of_plane


def _any_character(rng: random.Random) -> str:
  """Draws a character of any plane, most often of plane 0. It may be a lone surrogate, but is no noncharacter."""
  while True:
    plane = rng.choice((0, 0, 0, 1, 1, 2, 3, rng.randrange(4, 17)))
    code_point = plane * 0x10000 + rng.randrange(0x10000)
    if not is_noncharacter(code_point):
      return chr(code_point)


def _mixed(rng: random.Random, *pools: tuple[str, ...]) -> str:
  """Concatenates 1 to 11 random elements of the pools, some with a space behind them."""
  elements = (rng.choice(rng.choice(pools)) + rng.choice(("", "", " ")) for _ in range(rng.randrange(1, 12)))
  return "".join(elements)


def _sentences(rng: random.Random) -> str:
  return " ".join(english_like_documents(1, seed=rng.randrange(10**6))[0][: rng.randrange(1, 5)])


def _any_characters(rng: random.Random) -> str:
  return "".join(_any_character(rng) for _ in range(rng.randrange(1, 40)))


def _with_lookalikes(rng: random.Random) -> str:
  return _mixed(rng, _WORDS, _LOOKALIKES, _SYMBOLS, _SPACES)


def _with_invisible_characters(rng: random.Random) -> str:
  return _mixed(rng, _WORDS, _INVISIBLE, _LINE_ENDS)


def _emoji_and_scripts(rng: random.Random) -> str:
  return _mixed(rng, _EMOJI, _SCRIPTS, _INVISIBLE)


def _with_code(rng: random.Random) -> str:
  return _mixed(rng, _CODE_FRAGMENTS, _WORDS)


def _with_control_characters(rng: random.Random) -> str:
  return _mixed(rng, tuple(map(chr, range(0x20))), ("\x7f", "\x9f"), _WORDS)


def _only_whitespace(rng: random.Random) -> str:
  return rng.choice(_SPACES + _LINE_ENDS) * rng.randrange(30)


def _digits(rng: random.Random) -> str:
  return "".join(rng.choices("0123456789,.-%€", k=rng.randrange(1, 60)))


def _many_repetitions(rng: random.Random) -> str:
  return rng.choice(("x", "ab", "東", "9,", "\u0301", "ﷺ", "ᄀ")) * rng.randrange(50, 3000)


def _letters_with_marks(rng: random.Random) -> str:
  """Eight letters, each with up to eight combining marks."""
  return "".join(rng.choice("aeiouΣक") + chr(rng.randrange(0x300, 0x370)) * rng.randrange(1, 9) for _ in range(8))


def _with_invalid_bytes(rng: random.Random) -> bytes:
  elements = (rng.choice((rng.choice(_INVALID_BYTES), rng.choice(_WORDS).encode(), b" ")) for _ in range(9))
  return b"".join(elements)


def _random_bytes(rng: random.Random) -> bytes:
  return rng.randbytes(rng.randrange(1, 50))


# The generators among which a text is drawn. Ordinary sentences are more frequent than each of the others.
_GENERATORS: tuple[Callable[[random.Random], str | bytes], ...] = (
  _sentences,
  _sentences,
  _sentences,
  _any_characters,
  _with_lookalikes,
  _with_invisible_characters,
  _emoji_and_scripts,
  _with_code,
  _with_control_characters,
  _only_whitespace,
  _digits,
  _many_repetitions,
  _letters_with_marks,
  _with_invalid_bytes,
  _random_bytes,
)


def random_texts(rng: random.Random, count: int) -> list[bytes]:
  """Returns `count` texts: the empty one, then four large ones, then random ones.

  A lone surrogate is encoded as three bytes, as UTF-8 would do if it allowed surrogates.
  """
  sentences = _sentences(rng) + " "
  empty_and_large: list[str] = [
    "",
    sentences * (_LARGE // len(sentences)),
    "東京" * (_LARGE // 6),  # 6 bytes in UTF-8
    "x" * (_LARGE // 16),  # one word of 64 KiB
    " \u200b" * (_LARGE // 64),  # 64 KiB of spaces and zero-width spaces
  ]
  drawn = (rng.choice(_GENERATORS)(rng) for _ in range(max(0, count - len(empty_and_large))))
  texts = [
    text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass") for text in (*empty_and_large, *drawn)
  ]
  return [_without_noncharacters(text) for text in texts[:count]]


def _without_noncharacters(text: bytes) -> bytes:
  """Replaces each noncharacter, which random bytes may contain, by a question mark."""
  noncharacters = {character for character in text.decode("utf-8", "replace") if is_noncharacter(ord(character))}
  for character in noncharacters:
    text = text.replace(character.encode(), b"?")
  return text


def as_read(text: bytes) -> str:
  """Decodes a text as a served model does: bytes that are not UTF-8 become U+FFFD."""
  return text.decode("utf-8", "replace")
