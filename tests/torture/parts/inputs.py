"""Gives all commands bad inputs, which must be refused with a clear error, and unusual valid ones."""

from __future__ import annotations

from collections.abc import Iterator

from tests.torture import bad_files, bad_flags, flag_values
from tests.torture.attempts import Attempt, make_case
from tests.torture.campaign import Case, Context


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part. Most inputs are drawn at random, so another seed gives other inputs."""
  for number, attempt in enumerate(_attempts(context)):
    yield make_case(attempt, number, context)


def _attempts(context: Context) -> Iterator[Attempt]:
  workplace, commands = context.workplace, flag_values.commands()
  yield from bad_flags.wrong_type_attempts(commands, context.rng("types"), context.count(70))
  yield from bad_flags.out_of_range_attempts(commands, context.rng("ranges"), context.count(90))
  yield from bad_flags.unknown_flag_attempts(commands, context.rng("unknown"), context.count(15))
  yield from bad_flags.missing_flag_attempts(commands, workplace)
  yield from bad_flags.flag_file_attempts(context.rng("flag files"))
  yield from bad_flags.combination_attempts(workplace)
  yield from bad_files.file_attempts(workplace)
