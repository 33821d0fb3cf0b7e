"""The flags of commands: the range of a value, how a flag is defined, and how the command line is parsed.

It imports nothing heavy, so that --help answers at once. It has its own parsers of numbers, because those of absl
accept NaN in every range.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from albert.errors import UserError

# The largest values of TensorFlow's int32 and int64.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# The largest number of worker processes of one command. More would exhaust the machine's memory.
MAX_PROCESSES = 1024
# The largest number of sequences in a batch. No device has the memory for more.
MAX_BATCH_SIZE = 1 << 20
# The smallest normal float32. Devices replace smaller numbers by 0.
_SMALLEST_FLOAT32 = 2.0**-126
# An error message is cut to this many characters at its start and at its end.
_MAX_SHOWN_CHARACTERS = 200
# absl's message for a required flag that is missing.
_MISSING_FLAG = re.compile(r"flag --(\w+)=None: Flag --\1 must have a value other than None\.")

# Flag -> another name for it, which every command with this flag takes. The original BERT calls its vocabulary so.
_OTHER_NAMES = {"spm_model_file": "vocab_file"}


@dataclasses.dataclass(frozen=True)
class Range:
  """The numbers that a setting may have.

  NaN, infinity, and floats that are infinite as float32 are never allowed. The absolute value of an integer is at most
  INT32_MAX unless `maximum` or `below` is given.

  Attributes:
    minimum: the smallest allowed value.
    maximum: the largest allowed value.
    above: a bound that every allowed value is greater than.
    below: a bound that every allowed value is less than.
  """

  minimum: float | None = None
  maximum: float | None = None
  above: float | None = None
  below: float | None = None

  def violation(self, value: float) -> str | None:
    """The rule that `value` violates, in words that follow "must be", such as "at least 1"; None if it is allowed.

    A float must be in the range both as it is and after rounding to float32, because training computes in float32: a
    dropout of 0.999999999 is rounded to 1.
    """
    if isinstance(value, bool) or not isinstance(value, float):
      return self._violated_bound(value) or self._violated_int32_limit(value)
    if not math.isfinite(value):
      return "a finite number"
    rounded = as_float32(value)
    if math.isinf(rounded):
      return "a finite number in float32"
    violation, float32_violation = self._violated_bound(value), self._violated_bound(rounded)
    if violation is None and float32_violation is not None:
      return f"{float32_violation} in float32"
    return violation

  def _violated_int32_limit(self, value: int) -> str | None:
    if self.maximum is not None or self.below is not None or abs(value) <= INT32_MAX:
      return None
    return f"at most {INT32_MAX}" if value > 0 else f"at least {-INT32_MAX}"

  def _violated_bound(self, value: float) -> str | None:
    if self.minimum is not None and value < self.minimum:
      return f"at least {self.minimum}"
    if self.above is not None and value <= self.above:
      return f"above {self.above}"
    if self.maximum is not None and value > self.maximum:
      return f"at most {self.maximum}"
    if self.below is not None and value >= self.below:
      return f"below {self.below}"
    return None


def default_processes() -> int:
  """The default number of worker processes: one for each core, at most MAX_PROCESSES."""
  return min(os.cpu_count() or 1, MAX_PROCESSES)


def as_float32(value: float) -> float:
  """Rounds to float32. Values that are too large become infinite; those below the smallest normal number become 0."""
  try:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
  except OverflowError:
    return math.copysign(math.inf, value)
  return rounded if abs(rounded) >= _SMALLEST_FLOAT32 else math.copysign(0.0, value)


def text_violation(value: str) -> str | None:
  """The rule that a text violates, in words that follow "must be"; None if it can be a path or a name."""
  if value and value.isspace():
    return "more than white space"
  if "\0" in value:
    return "without NUL characters"
  try:
    value.encode("utf-8")
  except UnicodeEncodeError:
    return "UTF-8"
  return None


class _NumberParser(flags.ArgumentParser):
  """Parses a number and checks its range. Subclasses also inherit `convert` from one of absl's parsers."""

  kind: str  # for errors: "must be {kind}"
  convert: Callable[[Any], Any]

  def __init__(self, allowed: Range):
    super().__init__()
    self._range = allowed

  def parse(self, argument: str | float) -> Any:
    try:
      value = self.convert(argument)
    except ValueError as error:
      raise ValueError(f"must be {self.kind}") from error
    if violation := self._range.violation(value):
      raise ValueError(f"must be {violation}")
    return value


class _IntegerParser(_NumberParser, flags.IntegerParser):
  kind = "a whole number"


class _FloatParser(_NumberParser, flags.FloatParser):
  kind = "a number"


class _SwitchParser(flags.BooleanParser):
  """Parses a boolean, as absl does, but with a shorter error message."""

  def parse(self, argument: str | int | bool) -> bool:
    try:
      return bool(super().parse(argument))
    except ValueError as error:
      raise ValueError("must be true or false") from error


class _TextParser(flags.ArgumentParser):
  """Parses a path, a name or another text."""

  def parse(self, argument: str) -> str:
    if violation := text_violation(argument):
      raise ValueError(f"must be {violation}")
    return argument

  def flag_type(self) -> str:
    return "string"


