"""Tells regular files from pipes, sockets and devices, from which a reader may wait forever."""

from __future__ import annotations

import os
import stat

from albert.errors import UserError

# File type -> its name in error messages.
_KIND_NAMES = {
  stat.S_IFDIR: "a directory",
  stat.S_IFIFO: "a pipe",
  stat.S_IFSOCK: "a socket",
  stat.S_IFCHR: "a device",
  stat.S_IFBLK: "a device",
}


def _kind(path: str) -> int:
  """The file's type, one of stat.S_IF*, following links; 0 if it does not exist or cannot be inspected."""
  try:
    return stat.S_IFMT(os.stat(path).st_mode)
  except OSError:
    return 0


def is_regular(path: str) -> bool:
  """Whether the path is a regular file, following links."""
  return _kind(path) == stat.S_IFREG


def is_special(path: str) -> bool:
  """Whether the path is a pipe, a socket or a device, following links."""
  return _kind(path) not in (0, stat.S_IFREG, stat.S_IFDIR)


def describe_kind(path: str) -> str:
  """Says in words what a path that is not a regular file is, for error messages: for example "a pipe".

  Raises:
    KeyError: the path is a regular file or does not exist.
  """
  return _KIND_NAMES[_kind(path)]


def check_is_regular(path: str, *, or_pipe: bool = False) -> None:
  """Checks that a path is a regular file.

  A path that does not exist or cannot be inspected passes: opening it reports the error.

  Args:
    path: a local path.
    or_pipe: whether a pipe passes too, because the caller reads it once from beginning to end.

  Raises:
    UserError: the path is a directory, a pipe, a socket or a device.
  """
  kind = _kind(path)
  if kind in _KIND_NAMES and not (or_pipe and kind == stat.S_IFIFO):
    is_pipe = kind == stat.S_IFIFO
    remedy = "save its output as a file, because it may be read more than once" if is_pipe else "give a file"
    raise UserError(f"{path} is {_KIND_NAMES[kind]}, not a regular file: {remedy}")
