"""Starts a command-line program: parses flags, turns bad input into one line and exit code 2.

Imports nothing heavy, so that `--help` answers at once.
"""

from __future__ import annotations

import functools
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


def _parse_flags(argv: Sequence[str], rest: list[str] | None, operands: list[str] | None) -> list[str]:
  """Parses flags; an unknown flag, a bad value or a stray word is one line and exit code 2."""
  if rest is not None and "--" in argv:
    place = list(argv).index("--")
    argv, rest[:] = argv[:place], argv[place + 1 :]
  if any(word in ("--help", "-help", "-h") for word in argv[1:]):
    absl_app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
  if operands is not None:
    flags.FLAGS.set_gnu_getopt(True)  # flags may come after operands
  try:
    words = flags.FLAGS(list(argv))
  except flags.Error as error:
    _fail(f"{' '.join(str(error).split())} (--help lists the flags)")
  if operands is not None:
    operands[:] = words[1:]
  elif len(words) > 1:
    _fail(f"unexpected argument {words[1]!r}: flags are written --name=value (--help lists them)")
  return words


def run(main: Callable[[], None], rest: list[str] | None = None, operands: list[str] | None = None) -> None:
  """Runs `main()` as the program. What albert.errors defines ends it with one line on stderr.

  Args:
    main: what to run when the flags are parsed.
    rest: a list that takes the words after "--", for programs that pass them on; None if there may be none.
    operands: a list that takes the words that are no flags, such as directories; None if there may be none.
  """

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
  absl_app.run(guarded, flags_parser=functools.partial(_parse_flags, rest=rest, operands=operands))
