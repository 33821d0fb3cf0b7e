"""Files by path, local or remote: globs, reading, atomic writing.

A path with "://" (gs://, s3://, ...) goes through tf.io.gfile, and only then is TensorFlow imported.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast, overload

from albert.errors import UserError
from albert.io import file_kinds, globs, json_values, local_files, processes

# Requests to a remote file system at a time: each waits for an answer, and none needs the processor.
_THREADS = 64

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Schema = TypeVar("Schema")


class Stat(NamedTuple):
  """Size in bytes, time of the last change in nanoseconds, and whether it is a directory."""

  num_bytes: int
  mtime_ns: int
  is_dir: bool


def is_remote(path: str) -> bool:
  """True for a path of a remote file system, such as gs://bucket/file."""
  return "://" in path


def _gfile() -> Any:
  import tensorflow as tf

  return tf.io.gfile


naming = local_files.naming


def open_file(path: str, mode: str = "rb", *, or_pipe: bool = False) -> BinaryIO:
  """Opens a binary file.

  Args:
    path: of a regular file.
    mode: how, with "b".
    or_pipe: whether a pipe may be read, once, from its beginning to its end.
  Raises:
    UserError: the path or its rights are wrong, or what is to be read is no regular file.
    RunError: the system failed, for example with too many open files. Reading and writing the file raise it, too.
  """
  if "b" not in mode:
    raise ValueError(f"files are opened as bytes: mode {mode!r} lacks 'b'")
  if is_remote(path):
    return cast("BinaryIO", _gfile().GFile(path, mode))
  if "r" in mode:
    file_kinds.check_is_regular(path, or_pipe=or_pipe)
  return local_files.open_local(path, mode)


def exists(path: str) -> bool:
  return bool(_gfile().exists(path)) if is_remote(path) else os.path.exists(path)


def is_dir(path: str) -> bool:
  return bool(_gfile().isdir(path)) if is_remote(path) else os.path.isdir(path)


def is_special(path: str) -> bool:
  """True for a pipe, a socket or a device, whose reader may wait for ever."""
  return not is_remote(path) and file_kinds.is_special(path)


def is_regular(path: str) -> bool:
  """True for a file that is there: no directory, pipe, socket or device."""
  return not is_dir(path) if is_remote(path) else file_kinds.is_regular(path)


def check_is_regular(path: str) -> None:
  """UserError for a directory, a pipe, a socket or a device; what is not there is left to whoever opens it."""
  if not is_remote(path):
    file_kinds.check_is_regular(path)


def size(path: str) -> int:
  """Size of the file in bytes."""
  return int(_gfile().stat(path).length) if is_remote(path) else os.path.getsize(path)


def stat(path: str) -> Stat:
  """Size, time and kind, in one request. Raises UserError when there is no such file."""
  if is_remote(path):
    found = _gfile().stat(path)
    return Stat(int(found.length), int(found.mtime_nsec), bool(found.is_directory))
  try:
    status = os.stat(path)
  except OSError as error:
    if os.path.islink(path):
      raise UserError(
        f"{path}: is a link to {os.readlink(path)}, which cannot be read ({error.strerror}): remove the link, or "
        "restore that file"
      ) from error
    raise UserError(f"{path}: cannot read it ({error.strerror}): check the path and its rights") from error
  return Stat(status.st_size, status.st_mtime_ns, os.path.isdir(path))


def stats(paths: Iterable[str]) -> dict[str, Stat]:
  """`stat` of each path; of remote ones many at a time."""
  paths = list(paths)
  return dict(zip(paths, in_threads(stat, paths), strict=True))


def in_threads(function: Callable[[Argument], Result], arguments: Sequence[Argument]) -> list[Result]:
  """`function` of each argument, in order, in as many threads as requests to a remote file system are worth."""
  if len(arguments) < 2:
    return list(map(function, arguments))
  with futures.ThreadPoolExecutor(min(_THREADS, len(arguments))) as pool:
    return list(pool.map(function, arguments))


def makedirs(path: str) -> None:
  """Makes the directory and its parents; an existing one is fine. Raises UserError or RunError when it cannot."""
  if is_remote(path):
    _gfile().makedirs(path)
    return
  try:
    os.makedirs(path, exist_ok=True)
  except OSError as error:
    what = f"{local_files.final_path(path)}: cannot make this directory"
    raise local_files.explained(error, what, "choose one that can be written to") from error


