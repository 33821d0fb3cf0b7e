"""A command with an input that is bad, or unusual and valid, and what is expected of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.torture.campaign import Case, Context
from tests.torture.workplace import ROOT, SECONDS, Finished

VALID, BAD = 0, 2

Check = Callable[[Finished, Path], str | None]


@dataclasses.dataclass(frozen=True)
class Expected:
  """How a command must end.

  Attributes:
    code: exit code.
    names: what the last line of stderr must contain, such as the flag or the file with its line.
    check: looks at what the command printed and wrote; returns what is wrong with it.
    leaves_nothing: the directory DIRECTORY/out must not exist afterwards.
  """

  code: int = BAD
  names: Sequence[str] = ()
  check: Check | None = None
  leaves_nothing: bool = False


@dataclasses.dataclass(frozen=True)
class Attempt:
  """One input.

  Attributes:
    group, name: of its case.
    prepare: writes files into the empty directory that it is given and returns the command (see Workplace.start), whose
      working directory it is.
    expected: how the command must end.
  """

  group: str
  name: str
  prepare: Callable[[Path], Sequence[str]]
  expected: Expected


def case_of(attempt: Attempt, context: Context) -> Case:
  """The case that makes the attempt."""

  def run() -> str | None:
    directory = context.new_directory("input")
    argv = list(attempt.prepare(directory))
    if argv[0].endswith(".py"):
      argv[0] = str(ROOT / argv[0])
    finished = context.places.run(argv, cwd=directory, timeout=SECONDS)
    return wrong(attempt.expected, finished, directory)

  return Case(attempt.group, attempt.name, run)


def wrong(expected: Expected, finished: Finished, directory: Path) -> str | None:
  """None if the command has ended as expected, else what is wrong."""
  if failure := finished.wrong(expected.code):
    return failure
  line = finished.error if expected.code else finished.stdout + finished.stderr
  if missing := [name for name in expected.names if name not in line]:
    return f"{missing[0]!r} is not in {line!r}"
  if expected.leaves_nothing and (directory / "out").exists():
    return f"DIRECTORY/out was made although the command was refused: {line!r}"
  return expected.check(finished, directory) if expected.check else None


def numbered(attempts: Iterator[Attempt]) -> Iterator[Attempt]:
  """The attempts with distinct names."""
  for number, attempt in enumerate(attempts):
    yield dataclasses.replace(attempt, name=f"{number}: {attempt.name}")
