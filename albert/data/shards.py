"""The shards of a dataset: the number of examples and the hash of each file, and checks that no file is wrong.

If a manifest lists the shards, it provides these numbers, and of the shards only the sizes are checked. Shards without
a manifest, such as those of the original scripts, are read once to count and hash their records, in parallel
processes, and the results are cached. This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence

from albert.data.content import DataContent, FileContent
from albert.data.manifest import FILE_NAME, Manifest, ShardInfo
from albert.errors import RunError, UserError
from albert.io import files, records
from albert.io.progress import Progress
from albert.io.workers import Workers

# Maximum size ratio between the largest and the smallest partition of the shards.
_MAX_SIZE_RATIO = 1.1
# Name of the cache file, in the cache directory.
CACHE_NAME = "shard_hashes.json"
_SECONDS_BETWEEN_SAVES = 30.0
# Up to this number of bytes, one process reads all files: starting more processes takes a second or two.
_BYTES_OF_ONE_PROCESS = 256 << 20
# An entry of the cache: size and modification time of a file, the fields of its records.RecordFileInfo, and a checksum
# of these values.
_CacheEntry = tuple[int, int, int, int, str, bool, str]


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

    Each part has its own epochs, so the examples of a smaller part would be seen more often.

    Args:
      index: which part, 0 <= index < num_parts.
      num_parts: number of parts. Shards are not split.

    Raises:
      UserError: there are fewer shards than parts, or the largest part has over 10% more examples than the smallest.
    """
    if num_parts > len(self.paths):
      raise UserError(
        f"{len(self.paths)} shards cannot be shared by {num_parts} hosts: write at least {num_parts} (--num_shards), "
        "so that each host reads other shards"
      )
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    examples = [0] * num_parts
    for shard in sorted(range(len(self.paths)), key=lambda shard: -self.counts[shard]):
      smallest = examples.index(min(examples))
      parts[smallest].append(shard)
      examples[smallest] += self.counts[shard]
    if max(examples) > _MAX_SIZE_RATIO * min(examples):
      raise UserError(
        f"{len(self.paths)} shards cannot be shared evenly by {num_parts} hosts: one host would read {max(examples)} "
        f"examples, and another one {min(examples)}, which would be seen more often; write a multiple of {num_parts} "
        "(--num_shards)"
      )
    files_of_part = sorted(parts[index])
    return Shards(
      tuple(self.paths[i] for i in files_of_part),
      tuple(self.counts[i] for i in files_of_part),
      tuple(self.compressed[i] for i in files_of_part),
      tuple(self.sha256[i] for i in files_of_part),
    )


def stat_shards(spec: str, *, flag: str) -> dict[str, files.Stat]:
  """Finds the shards that match globs, and their sizes and modification times.

  A glob such as 'shards/*' may also match the manifest and the cached hashes beside the shards. They are left out.

  Args:
    spec: comma-separated globs.
    flag: the flag that gave them, for messages.

  Raises:
    UserError: a glob matches no file (see files.stat_globs), or only files that are not shards match.
  """
  matches = files.stat_globs(spec, flag=flag)
  shards = {path: status for path, status in matches.items() if os.path.basename(path) not in (FILE_NAME, CACHE_NAME)}
  if not shards:
    first = next(iter(matches))
    example = files.join(os.path.dirname(first), "*.tfrecord*")
    raise UserError(f"{flag}: {first} is not a shard, it describes shards: give the shards, for example {example!r}")
  return shards


