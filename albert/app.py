"""Runs a command: parses its flags, prints its errors as one line, and sets its exit code.

Exit codes: 0 for success, 2 for bad input, 1 for a failure of the system or a bug, 128 + signal after SIGINT or
SIGTERM, and 141 if the reader of standard output has closed it. Only a bug prints a traceback.

The module imports no large libraries, so that `--help` is fast.
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
from albert.io import local_files

EXIT_FAULT = 1
EXIT_USER_ERROR = 2
# The exit code that a shell shows for a program that SIGPIPE ended.
_EXIT_CLOSED_PIPE = 128 + 13
_MAX_REASON_CHARACTERS = 200
# Flags whose values determine how much memory a command needs.
_MEMORY_FLAGS = (
  "train_batch_size",
  "eval_batch_size",
  "batch_size",
  "max_seq_length",
  "hidden_size",
  "num_processes",
)
_HELP_FLAGS = {"--help", "-help", "-h", "-?", "--helpshort", "-helpshort"}
_FULL_HELP_FLAGS = {"--helpfull", "-helpfull"}


def _fail(message: str) -> NoReturn:
  print(f"error: {message}", file=sys.stderr, flush=True)
  sys.exit(EXIT_USER_ERROR)


def _parse_flags(
  argv: Sequence[str],
  words_after_dashes: list[str] | None,
  operands: list[str] | None,
  show_help: Callable[[bool], None],
) -> list[str]:
  """Parses flags. An unknown flag, a bad value or an unexpected word ends the command with exit code 2.

  Args:
    argv: the program's name and its arguments.
    words_after_dashes, operands: see `run`; the words are written into these lists.
    show_help: prints the help. Its argument is True for --helpfull.
  Returns:
    The program's name and the arguments that are not flags.
  """
  if words_after_dashes is not None and "--" in argv:
    dashes_index = list(argv).index("--")
    words_after_dashes[:] = argv[dashes_index + 1 :]
    argv = argv[:dashes_index]
  _answer_version_and_help(argv, show_help)
  if operands is not None:
    flags.FLAGS.set_gnu_getopt(True)  # flags may come after operands
  try:
    arguments = command_flags.parse(argv)
  except UserError as error:
    _fail(str(error))
  for warning in command_flags.repetition_warnings(argv):
    print(warning, file=sys.stderr, flush=True)
  if operands is not None:
    operands[:] = arguments[1:]
  elif len(arguments) > 1:
    _fail(f"unexpected argument {arguments[1]!r}: flags are written --name=value (--help lists them)")
  return arguments


def _answer_version_and_help(argv: Sequence[str], show_help: Callable[[bool], None]) -> None:
  """If --version or --help is given, prints the answer and ends the process. See _parse_flags for the arguments."""
  words = argv[1:]
  # albert.export defines a flag --version that takes a value.
  if "--version" in words and ("version" not in flags.FLAGS or len(words) == 1):
    print(command_help.version_line())
    sys.exit(0)
  if set(words) & (_HELP_FLAGS | _FULL_HELP_FLAGS):
    show_help(bool(set(words) & _FULL_HELP_FLAGS))
    sys.exit(0)


def _print_help(
  main: Callable[[], None], help_page: Callable[[], HelpPage] | None, description: str | None, is_full: bool
) -> None:
  """Prints the help of the command; with `is_full`, also the flags that libraries define."""
  # The `main` of a run_* script, which gives a description, is in a module that all of these scripts share.
  module = sys.modules[main.__module__] if description is None else sys.modules["__main__"]
  page = help_page() if help_page else HelpPage(command_help.flags_of_module(sys.argv[0]))
  if is_full:
    page = HelpPage([*page.flags, *command_help.flags_of_other_modules(sys.argv[0])], page.notes)
  title = command_help.program_name(module)
  text = description or module.__doc__ or ""
  text = command_help.replace_command_name(text, title, module.__name__.removesuffix(".__main__"))
  print(command_help.render(title, text, page), end="")


def run(
  main: Callable[[], None],
  words_after_dashes: list[str] | None = None,
  operands: list[str] | None = None,
  help_page: Callable[[], HelpPage] | None = None,
  description: str | None = None,
) -> None:
  """Runs a command and ends the process. The errors of albert.errors are printed as one line on stderr.

  Args:
    main: the command; called after the flags are parsed.
    words_after_dashes: list that receives the words after "--"; None if the command accepts none.
    operands: list that receives the words that are not flags, such as directories; None if the command accepts none.
    help_page: returns the content of --help; None for all flags that the command defines.
    description: the text at the top of --help; None for the docstring of the module that defines `main`.

  Raises:
    SystemExit: always, with the exit code.
  """
  logging.set_verbosity(logging.WARNING)  # hides informational messages of libraries
  parse = functools.partial(
    _parse_flags,
    words_after_dashes=words_after_dashes,
    operands=operands,
    show_help=functools.partial(_print_help, main, help_page, description),
  )
  startup.begin()
  try:
    _run(lambda: absl_app.run(lambda argv: main(), flags_parser=parse))
  except KeyboardInterrupt:  # a signal while the command was already ending
    startup.end_by_signal(startup.interrupting_signal() or signal.SIGINT)


def _run(program: Callable[[], None]) -> NoReturn:
  """Runs a function, and turns any exception into an exit code and at most one line on stderr."""
  startup.start_running()
  try:
    try:
      program()
    except SystemExit as system_exit:
      if system_exit.code in (None, 0):
        sys.stdout.flush()  # so that output that cannot be written is an error of a successful command
      raise
  except SystemExit as system_exit:
    startup.stop_running()
    _discard_output_that_cannot_be_written()
    sys.exit(system_exit.code)
  except BaseException as error:
    startup.stop_running()
    exit_code, line = _exit_code_and_line(error)
    if exit_code is None:  # a bug: Python prints a traceback
      raise
    _discard_output_that_cannot_be_written()
    if line:
      startup.print_stop(line)
    sys.exit(exit_code)
  sys.exit(0)


def _exit_code_and_line(error: BaseException) -> tuple[int | None, str]:
  """Returns the exit code for an exception, or None if it is a bug, and the line to print."""
  signal_number = startup.interrupting_signal()
  if isinstance(error, Stopped):
    return 128 + error.signal_number, str(error)
  if signal_number or isinstance(error, KeyboardInterrupt):
    signal_number = signal_number or signal.SIGINT
    return 128 + signal_number, startup.stopped_line(signal_number)
  if isinstance(error, startup.OutputError):
    if isinstance(error.__cause__, BrokenPipeError):
      return _EXIT_CLOSED_PIPE, ""
    return (
      EXIT_FAULT,
      f"error: standard output: cannot write it ({error.strerror}): redirect it to where there is space",
    )
  if not isinstance(error, UserError | RunError):
    known_error = (
      local_files.convert_file_error(error) or _memory_error(error) or local_files.temporary_directory_error(error)
    )
    if known_error is None:
      return None, ""
    error = known_error
  return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAULT, f"error: {error}"


def _memory_error(error: BaseException) -> RunError | None:
  """Makes the error for an exception that means that memory ran out; None for any other exception.

  Python, NumPy and TensorFlow raise such exceptions.
  """
  if not isinstance(error, MemoryError) and type(error).__name__ != "ResourceExhaustedError":
    return None
  reason = next(iter(str(error).splitlines()), "")[:_MAX_REASON_CHARACTERS]
  memory_flags = [f"--{name}" for name in _MEMORY_FLAGS if name in flags.FLAGS]
  remedy = f"lower {' or '.join(memory_flags)}, or use" if memory_flags else "give it less at a time, or use"
  return RunError(f"out of memory{f' ({reason})' if reason else ''}: {remedy} a machine or device with more memory")


def _discard_output_that_cannot_be_written() -> None:
  """Discards text that cannot be written to standard output. Otherwise Python prints a traceback when it exits."""
  try:
    sys.stdout.flush()
  except OSError:
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
