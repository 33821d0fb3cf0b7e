"""Beam's own flags, checked before any text is read, and the pipeline for the runner that they name."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from albert.errors import UserError

# Runners of this process or of Dataflow, which know all their flags. Others hand unknown ones on to a server.
_STRICT_RUNNERS = {
  "",
  "directrunner",
  "bundlebaseddirectrunner",
  "switchingdirectrunner",
  "fnapirunner",
  "dataflowrunner",
}


class _FlagParser(argparse.ArgumentParser):
  """Of Beam's flags; an error is a UserError."""

  def error(self, message: str) -> NoReturn:
    raise UserError(f"Beam's flags after --: {message}")


def _check_flags(flags: Sequence[str]) -> None:
  """Checks the names and values of Beam's own flags, which Beam drops when it does not know them.

  Raises:
    UserError: there is no such flag, or its value is of another kind.
  """
  parser = _FlagParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
  for options in PipelineOptions.__subclasses__():
    if "_add_argparse_args" in vars(options):
      options._add_argparse_args(parser)
  known, unknown = parser.parse_known_args(list(flags))
  names = [action for option in parser._actions for action in option.option_strings]
  is_strict = str(known.runner or "").rpartition(".")[2].lower() in _STRICT_RUNNERS
  for word in unknown:
    similar = difflib.get_close_matches(word.partition("=")[0], names, 1, 0.8) if word.startswith("--") else []
    if is_strict or similar:
      hint = f": did you mean {similar[0]}?" if similar else ""
      raise UserError(f"Beam's flags after --: {word!r} is none of them{hint}")


def pipeline_of(flags: Sequence[str]) -> beam.Pipeline:
  """A pipeline for the runner that Beam's own `flags` name; DirectRunner if none.

  Raises:
    UserError: there is no such runner, or its flags are wrong or incomplete.
  """
  _check_flags(flags)
  try:
    return beam.Pipeline(options=PipelineOptions(list(flags)))
  except (ValueError, ImportError, AttributeError) as error:  # as it finds neither the runner nor what it needs
    raise UserError(f"Beam's flags after --: {error}") from error