def open_shards(
  paths: Sequence[str],
  *,
  stats: Mapping[str, files.Stat] | None = None,
  patterns: str = "",
  cache_dir: str = "",
) -> Shards:
  """Finds the number of examples and the hash of each file: in the manifest beside it, or else by reading the file.

  Args:
    paths: the files, in the order in which they are read.
    stats: sizes and modification times of all paths, as files.stat_globs returns them; None to look them up.
    patterns: the comma-separated globs that the paths come from. They tell missing shards from shards that were left
      out on purpose: a shard of the manifest is missing if a pattern matches it but it is not in `paths`.
    cache_dir: directory in which the hashes of files without a manifest are cached; empty for no cache.

  Raises:
    UserError: a file has no records or is not a TFRecord file; a shard is missing or differs from its entry in the
      manifest; two files have the same content.
  """
  stats = stats or files.stats(paths)
  manifests = {directory: Manifest.load(directory) for directory in dict.fromkeys(map(os.path.dirname, paths))}
  listed: dict[str, ShardInfo] = {}
  is_gzip: dict[str, bool] = {}
  for directory, manifest in manifests.items():
    if manifest is not None and not manifest.shards:
      raise UserError(f"{files.join(directory, FILE_NAME)} lists no shards: restore it, or run data preparation again")
    if manifest is not None:
      by_name = {os.path.basename(path): path for path in paths if os.path.dirname(path) == directory}
      _refuse_missing(directory, [shard.file for shard in manifest.shards if shard.file not in by_name], patterns)
      entries = {by_name[shard.file]: shard for shard in manifest.shards if shard.file in by_name}
      listed |= entries
      compress = manifest.settings.get("compress")
      is_gzip |= dict.fromkeys(entries, compress) if isinstance(compress, bool) else {}
  for path in paths:
    if path in listed and listed[path].bytes != stats[path].num_bytes:
      raise UserError(
        f"{path} has {stats[path].num_bytes} bytes, {_manifest_of(path)} says {listed[path].bytes}: it was changed or "
        "cut off after data preparation; restore it, or run data preparation again"
      )
  _warn_of_unlisted([path for path in paths if manifests[os.path.dirname(path)] and path not in listed])
  scanned = _scan([path for path in paths if not (path in listed and listed[path].sha256)], stats, cache_dir)
  for path, info in scanned.items():
    if path in listed and listed[path].examples != info.num_records:
      raise UserError(
        f"{path} holds {info.num_records} examples, {_manifest_of(path)} says {listed[path].examples}: restore it, or "
        "run data preparation again"
      )
  is_gzip |= {path: info.is_gzip for path, info in scanned.items()}
  unchecked = [path for path in paths if path not in is_gzip]
  is_gzip |= dict(zip(unchecked, files.in_threads(records.is_gzip, unchecked), strict=True))
  counts = [scanned[path].num_records if path in scanned else listed[path].examples for path in paths]
  hashes = [scanned[path].sha256 if path in scanned else listed[path].sha256 for path in paths]
  for path, count in zip(paths, counts, strict=True):
    if count == 0:
      raise UserError(f"{path}: holds no records; leave it out or write it again")
  _refuse_copies(paths, hashes)
  return Shards(tuple(paths), tuple(counts), tuple(is_gzip[path] for path in paths), tuple(hashes))


def _manifest_of(path: str) -> str:
  return files.join(os.path.dirname(path), FILE_NAME)


def _refuse_missing(directory: str, absent: Sequence[str], patterns: str) -> None:
  """Raises a UserError if a pattern matches one of the files that the manifest lists but that are not in the input."""
  globs = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
  missing = [name for name in absent if any(_matches(files.join(directory, name), pattern) for pattern in globs)]
  if missing:
    others = f" and {len(missing) - 1} more" if missing[1:] else ""
    raise UserError(
      f"{files.join(directory, FILE_NAME)} lists {missing[0]}{others}, not there: restore the shards or run data "
      "preparation again; to leave them out on purpose, give globs that do not match them"
    )


def _matches(path: str, pattern: str) -> bool:
  """Returns whether a glob matches a path, which need not exist. `**` matches any number of directories."""
  if "**" in pattern:
    return fnmatch.fnmatchcase(path, pattern.replace("**/", "*"))
  parts, globs = ([part for part in text.split("/") if part not in ("", ".")] for text in (path, pattern))
  return len(parts) == len(globs) and all(map(fnmatch.fnmatchcase, parts, globs))


