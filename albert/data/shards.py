"""The shards of a dataset: the number of examples and the hash of each file, and checks for bad files.

The checks find missing, changed and duplicate files. If a manifest lists a shard, the number of examples and the hash
come from the manifest, and only the size of the file is compared with it. Other shards, such as those of the original
scripts, are read once, in parallel processes, to count and hash their records. The results are cached. This module does
not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from albert.data.manifest import FILE_NAME as MANIFEST_NAME
from albert.data.manifest import HELDOUT_FOLDER, DataContent, FileContent, Manifest, ShardInfo, checksum_of
from albert.errors import RunError, UserError
from albert.io import files, json_values, records
from albert.io.files import escape_existing, split_globs, stat_globs
from albert.io.progress import Progress, log
from albert.io.text import counted, name_and_others
from albert.io.workers import Workers

# Maximum size ratio between the largest and the smallest partition of the shards.
_MAX_SIZE_RATIO = 1.1
# Name of the cache file, in the cache directory.
CACHE_NAME = "shard_hashes.json"
_SECONDS_BETWEEN_SAVES = 30.0
# Up to this number of bytes, one process reads all files: starting more processes takes a second or two.
_MAX_BYTES_OF_ONE_PROCESS = 256 << 20


# Path of a file -> its size and modification time when it was read, and what it holds.
_Cache = dict[str, tuple[files.Stat, records.RecordFileInfo]]


@dataclasses.dataclass(frozen=True)
class Shards:
  """The files of a dataset, in the order in which they are read.

  Attributes:
    paths: paths of the files.
    counts: number of examples in each file.
    compressed: whether each file is a GZIP file.
    sha256: SHA-256 of each file, in hex.
  """

  paths: tuple[str, ...]
  counts: tuple[int, ...]
  compressed: tuple[bool, ...]
  sha256: tuple[str, ...]

  @property
  def num_examples(self) -> int:
    """Number of examples in all files."""
    return sum(self.counts)

  @functools.cached_property
  def content(self) -> DataContent:
    """The hashes and example counts of the files, in order."""
    rows = zip(self.paths, self.sha256, self.counts, strict=True)
    return DataContent(tuple(FileContent(os.path.basename(path), sha256, count) for path, sha256, count in rows))

  def part(self, index: int, num_parts: int) -> Shards:
    """Divides the shards into parts with about the same number of examples, and returns one of them.

    The parts must have about the same size: each has its own epochs, so the examples of a smaller part would be seen
    more often.

    Args:
      index: the index of the part to return, 0 <= index < num_parts.
      num_parts: number of parts. Shards are not split.

    Raises:
      UserError: there are fewer shards than parts, or the largest part has over 10% more examples than the smallest.
    """
    if num_parts > len(self.paths):
      raise UserError(
        f"{counted(len(self.paths), 'shard')} cannot be shared by {num_parts} input parts: write at least {num_parts} "
        "(--num_shards), so that every part has shards of its own, or give fewer --input_parts or hosts"
      )
    # The shards are added one after the other to the part that is the smallest so far, large shards first.
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    part_sizes = [0] * num_parts
    for shard in sorted(range(len(self.paths)), key=lambda shard: -self.counts[shard]):
      smallest_part = part_sizes.index(min(part_sizes))
      parts[smallest_part].append(shard)
      part_sizes[smallest_part] += self.counts[shard]
    if max(part_sizes) > _MAX_SIZE_RATIO * min(part_sizes):
      raise UserError(
        f"{counted(len(self.paths), 'shard')} cannot be shared evenly by {num_parts} input parts: one would have "
        f"{max(part_sizes)} examples, and another one {min(part_sizes)}, which would be seen more often; write a "
        f"multiple of {num_parts} (--num_shards)"
      )
    columns: list[tuple[Any, ...]] = [self.paths, self.counts, self.compressed, self.sha256]
    return Shards(*(tuple(column[shard] for shard in sorted(parts[index])) for column in columns))


def stat_shards(globs: str, *, flag: str) -> dict[str, files.Stat]:
  """Finds the shards that match globs or are in directories, and their sizes and modification times.

  The manifest, the cache of hashes and the folder of held-out documents, which a glob such as 'shards/*' also matches,
  are left out.

  Args:
    globs: comma-separated globs and directories.
    flag: the flag that gave them, for messages.

  Returns:
    Path -> size and modification time, sorted by path.

  Raises:
    UserError: a glob matches no file (see files.stat_globs), or only files that are not shards match.
  """
  matches = stat_globs(_without_directories(globs), flag=flag, ignored_name=HELDOUT_FOLDER)
  shards = {path: stat for path, stat in matches.items() if os.path.basename(path) not in (MANIFEST_NAME, CACHE_NAME)}
  if not shards:
    first_path = next(iter(matches))
    example = files.join(os.path.dirname(first_path), "*.tfrecord*")
    raise UserError(
      f"{flag}: {first_path} is a manifest or a cache of hashes, not a shard: pass the shards, for example {example!r}"
    )
  return shards


def _without_directories(globs: str) -> list[str]:
  """Returns the globs; a directory is replaced by the glob of its shards."""
  return [files.join(glob, "*.tfrecord*") if files.is_dir(glob) else glob for glob in split_globs(globs)]


def count_and_hash_shards(
  paths: Sequence[str], *, stats: Mapping[str, files.Stat] | None = None, globs: str = "", cache_dir: str = ""
) -> Shards:
  """Determines the number of examples and the hash of each file, from the manifest or by reading the file.

  Args:
    paths: the files, in the order in which they are read.
    stats: sizes and modification times of all paths, as files.stat_globs returns them; None to look them up.
    globs: the comma-separated globs that the paths come from. If a manifest lists a shard that is not in `paths`, it is
      an error if a glob matches the shard; otherwise the shard was left out on purpose.
    cache_dir: directory in which the hashes of files without a manifest are cached; empty for no cache.

  Raises:
    UserError: a file has no records or is not a TFRecord file; a shard is missing or differs from its entry in the
      manifest; two files have the same content.
  """
  stats = stats or files.stats(paths)
  entries, is_gzip_by_path = _read_manifests(paths, globs)
  for path, shard in entries.items():
    if shard.bytes != stats[path].num_bytes:
      raise UserError(
        f"{path} has {stats[path].num_bytes} bytes, but {_manifest_of(path)} says {shard.bytes}: it was changed or cut "
        "off after data preparation; restore it, or run data preparation again"
      )
  scanned = _scan_or_look_up([path for path in paths if path not in entries], stats, cache_dir)
  is_gzip_by_path |= {path: info.is_gzip for path, info in scanned.items()}
  # Manifests of earlier versions do not say whether the files are compressed.
  paths_to_open = [path for path in paths if path not in is_gzip_by_path]
  is_gzip_by_path |= dict(zip(paths_to_open, files.in_threads(records.is_gzip, paths_to_open), strict=True))
  counts = [scanned[path].num_records if path in scanned else entries[path].examples for path in paths]
  hashes = [scanned[path].sha256 if path in scanned else entries[path].sha256 for path in paths]
  path_of_hash: dict[str, str] = {}
  for path, count, sha256 in zip(paths, counts, hashes, strict=True):
    if count == 0:
      raise UserError(f"{path}: holds no records; leave it out or write it again")
    if sha256 in path_of_hash:
      raise UserError(
        f"{path} is a copy of {path_of_hash[sha256]} (both have SHA-256 {sha256[:12]}...): leave one of them out"
      )
    path_of_hash[sha256] = path
  return Shards(tuple(paths), tuple(counts), tuple(is_gzip_by_path[path] for path in paths), tuple(hashes))


def _read_manifests(paths: Sequence[str], globs: str) -> tuple[dict[str, ShardInfo], dict[str, bool]]:
  """Reads the manifests of the directories of shards, and checks that no shard is missing."""
  entries: dict[str, ShardInfo] = {}
  is_gzip_by_path: dict[str, bool] = {}
  unlisted_paths: list[str] = []
  for directory in dict.fromkeys(map(os.path.dirname, paths)):
    manifest = Manifest.load(directory)
    if manifest is None:
      continue
    path_of_name = {os.path.basename(path): path for path in paths if os.path.dirname(path) == directory}
    absent_names = [shard.file for shard in manifest.shards if shard.file not in path_of_name]
    _check_for_missing(directory, absent_names, globs)
    new_entries = {path_of_name[shard.file]: shard for shard in manifest.shards if shard.file in path_of_name}
    entries |= new_entries
    unlisted_paths += [path for path in path_of_name.values() if path not in new_entries]
    compress = manifest.settings.get("compress")
    if isinstance(compress, bool):
      is_gzip_by_path |= dict.fromkeys(new_entries, compress)
  if unlisted_paths:
    unlisted = name_and_others(unlisted_paths[0], len(unlisted_paths) - 1)
    log(f"warning: {_manifest_of(unlisted_paths[0])} does not list {unlisted}: leave out what another job wrote")
  return entries, is_gzip_by_path


def _check_for_missing(directory: str, absent_names: Sequence[str], globs: str) -> None:
  """Checks that no glob matches a shard that does not exist."""
  patterns = [escape_existing(glob) for glob in _without_directories(globs)]
  missing_names = [
    name for name in absent_names if any(_matches(files.join(directory, name), glob) for glob in patterns)
  ]
  if missing_names:
    num_more = len(missing_names) - 1
    listed = f"{missing_names[0]} and {num_more} more, which do" if num_more else f"{missing_names[0]}, which does"
    raise UserError(
      f"{files.join(directory, MANIFEST_NAME)} lists {listed} not exist: restore the shards or run data preparation "
      "again; to leave them out on purpose, give globs that do not match them"
    )


def _matches(path: str, glob: str) -> bool:
  """Returns whether a glob matches a path, which need not exist. `**` matches any number of directories."""
  if "**" in glob:
    # fnmatch's * also matches slashes, but it needs the slash after ** in the path: a/**/*.tfrecord would match
    # a/b/x.tfrecord, but not a/x.tfrecord. Written as a/**.tfrecord, it matches both.
    return fnmatch.fnmatchcase(path, glob.replace("**/", "*"))
  # Without **, a * must not match slashes, so the names between slashes are compared one by one.
  path_names, glob_names = (os.path.normpath(text).split("/") for text in (path, glob))
  return len(path_names) == len(glob_names) and all(map(fnmatch.fnmatchcase, path_names, glob_names))


def _manifest_of(path: str) -> str:
  return files.join(os.path.dirname(path), MANIFEST_NAME)


# Files without a manifest:


def _scan_or_look_up(
  paths: Sequence[str], stats: Mapping[str, files.Stat], cache_dir: str
) -> dict[str, records.RecordFileInfo]:
  """Counts the records of files and hashes them. Files in the cache that have not changed are not read again."""
  if not paths:
    return {}
  cache_file = files.join(cache_dir, CACHE_NAME) if cache_dir else ""
  cache = _read_cache(cache_file)
  keys = {path: files.absolute(path) for path in paths}
  paths_to_read = [path for path in paths if keys[path] not in cache or cache[keys[path]][0] != stats[path]]
  if paths_to_read:
    num_bytes = sum(stats[path].num_bytes for path in paths_to_read)
    num_processes = 1 if num_bytes < _MAX_BYTES_OF_ONE_PROCESS else min(os.cpu_count() or 1, len(paths_to_read))
    last_save = time.monotonic()
    try:
      with Progress(len(paths_to_read), " files", "hashing shards") as progress, Workers(num_processes) as workers:
        for path, info in workers.map(records.scan, paths_to_read):
          cache[keys[path]] = stats[path], info
          progress.update(1)
          if time.monotonic() - last_save > _SECONDS_BETWEEN_SAVES:
            _write_cache(cache_file, cache)
            last_save = time.monotonic()
    finally:
      _write_cache(cache_file, cache)
  return {path: cache[keys[path]][1] for path in paths}


def _read_cache(path: str) -> _Cache:
  """Reads the cache. It is empty if its file is damaged or does not exist: all files are then read."""
  with contextlib.suppress(UserError, KeyError):
    values = files.read_json(path)
    if values["checksum"] == checksum_of(values["files"]):
      return json_values.convert(path, values["files"], _Cache)
  return {}


def _write_cache(path: str, cache: _Cache) -> None:
  if not path:
    return
  try:
    files.makedirs(os.path.dirname(path))
    files.write_json(path, {"files": cache, "checksum": checksum_of(cache)})
  except (OSError, UserError, RunError) as error:
    log(f"warning: {path}: not written ({error}); the shards are counted again at the next start")
