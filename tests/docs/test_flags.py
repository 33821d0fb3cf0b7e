"""Every command in every document has only flags that exist, with values that these flags take."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from docs.builder import commands
from tests.docs.blocks import ROOT, Invocation, invocations

DOCUMENTS = [path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if list(invocations(path))]
# Flags that every command accepts although its --help leaves them out.
HIDDEN_FLAGS = {"random_seed", "vocab_file", "help", "version"}


@functools.cache
def _commands() -> dict[str, commands.Command]:
  return {command.target: command for command in commands.read_commands(commands.targets())}


def _flags(target: str) -> dict[str, str]:
  """Name -> placeholder of the value of each flag of a command; "" for a switch."""
  return {flag["name"]: flag["value"] for flag in _commands()[target].flags}


def flag_problems(invocation: Invocation) -> list[str]:
  placeholders = _flags(invocation.target)
  lines = []
  for word in invocation.words:
    if word == "--":
      break  # what follows are Beam's flags
    if not word.startswith("--"):
      continue
    name, equals, value = word.removeprefix("--").partition("=")
    if name in HIDDEN_FLAGS:
      continue
    if name not in placeholders:
      name = name.removeprefix("no")  # --noswitch turns off --switch
    if name not in placeholders:
      lines.append(f"{invocation.target} has no flag {word.partition('=')[0]}")
    elif equals and not _is_allowed(value, placeholders[name]):
      lines.append(f"{invocation.target}: {word} must be {placeholders[name]}")
    elif not equals and placeholders[name]:
      lines.append(f"{invocation.target}: {word} needs a value")
  return lines


def _is_allowed(value: str, placeholder: str) -> bool:
  """Whether a flag whose placeholder in --help is "N", "X", "" or "one|of|several" takes a value."""
  if "|" in placeholder:
    return value in placeholder.split("|")
  patterns = {"N": r"-?\d+", "X": r"-?\d*\.?\d+(e-?\d+)?", "": "true|false"}
  return placeholder not in patterns or re.fullmatch(patterns[placeholder], value) is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_flags_of_every_command_exist(path: Path) -> None:
  assert [problem for invocation in invocations(path) for problem in flag_problems(invocation)] == []


def test_wrong_flags_are_found() -> None:
  words = "--task_name=custom --nodo_eval --train_step=3 --seed=x --optimizer=sgd --do_train=1 --seed"
  lines = flag_problems(Invocation("run_classifier.py", words.split()))
  wrong_flags = re.findall(r"--\w+", "\n".join(lines))
  assert wrong_flags == ["--train_step", "--seed", "--optimizer", "--do_train", "--seed"]


def test_commands_in_documents_are_found(tmp_path: Path) -> None:
  document = tmp_path / "a.md"
  document.write_text(
    "```sh\necho 'x | y' | python -m albert.predict --model=m > out\nA=b .venv/bin/python run_squad.py \\\n  --seed=1\n"
    "python other.py\n```\n"
  )
  assert list(invocations(document)) == [
    Invocation("albert.predict", ["--model=m"]),
    Invocation("run_squad.py", ["--seed=1"]),
  ]


def test_every_command_has_a_page() -> None:
  targets = commands.targets()
  assert {"run_classifier.py", "albert.export", "albert.ensemble", "data_prep.train_vocab"} <= set(targets)
  page = commands.command_page(_commands()["albert.predict"])
  assert "`--batch_size=N`{ #batch_size }\n:   Lines computed together. Default: `32`." in page
