"""The text of Wikipedia's templates that stand within sentences: numbers with units, dates, dashes and marked words.

Only templates of the English Wikipedia are known. Many other Wikipedias have copies of them.
"""

from __future__ import annotations

import calendar
import functools
import re
from collections.abc import Callable, Mapping, Sequence

# Name of a parameter -> its text. Parameters without a name are called "1", "2" and so on, as in MediaWiki.
Parameters = Mapping[str, str]
# Returns the text of a template; None if its parameters are not understood.
Expand = Callable[[Parameters], str | None]

# Name of a template, in lower case -> its text. {1} stands for the parameter "1". Of several patterns, the first one
# whose parameters are all given counts.
_MARKED_TEXT = ("{1}",)
_PATTERNS: dict[str, tuple[str, ...]] = {
  **dict.fromkeys(("nowrap", "nobr", "small", "abbr", "em", "strong", "sic", "sub", "sup", "formatnum"), _MARKED_TEXT),
  **dict.fromkeys(("lang", "langx"), ("{2}",)),
  **dict.fromkeys(("transl", "transliteration"), ("{3}", "{2}")),
  **dict.fromkeys(("ill", "interlanguage link"), ("{lt}", "{1}")),
  **dict.fromkeys(("circa", "c.", "ca."), ("c. {1} – c. {2}", "c. {1}")),
  **dict.fromkeys(("floruit", "fl."), ("fl. {1}–{2}", "fl. {1}")),
  "reign": ("r. {1}–{2}", "r. {1}"),
  **dict.fromkeys(("oldstyledate", "oldstyledatedy"), ("{1} {2}",)),
  **dict.fromkeys(("frac", "fraction", "sfrac"), ("{1} {2}/{3}", "{1}/{2}", "1/{1}")),
  "val": ("{1} × 10^{e} {u}", "{1} × 10^{e} {ul}", "{1} × 10^{e}", "{1} {u}/{up}", "{1} {u}", "{1} {ul}", "{1}"),
  **dict.fromkeys(("e", "x10^"), (" × 10^{1}",)),
  "gaps": ("{1}{2}{3}{4}", "{1}{2}{3}", "{1}{2}"),
  **dict.fromkeys(("us$", "usd"), ("US${1}",)),
  **dict.fromkeys(("gbp", "£"), ("£{1}",)),
  **dict.fromkeys(("eur", "euro", "€"), ("€{1}",)),
  **dict.fromkeys(("nbsp", "space", "spaces"), (" ",)),
  **dict.fromkeys(("snd", "spnd", "spaced ndash", "spaced en dash"), (" – ",)),
  **dict.fromkeys(("ndash", "en dash"), ("–",)),
  **dict.fromkeys(("mdash", "em dash"), ("—",)),
  "'": ("'",),
  "'s": ("'s",),
}
_PARAMETER = re.compile(r"\{(\w+)\}")

# In {{convert|5|to|10|km}}: the word between two numbers -> how it is printed.
_RANGE_WORDS = {
  **dict.fromkeys(("-", "–"), "–"),
  **dict.fromkeys(("x", "×", "*", "xx"), " × "),
  **dict.fromkeys(("±", "+/-"), " ± "),
  **dict.fromkeys(("to", "to(-)"), " to "),
  **dict.fromkeys(("and", "and(-)", "&"), " and "),
  **dict.fromkeys(("by", "by(x)"), " by "),
  "or": " or ",
  ",": ", ",
  ", and": ", and ",
  ", or": ", or ",
}
_NUMBER = re.compile(r"[-+−±]?[.\d½¼¾][\d.,/⁄+\-–−±×\s½¼¾]*(?:e[-+−]?\d+)?", re.IGNORECASE)
_MIXED_FRACTION = re.compile(r"(?<=\d)\+(?=\d+[/⁄])")
_UNIT = re.compile(r"(?:e(?P<power>3|6|9|12))?(?P<unit>(?!(?:to|and|or|by|up|then)\b)[^\W\d]\S*.*|[°%'\"$£€].*)")
_POWERS = {"3": "thousand ", "6": "million ", "9": "billion ", "12": "trillion "}
# The second unit of a measure such as 5 feet 7 inches.
_SMALLER_UNITS = frozenset(("ft", "in", "yd", "ch", "lb", "oz"))


def expander(name: str) -> Expand | None:
  """Returns the function that makes the text of a template; None if the template is not known.

  Args:
    name: the name of the template in lower case, with spaces.
  """
  if name in ("convert", "cvt"):
    return _measure
  if name == "as of":
    return _as_of
  patterns = _MARKED_TEXT if name.startswith("lang-") else _PATTERNS.get(name)
  return None if patterns is None else functools.partial(_fill, patterns)


def _fill(patterns: Sequence[str], parameters: Parameters) -> str | None:
  for pattern in patterns:
    if all(parameters.get(name, "").strip() for name in _PARAMETER.findall(pattern)):
      return _PARAMETER.sub(lambda match: parameters[match[1]], pattern)
  return None


def _measure(parameters: Parameters) -> str | None:
  """Returns the numbers and the unit that {{convert}} was given, such as "5 to 10 km"."""
  values: list[str] = []
  while (value := parameters.get(str(len(values) + 1))) is not None:
    values.append(value.strip())
  text = ""
  while len(values) >= 2 and _NUMBER.fullmatch(values[0]):
    number, unit_or_word, *values = values
    text += _MIXED_FRACTION.sub(" ", number)
    if unit_or_word in _RANGE_WORDS:
      text += _RANGE_WORDS[unit_or_word]
    elif unit := _UNIT.fullmatch(unit_or_word):
      text += f" {_POWERS.get(unit['power'], '')}{unit['unit']}"
      if len(values) < 2 or values[1] not in _SMALLER_UNITS or not _NUMBER.fullmatch(values[0]):
        return text
      text += " "
    else:
      return None
  return None


def _as_of(parameters: Parameters) -> str | None:
  """Returns the words and the date of {{as of|year|month|day}}, such as "As of January 2010"."""
  given = {name: value.strip() for name, value in parameters.items()}
  if given.get("alt"):
    return given["alt"]
  year, month, day = (given.get(str(number), "") for number in (1, 2, 3))
  if month.isdecimal():
    if not 1 <= int(month) <= 12:
      return None
    month = calendar.month_name[int(month)]
  if not year:
    return None
  words = "since" if given.get("since") else "as of"
  words = words if given.get("lc") else words.capitalize()
  parts = ["" if given.get("bare") else words, given.get("pre", ""), day, month, year]
  return " ".join(filter(None, parts)) + given.get("post", "")
