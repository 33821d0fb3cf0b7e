"""Commands in the documents have only flags that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_packaging import ROOT, console_commands, documents
from tests.torture import bad_flags

BLOCK = re.compile(r"^```(?:sh|bash|console)?[ \w=\".]*\n(.*?)^```|((?:^ {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
# Flags of every command, which absl or albert.app define.
COMMON = {"help", "helpfull", "version", "flagfile", "verbosity"}


@pytest.fixture(scope="module")
def flags_of() -> dict[str, set[str]]:
  """The name of a command, such as run_squad.py or albert.export -> the names of its flags, also as --noNAME."""
  return {
    command.name: COMMON
    | {
      name for flag in command.flags for name in ([flag.name, f"no{flag.name}"] if flag.kind == "bool" else [flag.name])
    }
    | ({"seed", "random_seed"} if {"seed", "random_seed"} & {flag.name for flag in command.flags} else set())
    for command in bad_flags.commands()
  }


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
  """The name of each of our commands in the blocks of code of a document, and the names of its flags."""
  targets = console_commands()
  for block in BLOCK.finditer(text):
    for line in re.sub(r"\\\n", " ", block[1] or block[2]).splitlines():
      for part in re.split(r"\s(?:\||&&|;)\s|[()]", re.sub(r"\s#\s.*", "", line)):
        try:
          words = shlex.split(part)
        except ValueError:
          continue  # not a command
        while words and (re.fullmatch(r"\w+=.*", words[0]) or re.search(r"(^|/)python3?$|^-m$|^-I$", words[0])):
          words = words[1:]
        if not words:
          continue
        name = targets.get(words[0], words[0])
        flags = [re.split("=", word)[0].removeprefix("--") for word in words[1:] if re.match(r"--\w", word)]
        if "--" in words:
          flags = [f for f in flags if f"--{f}" in " ".join(words[: words.index("--")])]
        if re.match(r"run_\w+\.py$|(albert|data_prep)\.\w+$", name):
          yield name, flags


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_flags_in_documents_exist(path: Path, flags_of: dict[str, set[str]]) -> None:
  unknown = [
    f"{name} --{flag}"
    for name, flags in _commands(path.read_text(encoding="utf-8"))
    for flag in flags
    if name not in flags_of or flag not in flags_of[name]
  ]
  assert unknown == []


def test_the_readme_has_commands_of_every_kind(flags_of: dict[str, set[str]]) -> None:
  named = {name for name, _ in _commands((ROOT / "README.md").read_text(encoding="utf-8"))}
  assert {"run_classifier.py", "run_pretraining.py", "run_squad.py", "run_race.py"} < named <= set(flags_of)
  assert {"albert.export", "albert.predict", "data_prep.train_vocab"} < named
