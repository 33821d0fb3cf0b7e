"""Finds the code blocks of documents, and the commands in them, for the tests that check or run them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r'^( *)```(\w*)(?: title="([^"]*)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"(?:^|[\s/])python3?(?:\.\d+)?$")

_OPERATOR_CHARACTERS = "|&;<>"  # of the shell: pipes, redirections and separators of commands


class Block(NamedTuple):
  """A fenced block: its language, its title ("" for none) and its text without indentation."""

  language: str
  title: str
  text: str


class Invocation(NamedTuple):
  """A command of the project as a document shows it: a script or module, and the words after it."""

  target: str
  words: list[str]


def blocks(path: Path) -> Iterator[Block]:
  """The fenced blocks of a document."""
  for indent, language, title, text in _FENCE.findall(path.read_text(encoding="utf-8")):
    yield Block(language, title, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))


def invocations(path: Path) -> Iterator[Invocation]:
  """The project's commands in the shell blocks of a document. Other commands of a pipeline are left out."""
  for block in blocks(path):
    if block.language in ("sh", "bash", ""):
      for line in re.sub(r"\\\n", " ", block.text).splitlines():
        yield from invocations_in(line)


def invocations_in(line: str) -> Iterator[Invocation]:
  """The project's commands in a line of shell."""
  try:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATOR_CHARACTERS)
    lexer.whitespace_split = True
    words = list(lexer)
  except ValueError:  # not shell: a block without a language may be anything
    return
  command: list[str] = []  # the words since the last operator
  for word in [*words, "|"]:
    if all(character in _OPERATOR_CHARACTERS for character in word):
      if invocation := _invocation(command):
        yield invocation
      command = []
    else:
      command.append(word)


def _invocation(words: list[str]) -> Invocation | None:
  """Returns the invocation of a simple command; None if the command is not one of the project's."""
  while words and re.match(r"[A-Z_]+=", words[0]):  # environment variables
    words = words[1:]
  if len(words) < 2 or not _PYTHON.search(words[0]):
    return None
  if words[1] == "-m" and words[2].split(".")[0] in ("albert", "data_prep"):
    return Invocation(words[2], words[3:])
  return Invocation(words[1], words[2:]) if re.fullmatch(r"run_\w+\.py", words[1]) else None
