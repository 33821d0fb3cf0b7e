"""Attempts of the part "inputs": a command gets a bad or unusual input, and must end with the expected exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.torture.campaign import Case, Context
from tests.torture.workplace import ROOT, SECONDS, Finished

# The exit code of a command with a valid input, and with a bad one.
VALID, BAD = 0, 2


@dataclasses.dataclass(frozen=True)
class Attempt:
  """A command with its input, and how it must end.

  Attributes:
    group: the group of its case (see campaign.Case).
    name: the name of its case.
    prepare: writes the input into an empty directory, and returns the command (see Workplace). The command runs in
      this directory. Or the command, if it needs no input.
    code: the exit code, VALID or BAD.
    names: texts that the error in the last line of stderr must contain, such as a flag, or a file and its line. With
      code VALID they may be anywhere in stdout or stderr.
    check: a further check of the files in the directory where the command ran. Returns None, or what is wrong.
    leaves_nothing: whether the command must fail before it makes its output directory, `out` in the working directory.
  """

  group: str
  name: str
  prepare: Callable[[Path], Sequence[str]] | Sequence[str]
  code: int = BAD
  names: Sequence[str] = ()
  check: Callable[[Path], str | None] | None = None
  leaves_nothing: bool = False


def make_case(attempt: Attempt, number: int, context: Context) -> Case:
  """Makes the case that runs the attempt's command in a new directory. The number makes the names of cases differ."""

  def run() -> str | None:
    directory = context.new_directory("input")
    argv = list(attempt.prepare(directory) if callable(attempt.prepare) else attempt.prepare)
    if argv[0].endswith(".py"):
      argv[0] = str(ROOT / argv[0])
    finished = context.workplace.run(argv, cwd=directory, timeout=SECONDS)
    return _unexpected_end(attempt, finished, directory)

  return Case(attempt.group, f"{number}: {attempt.name}", run)


def _unexpected_end(attempt: Attempt, finished: Finished, directory: Path) -> str | None:
  """Returns None if the command ended as expected, else what is wrong."""
  if failure := finished.unexpected_end(attempt.code):
    return failure
  printed = finished.error if attempt.code else finished.stdout + finished.stderr
  if missing := [name for name in attempt.names if name not in printed]:
    return f"{missing[0]!r} is not in {printed!r}"
  if attempt.leaves_nothing and (directory / "out").exists():
    return f"DIRECTORY/out was made although the command was refused: {printed!r}"
  return attempt.check(directory) if attempt.check else None