def replace(source: str, target: str) -> None:
  """Renames `source` to `target`, over an existing file; atomic on a local file system. Raises as `naming`."""
  if is_remote(target):
    _gfile().rename(source, target, overwrite=True)
    return
  try:
    os.replace(source, target)
  except OSError as error:  # it has two names
    what = f"{target}: cannot write it"
    raise local_files.explained(error, what, "check the path and its rights") from error
  _sync_directory(os.path.dirname(target) or ".")


def remove(path: str) -> None:
  if is_remote(path):
    _gfile().remove(path)
  else:
    os.remove(path)


def discard(path: str) -> None:
  """Removes a staging file or directory after a failure, if it can: the failure is what is to be told."""
  with contextlib.suppress(Exception):
    remove_tree(path) if is_dir(path) else remove(path)


def remove_tree(path: str) -> None:
  """Removes a directory with all it holds; one that is not there is fine. Of a link, only the link is removed."""
  if is_remote(path):
    if _gfile().exists(path):
      _gfile().rmtree(path)
  elif os.path.islink(path):
    os.remove(path)
  elif os.path.isdir(path):
    shutil.rmtree(path)


def listdir(path: str) -> list[str]:
  """Names in the directory, sorted."""
  names: Iterable[str] = _gfile().listdir(path) if is_remote(path) else os.listdir(path)
  return sorted(name.rstrip("/") for name in names)


def join(path: str, *parts: str) -> str:
  """Joins path components; a remote path always takes "/"."""
  if is_remote(path):
    return "/".join([path.rstrip("/"), *parts])
  return os.path.join(path, *parts)


def unused_path(path: str) -> str:
  """`path` if nothing is there, else `path` with the smallest number, from 2 on, that makes it a new name."""
  candidates = itertools.chain([path], (f"{path}-{number}" for number in itertools.count(2)))
  return next(candidate for candidate in candidates if not exists(candidate))


def sync(file: BinaryIO) -> None:
  """Flushes the open file down to the disk (a remote file system does so when the file is closed).

  Raises:
    RunError: the disk failed.
  """
  file.flush()
  try:
    descriptor = file.fileno()
  except (AttributeError, OSError):
    return
  with naming(str(file.name)):
    os.fsync(descriptor)


def sync_tree(directory: str) -> None:
  """Flushes each file below a directory down to the disk, before it is renamed. Raises as `sync`."""
  for folder, _, names in os.walk(directory):  # finds nothing at a remote path; remote files are synced when closed
    for name in names:
      with open_file(os.path.join(folder, name)) as file:
        sync(file)
    _sync_directory(folder)


def _sync_directory(path: str) -> None:
  """Makes a rename in this directory survive a power cut, where the system can do it."""
  try:
    descriptor = os.open(path, os.O_RDONLY)
  except OSError:
    return
  try:
    os.fsync(descriptor)
  except OSError:
    pass
  finally:
    os.close(descriptor)


# A name holds 255 bytes on most file systems; what staging_path adds to it has up to 40.
_MAX_NAME_BYTES = 200
_SECONDS_UNTIL_ABANDONED = 24 * 3600


