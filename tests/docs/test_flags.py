"""Every command in every document has only flags that exist, with values that they take."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest

from docs.builder import commands
from tests.docs.blocks import ROOT, Invocation, invocations

DOCUMENTS = [path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if list(invocations(path))]
# Flags that a command accepts and its --help leaves out.
ALIASES = {"random_seed", "help", "version"}


@functools.cache
def _commands() -> dict[str, commands.Command]:
  return {command.target: command for command in commands.read_commands(commands.targets())}


def _flags(target: str) -> dict[str, str]:
  """Name -> placeholder of the value of each flag of a command; "" for a switch."""
  return {flag["name"]: flag["value"] for flag in _commands()[target].flags}


def problems(invocation: Invocation) -> list[str]:
  """What is wrong with the flags of a command."""
  known, problems_found = _flags(invocation.target), []
  for word in invocation.words:
    if word == "--":
      break  # what follows are Beam's flags
    if not word.startswith("--"):
      continue
    name, equals, value = word.removeprefix("--").partition("=")
    if name in ALIASES:
      continue
    switch = name if name in known else name.removeprefix("no")
    if switch not in known:
      problems_found.append(f"{invocation.target} has no flag --{name}")
    elif equals and not _is_allowed(value, known[switch]):
      problems_found.append(f"{invocation.target}: {word} must be {known[switch]}")
    elif not equals and known[switch]:
      problems_found.append(f"{invocation.target}: {word} needs a value")
  return problems_found


def _is_allowed(value: str, placeholder: str) -> bool:
  if "|" in placeholder:
    return value in placeholder.split("|")
  patterns = {"N": r"-?\d+", "X": r"-?\d*\.?\d+(e-?\d+)?", "": "true|false"}
  return placeholder not in patterns or re.fullmatch(patterns[placeholder], value) is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_flags_of_every_command_exist(path: Path) -> None:
  assert [problem for invocation in invocations(path) for problem in problems(invocation)] == []


def test_wrong_flags_are_found() -> None:
  words = [
    "--task_name=custom",
    "--nodo_eval",
    "--train_step=3",
    "--seed=x",
    "--optimizer=sgd",
    "--do_train=1",
    "--seed",
  ]
  reported = problems(Invocation("run_classifier.py", words))
  assert [re.search(r"--\w+", line)[0] for line in reported] == [  # type: ignore[index]
    "--train_step", "--seed", "--optimizer", "--do_train", "--seed",
  ]  # fmt: skip


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


def test_bodies_of_curl_requests_name_inputs_of_the_forms() -> None:
  text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
  rows = re.findall(r"^\| `\w+`(?:, `\w+`)* \| ([^|]+) \| ", text, re.MULTILINE)
  inputs = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
  assert {"text", "text_a", "question", "context", "options"} <= inputs
  bodies = [json.loads(body) for body in re.findall(r"^curl -d '(\{.*?\})'", text, re.MULTILINE)]
  assert len(bodies) >= 2
  assert {name for body in bodies for instance in body["instances"] for name in instance} <= inputs


def test_every_command_has_a_page() -> None:
  targets = commands.targets()
  assert {"run_classifier.py", "albert.export", "albert.ensemble", "data_prep.train_vocab"} <= set(targets)
  page = commands.command_page(_commands()["albert.predict"])
  assert "`--batch_size=N`{ #batch_size }\n:   Lines computed together. Default: `32`." in page
