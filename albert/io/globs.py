"""Local files by pattern."""

from __future__ import annotations

import glob
import itertools
import os

from albert.errors import UserError


def find(pattern: str) -> list[str]:
  """Paths that a glob matches, in no particular order.

  `**` means any number of directories, which are not hidden. A directory that has several names, by links, is entered
  once, so that no file is found under two of them: glob.glob follows loops of links for ever.

  Raises:
    UserError: a directory that `**` enters cannot be listed.
  """
  parts = pattern.split("/")
  if "**" not in parts:
    return glob.glob(pattern)
  place = parts.index("**")
  base, rest = "/".join(parts[:place]), "/".join(parts[place + 1 :]) or "*"
  roots = glob.glob(f"{base}/") if base else ["/" if place else ""]
  directories = itertools.chain.from_iterable(map(_directories, roots))
  return list({path for directory in directories for path in find(os.path.join(glob.escape(directory), rest))})


def _directories(root: str) -> list[str]:
  """`root` and the directories below it that are not hidden, also behind links; each one once.

  A directory with several names has the one that no link is part of.
  """

  def fail(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot list it ({error.strerror}): check its rights") from error

  found: list[str] = []
  seen: set[str] = set()
  left = [root or os.curdir]
  while left:
    for directory, names, _ in os.walk(left.pop(0), onerror=fail):
      real = os.path.realpath(directory)
      names[:] = [] if real in seen else sorted(name for name in names if not name.startswith("."))
      if real not in seen:
        seen.add(real)
        found.append(directory)
      paths = [os.path.join(directory, name) for name in names]
      left += filter(os.path.islink, paths)  # which os.walk does not follow
  return found if root else [directory.removeprefix(os.curdir).lstrip("/") for directory in found]
