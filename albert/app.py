"""Starts a command-line program: parses flags, turns bad input into one line and exit code 2.

Imports nothing heavy, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app as absl_app
from absl import flags, logging

from albert.errors import RunError, Stopped, UserError

EXIT_FAULT = 1
EXIT_USER_ERROR = 2


def _fail(message: str, exit_code: int = EXIT_USER_ERROR) -> NoReturn:
  print(f"error: {message}", file=sys.stderr, flush=True)
  sys.exit(exit_code)


def _parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses flags; an unknown flag, a bad value or a stray word is one line and exit code 2."""
  if any(word in ("--help", "-help", "-h") for word in argv[1:]):
    absl_app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
  try:
    rest = flags.FLAGS(list(argv))
  except flags.Error as error:
    _fail(f"{' '.join(str(error).split())} (--help lists the flags)")
  if len(rest) > 1:
    _fail(f"unexpected argument {rest[1]!r}: flags are written --name=value (--help lists them)")
  return rest


def run(main: Callable[[], None]) -> None:
  """Runs `main()` as the program. What albert.errors defines ends it with one line on stderr."""

  def guarded(argv: Sequence[str]) -> None:
    del argv  # _parse_flags has refused positional arguments
    try:
      main()
    except UserError as error:
      _fail(str(error))
    except RunError as error:
      _fail(str(error), EXIT_FAULT)
    except Stopped as stop:
      print(stop, file=sys.stderr, flush=True)
      sys.exit(128 + stop.signal_number)

  logging.set_verbosity(logging.WARNING)  # libraries' chatter
  absl_app.run(guarded, flags_parser=_parse_flags)
