"""Paths of local and remote files: joining, listing, matching globs, opening, removing and atomic writing.

Remote paths, which contain "://" (gs://, s3://, ...), are handled by tf.io.gfile. TensorFlow is imported only for them.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import glob
import itertools
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar, cast, overload

from albert.errors import UserError
from albert.io import json_text, local_files
from albert.startup import quick_imports

# Maximum number of simultaneous requests to a remote file system. The threads mostly wait for answers.
_MAX_THREADS = 64
# A name of a model on Hugging Face's hub, with or without its owner. It has a hyphen; this project's names have none.
_HUB_NAME = re.compile(r"(?=.*-)(\w[\w.-]*/)?[\w.-]*bert[\w.-]*", re.IGNORECASE)

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Schema = TypeVar("Schema")
# What functions of the Python API accept as a path.
AnyPath: TypeAlias = str | os.PathLike[str]


class NoMatchError(UserError):
  """A glob matches no file."""


class Stat(NamedTuple):
  """Metadata of a file or directory.

  Attributes:
    num_bytes: its size.
    mtime_ns: time of the last change, nanoseconds since 1970.
    is_dir: whether it is a directory.
  """

  num_bytes: int
  mtime_ns: int
  is_dir: bool


def absolute(path: str) -> str:
  """Returns a path that stays the same if the process changes its directory. Remote paths and "" stay as they are."""
  return path if not path or is_remote(path) else os.path.abspath(path)


def real_path(path: str) -> str:
  """Returns the path without links, by which two names of one file are recognized. Remote paths stay as they are."""
  return path if is_remote(path) else os.path.realpath(path)


def is_remote(path: str) -> bool:
  """Whether the path is on a remote file system, such as gs://bucket/file."""
  return "://" in path


def _gfile() -> Any:
  with quick_imports():
    import tensorflow as tf

  return tf.io.gfile


convert_errors = local_files.convert_errors


def open_file(path: str, mode: str = "rb", *, or_pipe: bool = False) -> BinaryIO:
  """Opens a binary file.

  Args:
    path: a regular file.
    mode: as of `open`; contains "b".
    or_pipe: whether `path` may also be a pipe, because the caller reads it once from beginning to end.

  Returns:
    The open file. Errors while it is read or written are UserErrors and RunErrors too.

  Raises:
    UserError: the path or its permissions are wrong, or a file to read is not a regular file.
    RunError: the system failed, for example because too many files are open.
  """
  if is_remote(path):
    return cast("BinaryIO", _gfile().GFile(path, mode))
  if "r" in mode:
    local_files.check_is_regular(path, or_pipe=or_pipe)
  return local_files.open_local(path, mode)


def read(path: str) -> bytes:
  """Returns the content of a file, see open_file."""
  with open_file(path) as file:
    return file.read()


def exists(path: str) -> bool:
  """Whether the path is a file or directory; False for a link whose target does not exist."""
  return bool(_gfile().exists(path)) if is_remote(path) else os.path.exists(path)


def hub_remedy(path: str) -> str:
  """Returns what to do if a path is a name on Hugging Face's hub, such as albert/albert-base-v2; "" if it is not."""
  name = path if is_remote(path) else os.path.relpath(path or ".")
  if not _HUB_NAME.fullmatch(name) or exists(name):
    return ""
  return (
    "nothing is downloaded: fetch config.json, spiece.model and model.safetensors from "
    f"https://huggingface.co/{name}/tree/main into a directory, and give that"
  )


def is_dir(path: str) -> bool:
  """Whether the path is a directory, following links."""
  return bool(_gfile().isdir(path)) if is_remote(path) else os.path.isdir(path)


def is_special(path: str) -> bool:
  """Whether the path is a local pipe, socket or device, from which a reader may wait forever."""
  return not is_remote(path) and local_files.describe_kind(path) in local_files.SPECIAL_FILES


def is_regular(path: str) -> bool:
  """Whether the path is an existing file that is not a directory, pipe, socket or device."""
  return not is_dir(path) if is_remote(path) else os.path.isfile(path)