class _OtherName(flags.Flag):
  """Another name for a flag of text.

  Args:
    name: the name without dashes.
    flag: the flag.
  """

  def __init__(self, name: str, flag: flags.Flag):
    self._flag = flag
    super().__init__(flag.parser, flag.serializer, name, None, f"another name for --{flag.name}")

  def parse(self, argument: str) -> None:
    previous = self.value
    super().parse(argument)
    if self._flag.present and self._flag.value != previous:
      self.check()  # the flag was given under its own name
    self._flag.parse(argument)

  def check(self) -> None:
    """Raises a UserError if both names are given, with different values."""
    if self.value is not None and self.value != self._flag.value:
      own, other = f"--{self._flag.name}={self._flag.value}", f"--{self.name}={self.value}"
      raise UserError(f"{own} and {other} are both given, but are two names for one flag: give one")


def define(
  kind: str,
  name: str,
  default: Any,
  help_text: str,
  *,
  allowed: Range = Range(),
  choices: Sequence[str] | None = None,
  required: bool = False,
  shown_default: Any = None,
  placeholder: str = "",
  group: str = "",
) -> None:
  """Defines a flag of the program that is running.

  Args:
    kind: the type of the value: "int", "float", "bool" or "str".
    name: the name without dashes.
    default: the value if the flag is not given.
    help_text: the text of --help.
    allowed: the range, for a number.
    choices: all allowed values, for a "str" that has a fixed set of them.
    required: whether the flag must be given. An empty value of a "str" counts as not given.
    shown_default: the default in --help, if it is not `default`.
    placeholder: of the value in --help; "" for that of the type, such as N.
    group: the heading of --help under which the flag is listed.
  """
  options: dict[str, Any] = {"module_name": sys.argv[0], "required": required}
  if choices is not None:
    flags.DEFINE_enum(name, default, list(choices), help_text, **options)
  elif kind == "bool":
    flag = flags.BooleanFlag(name, default, help_text)
    flag.parser = _SwitchParser()
    flags.DEFINE_flag(flag, **options)
  else:
    flags.DEFINE(
      _make_parser(kind, allowed), name, default, help_text, serializer=flags.ArgumentSerializer(), **options
    )
  defined: Any = flags.FLAGS[name]
  defined.group, defined.placeholder = group, placeholder
  defined.shown_default = default if shown_default is None else shown_default
  if required and kind == "str":
    flags.register_validator(name, lambda value: value != "", message="must not be empty")
  if name in _OTHER_NAMES:
    define_other_name(name, _OTHER_NAMES[name])


def define_other_name(name: str, other_name: str) -> None:
  """Defines another name for a flag."""
  flag: Any = flags.FLAGS[name]
  other: Any = _OtherName(other_name, flag)
  other.is_hidden = bool(flag.group)  # in --help of the scripts, the text of the flag names it
  flags.DEFINE_flag(other, module_name=sys.argv[0])


def _make_parser(kind: str, allowed: Range) -> flags.ArgumentParser:
  """Makes the parser of a flag whose value is an "int", a "float" or a "str"."""
  if kind == "int":
    return _IntegerParser(allowed)
  return _FloatParser(allowed) if kind == "float" else _TextParser()


def parse(argv: Sequence[str]) -> list[str]:
  """Parses the command line with absl.

  Args:
    argv: the program's name and its arguments.
  Returns:
    The program's name and the arguments that are not flags.
  Raises:
    UserError: an unknown flag, a missing required flag, a bad value, different values under two names for one flag, or
      a flag file that cannot be read.
  """
  try:
    arguments = list(flags.FLAGS(list(argv)))
    for name in _OTHER_NAMES.values():
      if name in flags.FLAGS and isinstance(flag := flags.FLAGS[name], _OtherName):
        flag.check()
    return arguments
  except UserError:
    raise
  except UnicodeDecodeError as error:  # only flag files are decoded
    flag_file = next((word for word in argv if word.lstrip("-").startswith("flagfile")), "--flagfile")
    raise UserError(f"{flag_file}: not UTF-8 ({error.reason} at byte {error.start + 1}): give a text file") from error
  except RecursionError as error:
    raise UserError("--flagfile: the flag files include each other too deeply: give all flags in one file") from error
  except (flags.Error, ValueError) as error:
    message = shorten(_MISSING_FLAG.sub(r"--\1 is missing", str(error).removeprefix("ERROR:: ")))
    raise UserError(f"{message} (--help lists the flags)") from error


def shorten(message: str) -> str:
  """Joins an error message of absl into one line, and leaves out the middle if it is very long."""
  line = " ".join(message.split())
  if len(line) <= 2 * _MAX_SHOWN_CHARACTERS:
    return line
  return f"{line[:_MAX_SHOWN_CHARACTERS]} ... {line[-_MAX_SHOWN_CHARACTERS:]}"


def repetition_warnings(argv: Sequence[str]) -> list[str]:
  """Returns a warning for each flag that the command line gives several times with different values.

  The last value of a flag is used.

  Args:
    argv: the program's name and its arguments, which absl has already parsed.
  """
  occurrences: dict[str, list[str]] = {}
  for word, next_word in itertools.zip_longest(argv[1:], argv[2:], fillvalue=""):
    name, equals, _ = word.lstrip("-").partition("=")
    flag_name = name if name in flags.FLAGS else name.removeprefix("no")
    if not word.startswith("-") or flag_name not in flags.FLAGS or flag_name in ("flagfile", "undefok"):
      continue
    if isinstance(flags.FLAGS[flag_name], flags.MultiFlag):  # each one adds a value
      continue
    next_word_is_value = not equals and not flags.FLAGS[flag_name].boolean
    occurrences.setdefault(flag_name, []).append(f"{word} {next_word}" if next_word_is_value else word)
  return [
    f"warning: --{name} is given {len(words)} times: {words[-1]} is used"
    for name, words in occurrences.items()
    if len({word.lstrip("-") for word in words}) > 1
  ]
