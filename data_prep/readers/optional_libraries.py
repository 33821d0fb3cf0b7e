"""Names the package to install if a form of text needs a library that is not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from albert.errors import UserError


@contextlib.contextmanager
def required(path: str, need: str, advice: str) -> Iterator[None]:
  """A context for the imports of a library.

  Args:
    path: the file to read, for the message.
    need: what needs which library, such as "reading .zst files needs zstandard".
    advice: the command that installs it.

  Raises:
    UserError: the library cannot be imported.
  """
  try:
    yield
  except ImportError as error:
    raise UserError(f"{path}: {need} ({error}): {advice}") from error
