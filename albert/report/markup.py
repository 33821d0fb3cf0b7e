"""Prepares text that comes from files for the page: replaces invalid characters, shortens and escapes it."""

from __future__ import annotations

import html
import re
from typing import Any

# Maximum number of characters that are shown of a text, such as a cell, a name, a path or a setting.
MAX_CHARACTERS = 1000
# Lone surrogates, which UTF-8 cannot encode, and characters that HTML does not allow even as a character reference.
_INVALID_CHARACTERS = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\x80-\x9f\x7f]")
# Control characters other than tab and line feed are replaced by the symbols for them (U+2400 and following).
_CONTROL_SYMBOLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}


def cleaned(text: str) -> str:
  """Replaces characters that are not allowed in HTML by U+FFFD, and cuts a long text. It does not escape the text."""
  shown_text = _INVALID_CHARACTERS.sub("\ufffd", text[:MAX_CHARACTERS]).translate(_CONTROL_SYMBOLS)
  return shown_text if len(text) <= MAX_CHARACTERS else f"{shown_text}… ({len(text):,} characters)"


def escaped(value: Any) -> str:
  """Converts a value to HTML text that is also safe inside a quoted attribute. None becomes "null"."""
  return html.escape(cleaned("null" if value is None else str(value)))
