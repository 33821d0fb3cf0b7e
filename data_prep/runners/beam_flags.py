"""Checks Beam's own flags before any text is read, and makes the pipeline for the runner that they select."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from albert.errors import UserError

# These runners know all of their flags, so an unknown flag is an error. Other runners pass unknown flags to a server.
_STRICT_RUNNERS = {
  "",
  "directrunner",
  "bundlebaseddirectrunner",
  "switchingdirectrunner",
  "fnapirunner",
  "dataflowrunner",
}


class _FlagParser(argparse.ArgumentParser):
  """A parser whose errors are UserErrors."""

  def error(self, message: str) -> NoReturn:
    raise UserError(f"Beam's flags after --: {message}")


def _check_flags(flags: Sequence[str]) -> None:
  """Checks the names and values of Beam's own flags. Beam itself ignores unknown flags.

  Raises:
    UserError: a flag does not exist, or its value has the wrong type.
  """
  parser = _FlagParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
  for options in PipelineOptions.__subclasses__():
    if "_add_argparse_args" in vars(options):
      options._add_argparse_args(parser)
  known, unknown = parser.parse_known_args(list(flags))
  flag_names = [name for action in parser._actions for name in action.option_strings]
  is_strict = str(known.runner or "").rpartition(".")[2].lower() in _STRICT_RUNNERS
  for word in unknown:
    similar = difflib.get_close_matches(word.partition("=")[0], flag_names, 1, 0.8) if word.startswith("--") else []
    if is_strict or similar:
      hint = f": did you mean {similar[0]}?" if similar else ""
      raise UserError(f"Beam's flags after --: there is no flag {word!r}{hint}")


def make_pipeline(flags: Sequence[str]) -> beam.Pipeline:
  """Makes a pipeline for the runner that Beam's own flags select, by default DirectRunner.

  Args:
    flags: Beam's flags, such as "--runner=DataflowRunner".

  Raises:
    UserError: the runner does not exist, or its flags are wrong or incomplete.
  """
  _check_flags(flags)
  try:
    return beam.Pipeline(options=PipelineOptions(list(flags)))
  except (ValueError, ImportError, AttributeError) as error:  # Beam finds no such runner, or a package is missing
    raise UserError(f"Beam's flags after --: {error}") from error
