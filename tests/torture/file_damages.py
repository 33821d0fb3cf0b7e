"""Ways to damage a file, for the part "damage"."""

from __future__ import annotations

import builtins
import errno
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Damages the file at a path.
Damage = Callable[[Path, random.Random], object]


def _flip_a_bit(path: Path, rng: random.Random) -> None:
  content = bytearray(path.read_bytes())
  bit = rng.randrange(8 * len(content))
  content[bit // 8] ^= 1 << bit % 8
  path.write_bytes(bytes(content))


def _replace(make: Callable[[Path], object]) -> Damage:
  """Returns a function that deletes a file and makes something else in its place."""

  def replace(path: Path, rng: random.Random) -> None:
    path.unlink()
    make(path)

  return replace


def _edit(path: Path, rng: random.Random) -> None:
  """Removes or changes a field of a JSON object; of another file, drops, doubles or changes a line."""
  content = path.read_bytes()
  try:
    root_object = json.loads(content)
  except ValueError:
    lines = content.split(b"\n")
    index = rng.randrange(len(lines))
    change = rng.choice(("drop", "double", "change"))
    if change == "drop":
      del lines[index]
    elif change == "double":
      lines.insert(index, lines[index])
    else:
      lines[index] = b"x" + lines[index]
    path.write_bytes(b"\n".join(lines))
    return
  fields = [(root_object, key) for key in root_object]  # (object, key), also of objects inside the root object
  for inner in root_object.values():
    if isinstance(inner, dict):
      fields += [(inner, key) for key in inner]
  json_object, key = rng.choice(fields)
  if rng.random() < 0.3:
    del json_object[key]
  else:
    json_object[key] = rng.choice([None, [], {}, -1, 10**30, "x", True, 0.5, {"a": 1}])
  path.write_text(json.dumps(root_object))


# Name of the damage -> a function that damages the file at a path.
DAMAGES: dict[str, Damage] = {
  "emptied": lambda path, rng: path.write_bytes(b""),
  "halved": lambda path, rng: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
  "a bit flipped": _flip_a_bit,
  "deleted": lambda path, rng: path.unlink(),
  "a directory in its place": _replace(Path.mkdir),
  "a pipe in its place": _replace(os.mkfifo),
  "a dangling link in its place": _replace(lambda path: path.symlink_to("gone")),
  "a link to itself in its place": _replace(lambda path: path.symlink_to(path.name)),
  "unreadable": lambda path, rng: refuse([str(path)]),
  "edited": _edit,
}


# The files that this process refuses to open, see `refuse`.
refused_paths: set[str] = set()


# The functions that `refuse` has replaced.
_originals: dict[str, Any] = {}


def refuse(paths: Sequence[str]) -> None:
  """Makes this process unable to open files, as if the user had no permission. (root always has it.)"""
  if not _originals:  # the first call replaces the functions that open files
    _originals.update(os_open=os.open, open=builtins.open)

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
      def opened(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.path.abspath(path) in refused_paths:
          raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return original(path, *args, **kwargs)

      return opened

    os.open, builtins.open = guarded(os.open), guarded(builtins.open)
  refused_paths.update(map(os.path.abspath, paths))
