"""The lock on a directory has one owner at a time, and is free again when its owner is killed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from albert.errors import RunError, UserError
from albert.io import files, local_files
from albert.runs.directory_lock import DirectoryLock


def refuse_flock(descriptor: int, operation: int) -> None:
  raise OSError(errno.ENOLCK, "No locks available")


@pytest.fixture(params=["no flock", "object store"])
def directory_without_flock(request, tmp_path: Path, monkeypatch) -> str:
  """TensorFlow's in-memory file system is used in place of an object store."""
  if request.param == "object store":
    return f"ram://{tmp_path.name}/run"
  monkeypatch.setattr(fcntl, "flock", refuse_flock)
  return str(tmp_path / "run")


def test_a_second_owner_is_refused_with_the_name_of_the_first(tmp_path):
  directory = str(tmp_path / "run")
  with DirectoryLock(directory, "training") as lock:
    message = rf"{directory}: process {os.getpid()} on host .* is training there since .*: wait for it, stop it"
    with pytest.raises(UserError, match=message):
      DirectoryLock(directory, "training").acquire()
    lock.check()
  assert not files.exists(directory)  # the lock made it, and nothing was written
  with DirectoryLock(directory, "training"):  # another lock of the same process
    pass
  lock.acquire()  # the first lock, again
  lock.check()
  lock.release()


def test_one_of_several_threads_that_start_together_gets_the_lock(tmp_path):
  outcomes: list[DirectoryLock | UserError] = []

  def start() -> None:
    lock = DirectoryLock(str(tmp_path / "run"), "training")
    try:
      lock.acquire()
      outcomes.append(lock)
    except UserError as error:
      outcomes.append(error)

  threads = [threading.Thread(target=start) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  (lock,) = [outcome for outcome in outcomes if isinstance(outcome, DirectoryLock)]
  assert len(outcomes) == 8
  lock.check()
  lock.release()


def test_a_lock_is_free_at_once_when_its_owner_on_this_host_is_killed(tmp_path):
  run_dir = str(tmp_path / "run")
  program = f"""
import time
from albert.runs.directory_lock import DirectoryLock
DirectoryLock({run_dir!r}, "training").acquire()
print("locked", flush=True)
time.sleep(60)
"""
  owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
  assert owner.stdout is not None
  assert owner.stdout.readline() == "locked\n"
  with pytest.raises(UserError, match=f"process {owner.pid} on host"):
    DirectoryLock(run_dir, "training").acquire()
  owner.send_signal(signal.SIGKILL)
  owner.wait()
  assert files.exists(files.join(run_dir, ".lock"))
  with DirectoryLock(run_dir, "training") as lock:
    lock.check()


def test_without_flock_the_process_that_starts_last_has_the_lock(directory_without_flock, capsys):
  directory = directory_without_flock
  older, newer = DirectoryLock(directory, "training"), DirectoryLock(directory, "training")
  older.acquire()
  older.check()
  assert not capsys.readouterr().err
  newer.acquire()
  owner = f"{directory}: process {os.getpid()} on host {platform.node()} is training there since"
  (warning,) = capsys.readouterr().err.splitlines()
  assert warning.startswith(f"warning: {owner}")
  assert warning.endswith("takes its place; if the other one still runs, it stops before its next save")
  with pytest.raises(RunError, match=f"^{owner}.* and started later than this one: stopped without saving; stop "):
    older.check()
  older.release()
  newer.check()  # the older process has left its file alone
  newer.release()
  assert files.listdir(directory) == []
  newer.acquire()
  files.remove(newer.path)
  with pytest.raises(RunError, match=r"somebody removed .*lock, so another process may be training there"):
    newer.check()


@pytest.mark.parametrize("is_ended", [False, True])
def test_an_owner_on_another_host_is_replaced_with_a_warning_and_an_ended_one_without(
  directory_without_flock, is_ended, capsys
):
  ended = subprocess.Popen([sys.executable, "-c", ""])
  ended.wait()
  host_key = local_files.host_key() if is_ended else "0"
  owner = {"host": "elsewhere", "pid": ended.pid, "since": "then", "host_key": host_key, "token": "x", "renewals": 3}
  files.makedirs(directory_without_flock)
  files.write_atomically(files.join(directory_without_flock, ".lock"), json.dumps(owner))  # as earlier versions wrote
  with DirectoryLock(directory_without_flock, "training") as lock:
    lock.check()
  assert ("elsewhere is training there since then" in capsys.readouterr().err) != is_ended


def test_a_process_whose_lock_file_was_removed_stops_and_keeps_the_new_lock_file(tmp_path):
  run_dir = str(tmp_path / "run")
  lost_lock = DirectoryLock(run_dir, "training")
  lost_lock.acquire()
  os.remove(lost_lock.path)
  with pytest.raises(RunError, match=r"somebody removed .*\.lock, so another process may be training there"):
    lost_lock.check()
  with DirectoryLock(run_dir, "training") as new_lock:
    with pytest.raises(RunError, match="stopped without saving"):
      lost_lock.check()
    lost_lock.release()
    new_lock.check()


def test_a_lock_that_cannot_be_written_is_an_error_of_one_line(tmp_path):
  (tmp_path / "run" / ".lock").mkdir(parents=True)
  with pytest.raises(UserError, match=r"\.lock: cannot write it \(Is a directory\)"):
    DirectoryLock(str(tmp_path / "run"), "training").acquire()


@pytest.mark.parametrize("function_name", ["open", "pwrite"])
def test_a_full_disk_gives_one_line_and_leaves_no_lock(tmp_path: Path, monkeypatch, function_name: str):
  function, lock_file = getattr(os, function_name), tmp_path / ".lock"

  def fail(file, *arguments):
    if function_name == "pwrite" or file == str(lock_file):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return function(file, *arguments)

  with monkeypatch.context() as patch:
    patch.setattr(os, function_name, fail)
    message = rf"^{lock_file}: cannot .* \(No space left on device\): run the same command again"
    with pytest.raises(RunError, match=message):
      DirectoryLock(str(tmp_path), "training").acquire()
  assert not lock_file.exists()
  with DirectoryLock(str(tmp_path), "training"):
    assert lock_file.exists()
