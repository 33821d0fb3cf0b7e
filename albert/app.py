"""Runs a command: parses its flags, prints its help or its errors, and sets its exit code.

Exit codes: 0 for success, 2 for bad input, 1 for a failure of the system or a bug, 128 + signal after SIGINT or
SIGTERM, and 141 if the reader of standard output has closed it. Only a bug prints a traceback.

The module imports no large libraries, so that `--help` is fast.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from absl import app as absl_app
from absl import flags, logging

from albert import startup
from albert.config import command_flags
from albert.errors import RunError, Stopped, UserError
from albert.io import local_files
from albert.version import VERSION

EXIT_FAULT = 1
EXIT_USER_ERROR = 2
# The exit code that a shell shows for a program that SIGPIPE ended.
_EXIT_CLOSED_PIPE = 128 + 13
_MAX_REASON_CHARACTERS = 200
# Flags whose values determine how much memory a command needs.
_MEMORY_FLAGS = ("train_batch_size", "eval_batch_size", "batch_size", "max_seq_length", "hidden_size", "num_processes")
_HELP_FLAGS = {"--help", "-help", "-h", "-?", "--helpshort", "-helpshort", "--helpfull", "-helpfull"}

HELP_WIDTH = 96
_NAME_WIDTH = 30
_WRAPPING: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
_DEFAULT_GROUP = "Flags"
# The message of absl's validator of required flags.
_REQUIRED_MESSAGE = "must have a value other than None"


def run(
  main: Callable[[], None],
  words_after_dashes: list[str] | None = None,
  operands: list[str] | None = None,
  description: str | None = None,
) -> None:
  """Runs a command and ends the process. The errors of albert.errors are printed as one line on stderr.

  Args:
    main: the command; called after the flags are parsed.
    words_after_dashes: list that receives the words after "--"; None if the command accepts none.
    operands: list that receives the words that are not flags, such as directories; None if the command accepts none.
    description: the text at the top of --help; None for the docstring of the module that defines `main`.

  Raises:
    SystemExit: always, with the exit code.
  """

  def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses flags, and returns the arguments that are not flags. --version and --help end the process."""
    if words_after_dashes is not None and "--" in argv:
      dashes_index = list(argv).index("--")
      words_after_dashes[:] = argv[dashes_index + 1 :]
      argv = argv[:dashes_index]
    # albert.export defines a flag --version that takes a value.
    if not {"--version", "-V"}.isdisjoint(argv) and ("version" not in flags.FLAGS or len(argv) == 2):
      print(f"albert-tf2 {VERSION}")
      sys.exit(0)
    command_flags.define("bool", startup.QUIET, False, "print only results, warnings and errors", group="Output")
    command_flags.define("bool", startup.VERBOSE, False, "print more, such as all metrics of a step", group="Output")
    if not _HELP_FLAGS.isdisjoint(word.partition("=")[0] for word in argv):
      print_help(main, description)
      sys.exit(0)
    if operands is not None:
      flags.FLAGS.set_gnu_getopt(True)  # flags may come after operands
    arguments = command_flags.parse(argv)
    given = [name for name in (startup.QUIET, startup.VERBOSE) if flags.FLAGS[name].value]
    if len(given) > 1:
      raise UserError("--quiet and --verbose are both given: give one")
    startup.set_verbosity(given[0] if given else startup.NORMAL)
    for warning in command_flags.repetition_warnings():
      print(warning, file=sys.stderr, flush=True)
    if operands is not None:
      operands[:] = arguments[1:]
    elif len(arguments) > 1:
      raise UserError(f"unexpected argument {arguments[1]!r}: write --name=value, with quotes if it has spaces")
    return arguments

  logging.set_verbosity(logging.WARNING)  # hides informational messages of libraries
  startup.begin()
  try:
    _run(lambda: absl_app.run(lambda argv: main(), flags_parser=parse_flags))
  except KeyboardInterrupt:  # a signal while the command was already ending
    startup.end_by_signal(startup.interrupting_signal() or signal.SIGINT)


def _run(program: Callable[[], None]) -> NoReturn:
  """Runs a function, and turns any exception into an exit code and at most one line on stderr."""
  exit_code: Any = 0
  line = ""
  try:
    with startup.interruptible():
      try:
        program()
      except SystemExit as system_exit:
        if system_exit.code in (None, 0):
          sys.stdout.flush()  # so that output that cannot be written is an error of a successful command
        raise
  except SystemExit as system_exit:
    exit_code = system_exit.code
  except BaseException as error:
    exit_code, line = _exit_code_and_line(error)
    if exit_code is None:  # a bug: Python prints a traceback
      raise
  # Discards text that cannot be written to standard output. Otherwise Python prints a traceback when it exits.
  try:
    sys.stdout.flush()
  except OSError:
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  if line:
    startup.print_stop(line)
  sys.exit(exit_code)


