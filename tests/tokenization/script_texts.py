"""Texts in all scripts, with which other implementations of the tokenizer are compared."""

from __future__ import annotations

import random

# Block b has the code points 128 * b to 128 * b + 127. These are the blocks without surrogates, private characters and
# empty planes.
_BLOCK_INDICES = [
  *range(0xD800 // 128),
  *range(0xF900 // 128, 0x18E00 // 128),
  *range(0x1AF00 // 128, 0x20100 // 128),
  *range(0x2A600 // 128, 0x2A800 // 128),
  *range(0x2F800 // 128, 0x2FA80 // 128),
  0xE0000 // 128,
]
_ENGLISH_CHARACTERS = "etaoinshrdluETAOIN  0123456789,,.;:'\"`()-"
_COMBINING_MARKS = "".join(
  map(chr, [*range(0x300, 0x370), *range(0x1DC0, 0x1E00), 0x3099, 0x0345, 0x0334, 0x20D2, 0x93C])
)
# Control characters, spaces, and characters that SentencePiece drops or treats as spaces.
_CONTROL_CHARACTERS = "".join(
  map(
    chr,
    [
      *range(0x20),
      *range(0x7F, 0xA1),
      0xAD,
      *range(0x2000, 0x2010),
      *range(0x2028, 0x2030),
      *range(0x2060, 0x2070),
      *(0x3000, 0xFEFF, 0xFFFD, 0xE0001, 0x180E, 0x2581),
    ],
  )
)
_EMOJI = ["👩‍👩‍👧", "🇫🇷", "👍🏽", "❤️", "☎", "🏴\U000e0067\U000e0062\U000e0065\U000e007f", "1️⃣", "🙂", "\U0001fae8"]
_SPECIAL_TEXTS = ["[CLS]", "[MASK]", "<pad>", "<unk>", "``", "''", "1999,", "9,9,", "٣,", "x²,", "❶,", "▁", "ΑΣ",
                  "ΣΑΣ.", "İ"]  # fmt: skip


def texts_of_all_scripts(count: int, seed: int) -> list[str]:
  """Returns texts of seven kinds, in turn; three of the kinds are twice as frequent.

  Returns:
    Texts in one script or in several, with control characters, emoji and combining marks; UTF-8 with some random
    bytes, in which U+FFFD replaces what is not UTF-8; very long words; and empty texts. None has a lone surrogate.
  """
  rng = random.Random(seed)
  makers_of_texts = [
    _one_script,
    _one_script,
    _with_english,
    _with_english,
    _mixed_characters,
    _mixed_characters,
    _with_marks,
    _damaged_utf8,
    _words_and_symbols,
    _long_words,
  ]
  return ["", " \t\n", *(makers_of_texts[index % len(makers_of_texts)](rng) for index in range(count - 2))]


def _random_block(rng: random.Random) -> list[str]:
  """Returns the 128 characters of a random block."""
  first = rng.choice(_BLOCK_INDICES) * 128
  return [chr(code_point) for code_point in range(first, first + 128)]


def _one_script(rng: random.Random) -> str:
  return "".join(rng.choices([*_random_block(rng), " ", " ", ",", "9"], k=rng.randrange(1, 50)))


def _with_english(rng: random.Random) -> str:
  return "".join(
    rng.choices(
      [*_ENGLISH_CHARACTERS, *_ENGLISH_CHARACTERS, *rng.sample(_random_block(rng), 9)], k=rng.randrange(1, 80)
    )
  )


def _mixed_characters(rng: random.Random) -> str:
  characters = [
    *_ENGLISH_CHARACTERS,
    *_CONTROL_CHARACTERS,
    *_EMOJI,
    *_SPECIAL_TEXTS,
    *(character for _ in range(3) for character in _random_block(rng)),
  ]
  return "".join(rng.choices(characters, k=rng.randrange(1, 40)))


def _with_marks(rng: random.Random) -> str:
  return "".join(
    rng.choices([*"aeiou กЖか한", *rng.choices(_COMBINING_MARKS, k=9), *rng.sample(_random_block(rng), 3)], k=30)
  )


def _damaged_utf8(rng: random.Random) -> str:
  """Twenty characters of one to four bytes, of which up to nine bytes are replaced by random ones."""
  # Number of bytes in UTF-8 -> the first code point, and the one after the last.
  ranges = {1: (0x20, 0x80), 2: (0x80, 0x800), 3: (0x800, 0xD800), 4: (0x10000, 0x20000)}
  characters = [chr(rng.randrange(*ranges[num_bytes])) for num_bytes in rng.choices([1, 1, 2, 3, 4], k=20)]
  data = bytearray("".join(characters).encode())
  for _ in range(rng.randrange(1, 10)):
    data[rng.randrange(len(data))] = rng.randrange(256)
  return data.decode("utf-8", errors="replace")


def _words_and_symbols(rng: random.Random) -> str:
  words = ["the", "captain", "1999", "9,", ", ", " ", "  ", "\u200b", "naïve", "ﬁne", "Ⅷ", "½"]
  return "".join(rng.choices([*_SPECIAL_TEXTS, *_EMOJI, *words], k=rng.randrange(1, 20)))


def _long_words(rng: random.Random) -> str:
  """Up to 4,000 random English and control characters, or a word of up to 4,000 letters, alone or with other words."""
  (length,) = rng.choices([60, 200, 500, 1500, 4000], weights=[40, 30, 20, 9, 1])
  if rng.random() < 0.3:
    return "".join(rng.choices(_ENGLISH_CHARACTERS + _CONTROL_CHARACTERS, k=length))
  letters = [*"etaoinshrdlu", *rng.sample(_random_block(rng), rng.choice([0, 1, 4]))]
  return rng.choice(["", "the captain "]) + "".join(rng.choices(letters, k=length)) + rng.choice(["", " 1999, went"])
