"""Globs of local files. Unlike glob.glob, `**` follows links without endless loops."""

from __future__ import annotations

import glob
import itertools
import os

from albert.errors import UserError


def find(pattern: str) -> list[str]:
  """Finds the paths that match a glob.

  `**` matches any number of directories that are not hidden. A directory that can be reached by several paths, through
  links, is visited once, so that no file is found twice.

  Args:
    pattern: a glob of local files.

  Returns:
    The paths, in no particular order.

  Raises:
    UserError: a directory that `**` matches cannot be listed.
  """
  parts = pattern.split("/")
  if "**" not in parts:
    return glob.glob(pattern)
  index = parts.index("**")
  base, rest = "/".join(parts[:index]), "/".join(parts[index + 1 :]) or "*"
  roots = glob.glob(f"{base}/") if base else ["/" if index else ""]
  directories = itertools.chain.from_iterable(map(_directories, roots))
  return list({path for directory in directories for path in find(os.path.join(glob.escape(directory), rest))})


def _directories(root: str) -> list[str]:
  """Lists `root` and the directories below it that are not hidden, following links; each directory once.

  If a directory can be reached by several paths, a path without links is preferred.
  """

  def fail(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot list it ({error.strerror}): check its rights") from error

  directories: list[str] = []
  visited: set[str] = set()
  pending = [root or os.curdir]
  while pending:
    for directory, names, _ in os.walk(pending.pop(0), onerror=fail):
      real = os.path.realpath(directory)
      names[:] = [] if real in visited else sorted(name for name in names if not name.startswith("."))
      if real not in visited:
        visited.add(real)
        directories.append(directory)
      paths = [os.path.join(directory, name) for name in names]
      pending += filter(os.path.islink, paths)  # os.walk does not follow links
  if root:
    return directories
  return [directory.removeprefix(os.curdir).lstrip("/") for directory in directories]
