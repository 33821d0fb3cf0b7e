"""Generated bad inputs of all commands, and unusual valid ones, each with its exit code and what its error names."""

from __future__ import annotations

from collections.abc import Iterator

from tests.torture import bad_arrays, bad_flags, bad_json, bad_texts, flag_values
from tests.torture.attempts import Attempt, case_of, numbered
from tests.torture.campaign import Case, Context


def cases(context: Context) -> Iterator[Case]:
  """Every run draws new ones from the seed."""
  for attempt in numbered(_attempts(context)):
    yield case_of(attempt, context)


def _attempts(context: Context) -> Iterator[Attempt]:
  workplace, commands = context.workplace, flag_values.commands()
  yield from bad_flags.types(commands, context.rng("types"), context.count(70))
  yield from bad_flags.ranges(commands, context.rng("ranges"), context.count(90))
  yield from bad_flags.unknown(commands, context.rng("unknown"), context.count(15))
  yield from bad_flags.missing(commands, workplace)
  yield from bad_flags.flag_files(context.rng("flag files"))
  yield from bad_flags.combinations(workplace)
  yield from bad_json.attempts(workplace, context.rng("JSON"), context.count(90))
  yield from bad_texts.texts(workplace, context.rng("texts"), context.count(30))
  yield from bad_texts.tables(workplace, context.rng("tables"), context.count(50))
  yield from bad_arrays.shards(workplace, context.rng("shards"), context.count(16))
  yield from bad_arrays.weights(workplace, context.rng("weights"), context.count(16))