def check_not_special(path: str, *, name: str, remedy: str) -> None:
  """Checks that a path is not a pipe, a socket or a device, from which a reader may wait forever.

  Args:
    path: local or remote.
    name: how the error message names the path, for example --flag=path.
    remedy: what the user should do, the end of the error message.

  Raises:
    UserError: the path is a pipe, a socket or a device.
  """
  if is_special(path):
    raise UserError(f"{name}: is {local_files.describe_kind(path)}, not a file: {remedy}")


def size(path: str) -> int:
  """Size of the file in bytes."""
  return int(_gfile().stat(path).length) if is_remote(path) else os.path.getsize(path)


def stat(path: str) -> Stat:
  """Reads the metadata of a file or directory with one request.

  Raises:
    UserError: a local path does not exist or cannot be read.
  """
  if is_remote(path):
    remote = _gfile().stat(path)
    return Stat(int(remote.length), int(remote.mtime_nsec), bool(remote.is_directory))
  try:
    local = os.stat(path)
  except OSError as error:
    problem, remedy = "cannot read it", "check the path and its rights"
    if os.path.islink(path):
      problem = f"is a link to {os.readlink(path)}, which cannot be read"
      remedy = "remove the link, or restore that file"
    raise UserError(f"{path}: {problem} ({error.strerror}): {remedy}") from error
  return Stat(local.st_size, local.st_mtime_ns, os.path.isdir(path))


def stats(paths: Iterable[str]) -> dict[str, Stat]:
  """Reads the metadata of many files, in parallel threads; see `stat`.

  Returns:
    Path -> metadata, in the order of `paths`.
  """
  paths = list(paths)
  return dict(zip(paths, in_threads(stat, paths), strict=True))


def in_threads(function: Callable[[Argument], Result], arguments: Sequence[Argument]) -> list[Result]:
  """Calls a function with each argument, in up to 64 threads. For functions that wait for a file system.

  Args:
    function: called with one argument at a time.
    arguments: one for each call.

  Returns:
    The results in the order of `arguments`.
  """
  with futures.ThreadPoolExecutor(_MAX_THREADS) as pool:  # starts only as many threads as there are calls
    return list(pool.map(function, arguments))


def makedirs(path: str) -> None:
  """Makes a directory and its parents. An existing directory is no error.

  Raises:
    UserError: the path or its permissions are wrong.
    RunError: the system failed.
  """
  if is_remote(path):
    _gfile().makedirs(path)
    return
  with convert_errors(path, "make a directory of"):
    os.makedirs(path, exist_ok=True)


def replace(source: str, target: str) -> None:
  """Renames a file or directory, replacing an existing file. Local renames are atomic, and flushed to the disk.

  Raises:
    UserError: a path or its permissions are wrong.
    RunError: the system failed.
  """
  if is_remote(target):
    _gfile().rename(source, target, overwrite=True)
    return
  with convert_errors(target):
    os.replace(source, target)
  local_files.sync_directory(os.path.dirname(target) or ".")


def remove(path: str) -> None:
  """Removes a file."""
  if is_remote(path):
    _gfile().remove(path)
  else:
    os.remove(path)


def discard(path: str) -> None:
  """Removes a staging file or directory after a failure. Errors are ignored, so that the first failure is reported."""
  with contextlib.suppress(Exception):
    if is_dir(path):
      remove_tree(path)
    else:
      remove(path)


def remove_tree(path: str) -> None:
  """Removes a directory with its contents, if it exists. For a link, only the link is removed."""
  if is_remote(path):
    if _gfile().exists(path):
      _gfile().rmtree(path)
  elif os.path.islink(path):
    os.remove(path)
  elif os.path.isdir(path):
    shutil.rmtree(path)


def listdir(path: str) -> list[str]:
  """Lists the names in a directory, sorted."""
  names: Iterable[str] = _gfile().listdir(path) if is_remote(path) else os.listdir(path)
  return sorted(name.rstrip("/") for name in names)


def join(path: str, *parts: str) -> str:
  """Joins path components. Components of a remote path are always separated by "/"."""
  if is_remote(path):
    return "/".join([path.rstrip("/"), *parts])
  return os.path.join(path, *parts)


