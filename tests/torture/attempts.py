"""Attempts of the part "inputs": a command gets a bad or unusual input, and must end with the expected exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.torture.campaign import Case, Context
from tests.torture.workplace import ROOT, SECONDS, Finished

# The exit code of a command with a valid input, and with a bad one.
VALID, BAD = 0, 2

Check = Callable[[Finished, Path], str | None]


@dataclasses.dataclass(frozen=True)
class Expected:
  """How a command must end.

  Attributes:
    code: the exit code, VALID or BAD.
    names: texts that the error in the last line of stderr must contain, such as a flag, or a file and its line. With
      code VALID they may be anywhere in stdout or stderr.
    check: a further check of what the command printed, and of the files in the directory where it ran. Returns None,
      or what is wrong.
    leaves_nothing: whether the command must fail before it makes its output directory, `out` in the working directory.
  """

  code: int = BAD
  names: Sequence[str] = ()
  check: Check | None = None
  leaves_nothing: bool = False


@dataclasses.dataclass(frozen=True)
class Attempt:
  """A command with its input.

  Attributes:
    group: the group of its case (see campaign.Case).
    name: the name of its case.
    prepare: writes the input into an empty directory, and returns the command (see Workplace). The command runs in
      this directory.
    expected: how the command must end.
  """

  group: str
  name: str
  prepare: Callable[[Path], Sequence[str]]
  expected: Expected


def make_case(attempt: Attempt, context: Context) -> Case:
  """Makes the case that runs the attempt's command in a new directory."""

  def run() -> str | None:
    directory = context.new_directory("input")
    argv = list(attempt.prepare(directory))
    if argv[0].endswith(".py"):
      argv[0] = str(ROOT / argv[0])
    finished = context.workplace.run(argv, cwd=directory, timeout=SECONDS)
    return describe_unexpected_end(attempt.expected, finished, directory)

  return Case(attempt.group, attempt.name, run)


def describe_unexpected_end(expected: Expected, finished: Finished, directory: Path) -> str | None:
  """Returns None if the command ended as expected, else what is wrong."""
  if failure := finished.unexpected_end(expected.code):
    return failure
  printed = finished.error if expected.code else finished.stdout + finished.stderr
  if missing := [name for name in expected.names if name not in printed]:
    return f"{missing[0]!r} is not in {printed!r}"
  if expected.leaves_nothing and (directory / "out").exists():
    return f"DIRECTORY/out was made although the command was refused: {printed!r}"
  return expected.check(finished, directory) if expected.check else None


def number_attempts(attempts: Iterator[Attempt]) -> Iterator[Attempt]:
  """Puts a number before each name, so that all names differ."""
  for number, attempt in enumerate(attempts):
    yield dataclasses.replace(attempt, name=f"{number}: {attempt.name}")
