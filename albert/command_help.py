"""What --help and --version print. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import inspect
import os
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
# What absl's validator of a required flag says.
_REQUIRED = "must have a value other than None"


@dataclasses.dataclass(frozen=True)
class FlagHelp:
  """What --help says of a flag.

  Attributes:
    name: without dashes.
    text: what it is.
    default: its default in words; "" if the text says it, or there is none.
    value: what stands behind "=", such as N; "" for a flag that is switched on or off.
    group: heading that it stands under.
  """

  name: str
  text: str
  default: str = ""
  value: str = ""
  group: str = _DEFAULT_GROUP


@dataclasses.dataclass(frozen=True)
class HelpPage:
  """The flags of a command, and paragraphs before them, such as where the defaults are from."""

  flags: Sequence[FlagHelp]
  notes: Sequence[str] = ()


def program(module: ModuleType | None = None) -> str:
  """How the command is called, without the path of its file: run_squad.py, or python -m albert.export."""
  module = module or sys.modules["__main__"]
  spec = getattr(module, "__spec__", None)
  if module.__name__ == "__main__" and spec is not None:
    return f"python -m {spec.name.removesuffix('.__main__')}"
  return os.path.basename(sys.argv[0])


def version_line() -> str:
  """What --version prints."""
  return f"albert-tf2 {VERSION}"


def render(title: str, description: str, page: HelpPage) -> str:
  """The whole text of --help.

  Args:
    title: how the command is called.
    description: its docstring.
    page: its flags; those of a group stand together, groups in the order of their first flag.
  """
  parts = [f"usage: {title} --flag=value ..."]
  parts += [_filled(paragraph) for paragraph in inspect.cleandoc(description).split("\n\n") if paragraph]
  parts += [_filled(note) for note in page.notes]
  by_group: dict[str, list[FlagHelp]] = {}
  for flag in page.flags:
    by_group.setdefault(flag.group, []).append(flag)
  for group, members in by_group.items():
    parts.append("\n".join([f"{group}:", *(_entry(flag) for flag in members)]))
  return "\n\n".join(parts) + "\n"


def _filled(paragraph: str) -> str:
  """A paragraph in lines of at most WIDTH; one that is indented, such as a command, as it is."""
  is_indented = any(line.startswith(" ") for line in paragraph.splitlines())
  return paragraph if is_indented else textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)


def _entry(flag: FlagHelp) -> str:
  left, text = f"  --{flag.name}={flag.value}" if flag.value else f"  --[no]{flag.name}", flag.text
  if len(left) > WIDTH:
    left, text = f"  --{flag.name}=NAME", f"{text}; one of {flag.value.replace('|', ', ')}"
  if flag.default:
    text += f" (default: {flag.default})"
  indent = " " * (_NAME_WIDTH + 2)
  lines = textwrap.wrap(text, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
  if len(left) > _NAME_WIDTH:
    return "\n".join([left, *(indent + line for line in lines)])
  return "\n".join([left.ljust(len(indent)) + lines[0], *(indent + line for line in lines[1:])])


def value_name(kind: str, choices: Iterable[str] | None) -> str:
  """What stands for the value of a flag of this type: N, X, its choices, ...; "" for a boolean."""
  if choices:
    return "|".join(choices)
  return {"int": "N", "float": "X", "bool": ""}.get(kind, "VALUE")


def flags_of(module_name: str) -> list[FlagHelp]:
  """The flags that a module has defined with absl, in the order of their definition."""
  return [_of_absl(flag) for flag in flags.FLAGS.flags_by_module_dict().get(module_name, [])]


def other_flags(module_name: str) -> list[FlagHelp]:
  """The flags of all other modules, for --helpfull, under the name of their module."""
  modules = {name: found for name, found in flags.FLAGS.flags_by_module_dict().items() if name != module_name}
  return [dataclasses.replace(_of_absl(flag), group=name) for name, found in modules.items() for flag in found]


def _of_absl(flag: Any) -> FlagHelp:
  choices = getattr(flag.parser, "enum_values", None)
  text = " ".join((flag.help or "").split())
  if choices:
    text = text.removeprefix(f"<{'|'.join(choices)}>: ")  # absl puts them there
  if any(_REQUIRED in validator.message for validator in flag.validators):
    text += " (required)"
  default = "" if "(default" in text else shown(flag.default)
  kind = {"integer": "int", "bool": "bool", "float": "float"}.get(_type_of(flag), "str")
  return FlagHelp(flag.name, text, default, value_name(kind, choices))


def _type_of(flag: Any) -> str:
  if flag.boolean:
    return "bool"
  kinds = {flags.IntegerParser: "integer", flags.FloatParser: "float"}
  return next((kind for parser, kind in kinds.items() if isinstance(flag.parser, parser)), "str")


def shown(value: Any) -> str:
  """A default in words; "" for none, and for a flag that is off."""
  if isinstance(value, list | tuple):
    return ",".join(map(str, value))
  if isinstance(value, bool):
    return "on" if value else ""
  return "" if value is None else str(value)
