"""Kills commands, gives them again, and compares the results with those of undisturbed runs."""

from __future__ import annotations

from collections.abc import Iterator

from tests.torture import outputs
from tests.torture.campaign import Case, Context
from tests.torture.workplace import Workplace


def _same_bits(places: Workplace, context: Context) -> str | None:
  """A forked process and a new interpreter write the same bits: else the campaign would test something else."""
  directory = context.new_directory("fresh")
  finished = places.run(places.pretraining(directory / "run"), fresh=True)
  return finished.wrong() or outputs.difference_of_runs(directory / "run", places.pretrained)


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  yield Case("the campaign itself", "fork and new interpreter", lambda: _same_bits(context.places, context))
