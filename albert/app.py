"""Starts a command-line program: parses flags, and ends it with one line and an exit code.

Exit codes: 0 done, 2 bad input, 1 a fault of the system or of the program, 128 + signal after SIGINT or SIGTERM, 141
when nobody reads standard output any more. Only a fault of the program shows a traceback.

Imports nothing heavy, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app as absl_app
from absl import flags, logging

from albert import command_help, startup
from albert.command_help import HelpPage
from albert.config import command_flags
from albert.errors import RunError, Stopped, UserError
from albert.io import file_errors

EXIT_FAULT = 1
EXIT_USER_ERROR = 2
# What a shell shows for a program that SIGPIPE ended.
_EXIT_CLOSED_PIPE = 128 + 13
_LONGEST_REASON = 200
# Flags that lower what a command needs.
_FLAGS_OF_MEMORY = (
  "train_batch_size",
  "eval_batch_size",
  "batch_size",
  "max_seq_length",
  "hidden_size",
  "num_processes",
)
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
  for warning in command_flags.repetition_warnings(argv):
    print(warning, file=sys.stderr, flush=True)
  if operands is not None:
    operands[:] = parsed[1:]
  elif len(parsed) > 1:
    _fail(f"unexpected argument {parsed[1]!r}: flags are written --name=value (--help lists them)")
  return parsed


def _print_help(
  main: Callable[[], None], help_page: Callable[[], HelpPage] | None, description: str | None, is_full: bool
) -> None:
  """Prints the help of the command; the full one has absl's own flags, too."""
  module = sys.modules["__main__" if description is not None else main.__module__]
  page = help_page() if help_page else HelpPage(command_help.flags_of(sys.argv[0]))
  if is_full:
    page = HelpPage([*page.flags, *command_help.other_flags(sys.argv[0])], page.notes)
  print(command_help.render(command_help.program(module), description or module.__doc__ or "", page), end="")


def run(
  main: Callable[[], None],
  rest: list[str] | None = None,
  operands: list[str] | None = None,
  help_page: Callable[[], HelpPage] | None = None,
  description: str | None = None,
) -> None:
  """Runs `main()` as the program. What albert.errors defines ends it with one line on stderr.

  Args:
    main: what to run when the flags are parsed.
    rest: a list that takes the words after "--", for programs that pass them on; None if there may be none.
    operands: a list that takes the words that are no flags, such as directories; None if there may be none.
    help_page: what --help shows of the flags, which are parsed then; None for the flags as they are defined.
    description: the text at the top of --help; None for the docstring of the module that defines `main`.
  """

  logging.set_verbosity(logging.WARNING)  # libraries' chatter
  parse = functools.partial(
    _parse_flags, rest=rest, operands=operands, show_help=functools.partial(_print_help, main, help_page, description)
  )
  startup.begin()
  try:
    _run(lambda: absl_app.run(lambda argv: main(), flags_parser=parse))
  except KeyboardInterrupt:  # while another ending was under way
    startup.end_by_signal(startup.interrupted_by() or signal.SIGINT)


def _run(program: Callable[[], None]) -> NoReturn:
  """Runs what ends with SystemExit, and turns any other ending into an exit code and at most one line."""
  startup.start_running()
  try:
    try:
      program()
    except SystemExit as ending:
      if ending.code in (None, 0):
        sys.stdout.flush()
      raise
  except SystemExit as ending:
    startup.stop_running()
    _discard_output_that_cannot_be_written()
    sys.exit(ending.code)
  except BaseException as error:
    startup.stop_running()
    exit_code, line = _ending(error)
    if exit_code is None:
      raise
    _discard_output_that_cannot_be_written()
    if line:
      print(line, file=sys.stderr, flush=True)
    sys.exit(exit_code)
  sys.exit(0)


def _ending(error: BaseException) -> tuple[int | None, str]:
  """The exit code of an exception, None if it is a fault of the program, and the line to print."""
  number = startup.interrupted_by()
  if isinstance(error, Stopped):
    return 128 + error.signal_number, str(error)
  if number or isinstance(error, KeyboardInterrupt):
    return 128 + (number or signal.SIGINT), startup.stopped_line(number or signal.SIGINT)
  if isinstance(error, startup.OutputError):
    if isinstance(error.__cause__, BrokenPipeError):
      return _EXIT_CLOSED_PIPE, ""
    return (
      EXIT_FAULT,
      f"error: standard output: cannot write it ({error.strerror}): redirect it to where there is space",
    )
  if not isinstance(error, UserError | RunError):
    found = file_errors.fault_of(error) or _memory_error(error) or file_errors.fault_of_temporary_directory(error)
    if found is None:
      return None, ""
    error = found
  return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAULT, f"error: {error}"


def _memory_error(error: BaseException) -> RunError | None:
  """The line for an error of memory, of Python, NumPy or TensorFlow; None for any other."""
  if not isinstance(error, MemoryError) and type(error).__name__ != "ResourceExhaustedError":
    return None
  reason = next(iter(str(error).splitlines()), "")[:_LONGEST_REASON]
  smaller = [f"--{name}" for name in _FLAGS_OF_MEMORY if name in flags.FLAGS]
  remedy = f"lower {' or '.join(smaller)}, or use" if smaller else "give it less at a time, or use"
  return RunError(f"out of memory{f' ({reason})' if reason else ''}: {remedy} a machine or device with more memory")


def _discard_output_that_cannot_be_written() -> None:
  """Text that standard output still refuses goes nowhere, or Python would write a traceback when it ends."""
  try:
    sys.stdout.flush()
  except OSError:
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
