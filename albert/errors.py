"""The exceptions that end a program with one line instead of a traceback."""

from __future__ import annotations


class UserError(ValueError):
  """Bad input from the user: one line that names the file, the line, the value and the remedy.

  `albert.app.run` prints it without a traceback and exits with code 2.
  """

  def __init__(self, message: str):
    super().__init__(" ".join(message.split()))


class RunError(RuntimeError):
  """A run that cannot go on through no fault of the input's form: one line, exit code 1."""

  def __init__(self, message: str):
    super().__init__(" ".join(message.split()))


class Stopped(Exception):
  """A signal stopped the run after it saved; exit code 128 + signal, so that no script takes it for finished."""

  def __init__(self, message: str, signal_number: int):
    super().__init__(message)
    self.signal_number = signal_number


class Interrupted(KeyboardInterrupt):
  """SIGINT or SIGTERM interrupted a command; exit code 128 + signal. `except Exception` does not catch it."""

  def __init__(self, signal_number: int):
    super().__init__()
    self.signal_number = signal_number
