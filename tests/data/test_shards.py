"""Counts and hashes of shards come from their manifest, which is checked. Shards without a manifest are read once."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from albert.data.shards import CACHE_NAME, Shards, count_and_hash_shards, stat_shards
from albert.errors import UserError
from albert.io import records
from albert.io.files import stat_globs
from tests.synthetic import write_manifest, write_shards

SIZES = [3, 5, 2, 4]


def file_sha256(path: str | Path) -> str:
  return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def open_globs(globs: str, cache_dir: Path | None = None) -> Shards:
  """Opens the shards that match. The hashes of files without a manifest are kept in `cache_dir`."""
  stats = stat_globs(globs)
  return count_and_hash_shards(list(stats), stats=stats, globs=globs, cache_dir=str(cache_dir or ""))


@pytest.fixture
def scanned_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
  """Returns a list to which the name of each file is added when it is read."""
  scanned_names: list[str] = []
  scan = records.scan

  def scan_and_record(path: str) -> records.RecordFileInfo:
    scanned_names.append(Path(path).name)
    return scan(path)

  monkeypatch.setattr(records, "scan", scan_and_record)
  return scanned_names


@pytest.mark.parametrize("compress", [False, True])
def test_the_manifest_and_the_files_give_the_same_shards(
  tmp_path: Path, scanned_names: list[str], compress: bool
) -> None:
  paths = write_shards(tmp_path, SIZES, compress=compress)
  shards = open_globs(f"{tmp_path}/*.tfrecord")
  assert (shards.counts, shards.compressed) == (tuple(SIZES), (compress,) * 4)
  assert shards.sha256 == tuple(map(file_sha256, paths))
  assert len(scanned_names) == 4
  write_manifest(tmp_path, paths, SIZES, settings={"compress": compress})
  assert open_globs(f"{tmp_path}/*.tfrecord") == shards
  write_manifest(tmp_path, paths, SIZES, settings={})  # it does not say whether the shards are compressed
  assert open_globs(f"{tmp_path}/*.tfrecord") == shards
  assert len(scanned_names) == 4


def test_files_without_a_manifest_are_read_once(tmp_path: Path, scanned_names: list[str]) -> None:
  paths = write_shards(tmp_path / "shards", SIZES)
  cache = tmp_path / "run"
  shards = open_globs(f"{tmp_path}/shards/*", cache)
  assert open_globs(f"{tmp_path}/shards/*", cache) == shards
  assert len(scanned_names) == 4
  shutil.copy(write_shards(tmp_path / "other", [6], seed=9)[0], paths[2])  # another file under the same name
  assert open_globs(f"{tmp_path}/shards/*", cache).counts == (3, 5, 6, 4)
  assert scanned_names[4:] == ["part-02.tfrecord"]
  assert not list((tmp_path / "shards").glob("*.json"))
  for damage in ("", "{", '{"a": 1}', json.dumps({str(Path(path).resolve()): [1, 2] for path in paths})):
    (cache / CACHE_NAME).write_text(damage)
    assert open_globs(f"{tmp_path}/shards/*", cache).counts == (3, 5, 6, 4)


def test_hashes_that_cannot_be_cached_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  write_shards(tmp_path / "shards", SIZES)
  (tmp_path / "run").write_text("a file, not a directory")
  assert open_globs(f"{tmp_path}/shards/*", tmp_path / "run").num_examples == sum(SIZES)
  assert "shard_hashes.json: not written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["shards", "shards[v2]"])
def test_a_listed_shard_that_is_missing_is_refused_unless_the_glob_leaves_it_out(tmp_path: Path, name: str) -> None:
  tmp_path /= name
  paths = write_shards(tmp_path, SIZES)
  write_manifest(tmp_path, paths, SIZES)
  assert open_globs(f"{tmp_path}/part-0[01]*").counts == (3, 5)
  Path(paths[3]).unlink()
  for globs in ("*.tfrecord", "part-0[123]*", "part-00*, {directory}/part-0?.tfrecord"):
    with pytest.raises(UserError, match=r"manifest\.json lists part-03\.tfrecord, which does not exist: restore"):
      open_globs(f"{tmp_path}/{globs}".format(directory=tmp_path))
  with pytest.raises(UserError, match=r"lists part-03\.tfrecord, which does not exist"):
    open_globs(f"{tmp_path}/**/*.tfrecord")
  assert open_globs(f"{tmp_path}/part-0[012]*").counts == (3, 5, 2)


@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_copy_of_a_shard_is_refused(tmp_path: Path, with_manifest: bool, capsys: pytest.CaptureFixture[str]) -> None:
  paths = write_shards(tmp_path, SIZES)
  if with_manifest:
    write_manifest(tmp_path, paths, SIZES)
  shutil.copy(paths[1], tmp_path / "part-01 (copy).tfrecord")
  with pytest.raises(UserError, match=r"part-01\.tfrecord is a copy of .*part-01 \(copy\)\.tfrecord .*leave one"):
    open_globs(f"{tmp_path}/*.tfrecord")
  assert with_manifest == ("does not list" in capsys.readouterr().err)


def test_a_shard_that_differs_from_its_manifest_is_refused(tmp_path: Path) -> None:
  paths = write_shards(tmp_path, SIZES)
  write_manifest(tmp_path, paths, SIZES)
  content = Path(paths[2]).read_bytes()
  # A record begins with the length of its data in 8 bytes. Its two checksums have 4 bytes each.
  record_size = 16 + int.from_bytes(content[:8], "little")
  Path(paths[2]).write_bytes(content[:record_size])  # cut after the first record, so that no record is damaged
  with pytest.raises(UserError, match=rf"part-02\.tfrecord has {record_size} bytes, .*says {len(content)}"):
    open_globs(f"{tmp_path}/*.tfrecord")


def test_a_glob_of_all_files_leaves_the_manifest_out(tmp_path: Path) -> None:
  paths = write_shards(tmp_path, SIZES)
  write_manifest(tmp_path, paths, SIZES)
  for globs in (f"{tmp_path}/*", str(tmp_path)):
    assert list(stat_shards(globs, flag="--input_file")) == paths
  message = r"--input_file: .*manifest.json is a manifest or a cache of hashes, not a shard: .*\*\.tfrecord"
  with pytest.raises(UserError, match=message):
    stat_shards(f"{tmp_path}/manifest.json", flag="--input_file")


def test_shards_are_read_again_if_their_cache_was_edited(tmp_path: Path) -> None:
  write_shards(tmp_path / "shards", SIZES)
  expected = open_globs(f"{tmp_path}/shards/*", tmp_path)
  text = (tmp_path / CACHE_NAME).read_text()
  for old, new in ((f" {SIZES[0]},", f" {SIZES[0] + 1},"), (expected.sha256[1], expected.sha256[0])):
    assert old in text
    (tmp_path / CACHE_NAME).write_text(text.replace(old, new, 1))
    assert open_globs(f"{tmp_path}/shards/*", tmp_path) == expected
