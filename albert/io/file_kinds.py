"""What is at a local path: reading a pipe, a socket or a device may wait for ever."""

from __future__ import annotations

import os
import stat

from albert.errors import UserError

_KINDS = {
  stat.S_IFDIR: "a directory",
  stat.S_IFIFO: "a pipe",
  stat.S_IFSOCK: "a socket",
  stat.S_IFCHR: "a device",
  stat.S_IFBLK: "a device",
}


def _kind(path: str) -> int:
  """The kind of the file, one of stat.S_IF*; links are followed. 0 if nothing can be found out about it."""
  try:
    return stat.S_IFMT(os.stat(path).st_mode)
  except OSError:
    return 0


def is_regular(path: str) -> bool:
  """True for a file; links are followed."""
  return _kind(path) == stat.S_IFREG


def is_special(path: str) -> bool:
  """True for a pipe, a socket or a device."""
  return _kind(path) not in (0, stat.S_IFREG, stat.S_IFDIR)


def check_is_regular(path: str, *, or_pipe: bool = False) -> None:
  """Refuses what is there and cannot be read as a file.

  Args:
    path: one where nothing is, or nothing can be found out, is left to whoever opens it.
    or_pipe: a pipe is fine, too: it is read once, from its beginning to its end.
  Raises:
    UserError: a directory, a pipe, a socket or a device.
  """
  kind = _kind(path)
  if kind in _KINDS and not (or_pipe and kind == stat.S_IFIFO):
    remedy = "save what it gives as a file, since it may be read more than once" if kind == stat.S_IFIFO else ""
    raise UserError(f"{path} is {_KINDS[kind]}, not a regular file: {remedy or 'give a file'}")