def _warn_of_unlisted(paths: Sequence[str]) -> None:
  if paths:
    print(
      f"warning: {_manifest_of(paths[0])} does not list {paths[0]}"
      f"{f' and {len(paths) - 1} more files' if paths[1:] else ''}: used as it is; if it is of another preparation, "
      "leave it out",
      file=sys.stderr,
    )


def _refuse_copies(paths: Sequence[str], hashes: Sequence[str]) -> None:
  seen: dict[str, str] = {}
  for path, sha256 in zip(paths, hashes, strict=True):
    if sha256 in seen:
      raise UserError(f"{path} is a copy of {seen[sha256]} (both have SHA-256 {sha256[:12]}...): leave one of them out")
    seen[sha256] = path


# ---- files without a manifest ----------------------------------------------------------------------


def _scan(paths: Sequence[str], stats: Mapping[str, files.Stat], cache_dir: str) -> dict[str, records.RecordFileInfo]:
  """Counts and hashes the records of files. Files in the cache that have not changed are not read again."""
  if not paths:
    return {}
  cache_file = files.join(cache_dir, CACHE_NAME) if cache_dir else ""
  cache = _read_cache(cache_file)
  infos = {path: info for path in paths if (info := _cached(cache, path, stats[path])) is not None}
  unread = [path for path in paths if path not in infos]
  if not unread:
    return infos
  num_bytes = sum(stats[path].num_bytes for path in unread)
  num_processes = 1 if num_bytes < _BYTES_OF_ONE_PROCESS else min(os.cpu_count() or 1, len(unread))
  last_save = time.monotonic()
  try:
    with Progress(len(unread), " files", "hashing shards") as progress, Workers(num_processes, _no_state) as workers:
      for path, info in workers.map(records.scan, unread):
        infos[path] = info
        cache[_cache_key(path)] = _cache_entry(path, stats[path], info)
        progress.update(1)
        if time.monotonic() - last_save > _SECONDS_BETWEEN_SAVES:
          _write_cache(cache_file, cache)
          last_save = time.monotonic()
  finally:
    _write_cache(cache_file, cache)
  return infos


def _no_state() -> None:
  """Initializer of a worker process; scanning needs no state."""


def _cache_key(path: str) -> str:
  return path if files.is_remote(path) else os.path.abspath(path)


def _cached(cache: Mapping[str, _CacheEntry], path: str, stat: files.Stat) -> records.RecordFileInfo | None:
  """Returns what the cache says of a file; None if it has no entry, or if the file has changed since."""
  entry = cache.get(_cache_key(path))
  if entry is None:
    return None
  info = records.RecordFileInfo(*entry[2:6])
  is_complete = info.num_bytes == stat.num_bytes
  # The entries also differ if this one is damaged, because of its checksum.
  return info if is_complete and entry == _cache_entry(path, stat, info) else None


def _cache_entry(path: str, stat: files.Stat, info: records.RecordFileInfo) -> _CacheEntry:
  values = (stat.num_bytes, stat.mtime_ns, *info)
  return (*values, hashlib.sha256(json.dumps([_cache_key(path), *values]).encode()).hexdigest()[:16])


def _read_cache(path: str) -> dict[str, _CacheEntry]:
  try:
    return files.read_json(path, dict[str, _CacheEntry]) if path and files.exists(path) else {}
  except UserError:
    return {}  # damaged: all files are read again


def _write_cache(path: str, cache: Mapping[str, _CacheEntry]) -> None:
  if not path:
    return
  rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(values)}" for key, values in cache.items())
  try:
    files.makedirs(os.path.dirname(path))
    files.write_atomically(path, f"{{\n{rows}\n}}\n")
  except (OSError, UserError, RunError) as error:
    print(f"warning: {path}: not written ({error}); the shards are counted again at the next start", file=sys.stderr)