def print_help(main: Callable[[], None], description: str | None) -> None:
  """Prints the help of a command, with the flags that it has defined. For the arguments see `run`."""
  # The `main` of a run_* script, which gives a description, is in a module that all of these scripts share.
  module = sys.modules[main.__module__] if description is None else sys.modules["__main__"]
  own_flags = flags.FLAGS.flags_by_module_dict().get(sys.argv[0], [])
  page = [_flag_help(flag) for flag in own_flags if not getattr(flag, "is_hidden", False)]
  # The command as a user types it: run_squad.py, albert-squad, or python -m albert.export.
  spec = getattr(module, "__spec__", None)
  title = os.path.basename(sys.argv[0])
  if module.__name__ == "__main__" and spec is not None:
    title = f"python -m {spec.name.removesuffix('.__main__')}"
  text = description or module.__doc__ or ""
  if not title.endswith(".py"):  # an installation has no run_squad.py, but albert-squad and python -m run_squad
    module_name = re.escape(module.__name__.removesuffix(".__main__"))
    text = re.sub(rf"python (run_\w+\.py|-m {module_name}(?![\w.]))", title, text)
  print(render_help(title, text, page), end="")


class FlagHelp(NamedTuple):
  """The help of one flag.

  Attributes:
    name: without dashes.
    text: what the flag sets.
    default: its default in words; "" if there is none or `text` contains it.
    value: placeholder of the value in --name=VALUE: N, X, VALUE or the choices; "" for a boolean flag.
    group: the heading under which it is listed.
  """

  name: str
  text: str
  default: str
  value: str
  group: str


def _flag_help(flag: Any) -> FlagHelp:
  """Describes an absl flag. Flags of albert.config.command_flags know their group and the default to show."""
  choices = getattr(flag.parser, "enum_values", None)
  text = " ".join((flag.help or "").split())
  if choices:
    text = text.removeprefix(f"<{'|'.join(choices)}>: ")  # absl adds the choices to the help
  if any(_REQUIRED_MESSAGE in validator.message for validator in flag.validators):
    text += " (required)"
  default = "" if "(default" in text else _format_default(getattr(flag, "shown_default", flag.default))
  value = getattr(flag, "placeholder", "") or "|".join(choices or [])
  if not value and not flag.boolean:
    value = {"int": "N", "float": "X"}.get(flag.flag_type(), "VALUE")
  return FlagHelp(flag.name, text, default, value, getattr(flag, "group", "") or _DEFAULT_GROUP)


def _format_default(value: Any) -> str:
  """Formats a default for the help; "" if there is none, and for a boolean flag that is off."""
  if isinstance(value, list | tuple):
    return ",".join(map(str, value))
  if isinstance(value, bool):
    return "on" if value else ""
  return "" if value is None else str(value)


def render_help(title: str, description: str, page: Sequence[FlagHelp]) -> str:
  """Formats the text of --help, in lines of at most HELP_WIDTH characters.

  Args:
    title: the command as a user types it.
    description: paragraphs that say what it does.
    page: its flags. They are listed by group, groups in the order of their first flag.
  """
  paragraphs = [f"usage: {title} --flag=value ..."]
  for paragraph in filter(None, re.split("\n\n+", inspect.cleandoc(description))):
    is_indented = any(line.startswith(" ") for line in paragraph.splitlines())  # such as a command
    paragraphs.append(paragraph if is_indented else textwrap.fill(paragraph, HELP_WIDTH, **_WRAPPING))
  flags_by_group: dict[str, list[FlagHelp]] = {}
  for flag in page:
    flags_by_group.setdefault(flag.group, []).append(flag)
  for group, group_flags in flags_by_group.items():
    paragraphs.append("\n".join([f"{group}:", *map(_format_flag_help, group_flags)]))
  return "\n\n".join([*paragraphs, "--version, as the only flag, prints the version."]) + "\n"


def _format_flag_help(flag: FlagHelp) -> str:
  """Formats the help of a flag in two columns: its name, and its text wrapped at HELP_WIDTH characters."""
  name, text = f"  --{flag.name}={flag.value}" if flag.value else f"  --[no]{flag.name}", flag.text
  if len(name) > HELP_WIDTH:  # a flag with many choices, which are listed in its text instead
    name, text = f"  --{flag.name}=NAME", f"{text}; one of {flag.value.replace('|', ', ')}"
  if flag.default:
    text += f" (default: {flag.default})"
  indent = " " * (_NAME_WIDTH + 2)
  lines = textwrap.wrap(text, HELP_WIDTH - len(indent), **_WRAPPING) or [""]
  if len(name) > _NAME_WIDTH:  # the name gets a line of its own
    return "\n".join([name, *(indent + line for line in lines)])
  return "\n".join([name.ljust(len(indent)) + lines[0], *(indent + line for line in lines[1:])])


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
    problem = f"cannot write it ({error.strerror})"
    return EXIT_FAULT, f"error: standard output: {problem}: redirect it to where there is space"
  if not isinstance(error, UserError | RunError):
    known_error = (
      local_files.convert_file_error(error) or _memory_error(error) or local_files.temporary_directory_error(error)
    )
    if known_error is None:
      return None, ""
    error = known_error
  return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAULT, f"error: {error}"


def _memory_error(error: BaseException) -> RunError | None:
  """Makes the error for an exception of Python, NumPy or TensorFlow that means that memory ran out; else None."""
  if not isinstance(error, MemoryError) and type(error).__name__ != "ResourceExhaustedError":
    return None
  reason = next(iter(str(error).splitlines()), "")[:_MAX_REASON_CHARACTERS]
  memory_flags = [f"--{name}" for name in _MEMORY_FLAGS if name in flags.FLAGS]
  remedy = f"lower {' or '.join(memory_flags)}, or use" if memory_flags else "give it less at a time, or use"
  return RunError(f"out of memory{f' ({reason})' if reason else ''}: {remedy} a machine or device with more memory")
