"""Random texts of every kind that may come in, as bytes; some of them are not UTF-8."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.conftest import english_like_documents

LARGE = 1 << 20
_WORDS = ("The", "river", "in", "1999,", "2,000,", "letter's", "o'clock", "garden.", "I", "naïve", "état")
_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>", "<s>", "▁", "▁the", "⁇", "##ing", "_", "___")
_LOOKALIKES = ("ＡＢＣ１２，", "ﬁ", "ﬃ", "ﷺ", "\u212a", "\u212b", "İ", "ı", "ß", "ẞ", "ΣΑΣ", "½", "Ⅷ", "①", "ǆ", "ſ")
_SPACES = (" ", "\t", "\u00a0", "\u2003", "\u3000", "\u1680", "\u205f")
_ENDS = ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
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
_FRAGMENTS = (
  '{"text": "a"}', "[1, null]", "\\ud800", "\\u0000", "\\n", '"', "'", "\\", "</script>",
  "<b>&amp;&#0;", "%s%n%d", "{0}",
  "{x!r}", "${HOME}", "$(id)", "`id`", "; DROP TABLE x;--", "../../etc/passwd", "=1+1", "NaN",
  "1e999", "-0", "null", "#",
)  # fmt: skip
_INVALID = (
  b"\xff", b"\xfe\xff", b"\x80", b"\xc3", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf",
  b"\xed\xa0\x80", b"\xed\xbf\xbf",
  b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98",
)  # fmt: skip


def is_noncharacter(code_point: int) -> bool:
  """True for a code point that no text may hold; TensorFlow 2.15 and 2.20 read it differently."""
  return 0xFDD0 <= code_point <= 0xFDEF or code_point & 0xFFFE == 0xFFFE


def _any_character(rng: random.Random) -> str:
  while True:
    plane = rng.choice((0, 0, 0, 1, 1, 2, 3, rng.randrange(4, 17)))
    code_point = plane * 0x10000 + rng.randrange(0x10000)
    if not is_noncharacter(code_point):
      return chr(code_point)  # a lone surrogate is one of them


def _mixed(rng: random.Random, *pools: tuple[str, ...]) -> str:
  return "".join(rng.choice(rng.choice(pools)) + rng.choice(("", "", " ")) for _ in range(rng.randrange(1, 12)))


def _sentences(rng: random.Random) -> str:
  return " ".join(english_like_documents(1, seed=rng.randrange(10**6))[0][: rng.randrange(1, 5)])


def _letter_with_marks(rng: random.Random) -> str:
  return "".join(rng.choice("aeiouΣक") + chr(rng.randrange(0x300, 0x370)) * rng.randrange(1, 9) for _ in range(8))


_KINDS: tuple[Callable[[random.Random], str | bytes], ...] = (
  _sentences,
  _sentences,
  _sentences,
  lambda rng: "".join(_any_character(rng) for _ in range(rng.randrange(1, 40))),
  lambda rng: _mixed(rng, _WORDS, _LOOKALIKES, _SYMBOLS, _SPACES),
  lambda rng: _mixed(rng, _WORDS, _INVISIBLE, _ENDS),
  lambda rng: _mixed(rng, _EMOJI, _SCRIPTS, _INVISIBLE),
  lambda rng: _mixed(rng, _FRAGMENTS, _WORDS),
  lambda rng: _mixed(rng, tuple(map(chr, range(0x20))), ("\x7f", "\x9f"), _WORDS),
  lambda rng: rng.choice(_SPACES + _ENDS) * rng.randrange(30),
  lambda rng: "".join(rng.choices("0123456789,.-%€", k=rng.randrange(1, 60))),
  lambda rng: rng.choice(("x", "ab", "東", "9,", "\u0301", "ﷺ", "ᄀ")) * rng.randrange(50, 3000),
  _letter_with_marks,
  lambda rng: b"".join(rng.choice((rng.choice(_INVALID), rng.choice(_WORDS).encode(), b" ")) for _ in range(9)),
  lambda rng: rng.randbytes(rng.randrange(1, 50)),
)


def random_texts(rng: random.Random, count: int) -> list[bytes]:
  """Texts of every kind: the empty one, then a few large ones, then random ones.

  A lone surrogate is the three bytes that UTF-8 would have for it.
  """
  words = _sentences(rng) + " "
  large: list[str] = [
    "",
    words * (LARGE // len(words)),
    "東京" * (LARGE // 6),
    "x" * (LARGE // 16),
    " \u200b" * (LARGE // 64),
  ]
  drawn = (rng.choice(_KINDS)(rng) for _ in range(max(0, count - len(large))))
  texts = [text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass") for text in (*large, *drawn)]
  return [_without_noncharacters(text) for text in texts[:count]]


def _without_noncharacters(text: bytes) -> bytes:
  """Random bytes may hold one."""
  found = {c for c in text.decode("utf-8", "replace") if is_noncharacter(ord(c))}
  for character in found:
    text = text.replace(character.encode(), b"?")
  return text


def as_read(text: bytes) -> str:
  """The text as a served model reads it: bytes that are not UTF-8 become U+FFFD."""
  return text.decode("utf-8", "replace")
