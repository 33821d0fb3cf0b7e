"""Jobs that are stopped, fail or are repeated: finished work is kept, and outdated files are not used."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
from pathlib import Path

import pytest

from albert.data.manifest import Manifest, ShardInfo
from albert.errors import RunError, UserError
from albert.io import files, local_files
from albert.runs.directory_lock import DirectoryLock
from data_prep import blocks, shards, units
from data_prep.blocks import BlockTask
from data_prep.create_pretraining_data import Job, prepare
from data_prep.examples.settings import PreparationSettings
from data_prep.readers.records import ReadingSettings
from tests.conftest import english_like_documents
from tests.data_prep.runners.jobs import SETTINGS, contents, make_job, output_of_small_units

WITH_HELDOUT = dataclasses.replace(SETTINGS, eval_share=0.1)

pytestmark = pytest.mark.usefixtures("small_units")


class _StopError(Exception):
  """Stops a job in the middle, as if its process had ended."""


def stop_at_call(patch: pytest.MonkeyPatch, module: object, function_name: str, num_calls: int) -> None:
  """Replaces a function of a module, so that it stops the job after `num_calls` calls."""
  function, calls = getattr(module, function_name), itertools.count()

  def call_or_stop(*arguments: object, **options: object) -> object:
    if next(calls) >= num_calls:
      raise _StopError
    return function(*arguments, **options)

  patch.setattr(module, function_name, call_or_stop)


def stop_job(monkeypatch: pytest.MonkeyPatch, job: Job, kind: str, num_complete: int) -> None:
  """Starts a job, and stops it after this number of files of a kind, "block" or "shard"."""
  module, function_name = (blocks, "make_block") if kind == "block" else (shards, "RecordWriter")
  with monkeypatch.context() as patch:
    stop_at_call(patch, module, function_name, num_complete)
    with pytest.raises(_StopError):
      prepare(job)


def get_shard_times(directory: Path) -> dict[Path, int]:
  return {path: path.stat().st_mtime_ns for path in directory.glob("*.tfrecord")}


def assert_only_workspace(output_dir: Path) -> None:
  """Checks that a directory holds nothing but the hidden directory of an unfinished job: no shard and no manifest."""
  (workspace,) = output_dir.iterdir()
  assert workspace.name.startswith(".preparation-")


# The kind of file, and how many files of this kind are complete when the job stops. Block files come before shards.
@pytest.mark.parametrize("stop_after", [("block", 3), ("shard", 0), ("shard", 2)])
def test_a_stopped_job_resumes_and_keeps_finished_files(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
  uninterrupted_output: dict[str, bytes],
  stop_after: tuple[str, int],
) -> None:
  job = make_job(small_files, spm_model, tmp_path / "out")
  kind, num_complete = stop_after
  stop_job(monkeypatch, job, kind, num_complete)
  assert not (tmp_path / "out" / "manifest.json").exists()
  times_of_complete_shards = get_shard_times(tmp_path / "out")
  assert len(times_of_complete_shards) == (num_complete if kind == "shard" else 0)
  capsys.readouterr()
  prepare(job)
  printed = capsys.readouterr().out
  assert contents(tmp_path / "out") == uninterrupted_output
  assert ("kept 3 of 17 units" if kind == "block" else "kept 17 of 17 units") in printed
  assert times_of_complete_shards.items() <= get_shard_times(tmp_path / "out").items()
  assert ("kept 2 of 3 shards" in printed) == (stop_after == ("shard", 2))


@pytest.fixture(scope="module")
def output_with_heldout(
  tmp_path_factory: pytest.TempPathFactory, small_files: list[str], spm_model: str
) -> dict[str, bytes]:
  directory = tmp_path_factory.mktemp("heldout")
  return output_of_small_units(make_job(small_files, spm_model, directory, settings=WITH_HELDOUT, num_processes=2))


# The 17 units are read for the held-out documents, and then for the other ones. Held-out documents have one shard.
@pytest.mark.parametrize("stop_after", [("block", 3), ("block", 20), ("shard", 0), ("shard", 1)])
def test_a_stopped_job_with_held_out_documents_resumes(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  output_with_heldout: dict[str, bytes],
  stop_after: tuple[str, int],
) -> None:
  job = make_job(small_files, spm_model, tmp_path, settings=WITH_HELDOUT)
  stop_job(monkeypatch, job, *stop_after)
  assert not list(tmp_path.rglob("manifest.json"))
  manifest = prepare(job)
  assert contents(tmp_path) == output_with_heldout
  heldout = Manifest.load(f"{tmp_path}/{manifest.heldout}")
  assert heldout is not None
  assert manifest.num_documents + heldout.num_documents == 96
  assert 0 < heldout.num_examples < manifest.num_examples / 3  # dupe_factor is 3, and 1 for held-out documents


def test_held_out_shards_are_repaired_and_those_of_others_kept(
  tmp_path: Path, small_files: list[str], spm_model: str, output_with_heldout: dict[str, bytes]
) -> None:
  job = make_job(small_files, spm_model, tmp_path, settings=WITH_HELDOUT)
  (tmp_path / "heldout").mkdir()
  (tmp_path / "heldout" / "manifest.json").write_text("somebody's")
  with pytest.raises(UserError, match=r"heldout holds manifest\.json, which no manifest describes: choose"):
    prepare(job)
  (tmp_path / "heldout" / "manifest.json").unlink()
  for damaged in ("heldout/pretraining-00000-of-00001.tfrecord", "heldout/manifest.json", ""):
    prepare(job)
    assert contents(tmp_path) == output_with_heldout
    if damaged:
      (tmp_path / damaged).unlink()


@pytest.mark.parametrize(("share", "message"), [(1e-9, "holds out 0 documents"), (0.9999, "no example in")])
def test_a_share_that_leaves_a_side_empty_is_refused(
  tmp_path: Path, small_files: list[str], spm_model: str, share: float, message: str
) -> None:
  (tmp_path / "one.txt").write_text("the captain sold the river\nthe garden\n")
  inputs = [str(tmp_path / "one.txt")] if share < 0.5 else small_files
  settings = dataclasses.replace(WITH_HELDOUT, eval_share=share)
  for _ in range(2):  # a failed job leaves nothing that stops the next one
    with pytest.raises(UserError, match=message):
      prepare(make_job(inputs, spm_model, tmp_path / "out", settings=settings))


def test_a_small_share_holds_out_one_document(tmp_path: Path, spm_model: str) -> None:
  documents = ["\n".join(sentences) for sentences in english_like_documents(5)]
  (tmp_path / "books.txt").write_text("\n\n".join([documents[0], *documents]))  # copies stay on one side
  settings = dataclasses.replace(WITH_HELDOUT, eval_share=1e-9)
  job = make_job([str(tmp_path / "books.txt")], spm_model, tmp_path / "out", settings=settings)
  manifest = prepare(job)
  heldout = Manifest.load(f"{tmp_path}/out/{manifest.heldout}")
  assert heldout is not None
  key = str(settings.random_seed).encode()
  least = min(documents, key=lambda text: hashlib.blake2b(text.encode(), digest_size=8, key=key).digest())
  assert heldout.num_documents == [documents[0], *documents].count(least)
  assert manifest.num_documents == 6 - heldout.num_documents
  assert heldout.settings["eval_share"] == manifest.settings["eval_share"] == 1e-9
  assert prepare(job) == manifest  # there is nothing to do


def test_a_finished_job_is_checked_and_repaired(
  tmp_path: Path, small_files: list[str], spm_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
  job = make_job(small_files, spm_model, tmp_path)
  manifest = prepare(job)
  complete = contents(tmp_path)
  modification_times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
  assert prepare(job) == manifest
  assert "complete; 3 shards with correct checksums, nothing to do" in capsys.readouterr().out
  assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == modification_times
  # A manifest that lists fewer shards is repaired, too.
  dataclasses.replace(manifest, shards=manifest.shards[:2]).save(str(tmp_path))
  prepare(job)
  assert "1 of 3 shards are missing or damaged" in capsys.readouterr().out
  assert contents(tmp_path) == complete
  damaged = tmp_path / manifest.shards[1].file
  content = bytearray(damaged.read_bytes())
  content[100] ^= 1  # any bit
  damaged.write_bytes(bytes(content))
  prepare(job)
  printed = capsys.readouterr().out
  assert "1 of 3 shards are missing or damaged" in printed
  assert "kept 2 of 3 shards" in printed
  assert contents(tmp_path) == complete


def test_a_shard_that_is_not_where_its_worker_says_is_an_error(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  """As if the worker had written to a disk of its own."""

  def lose_shard(directory: str, index: int, info: ShardInfo, digest: str) -> None:
    (tmp_path / info.file).unlink()

  job = make_job(small_files, spm_model, tmp_path)
  with monkeypatch.context() as patch:
    patch.setattr(shards, "record_shard", lose_shard)
    with pytest.raises(RunError, match=r"00000-of-00003\.tfrecord is missing or does not have its \d+ bytes"):
      prepare(job)
  assert not (tmp_path / "manifest.json").exists()
  assert len(prepare(job).shards) == 3


def test_an_unfinished_run_of_another_version_is_refused(
  tmp_path: Path, small_files: list[str], spm_model: str
) -> None:
  workspace = tmp_path / ".preparation-0123456789abcdef"
  workspace.mkdir()
  (workspace / "settings.json").write_text('{"workspace_version": 2}')
  with pytest.raises(UserError, match=f"another version of this program started: remove {workspace}, or choose"):
    prepare(make_job(small_files, spm_model, tmp_path))
  assert list(tmp_path.iterdir()) == [workspace]


@pytest.mark.parametrize("is_finished", [True, False])
def test_other_settings_and_input_files_are_refused(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
  if is_finished:
    prepare(make_job(small_files, spm_model, tmp_path))
  else:
    with monkeypatch.context() as patch:
      patch.setattr(shards, "RecordWriter", None)  # the call of None stops the job
      with pytest.raises(TypeError):
        prepare(make_job(small_files, spm_model, tmp_path))
  output_before = contents(tmp_path) if is_finished else None
  kind_of_run = "a finished run" if is_finished else "an unfinished run"
  other_settings = PreparationSettings(max_seq_length=32, dupe_factor=4)
  with pytest.raises(UserError, match=rf"holds {kind_of_run} with other settings \(dupe_factor 3, not 4\): choose"):
    prepare(make_job(small_files, spm_model, tmp_path, settings=other_settings))
  with pytest.raises(UserError, match=r"with other settings \(document blank_line, not file\): choose"):
    prepare(make_job(small_files, spm_model, tmp_path, reading=ReadingSettings(document="file")))
  with pytest.raises(UserError, match="other input files"):
    prepare(make_job(small_files[:-1], spm_model, tmp_path))
  if is_finished:
    assert contents(tmp_path) == output_before
  prepare(make_job(small_files, spm_model, tmp_path))


def test_unknown_shards_are_not_overwritten(tmp_path: Path, small_files: list[str], spm_model: str) -> None:
  unknown = tmp_path / "pretraining-00001-of-00003.tfrecord"
  unknown.write_bytes(b"somebody's")
  with pytest.raises(UserError, match="which no manifest describes"):
    prepare(make_job(small_files, spm_model, tmp_path))
  assert contents(tmp_path) == {unknown.name: b"somebody's"}


def test_another_process_in_the_same_directory_is_refused(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  """The job is started a second time, in this process, while it makes its first block files."""
  job = make_job(small_files, spm_model, tmp_path)
  make_block = blocks.make_block

  def start_job_again_and_make_block(task: BlockTask) -> bool:
    with pytest.raises(UserError, match=rf"process {os.getpid()} on host .* is preparing data there"):
      prepare(job)
    return make_block(task)

  monkeypatch.setattr(blocks, "make_block", start_job_again_and_make_block)
  assert prepare(job).num_examples > 0
  assert json.loads((tmp_path / "manifest.json").read_text())["kind"] == "pretraining"

  def lose_lock(task: BlockTask) -> bool:
    (tmp_path / "lost" / ".lock").unlink()
    raise UserError("another process removed what this one reads")

  monkeypatch.setattr(blocks, "make_block", lose_lock)
  with pytest.raises(RunError, match=r"somebody removed .*\.lock, so another process may be preparing data there"):
    prepare(make_job(small_files, spm_model, tmp_path / "lost"))


def test_a_job_reads_writes_and_locks_remote_directories(
  tmp_path: Path, small_files: list[str], spm_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
  """The remote file system is TensorFlow's file system in memory, ram://."""
  root = f"ram://{tmp_path.name}"
  inputs = [files.join(root, Path(path).name) for path in small_files]
  files.makedirs(root)
  for source, target in zip(small_files, inputs, strict=True):
    files.write_atomically(target, Path(source).read_bytes())
  local_manifest = prepare(make_job(small_files, spm_model, tmp_path / "out"))
  output_dir = files.join(root, "out")
  job = Job(inputs=tuple(inputs), output_dir=output_dir, spm_model_file=spm_model, settings=SETTINGS, num_shards=3)
  with DirectoryLock(output_dir, "preparing data") as lock:
    unknown_shard = files.join(output_dir, job.shard_name(0))
    files.write_atomically(unknown_shard, b"x")
    with pytest.raises(UserError, match="which no manifest describes"):
      prepare(job)
    lock.check()  # the refused command has not taken the lock
    files.remove(unknown_shard)
    assert prepare(job) == local_manifest
    assert f"process {os.getpid()} on host {platform.node()} is preparing data there" in capsys.readouterr().err
    with pytest.raises(RunError, match="stopped without saving"):
      lock.check()
  assert files.listdir(output_dir) == sorted(contents(tmp_path / "out"))
  assert prepare(job) == local_manifest