def staging_path(path: str) -> str:
  """A new hidden name in the same directory, under which `path` is written before it is renamed.

  No other process has it, on whatever host or in whatever container, nor another thread or call of this one.
  """
  directory, name = path.rsplit("/", 1) if is_remote(path) else os.path.split(path)
  name = name.encode("utf-8", "surrogateescape")[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
  staging = f".{name}.{processes.host_key()}-{os.getpid()}-{secrets.token_hex(6)}.tmp"
  return join(directory, staging) if directory else staging


def is_staging_name(name: str) -> bool:
  """True for a name that staging_path made."""
  return local_files.STAGING_NAME.match(name) is not None


def remove_leftovers(directory: str) -> None:
  """Deletes staging files and directories in `directory` whose writers have ended.

  A writer of this host has ended if its process has. One of another host cannot be asked: what it was writing is
  deleted when it has not changed for a day.
  """
  if not is_dir(directory):
    return
  for name in listdir(directory):
    match = local_files.STAGING_NAME.match(name)
    if match:
      path = join(directory, name)
      key, pid = match["key"], int(match["pid"])
      try:
        if processes.has_ended(key, pid) or (key != processes.host_key() and _is_abandoned(path)):
          remove_tree(path) if is_dir(path) else remove(path)
      except Exception:  # another process has removed it, or it is another user's; it does no harm
        continue


def _is_abandoned(path: str) -> bool:
  """True if neither the file, nor anything in the directory, has changed for a day."""
  if is_remote(path):
    inside = [join(path, name) for name in listdir(path)] if is_dir(path) else [path]
  else:
    inside = [os.path.join(directory, name) for directory, _, names in os.walk(path) for name in names] + [path]
  changed = max((status.mtime_ns / 1e9 for status in stats(inside).values()), default=0.0)
  return time.time() - changed > _SECONDS_UNTIL_ABANDONED


# Directories whose leftovers this process has deleted.
_cleaned: set[str] = set()


def _remove_leftovers_once(path: str) -> None:
  """Deletes the leftovers beside `path` when this process first writes there. A remote directory is not listed."""
  directory = os.path.abspath(os.path.dirname(path))
  if not is_remote(path) and directory not in _cleaned:
    _cleaned.add(directory)
    with contextlib.suppress(Exception):  # a directory that cannot be listed: the writing says what is wrong
      remove_leftovers(directory)


def write_atomically(path: str, data: bytes | str) -> None:
  """Writes a file atomically: to a staging file, synced to disk, then renamed. Text is written as UTF-8.

  When this process first writes in a directory, it deletes the staging files that killed processes have left there.

  Raises:
    UserError: the path or its rights are wrong.
    RunError: the disk failed. What was there before is unchanged, and the staging file is removed.
  """
  _remove_leftovers_once(path)
  staging = staging_path(path)
  try:
    with open_file(staging, "wb") as file:
      file.write(data.encode("utf-8") if isinstance(data, str) else data)
      sync(file)
    replace(staging, path)
  except BaseException:
    discard(staging)
    raise


def _matches(pattern: str) -> list[str]:
  if is_remote(pattern):
    return sorted(_gfile().glob(pattern))
  # A name with brackets in it is found as it stands before it is read as a pattern.
  return [pattern] if os.path.exists(pattern) else sorted(globs.find(pattern))


def expand_globs(spec: str, *, flag: str = "--input_file") -> list[str]:
  """Sorted unique paths of the comma-separated globs in `spec`. Raises as stat_globs."""
  return list(stat_globs(spec, flag=flag))


def stat_globs(spec: str, *, flag: str = "--input_file") -> dict[str, Stat]:
  """Sorted unique paths of the comma-separated globs in `spec`, with one `stat` of each.

  Raises:
    UserError: naming `flag` and the pattern when one matches nothing, or the file when one is a
      directory, a pipe, a device, unreadable or empty.
  """
  patterns = [pattern.strip() for pattern in spec.split(",") if pattern.strip()]
  if not patterns:
    raise UserError(f"{flag} is empty: give one or more files or globs, separated by commas")
  paths: set[str] = set()
  for pattern in patterns:
    matches = _matches(pattern)
    if not matches:
      raise UserError(f"{flag}: {pattern!r} matches no file: check the path (globs are quoted from the shell)")
    paths.update(matches)
  found = stats(sorted(paths))
  for path, status in found.items():
    if status.is_dir:
      raise UserError(f"{flag}: {path} is a directory: give its files, for example {join(path, '*')!r}")
    if not is_remote(path):
      open_file(path).close()
    if status.num_bytes == 0:
      raise UserError(f"{flag}: {path} is empty: remove it from the input")
  return found


@overload
def read_json(path: str, *, remedy: str = "", nan_is_null: bool = False) -> dict[str, Any]: ...


@overload
def read_json(path: str, kind: type[Schema], remedy: str = "", *, nan_is_null: bool = False) -> Schema: ...


def read_json(path: str, kind: Any = dict[str, Any], remedy: str = "", *, nan_is_null: bool = False) -> Any:
  """The value of a JSON file, checked against a schema: an object, unless `kind` says otherwise.

  Raises:
    UserError: there is no such file, or what it holds is refused; see json_values.parse.
  """
  if not exists(path):
    raise UserError(f"{path}: no such file")
  with open_file(path) as file:
    data = file.read()
  return json_values.parse(path, data, kind, remedy, nan_is_null=nan_is_null)


def write_json(path: str, values: dict[str, Any]) -> None:
  """Writes a JSON object atomically. A number that is not finite, which JSON does not have, is written as null."""
  write_atomically(path, json_values.dumps(values, indent=2) + "\n")


def write_rows(path: str, rows: Sequence[Mapping[str, Any]]) -> str:
  """Writes rows, all with the same columns, as a tab-separated file with a header. Returns the text."""
  text = io.StringIO()
  writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], delimiter="\t", lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  write_atomically(path, text.getvalue())
  return text.getvalue()
