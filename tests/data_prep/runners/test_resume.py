"""Jobs that are stopped, fail or are run again: finished work is kept, and outdated files are not used."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert.data.manifest import Manifest
from albert.errors import RunError, UserError
from albert.io import files
from albert.runs import directory_lock
from albert.runs.directory_lock import DirectoryLock
from data_prep import input_hashes, units
from data_prep.create_pretraining_data import Job, prepare
from data_prep.runners import unit_spills
from data_prep.settings import PreparationSettings
from data_prep.sorting import merge_passes, shards
from tests.data_prep.runners.jobs import SETTINGS, contents, make_job

pytestmark = pytest.mark.usefixtures("small_units")


class _StopError(Exception):
  pass


@pytest.mark.parametrize("stop_after", [("spill", 3), ("shard", 0), ("shard", 2)])
def test_a_stopped_job_resumes_and_keeps_finished_files(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
  whole: dict[str, bytes],
  stop_after: tuple[str, int],
) -> None:
  job = make_job(small_files, spm_model, tmp_path / "out")
  kind, count = stop_after
  module, name = (unit_spills, "make_spill") if kind == "spill" else (shards, "write_shard")
  original = getattr(module, name)
  calls = 0

  def counted(task: object) -> object:
    nonlocal calls
    calls += 1
    if calls > count:
      raise _StopError
    return original(task)

  with monkeypatch.context() as patch:
    patch.setattr(module, name, counted)
    with pytest.raises(_StopError):
      prepare(job)
  assert not (tmp_path / "out" / "manifest.json").exists()
  before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tfrecord")}
  assert len(before) == (count if kind == "shard" else 0)
  capsys.readouterr()
  prepare(job)
  printed = capsys.readouterr().out
  assert contents(tmp_path / "out") == whole
  assert ("kept 3 of 17 units" if kind == "spill" else "kept 17 of 17 units") in printed
  assert {path: path.stat().st_mtime_ns for path in before} == before
  assert ("kept 2 of 3 shards" in printed) == (stop_after == ("shard", 2))


def test_a_finished_job_is_checked_and_repaired(
  tmp_path: Path, small_files: list[str], spm_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
  job = make_job(small_files, spm_model, tmp_path)
  manifest = prepare(job)
  whole = contents(tmp_path)
  times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
  assert prepare(job) == manifest
  dataclasses.replace(manifest, shards=()).save(str(tmp_path))
  with pytest.raises(UserError, match=r"manifest.json lists 0 shards, not pretraining-00000-of-00003"):
    prepare(job)  # a manifest without shards is not complete
  manifest.save(str(tmp_path))
  times["manifest.json"] = (tmp_path / "manifest.json").stat().st_mtime_ns
  assert "the checksums of all 3 shards are correct, nothing to do" in capsys.readouterr().out
  assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
  damaged = tmp_path / manifest.shards[1].file
  data = bytearray(damaged.read_bytes())
  data[100] ^= 1
  damaged.write_bytes(bytes(data))
  prepare(job)
  printed = capsys.readouterr().out
  assert "1 of 3 shards are missing or damaged" in printed
  assert "kept 2 of 3 shards" in printed
  assert contents(tmp_path) == whole


@pytest.mark.parametrize("is_finished", [True, False])
def test_other_settings_are_refused(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
  if is_finished:
    prepare(make_job(small_files, spm_model, tmp_path))
  else:
    with monkeypatch.context() as patch:
      patch.setattr(shards, "write_shard", None)
      with pytest.raises(TypeError):
        prepare(make_job(small_files, spm_model, tmp_path))
  before = contents(tmp_path) if is_finished else None
  run = "a finished run" if is_finished else "an unfinished run"
  other = PreparationSettings(max_seq_length=32, dupe_factor=4)
  with pytest.raises(UserError, match=rf"holds {run} with other settings \(dupe_factor 3, not 4\): choose"):
    prepare(make_job(small_files, spm_model, tmp_path, settings=other))
  with pytest.raises(UserError, match="other input files"):
    prepare(make_job(small_files[:-1], spm_model, tmp_path))
  if is_finished:
    assert contents(tmp_path) == before
  prepare(make_job(small_files, spm_model, tmp_path))


def test_unknown_shards_are_not_overwritten(tmp_path: Path, small_files: list[str], spm_model: str) -> None:
  unknown = tmp_path / "pretraining-00001-of-00003.tfrecord"
  unknown.write_bytes(b"somebody's")
  with pytest.raises(UserError, match="which no manifest describes"):
    prepare(make_job(small_files, spm_model, tmp_path))
  assert contents(tmp_path) == {unknown.name: b"somebody's"}


def test_another_process_in_the_same_directory(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  job = make_job(small_files, spm_model, tmp_path)
  original = unit_spills.make_spill

  def also_start_another(task: unit_spills.UnitTask) -> None:
    with pytest.raises(UserError, match=rf"process {os.getpid()} on host .* is preparing data there"):
      prepare(job)
    original(task)

  monkeypatch.setattr(unit_spills, "make_spill", also_start_another)
  assert prepare(job).num_examples > 0
  assert json.loads((tmp_path / "manifest.json").read_text())["kind"] == "pretraining"


def test_remote_directories(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  """A job can read from and write to a remote file system, and locks its directory there."""
  monkeypatch.setattr(directory_lock, "SETTLE_SECONDS", 0.01)
  root = f"ram://{tmp_path.name}"
  inputs = [files.join(root, Path(path).name) for path in small_files]
  files.makedirs(root)
  for source, target in zip(small_files, inputs, strict=True):
    files.write_atomically(target, Path(source).read_bytes())
  local = prepare(make_job(small_files, spm_model, tmp_path / "out"))
  output_dir = files.join(root, "out")
  job = Job(inputs=tuple(inputs), output_dir=output_dir, spm_model_file=spm_model, settings=SETTINGS, num_shards=3)
  with monkeypatch.context() as patch:
    patch.setattr(directory_lock, "RENEWAL_SECONDS", 0.01)
    patch.setattr(directory_lock, "_POLL_SECONDS", 0.05)
    with (
      DirectoryLock(output_dir, "preparing data"),
      pytest.raises(UserError, match=rf"process {os.getpid()} on host .* is preparing data there"),
    ):
      prepare(job)
  assert prepare(job) == local
  assert files.listdir(output_dir) == sorted(contents(tmp_path / "out"))
  assert prepare(job) == local


def test_another_process_may_finish_the_job_before_this_one_looks_for_its_files(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  made = prepare(make_job(small_files, spm_model, tmp_path / "out"))
  load, missing = Manifest.load, [None]
  monkeypatch.setattr(Manifest, "load", lambda directory: missing.pop() if missing else load(directory))
  assert prepare(make_job(small_files, spm_model, tmp_path / "out")) == made


# ---- faults, and input that changes --------------------------------------------------------------------


def _raising(number: int) -> Callable[..., None]:
  def fail(*arguments: object, **keywords: object) -> None:
    raise OSError(number, os.strerror(number))

  return fail


@pytest.mark.parametrize(
  ("failing_step", "number"),
  [
    ("open a spill", errno.EMFILE),
    ("sync a spill", errno.EDQUOT),
    ("read the text", errno.EIO),
    ("merge", errno.ENOSPC),
    ("shard", errno.ENOSPC),
  ],
)
def test_after_an_error_of_the_system_finished_files_are_kept(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
  whole: dict[str, bytes],
  number: int,
  failing_step: str,
) -> None:
  job = make_job(small_files, spm_model, tmp_path / "out")
  monkeypatch.setattr(merge_passes, "max_open_runs", lambda: 4)
  file_prefix = {"open a spill": "unit-", "sync a spill": "unit-", "merge": "merged-", "shard": "pretraining-"}.get(
    failing_step, ""
  )
  calls = itertools.count()
  with monkeypatch.context() as patch:
    if failing_step == "read the text":
      read_range = units.read_range
      patch.setattr(
        input_hashes, "read_range", lambda part: read_range(part) if next(calls) < 5 else _raising(number)()
      )
    else:
      name = "open" if failing_step == "open a spill" else "fsync"
      original = getattr(os, name)

      def failing(file: Any, *arguments: Any, **keywords: Any) -> Any:
        # /proc/self/fd gives the name of the file of a descriptor.
        path = file if isinstance(file, str) else os.readlink(f"/proc/self/fd/{file}")
        if f"/.{file_prefix}" in str(path) and next(calls) >= 2:
          _raising(number)()
        return original(file, *arguments, **keywords)

      patch.setattr(os, name, failing)
    with pytest.raises(RunError, match=re.escape(os.strerror(number))) as caught:
      prepare(job)
  assert file_prefix in str(caught.value)
  assert "\n" not in str(caught.value)
  assert "same command" in str(caught.value)
  (workspace,) = (tmp_path / "out").glob(".preparation-*")
  kept = list(workspace.glob("*.spill"))
  assert len(kept) >= 2
  assert not [path for path in workspace.iterdir() if files.is_staging_name(path.name)]
  shards_before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tfrecord")}
  assert len(shards_before) == (2 if failing_step == "shard" else 0)
  capsys.readouterr()
  prepare(job)
  printed = capsys.readouterr().out
  expected = {"open a spill": 2, "sync a spill": 2, "read the text": 5}.get(failing_step, 17)
  assert f"kept {expected} of 17 units" in printed
  assert {path: path.stat().st_mtime_ns for path in shards_before} == shards_before
  assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(
  ("num_processes", "replacement"),
  [
    pytest.param(1, b"e", id="same size-1"),
    pytest.param(2, b"\xc3\xa9\xc3\xa9", id="longer-2", marks=pytest.mark.thorough),
    pytest.param(1, b"\xc3\xa9\xc3\xa9", id="longer-1", marks=pytest.mark.thorough),
    pytest.param(2, b"e", id="same size-2", marks=pytest.mark.thorough),
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
  bad = tmp_path / "9.txt"
  text = Path(small_files[-1]).read_bytes()
  bad.write_bytes(text[:-8] + b"\xe9" + text[-8:])
  inputs = [*small_files, str(bad)]
  job = make_job(inputs, spm_model, tmp_path / "out", num_processes=num_processes)
  with pytest.raises(UserError, match=rf"{bad}, line \d+: not UTF-8 text \(byte 0xe9"):
    prepare(job)
  assert [path.name[:13] for path in (tmp_path / "out").iterdir()] == [".preparation-"]
  bad.write_bytes(text[:-8] + replacement + text[-8:])
  capsys.readouterr()
  prepare(job)
  kept = re.search(r"kept (\d+) of 19 units", capsys.readouterr().out)
  assert kept is not None
  assert int(kept[1]) >= (18 if num_processes == 1 else 14)  # units that other processes had not finished are lost
  prepare(make_job(inputs, spm_model, tmp_path / "fresh"))
  assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize(
  ("prediction", "stop_at"),
  [
    ("sop", "shard"),
    pytest.param("nsp", "merge", marks=pytest.mark.thorough),
    pytest.param("sop", "merge", marks=pytest.mark.thorough),
    pytest.param("nsp", "shard", marks=pytest.mark.thorough),
  ],
)
def test_input_that_changed_after_a_stop_is_processed_again(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, stop_at: str, prediction: str
) -> None:
  inputs = [str(shutil.copy(path, tmp_path)) for path in small_files]
  settings = PreparationSettings(max_seq_length=32, sentence_prediction=prediction, dupe_factor=2)
  job = make_job(inputs, spm_model, tmp_path / "out", settings=settings)
  monkeypatch.setattr(merge_passes, "max_open_runs", lambda: 4)
  module, name = (merge_passes, "merge_spills") if stop_at == "merge" else (shards, "write_shard")
  original, calls = getattr(module, name), itertools.count()

  def stopping(task: object) -> object:
    if next(calls) == 2:
      raise _StopError
    return original(task)

  with monkeypatch.context() as patch:
    patch.setattr(module, name, stopping)
    with pytest.raises(_StopError):
      prepare(job)
  changed = Path(inputs[3])
  changed.write_text(changed.read_text()[::-1])
  prepare(job)
  prepare(make_job(inputs, spm_model, tmp_path / "fresh", settings=settings))
  assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_stopped_merge_resumes(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
  whole: dict[str, bytes],
) -> None:
  """Finished merged files are kept, and their inputs are not made again, even if the stop came before their removal."""
  monkeypatch.setattr(merge_passes, "max_open_runs", lambda: 3)
  job = make_job(small_files, spm_model, tmp_path / "out")
  remove, calls = files.remove, itertools.count()
  for stop_at in (0, 5, 9):

    def stopping(path: str, stop_at: int = stop_at) -> None:
      if "unit-" in path and next(calls) == stop_at:
        raise _StopError
      remove(path)

    with monkeypatch.context() as patch:
      patch.setattr(files, "remove", stopping)
      with pytest.raises(_StopError):
        prepare(job)
  capsys.readouterr()
  prepare(job)
  assert "kept 17 of 17 units" in capsys.readouterr().out
  assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("keeps_size", [True, False])
@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_a_file_that_changes_while_it_is_read_is_detected(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, ending: str, keeps_size: bool
) -> None:
  inputs = []
  for path in small_files:
    data = Path(path).read_bytes()
    inputs.append(str(tmp_path / (Path(path).stem + ending)))
    Path(inputs[-1]).write_bytes(gzip.compress(data, 0) if ending.endswith("gz") else data)
  changed = Path(inputs[2])
  before, times = changed.read_bytes(), os.stat(changed)
  # The GZIP file holds its text uncompressed, so the text can be replaced. The checksum at its end stays the old one.
  after = before.replace(b"The captain", b"The teacher", 1) if keeps_size else before + before
  assert after != before
  original, calls = unit_spills.make_spill, itertools.count()

  def then_change(task: unit_spills.UnitTask) -> object:
    outcome = original(task)
    if next(calls) == 12:
      changed.write_bytes(after)
      os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    return outcome

  job = make_job(inputs, spm_model, tmp_path / "out")
  with monkeypatch.context() as patch:
    patch.setattr(unit_spills, "make_spill", then_change)
    with pytest.raises(UserError, match=f"{changed} changed while it was being read"):
      prepare(job)
  assert [path.name[:13] for path in (tmp_path / "out").iterdir()] == [".preparation-"]
  changed.write_bytes(before)
  manifest = prepare(job)
  assert manifest.settings["input_files"][2]["sha256"] == hashlib.sha256(before).hexdigest()


def test_units_are_kept_for_fewer_shards(
  tmp_path: Path, small_files: list[str], spm_model: str, capsys: pytest.CaptureFixture[str], whole: dict[str, bytes]
) -> None:
  with pytest.raises(UserError, match="--num_shards=99999: the text gives"):
    prepare(make_job(small_files, spm_model, tmp_path / "out", num_shards=99_999))
  prepare(make_job(small_files, spm_model, tmp_path / "out"))
  assert "kept 17 of 17 units" in capsys.readouterr().out
  assert contents(tmp_path / "out") == whole
