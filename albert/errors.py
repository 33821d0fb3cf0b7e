"""The exceptions that end a command with one line instead of a traceback."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Iterator, Mapping

# A flag in a message, such as --init_checkpoint; the Python API calls it init_checkpoint.
_FLAG_PATTERN = re.compile(r"--(?P<name>[a-z][a-z_0-9]*)(?P<value>=(?:true|false)\b)?")
# The names that python_messages was given; None outside it, where messages name flags.
_python_names: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar("python_names", default=None)


class UserError(ValueError):
  """Bad input from the user. `albert.app.run` prints the message without a traceback and exits with code 2.

  Args:
    message: names the file, the line, the value and the remedy; line breaks become spaces.
  """

  def __init__(self, message: str):
    super().__init__(" ".join(message.split()))


class RunError(RuntimeError):
  """The command cannot continue although its input is valid. `albert.app.run` prints the message and exits with code 1.

  Args:
    message: says what happened and the remedy; line breaks become spaces.
  """

  def __init__(self, message: str):
    super().__init__(" ".join(message.split()))


class Stopped(Exception):
  """A signal stopped a training run, which has saved a checkpoint.

  `albert.app.run` prints the message and exits with code 128 + signal, so that scripts see that the run is unfinished.

  Args:
    message: says at which step the run stopped.
    signal_number: SIGINT or SIGTERM.
  """

  def __init__(self, message: str, signal_number: int):
    super().__init__(message)
    self.signal_number = signal_number


class Interrupted(KeyboardInterrupt):
  """SIGINT or SIGTERM interrupted a command, which exits with code 128 + signal. `except Exception` does not catch it.

  Args:
    signal_number: SIGINT or SIGTERM.
  """

  def __init__(self, signal_number: int):
    super().__init__()
    self.signal_number = signal_number


@contextlib.contextmanager
def python_messages(names: Mapping[str, str]) -> Iterator[None]:
  """Within this context, error messages and log lines name arguments of the Python API instead of flags.

  Args:
    names: flag -> the argument or method that does the same, if it has another name.
  """
  token = _python_names.set(names)
  try:
    yield
  except UserError as error:
    raise UserError(in_words_of_caller(str(error))) from error
  finally:
    _python_names.reset(token)


def in_words_of_caller(message: str) -> str:
  """Returns a message about flags unchanged or, within python_messages, with the names of the Python API."""
  names = _python_names.get()
  if names is None:
    return message

  def argument(match: re.Match[str]) -> str:
    return names.get(match["name"], match["name"]) + (match["value"] or "").title()

  return _FLAG_PATTERN.sub(argument, message).replace("leave the flag out", "leave the argument out")