@contextlib.contextmanager
def tensorflow_path(path: str) -> Iterator[str]:
  """Yields a path by which TensorFlow finds a checkpoint or a SavedModel.

  TensorFlow takes their paths for globs, so it does not find a local path that contains "[" or a backslash. Such a path
  is replaced by that of a link, which exists until the context ends.

  Args:
    path: the directory of a SavedModel, or the path of a checkpoint's files without .index and .data-*.
  """
  if is_remote(path) or not is_glob_for_tensorflow(path):
    yield path
    return
  # Batch systems give the jobs of an array temporary directories such as 1234[5], in which a link would not be found.
  parent = "/tmp" if is_glob_for_tensorflow(tempfile.gettempdir()) else None
  with tempfile.TemporaryDirectory(dir=parent) as directory:
    link = os.path.join(directory, "link")
    for target in [path, *glob.glob(glob.escape(path) + ".*")]:
      os.symlink(os.path.abspath(target), link + target.removeprefix(path))
    yield link


def is_glob_for_tensorflow(path: str) -> bool:
  """Whether TensorFlow, which takes the path of a checkpoint or a SavedModel for a glob, would find another one."""
  return "[" in path or "\\" in path


def unused_path(path: str) -> str:
  """Returns `path` if it does not exist, else the first of `path`-2, `path`-3, ... that does not exist."""
  candidates = itertools.chain([path], (f"{path}-{number}" for number in itertools.count(2)))
  return next(candidate for candidate in candidates if not exists(candidate))


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


