"""The texts of --help and --version. The module imports no large libraries."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from absl import flags

from albert.version import VERSION

WIDTH = 96
_NAME_WIDTH = 30
_DEFAULT_GROUP = "Flags"
# The message of absl's validator of required flags.
_REQUIRED_MESSAGE = "must have a value other than None"


@dataclasses.dataclass(frozen=True)
class FlagHelp:
  """The help of one flag.

  Attributes:
    name: without dashes.
    text: what the flag sets.
    default: its default in words; "" if there is none or `text` contains it.
    value: placeholder of the value in --name=VALUE, such as N; "" for a boolean flag.
    group: the heading under which it is listed.
  """

  name: str
  text: str
  default: str = ""
  value: str = ""
  group: str = _DEFAULT_GROUP


@dataclasses.dataclass(frozen=True)
class HelpPage:
  """The content of --help.

  Attributes:
    flags: the command's flags.
    notes: paragraphs before the flags, such as one that says where the defaults come from.
  """

  flags: Sequence[FlagHelp]
  notes: Sequence[str] = ()


def program_name(module: ModuleType | None = None) -> str:
  """Returns the name of the command as a user types it: run_squad.py, albert-squad, or python -m albert.export.

  Args:
    module: the command's main module; None for the module that Python was started with.
  """
  module = module or sys.modules["__main__"]
  spec = getattr(module, "__spec__", None)
  if module.__name__ == "__main__" and spec is not None:
    return f"python -m {spec.name.removesuffix('.__main__')}"
  return os.path.basename(sys.argv[0])


def replace_command_name(text: str, title: str, module_name: str) -> str:
  """Replaces a command's name in the examples of its --help by the name with which the user called it.

  A checkout has run_squad.py, but an installation has only albert-squad and python -m run_squad.

  Args:
    text: paragraphs, whose examples begin with `python SCRIPT.py` or `python -m MODULE`.
    title: the name with which the command was called, see `program_name`.
    module_name: the command's module, such as albert.export; "__main__" if Python was started with it.
  """
  own_name = rf"python (run_\w+\.py|-m {re.escape(module_name)}(?![\w.]))"
  return text if title.endswith(".py") else re.sub(own_name, title, text)


def version_line() -> str:
  """Returns the output of --version."""
  return f"albert-tf2 {VERSION}"


def render(title: str, description: str, page: HelpPage) -> str:
  """Formats the text of --help.

  Args:
    title: the command's name, see `program_name`.
    description: paragraphs that say what it does.
    page: its flags and notes. Flags are listed by group, groups in the order of their first flag.

  Returns:
    The text, in lines of at most WIDTH characters.
  """
  paragraphs = [f"usage: {title} --flag=value ..."]
  paragraphs += [_wrap(paragraph) for paragraph in inspect.cleandoc(description).split("\n\n") if paragraph]
  paragraphs += [_wrap(note) for note in page.notes]
  flags_by_group: dict[str, list[FlagHelp]] = {}
  for flag in page.flags:
    flags_by_group.setdefault(flag.group, []).append(flag)
  for group, group_flags in flags_by_group.items():
    paragraphs.append("\n".join([f"{group}:", *map(_format_flag_help, group_flags)]))
  return "\n\n".join(paragraphs) + "\n"


def _wrap(paragraph: str) -> str:
  """Wraps a paragraph at WIDTH characters. A paragraph with indented lines, such as a command, is kept as it is."""
  is_indented = any(line.startswith(" ") for line in paragraph.splitlines())
  return paragraph if is_indented else textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)


def _format_flag_help(flag: FlagHelp) -> str:
  """Formats the help of a flag in two columns: its name, and its text wrapped at WIDTH characters."""
  name, text = f"  --{flag.name}={flag.value}" if flag.value else f"  --[no]{flag.name}", flag.text
  if len(name) > WIDTH:  # a flag with many choices, which are listed in its text instead
    name, text = f"  --{flag.name}=NAME", f"{text}; one of {flag.value.replace('|', ', ')}"
  if flag.default:
    text += f" (default: {flag.default})"
  indent = " " * (_NAME_WIDTH + 2)
  lines = textwrap.wrap(text, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
  if len(name) > _NAME_WIDTH:  # the name gets a line of its own
    return "\n".join([name, *(indent + line for line in lines)])
  return "\n".join([name.ljust(len(indent)) + lines[0], *(indent + line for line in lines[1:])])


def value_placeholder(kind: str, choices: Iterable[str] | None) -> str:
  """Returns the placeholder of a flag's value: N, X, VALUE or the choices; "" for a boolean.

  Args:
    kind: "int", "float", "bool" or "str".
    choices: the possible values; None for any value.
  """
  if choices:
    return "|".join(choices)
  return {"int": "N", "float": "X", "bool": ""}.get(kind, "VALUE")


def flags_of_module(module_name: str) -> list[FlagHelp]:
  """Returns the flags that a module has defined with absl, in the order of definition."""
  return [_absl_help(flag) for flag in flags.FLAGS.flags_by_module_dict().get(module_name, [])]


def flags_of_other_modules(module_name: str) -> list[FlagHelp]:
  """Returns the flags of all other modules, for --helpfull, grouped by module."""
  other_flags = []
  for name, module_flags in flags.FLAGS.flags_by_module_dict().items():
    if name != module_name:
      other_flags += [dataclasses.replace(_absl_help(flag), group=name) for flag in module_flags]
  return other_flags


def _absl_help(flag: Any) -> FlagHelp:
  choices = getattr(flag.parser, "enum_values", None)
  text = " ".join((flag.help or "").split())
  if choices:
    text = text.removeprefix(f"<{'|'.join(choices)}>: ")  # absl adds the choices to the help
  if any(_REQUIRED_MESSAGE in validator.message for validator in flag.validators):
    text += " (required)"
  default = "" if "(default" in text else format_default(flag.default)
  return FlagHelp(flag.name, text, default, value_placeholder(_type_name(flag), choices))


def _type_name(flag: Any) -> str:
  """Returns the type of an absl flag: "bool", "int", "float" or "str"."""
  if flag.boolean:
    return "bool"
  if isinstance(flag.parser, flags.IntegerParser):
    return "int"
  return "float" if isinstance(flag.parser, flags.FloatParser) else "str"


def format_default(value: Any) -> str:
  """Formats a default for the help; "" if there is none, and for a boolean flag that is off."""
  if isinstance(value, list | tuple):
    return ",".join(map(str, value))
  if isinstance(value, bool):
    return "on" if value else ""
  return "" if value is None else str(value)