def test_another_process_may_finish_the_job_before_this_one_looks_for_its_files(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  """The first attempt to load the manifest finds none, because the other process has not written it yet."""
  manifest = prepare(make_job(small_files, spm_model, tmp_path / "out"))
  load, calls = Manifest.load, itertools.count()
  monkeypatch.setattr(Manifest, "load", lambda directory: load(directory) if next(calls) > 0 else None)
  assert prepare(make_job(small_files, spm_model, tmp_path / "out")) == manifest


# ---- faults, and input that changes --------------------------------------------------------------------


# The error, the files that cannot be written ("": text that cannot be read), and how many of the 17 units the repeated
# job keeps. The first five reads of text and the first two files succeed. In these jobs, a block is a single unit.
@pytest.mark.parametrize(
  ("error_number", "file_prefix", "num_kept"),
  [(errno.EDQUOT, "block-", 2), (errno.EIO, "", 5), (errno.ENOSPC, "pretraining-", 17)],
)
def test_after_an_error_of_the_system_finished_files_are_kept(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
  uninterrupted_output: dict[str, bytes],
  error_number: int,
  file_prefix: str,
  num_kept: int,
) -> None:
  calls, fsync, read_range = itertools.count(), os.fsync, units.read_range

  def read_or_fail(text_range: units.TextRange) -> units.TextRange:
    if not file_prefix and next(calls) >= 5:
      raise OSError(error_number, os.strerror(error_number))
    return read_range(text_range)

  def sync_or_fail(descriptor: int) -> None:
    if file_prefix and f".{file_prefix}" in os.readlink(f"/proc/self/fd/{descriptor}") and next(calls) >= 2:
      raise OSError(error_number, os.strerror(error_number))
    fsync(descriptor)

  job = make_job(small_files, spm_model, tmp_path / "out")
  with monkeypatch.context() as patch:
    patch.setattr(units, "read_range", read_or_fail)
    patch.setattr(os, "fsync", sync_or_fail)
    with pytest.raises(RunError, match=re.escape(os.strerror(error_number))) as caught:
      prepare(job)
  assert file_prefix in str(caught.value)
  assert "\n" not in str(caught.value)
  assert "same command" in str(caught.value)
  (workspace,) = (tmp_path / "out").glob(".preparation-*")
  assert len(list(workspace.glob("*.block"))) >= 2
  assert not [path for path in workspace.iterdir() if local_files.STAGING_NAME.match(path.name)]
  times_of_complete_shards = get_shard_times(tmp_path / "out")
  assert len(times_of_complete_shards) == (2 if file_prefix == "pretraining-" else 0)
  capsys.readouterr()
  prepare(job)
  assert f"kept {num_kept} of 17 units" in capsys.readouterr().out
  assert times_of_complete_shards.items() <= get_shard_times(tmp_path / "out").items()
  assert contents(tmp_path / "out") == uninterrupted_output


@pytest.mark.parametrize(
  ("num_processes", "replacement"),
  [
    pytest.param(1, b"e", id="same size"),
    pytest.param(2, b"\xc3\xa9\xc3\xa9", id="longer", marks=pytest.mark.thorough),
  ],
)
def test_after_an_invalid_byte_only_its_unit_is_processed_again(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  capsys: pytest.CaptureFixture[str],
  num_processes: int,
  replacement: bytes,
) -> None:
  bad_file = tmp_path / "9.txt"
  text = Path(small_files[-1]).read_bytes()
  bad_file.write_bytes(text[:-8] + b"\xe9" + text[-8:])  # a bad byte in the last unit
  inputs = [*small_files, str(bad_file)]
  job = make_job(inputs, spm_model, tmp_path / "out", num_processes=num_processes)
  with pytest.raises(UserError, match=rf"{bad_file}, line \d+: not UTF-8 text \(byte 0xe9"):
    prepare(job)
  assert_only_workspace(tmp_path / "out")
  bad_file.write_bytes(text[:-8] + replacement + text[-8:])
  capsys.readouterr()
  prepare(job)
  kept_units = re.search(r"kept (\d+) of 19 units", capsys.readouterr().out)  # the bad file adds two units
  assert kept_units is not None
  assert int(kept_units[1]) >= (18 if num_processes == 1 else 14)  # the units that other processes work on are lost
  prepare(make_job(inputs, spm_model, tmp_path / "uninterrupted"))
  assert contents(tmp_path / "out") == contents(tmp_path / "uninterrupted")


@pytest.mark.thorough
def test_after_an_error_in_a_gzip_file_the_text_of_the_others_is_kept(
  tmp_path: Path, spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  # More than is checked at the start.
  content = gzip.compress(b"The captain sold the river.\nNobody watched.\n\n" * 20_000)
  paths = [tmp_path / f"{number}.txt.gz" for number in range(3)]
  for path in paths:
    path.write_bytes(content)
  paths[2].write_bytes(content[:-9])
  job = make_job([str(path) for path in paths], spm_model, tmp_path / "out")
  with pytest.raises(UserError, match=r"2\.txt\.gz: the GZIP file is damaged"):
    prepare(job)
  paths[2].write_bytes(content)
  copied, copy = [], shutil.copyfileobj
  monkeypatch.setattr(shutil, "copyfileobj", lambda *arguments: copied.append(arguments) or copy(*arguments))
  prepare(job)
  assert len(copied) == 1


@pytest.mark.parametrize("prediction", ["sop", pytest.param("nsp", marks=pytest.mark.thorough)])
def test_input_that_changed_after_a_stop_is_processed_again(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, prediction: str
) -> None:
  inputs = [str(shutil.copy(path, tmp_path)) for path in small_files]
  settings = PreparationSettings(max_seq_length=32, sentence_prediction=prediction, dupe_factor=2)
  job = make_job(inputs, spm_model, tmp_path / "out", settings=settings)
  stop_job(monkeypatch, job, "shard", 2)
  changed = Path(inputs[3])
  changed.write_text(changed.read_text()[::-1])
  prepare(job)
  prepare(make_job(inputs, spm_model, tmp_path / "uninterrupted", settings=settings))
  assert contents(tmp_path / "out") == contents(tmp_path / "uninterrupted")


# Block 12 is made after the units of the file were read, block 0 before.
@pytest.mark.parametrize(("keeps_size", "block"), [(False, 12), (True, 12), (True, 0)])
def test_a_file_that_changes_while_it_is_read_is_detected(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, keeps_size: bool, block: int
) -> None:
  inputs = [str(shutil.copy(path, tmp_path)) for path in small_files]
  changed = Path(inputs[2])
  original_content, original_time = changed.read_bytes(), changed.stat().st_mtime_ns
  make_block, calls = blocks.make_block, itertools.count()

  def make_block_and_change_file(task: BlockTask) -> bool:
    is_made = make_block(task)
    if next(calls) == block:
      new_content = original_content.replace(b"The captain", b"The teacher", 1)
      changed.write_bytes(new_content if keeps_size else original_content * 2)
    return is_made

  job = make_job(inputs, spm_model, tmp_path / "out")
  with monkeypatch.context() as patch:
    patch.setattr(blocks, "make_block", make_block_and_change_file)
    with pytest.raises(UserError, match=f"{changed} changed while it was being read"):
      prepare(job)
  assert_only_workspace(tmp_path / "out")
  changed.write_bytes(original_content)
  os.utime(changed, ns=(original_time, original_time))
  prepare(job)
  prepare(make_job(small_files, spm_model, tmp_path / "uninterrupted"))
  assert contents(tmp_path / "out") == contents(tmp_path / "uninterrupted")


@pytest.mark.parametrize("stopped_for", ["sop", "nsp"])
def test_text_is_read_again_only_if_its_size_or_time_changed(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, stopped_for: str
) -> None:
  """Without a change no text is read. If only the time changed, it is read and hashed, and the blocks are kept."""
  inputs = [str(shutil.copy(path, tmp_path)) for path in small_files]
  settings = PreparationSettings(max_seq_length=32, sentence_prediction=stopped_for, dupe_factor=2)
  job = make_job(inputs, spm_model, tmp_path / "out", settings=settings)
  hashed: list[str] = []  # the files
  hash_unit = units.hash_unit

  def note_and_hash(unit: units.TextUnit) -> object:
    hashed.extend(text_range.path for text_range in unit.ranges)
    return hash_unit(unit)

  monkeypatch.setattr(units, "hash_unit", note_and_hash)
  with monkeypatch.context() as patch:
    stop_at_call(patch, shards, "RecordWriter", 0)
    for _ in range(2):
      with pytest.raises(_StopError):
        prepare(job)
    assert not hashed
    os.utime(inputs[4], ns=(0, 0))
    with pytest.raises(_StopError):
      prepare(job)
    assert {inputs[4]} <= set(hashed) < set(inputs)
  assert prepare(job).num_examples > 0


def test_the_manifest_has_a_hash_of_the_ranges_of_text_and_of_other_files(
  tmp_path: Path, small_files: list[str], spm_model: str
) -> None:
  gzip_file = tmp_path / "9.txt.gz"
  gzip_file.write_bytes(gzip.compress(Path(small_files[0]).read_bytes()))
  text, compressed = prepare(make_job([small_files[0], str(gzip_file)], spm_model, tmp_path / "out")).settings[
    "input_files"
  ]
  content = Path(small_files[0]).read_bytes()
  cut = content.index(b"\n\n", 4096 - 2) + 2  # the first blank line that ends after the nominal size of a unit
  hashes = "".join(f"{hashlib.sha256(part).hexdigest()}\n" for part in (content[:cut], content[cut:]))
  assert text == {"file": "0.txt", "bytes": len(content), "ranges_sha256": hashlib.sha256(hashes.encode()).hexdigest()}
  sha256 = hashlib.sha256(gzip_file.read_bytes()).hexdigest()
  assert compressed == {"file": "9.txt.gz", "bytes": gzip_file.stat().st_size, "sha256": sha256}


@pytest.mark.parametrize("change", ["none", "text", "a shard"])
def test_a_finished_run_of_an_earlier_version_is_checked_by_the_hashes_of_its_files(
  tmp_path: Path, small_files: list[str], spm_model: str, change: str
) -> None:
  """Earlier manifests have the SHA-256 of every file."""
  inputs = [str(shutil.copy(path, tmp_path)) for path in small_files]
  job = make_job(inputs, spm_model, tmp_path / "out")
  manifest = prepare(job)
  complete = contents(tmp_path / "out")
  entries = [units.hash_file(path) for path in inputs]
  earlier = dataclasses.replace(manifest, settings={**manifest.settings, "input_files": entries})
  earlier.save(str(tmp_path / "out"))
  if change == "none":
    assert prepare(job) == earlier
  elif change == "text":
    Path(inputs[3]).write_text(Path(inputs[3]).read_text()[::-1])
    with pytest.raises(UserError, match="other input files"):
      prepare(job)
  else:
    (tmp_path / "out" / manifest.shards[1].file).write_bytes(b"damaged")
    prepare(job)
    assert contents(tmp_path / "out") == complete


def test_units_are_kept_after_an_error_about_the_number_of_shards(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  capsys: pytest.CaptureFixture[str],
  uninterrupted_output: dict[str, bytes],
) -> None:
  with pytest.raises(UserError, match="--num_shards=99999: the text gives"):
    prepare(make_job(small_files, spm_model, tmp_path / "out", num_shards=99_999))
  prepare(make_job(small_files, spm_model, tmp_path / "out"))
  assert "kept 17 of 17 units" in capsys.readouterr().out
  assert contents(tmp_path / "out") == uninterrupted_output
