"""Lists the files that match globs. Unlike glob.glob, `**` follows links, without endless loops."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Sequence

from albert.errors import UserError
from albert.io import files


class NoMatchError(UserError):
  """A glob matches no file."""


def split_globs(spec: str) -> list[str]:
  """Splits globs or paths that are separated by commas. If all commas are in a path that exists, there is only one."""
  existing = _existing_beginning(spec)
  if "," in existing and "," not in spec.removeprefix(existing):
    return [spec]
  return [pattern.strip() for pattern in spec.split(",") if pattern.strip()]


def escape_existing(pattern: str) -> str:
  """Escapes the longest beginning of a local glob that exists: "run[v2]/*" means the directory run[v2] if it exists."""
  existing = _existing_beginning(pattern)
  return glob.escape(existing) + pattern.removeprefix(existing)


def _existing_beginning(pattern: str) -> str:
  """Returns the longest beginning of a glob, up to a slash or its end, that is the path of a file or a directory."""
  parts = pattern.split("/")
  beginnings = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
  return next(filter(os.path.exists, beginnings), "")


def expand_globs(spec: str | Sequence[str], *, flag: str = "--input_file") -> list[str]:
  """Lists the files that match globs, sorted, each one once.

  Args, Raises: see `stat_globs`.
  """
  return list(stat_globs(spec, flag=flag))


def stat_globs(spec: str | Sequence[str], *, flag: str = "--input_file") -> dict[str, files.Stat]:
  """Lists the files that match globs, with their metadata.

  Args:
    spec: a list of globs or paths, or one string of them, separated by commas.
    flag: the flag that `spec` is the value of, for errors.

  Returns:
    Path -> metadata, sorted by path.

  Raises:
    NoMatchError: a pattern matches nothing.
    UserError: a file is empty, unreadable, or not a regular file.
  """
  patterns = split_globs(spec) if isinstance(spec, str) else spec
  if not patterns:
    raise UserError(f"{flag} is empty: give one or more files or globs, separated by commas")
  paths: set[str] = set()
  for pattern in patterns:
    matches = matching_paths(pattern)
    if not matches:
      raise NoMatchError(f"{flag}: {pattern!r} matches no file: check the path, and put globs in quotes")
    paths.update(matches)
  stats = files.stats(sorted(paths))
  for path, stat in stats.items():
    if stat.is_dir:
      raise UserError(f"{flag}: {path} is a directory: give its files, for example {files.join(path, '*')!r}")
    if not files.is_remote(path):
      files.open_file(path).close()  # reports a file that cannot be read
    if stat.num_bytes == 0:
      raise UserError(f"{flag}: {path} is empty: remove it from the input")
  return stats


def matching_paths(pattern: str) -> list[str]:
  """Lists the files and directories that match one glob, sorted."""
  if files.is_remote(pattern):
    return files.glob_remote(pattern)
  return sorted(_find_local(escape_existing(pattern)))


def _find_local(pattern: str) -> list[str]:
  """Finds the local paths that match a glob.

  `**` matches any number of directories that are not hidden. A directory that can be reached by several paths, through
  links, is visited once, so that no file is found twice.

  Returns:
    The paths, in no particular order.
  """
  parts = pattern.split("/")
  if "**" not in parts:
    return glob.glob(pattern)
  index = parts.index("**")
  before_stars, after_stars = "/".join(parts[:index]), "/".join(parts[index + 1 :]) or "*"
  # If no directory precedes the **, the pattern begins with "/**", or with "**", which means the current directory.
  roots = glob.glob(f"{before_stars}/") if before_stars else ["/" if index else ""]
  paths: set[str] = set()
  for directory in itertools.chain.from_iterable(map(_visible_directories, roots)):
    paths.update(_find_local(os.path.join(glob.escape(directory), after_stars)))
  return list(paths)


def _visible_directories(root: str) -> list[str]:
  """Lists `root` and the directories below it that are not hidden, following links; each directory once.

  If a directory can be reached by several paths, a path without links is preferred: links are visited after the whole
  tree in which they are. With root "", the current directory, the paths are relative.
  """

  def refuse_unreadable(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot list it ({error.strerror}): check its rights") from error

  directories: list[str] = []
  visited: set[str] = set()
  pending = [root or os.curdir]
  while pending:
    for directory, names, _ in os.walk(pending.pop(0), onerror=refuse_unreadable):
      real_path = os.path.realpath(directory)
      if real_path in visited:
        names.clear()  # os.walk descends into the directories that remain in this list
        continue
      visited.add(real_path)
      directories.append(directory)
      names[:] = sorted(name for name in names if not name.startswith("."))
      paths = [os.path.join(directory, name) for name in names]
      pending += filter(os.path.islink, paths)  # os.walk does not follow links
  if root:
    return directories
  return [directory.removeprefix(os.curdir).lstrip("/") for directory in directories]
