"""Starts a command-line program: parses flags, turns bad input into one line and exit code 2.

Imports nothing heavy, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app as absl_app
from absl import flags, logging

from albert import command_flags, command_help
from albert.command_help import HelpPage
from albert.errors import RunError, Stopped, UserError

EXIT_FAULT = 1
EXIT_USER_ERROR = 2
_HELP = {"--help", "-help", "-h", "-?", "--helpshort", "-helpshort"}
_FULL_HELP = {"--helpfull", "-helpfull"}


def _fail(message: str, exit_code: int = EXIT_USER_ERROR) -> NoReturn:
  print(f"error: {message}", file=sys.stderr, flush=True)
  sys.exit(exit_code)


def _parse_flags(
  argv: Sequence[str], rest: list[str] | None, operands: list[str] | None, show_help: Callable[[bool], None]
) -> list[str]:
  """Parses flags; an unknown flag, a bad value or a stray word is one line and exit code 2."""
  if rest is not None and "--" in argv:
    place = list(argv).index("--")
    argv, rest[:] = argv[:place], argv[place + 1 :]
  words = argv[1:]
  # albert.export has a flag of this name, which takes a value.
  if "--version" in words and ("version" not in flags.FLAGS or len(words) == 1):
    print(command_help.version_line())
    sys.exit(0)
  if set(words) & (_HELP | _FULL_HELP):
    with contextlib.suppress(flags.Error):  # what can be understood decides on the defaults that are shown
      flags.FLAGS([argv[0], *(word for word in words if word not in _HELP | _FULL_HELP)], known_only=True)
    show_help(bool(set(words) & _FULL_HELP))
    sys.exit(0)
  if operands is not None:
    flags.FLAGS.set_gnu_getopt(True)  # flags may come after operands
  try:
    parsed = command_flags.parse(argv)
  except UserError as error:
    _fail(str(error))
  for warning in command_flags.repeated(argv):
    print(warning, file=sys.stderr, flush=True)
  if operands is not None:
    operands[:] = parsed[1:]
  elif len(parsed) > 1:
    _fail(f"unexpected argument {parsed[1]!r}: flags are written --name=value (--help lists them)")
  return parsed


def _print_help(main: Callable[[], None], help_page: Callable[[], HelpPage] | None, is_full: bool) -> None:
  """Prints the help of the command; the full one has absl's own flags, too."""
  module = sys.modules[main.__module__]
  page = help_page() if help_page else HelpPage(command_help.flags_of(sys.argv[0]))
  if is_full:
    page = HelpPage([*page.flags, *command_help.other_flags(sys.argv[0])], page.notes)
  print(command_help.render(command_help.program(module), module.__doc__ or "", page), end="")


def run(
  main: Callable[[], None],
  rest: list[str] | None = None,
  operands: list[str] | None = None,
  help_page: Callable[[], HelpPage] | None = None,
) -> None:
  """Runs `main()` as the program. What albert.errors defines ends it with one line on stderr.

  Args:
    main: what to run when the flags are parsed.
    rest: a list that takes the words after "--", for programs that pass them on; None if there may be none.
    operands: a list that takes the words that are no flags, such as directories; None if there may be none.
    help_page: what --help shows of the flags, which are parsed then; None for the flags as they are defined.
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
  show_help = functools.partial(_print_help, main, help_page)
  absl_app.run(guarded, flags_parser=functools.partial(_parse_flags, rest=rest, operands=operands, show_help=show_help))