def stat_globs(spec: str | Sequence[str], *, flag: str = "--input_file", ignored_name: str = "") -> dict[str, Stat]:
  """Lists the files that match globs, with their metadata.

  Args:
    spec: a list of globs or paths, or one string of them, separated by commas.
    flag: the flag that `spec` is the value of, for errors.
    ignored_name: name of files and directories that globs do not match.

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
    matches = [path for path in matching_paths(pattern) if os.path.basename(path.rstrip("/")) != ignored_name]
    if not matches:
      raise NoMatchError(f"{flag}: {pattern!r} matches no file: check the path, and put globs in quotes")
    paths.update(matches)
  metadata = stats(sorted(paths))
  for path, file in metadata.items():
    if file.is_dir:
      raise UserError(f"{flag}: {path} is a directory: give its files, for example {join(path, '*')!r}")
    if not is_remote(path):
      open_file(path).close()  # reports a file that cannot be read
    if file.num_bytes == 0:
      raise UserError(f"{flag}: {path} is empty: remove it from the input")
  return metadata


def matching_paths(pattern: str) -> list[str]:
  """Lists the files and directories that match one glob, sorted. `**` stands for directories that are not hidden."""
  if is_remote(pattern):
    return sorted(_gfile().glob(pattern))
  return sorted(_find_local(escape_existing(pattern)))


def _find_local(pattern: str) -> set[str]:
  """Finds the local paths that match a glob."""
  parts = pattern.split("/")
  if "**" not in parts:
    return set(glob.glob(pattern))
  index = parts.index("**")
  before_stars, after_stars = "/".join(parts[:index]), "/".join(parts[index + 1 :]) or "*"
  # If no directory precedes the **, the pattern begins with "/**", or with "**", which means the current directory.
  directories = collections.deque(sorted(glob.glob(f"{before_stars}/")) if before_stars else ["/" if index else ""])
  paths: set[str] = set()
  visited: set[str] = set()
  # glob.glob(recursive=True) would follow links in a loop, and skip a directory that cannot be listed.
  while directories:
    directory = directories.popleft()
    real_path = os.path.realpath(directory)
    if real_path in visited:
      continue
    visited.add(real_path)
    paths |= _find_local(os.path.join(glob.escape(directory), after_stars))
    with convert_errors(directory, "list"), os.scandir(directory or os.curdir) as entries:
      names = sorted(entry.name for entry in entries if not entry.is_file(follow_symlinks=False))
    directories += filter(os.path.isdir, (os.path.join(directory, name) for name in names if not name.startswith(".")))
  return paths


# staging_path cuts names to this length, and adds up to 40 bytes. Most file systems limit a name to 255 bytes.
_MAX_NAME_BYTES = 200
_SECONDS_UNTIL_ABANDONED = 24 * 3600


def staging_path(path: str) -> str:
  """Makes a hidden name in the same directory, under which `path` is written before it is renamed.

  The name is unique among all processes, threads and calls on all hosts and in all containers.
  """
  directory, name = path.rsplit("/", 1) if is_remote(path) else os.path.split(path)
  name = name.encode("utf-8", "surrogateescape")[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
  staging = f".{name}.{local_files.host_key()}-{os.getpid()}-{secrets.token_hex(6)}.tmp"
  return join(directory, staging) if directory else staging


def remove_leftovers(directory: str) -> None:
  """Deletes staging files and directories whose writers have ended.

  A writer on this host has ended if its process does not exist any more. Whether a writer on another host has ended is
  unknown; its files are deleted if they have not changed for a day.

  Args:
    directory: the directory to clean up; nothing happens if it does not exist.
  """
  if not is_dir(directory):
    return
  for name in listdir(directory):
    match = local_files.STAGING_NAME.match(name)
    if match:
      path = join(directory, name)
      is_from_another_host = match["key"] != local_files.host_key()
      with contextlib.suppress(Exception):  # another process has removed it
        if local_files.has_ended(match["key"], int(match["pid"])) or (is_from_another_host and _is_abandoned(path)):
          discard(path)  # this fails if it is of another user, which does no harm


def _is_abandoned(path: str) -> bool:
  """Whether the file, or the directory and what is in it, has not changed for a day."""
  paths = [path, *(join(path, name) for name in (listdir(path) if is_dir(path) else ()))]
  last_change = max(metadata.mtime_ns / 1e9 for metadata in stats(paths).values())
  return time.time() - last_change > _SECONDS_UNTIL_ABANDONED


@functools.cache
def _remove_leftovers_once(directory: str) -> None:
  with contextlib.suppress(Exception):  # if the directory cannot be listed, writing there reports the error
    remove_leftovers(directory)


@contextlib.contextmanager
def write_whole(path: str) -> Iterator[BinaryIO]:
  """Opens a new file that appears at `path` when it is complete and on the disk. After an error nothing remains."""
  staging = staging_path(path)
  try:
    with open_file(staging, "wb") as file:
      yield file
      local_files.sync(file)
    replace(staging, path)
  except BaseException:
    discard(staging)
    raise


def write_atomically(path: str, data: bytes | str) -> None:
  """Writes a file atomically: writes a staging file, flushes it to the disk, and renames it.

  After an error, an existing file at `path` is unchanged and the staging file is removed. The first time that a process
  writes in a directory, it also deletes the staging files that killed processes left there.

  Args:
    path: local or remote.
    data: the content; text is encoded as UTF-8.

  Raises:
    UserError: the path or its permissions are wrong.
    RunError: the disk failed.
  """
  if not is_remote(path):
    _remove_leftovers_once(os.path.dirname(os.path.abspath(path)))
  with write_whole(path) as file:
    file.write(data.encode("utf-8") if isinstance(data, str) else data)


@overload
def read_json(path: str, *, remedy: str = "", nan_is_null: bool = False) -> dict[str, Any]: ...


@overload
def read_json(path: str, schema: type[Schema], remedy: str = "", *, nan_is_null: bool = False) -> Schema: ...


def read_json(path: str, schema: Any = dict[str, Any], remedy: str = "", *, nan_is_null: bool = False) -> Any:
  """Reads a JSON file and checks it against a schema.

  Args:
    path: local or remote.
    schema: see json_values.parse; by default any object.
    remedy: end of error messages: what the user can do.
    nan_is_null: whether NaN and Infinity are read as null, see json_values.parse.

  Returns:
    The value, of type `schema`.

  Raises:
    UserError: there is no such file, or its content is refused, see json_values.parse.
  """
  if not exists(path):
    raise UserError(f"{path}: no such file")
  with open_file(path) as file:
    data = file.read()
  if schema == dict[str, Any]:
    return json_text.decode_object(path, data, remedy, nan_is_null=nan_is_null)
  from albert.io import json_values  # needs msgspec, which the tokenizer does without

  return json_values.parse(path, data, schema, remedy, nan_is_null=nan_is_null)


def write_json(path: str, values: dict[str, Any]) -> None:
  """Writes a JSON object atomically. Numbers that are not finite, which JSON does not have, are written as null."""
  write_atomically(path, json_text.dumps(values, indent=2) + "\n")
