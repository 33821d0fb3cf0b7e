"""Text of the page that comes from files: cleaned, cut and escaped in one place."""

from __future__ import annotations

import html
import re
from typing import Any

# Characters of a text that are shown: a cell, a name, a path, a setting.
MOST_CHARACTERS = 1000
# Lone surrogates, which UTF-8 cannot hold, and what HTML does not allow, not even as a character reference.
_INVALID = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\x80-\x9f\x7f]")
# C0 controls other than tab and line feed are shown as their pictures (U+2400 and following).
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}


def cleaned(text: str, most: int = MOST_CHARACTERS) -> str:
  """The beginning of the text, with characters that a page cannot hold replaced by U+FFFD. Not escaped."""
  shown = _INVALID.sub("\ufffd", text[:most]).translate(_CONTROLS)
  return shown if len(text) <= most else f"{shown}… ({len(text):,} characters)"


def escaped(value: Any) -> str:
  """HTML of a value as text, which is also safe in an attribute's quotes."""
  return html.escape(cleaned("null" if value is None else str(value)))
