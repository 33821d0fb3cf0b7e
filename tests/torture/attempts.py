"""Runs a command with a bad input, or with an unusual valid one, and compares its end with the expected one."""

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
    code: the exit code, VALID or BAD.
    names: texts that must be in the last line of stderr, such as a flag, or a file and its line. With code 0 they may
      be anywhere in what was printed.
    check: looks at what the command printed and wrote. Returns None, or what is wrong with it.
    leaves_nothing: whether the command must not have made its output directory, `out` in the working directory.
  """

  code: int = BAD
  names: Sequence[str] = ()
  check: Check | None = None
  leaves_nothing: bool = False


@dataclasses.dataclass(frozen=True)
class Attempt:
  """A command with its input.

  Attributes:
    group, name: the group and name of its case.
    prepare: writes the input into an empty directory, and returns the command (see Workplace). The command runs in
      this directory.
    expected: how the command must end.
  """

  group: str
  name: str
  prepare: Callable[[Path], Sequence[str]]
  expected: Expected


def case_of(attempt: Attempt, context: Context) -> Case:
  """Makes the case that runs the attempt's command in a new directory."""

  def run() -> str | None:
    directory = context.new_directory("input")
    argv = list(attempt.prepare(directory))
    if argv[0].endswith(".py"):
      argv[0] = str(ROOT / argv[0])
    finished = context.workplace.run(argv, cwd=directory, timeout=SECONDS)
    return wrong(attempt.expected, finished, directory)

  return Case(attempt.group, attempt.name, run)


def wrong(expected: Expected, finished: Finished, directory: Path) -> str | None:
  """Returns None if the command ended as expected, else what is wrong."""
  if failure := finished.wrong(expected.code):
    return failure
  line = finished.error if expected.code else finished.stdout + finished.stderr
  if missing := [name for name in expected.names if name not in line]:
    return f"{missing[0]!r} is not in {line!r}"
  if expected.leaves_nothing and (directory / "out").exists():
    return f"DIRECTORY/out was made although the command was refused: {line!r}"
  return expected.check(finished, directory) if expected.check else None


def numbered(attempts: Iterator[Attempt]) -> Iterator[Attempt]:
  """Puts a number before each name, so that all names differ."""
  for number, attempt in enumerate(attempts):
    yield dataclasses.replace(attempt, name=f"{number}: {attempt.name}")
