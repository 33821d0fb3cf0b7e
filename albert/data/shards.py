"""The shards of a data set: how many examples each holds, its hash, and whether it is the file it should be.

A manifest beside the shards tells all that; nothing of them is then read. Shards without a manifest, such as the
original's, are counted and hashed in one pass, in parallel, and the result is kept. No TensorFlow.
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
_MOST_UNEVEN = 1.1
# Name, in the cache directory, of what was counted and hashed.
CACHE_NAME = "shard_hashes.json"
_SECONDS_BETWEEN_SAVES = 30.0
# Fewer bytes are read by one process: starting others takes a second or two.
_BYTES_OF_ONE_PROCESS = 256 << 20
# In the cache: size and time of change of a file, its records.RecordFileInfo, and the checksum of all that.
_CacheEntry = tuple[int, int, int, int, str, bool, str]


@dataclasses.dataclass(frozen=True)
class Shards:
  """Files of one data set, in the order in which they are read.

  Attributes:
    paths: of the files.
    counts: examples in each.
    compressed: whether each is a GZIP file.
    sha256: of each file, in hex.
  """

  paths: tuple[str, ...]
  counts: tuple[int, ...]
  compressed: tuple[bool, ...]
  sha256: tuple[str, ...]

  @property
  def num_examples(self) -> int:
    """Examples in all shards."""
    return sum(self.counts)

  @functools.cached_property
  def content(self) -> DataContent:
    """The hashes and counts, in order."""
    rows = zip(self.paths, self.sha256, self.counts, strict=True)
    return DataContent(tuple(FileContent(os.path.basename(path), sha256, count) for path, sha256, count in rows))

  def part(self, index: int, of: int) -> Shards:
    """Part `index` of `of`: whole shards, dealt so that all parts hold about as many examples.

    Each part is read in epochs of its own, so a part with fewer examples would show them more often.
    Raises:
      UserError: fewer shards than parts, or parts that differ by more than a tenth.
    """
    if of > len(self.paths):
      raise UserError(
        f"{len(self.paths)} shards cannot be shared by {of} hosts: write at least {of} (--num_shards) so that each "
        "host reads its own"
      )
    parts: list[list[int]] = [[] for _ in range(of)]
    examples = [0] * of
    for shard in sorted(range(len(self.paths)), key=lambda shard: -self.counts[shard]):
      fewest = examples.index(min(examples))
      parts[fewest].append(shard)
      examples[fewest] += self.counts[shard]
    if max(examples) > _MOST_UNEVEN * min(examples):
      raise UserError(
        f"{len(self.paths)} shards cannot be shared evenly by {of} hosts: one would read {max(examples)} examples, "
        f"another {min(examples)}, and so show them more often; write a multiple of {of} (--num_shards)"
      )
    take = sorted(parts[index])
    return Shards(
      tuple(self.paths[i] for i in take),
      tuple(self.counts[i] for i in take),
      tuple(self.compressed[i] for i in take),
      tuple(self.sha256[i] for i in take),
    )


def stat_shards(spec: str, *, flag: str) -> dict[str, files.Stat]:
  """files.stat_globs for shards: a glob such as 'shards/*' may also match the manifest and the hashes beside them.

  Raises:
    UserError: as stat_globs; or nothing else matches.
  """
  found = files.stat_globs(spec, flag=flag)
  shards = {path: status for path, status in found.items() if os.path.basename(path) not in (FILE_NAME, CACHE_NAME)}
  if not shards:
    first = next(iter(found))
    example = files.join(os.path.dirname(first), "*.tfrecord*")
    raise UserError(f"{flag}: {first} describes shards, and is none: give the shards, for example {example!r}")
  return shards


def open_shards(
  paths: Sequence[str],
  *,
  stats: Mapping[str, files.Stat] | None = None,
  patterns: str = "",
  cache_dir: str = "",
) -> Shards:
  """Finds out what each file holds: from the manifest beside it if it lists the file, else by reading it.

  Args:
    paths: in the order in which they are read.
    stats: of all paths, as files.stat_globs gives them; None to look.
    patterns: the comma-separated globs that gave the paths. A shard that a manifest lists, that a pattern matches and
      that is not among the paths is missing. A glob may so take a part of the shards on purpose.
    cache_dir: where the hashes of files without a manifest are kept; empty to keep none.
  Raises:
    UserError: a file without records, or one that is no TFRecord file; a shard that differs from its manifest's entry
      or that is missing; two files with the same content.
  """
  stats = stats or files.stats(paths)
  manifests = {directory: Manifest.load(directory) for directory in dict.fromkeys(map(os.path.dirname, paths))}
  listed: dict[str, ShardInfo] = {}
  is_gzip: dict[str, bool] = {}
  for directory, manifest in manifests.items():
    if manifest is not None and not manifest.shards:
      raise UserError(f"{files.join(directory, FILE_NAME)} lists no shards: restore it, or run data preparation again")
    if manifest is not None:
      own = {os.path.basename(path): path for path in paths if os.path.dirname(path) == directory}
      _refuse_missing(directory, [shard.file for shard in manifest.shards if shard.file not in own], patterns)
      entries = {own[shard.file]: shard for shard in manifest.shards if shard.file in own}
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
  unknown = [path for path in paths if path not in is_gzip]
  is_gzip |= dict(zip(unknown, files.in_threads(records.is_gzip, unknown), strict=True))
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
  """UserError if one of the listed files that are `absent` from the input is one that a pattern matches."""
  globs = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
  missing = [name for name in absent if any(_matches(files.join(directory, name), pattern) for pattern in globs)]
  if missing:
    others = f" and {len(missing) - 1} more" if missing[1:] else ""
    raise UserError(
      f"{files.join(directory, FILE_NAME)} lists {missing[0]}{others}, not there: restore the shards or run data "
      "preparation again; to leave them out on purpose, give globs that do not match them"
    )


def _matches(path: str, pattern: str) -> bool:
  """Whether a glob matches a path that need not exist: each part of it, and any number of parts for `**`."""
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
  """Counts and hashes the files: those that are new since the last time, in parallel."""
  if not paths:
    return {}
  cache_file = files.join(cache_dir, CACHE_NAME) if cache_dir else ""
  cache = _read_cache(cache_file)
  found = {path: info for path in paths if (info := _cached(cache, path, stats[path])) is not None}
  left = [path for path in paths if path not in found]
  if not left:
    return found
  total = sum(stats[path].num_bytes for path in left)
  num_processes = 1 if total < _BYTES_OF_ONE_PROCESS else min(os.cpu_count() or 1, len(left))
  saved = time.monotonic()
  try:
    with Progress(len(left), " files", "hashing shards") as progress, Workers(num_processes, _no_state) as workers:
      for path, info in workers.map(records.scan, left):
        found[path] = info
        cache[_cache_key(path)] = _cache_entry(path, stats[path], info)
        progress.update(1)
        if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
          _write_cache(cache_file, cache)
          saved = time.monotonic()
  finally:
    _write_cache(cache_file, cache)
  return found


def _no_state() -> None:
  """The initializer of a process that scans: it keeps nothing from one file to the next."""


def _cache_key(path: str) -> str:
  return path if files.is_remote(path) else os.path.abspath(path)


def _cached(cache: Mapping[str, _CacheEntry], path: str, stat: files.Stat) -> records.RecordFileInfo | None:
  """The entry of a file that has not changed since; None if there is none."""
  entry = cache.get(_cache_key(path))
  if entry is None:
    return None
  info = records.RecordFileInfo(*entry[2:6])
  is_whole = info.num_bytes == stat.num_bytes
  return info if is_whole and entry == _cache_entry(path, stat, info) else None  # another checksum: damaged


def _cache_entry(path: str, stat: files.Stat, info: records.RecordFileInfo) -> _CacheEntry:
  values = (stat.num_bytes, stat.mtime_ns, *info)
  return (*values, hashlib.sha256(json.dumps([_cache_key(path), *values]).encode()).hexdigest()[:16])


def _read_cache(path: str) -> dict[str, _CacheEntry]:
  try:
    return files.read_json(path, dict[str, _CacheEntry]) if path and files.exists(path) else {}
  except UserError:
    return {}  # damaged: counted again


def _write_cache(path: str, cache: Mapping[str, _CacheEntry]) -> None:
  if not path:
    return
  rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(values)}" for key, values in cache.items())
  try:
    files.makedirs(os.path.dirname(path))
    files.write_atomically(path, f"{{\n{rows}\n}}\n")
  except (OSError, UserError, RunError) as error:
    print(f"warning: {path}: not written ({error}); the shards are counted again at the next start", file=sys.stderr)
