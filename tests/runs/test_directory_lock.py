"""The lock on a directory has one owner at a time, and is free again when its owner is killed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from albert.errors import RunError, UserError
from albert.io import files
from albert.runs import directory_lock
from albert.runs.directory_lock import DirectoryLock


@pytest.fixture
def short_intervals(monkeypatch):
  """Shortens the intervals of heartbeats to milliseconds."""
  monkeypatch.setattr(directory_lock, "RENEWAL_SECONDS", 0.05)
  monkeypatch.setattr(directory_lock, "STALE_SECONDS", 0.4)
  monkeypatch.setattr(directory_lock, "SETTLE_SECONDS", 0.02)
  monkeypatch.setattr(directory_lock, "_POLL_SECONDS", 0.02)


@pytest.fixture(params=["flock", "no flock", "object store"])
def directory(request, tmp_path: Path, short_intervals, monkeypatch) -> str:
  """A directory on each kind of file system. TensorFlow's in-memory file system is used in place of an object store."""
  if request.param == "object store":
    return f"ram://{tmp_path.name}/run"
  if request.param == "no flock":

    def refuse_flock(descriptor: int, operation: int) -> None:
      raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse_flock)
  return str(tmp_path / "run")


def test_a_second_owner_is_refused_with_the_name_of_the_first(directory):
  with DirectoryLock(directory, "training") as lock:
    message = rf"{directory}: process {os.getpid()} on host .* is training there since .*: wait for it, stop it"
    with pytest.raises(UserError, match=message):
      DirectoryLock(directory, "training").acquire()
    lock.check()
  assert files.listdir(directory) == []
  with DirectoryLock(directory, "training"):  # another lock of the same process
    pass
  lock.acquire()  # the first lock, again
  lock.check()
  lock.release()


def is_owned(lock: DirectoryLock) -> bool:
  """Whether a lock that this process acquired is still its own."""
  try:
    lock.check()
  except RunError:
    return False
  return True


def test_one_of_several_threads_that_start_together_gets_the_lock(directory):
  outcomes: list[DirectoryLock | UserError] = []

  def start() -> None:
    lock = DirectoryLock(directory, "training")
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
  time.sleep(0.3)  # several may have written a heartbeat at the same moment; at the next renewal, all but one notice it
  locks = [outcome for outcome in outcomes if isinstance(outcome, DirectoryLock)]
  assert len(outcomes) == 8
  assert locks
  owned_locks = [lock for lock in locks if is_owned(lock)]
  for lock in locks:
    lock.release()
  assert len(owned_locks) == 1


# A program that takes the lock of a directory and keeps it. Its arguments are the directory and the kind of lock.
_OWNER_PROGRAM = """
import sys, time
from albert.runs import directory_lock
if sys.argv[2] == "no flock":
  directory_lock.DirectoryLock._take_flock = lambda self: False
  directory_lock.SETTLE_SECONDS = 0.01
directory_lock.DirectoryLock(sys.argv[1], "training").acquire()
print("locked", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("lock_kind", ["flock", "no flock"])
def test_a_lock_is_free_at_once_when_its_owner_on_this_host_is_killed(tmp_path, lock_kind, monkeypatch):
  run_dir = str(tmp_path / "run")
  owner = subprocess.Popen(
    [sys.executable, "-c", _OWNER_PROGRAM, run_dir, lock_kind], stdout=subprocess.PIPE, text=True
  )
  assert owner.stdout is not None
  assert owner.stdout.readline() == "locked\n"
  if lock_kind == "flock":
    with pytest.raises(UserError, match=f"process {owner.pid} on host"):
      DirectoryLock(run_dir, "training").acquire()
  else:
    monkeypatch.setattr(DirectoryLock, "_take_flock", lambda self: False)
    monkeypatch.setattr(directory_lock, "SETTLE_SECONDS", 0.01)
  owner.send_signal(signal.SIGKILL)
  owner.wait()
  assert files.exists(files.join(run_dir, ".lock"))
  start_time = time.monotonic()
  with DirectoryLock(run_dir, "training") as lock:
    lock.check()
  assert time.monotonic() - start_time < 10  # much less than the STALE_SECONDS of a heartbeat


def write_abandoned_lock(run_dir: str) -> None:
  """Writes the lock file of an owner that has ended and that ran on another host."""
  owner = {"host": "elsewhere", "pid": 7, "command": "run_x.py", "since": "then", "host_key": "0", "token": "x"}
  files.makedirs(run_dir)
  files.write_atomically(files.join(run_dir, ".lock"), json.dumps(owner))


def test_a_heartbeat_that_is_not_renewed_is_stale(tmp_path, short_intervals, capsys):
  run_dir = f"ram://{tmp_path.name}/run"
  write_abandoned_lock(run_dir)
  start_time = time.monotonic()
  with DirectoryLock(run_dir, "training") as lock:
    lock.check()
  assert time.monotonic() - start_time > directory_lock.STALE_SECONDS
  message = "process 7 on host elsewhere is training there since then (run_x.py), unless it has died; waiting"
  assert message in capsys.readouterr().err


def test_the_lock_does_not_depend_on_clocks(tmp_path, short_intervals, monkeypatch):
  """The clock of a process that asks for the lock goes back by an hour with each look at it."""
  run_dir = f"ram://{tmp_path.name}/run"
  with DirectoryLock(run_dir, "training"):
    clock = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    with pytest.raises(UserError, match="is training there"):
      DirectoryLock(run_dir, "training").acquire()


def test_check_fails_in_a_process_that_lost_the_lock(tmp_path, short_intervals):
  run_dir = f"ram://{tmp_path.name}/run"
  lost_lock = DirectoryLock(run_dir, "training")
  lost_lock.acquire()
  write_abandoned_lock(run_dir)  # in reality, a process that found the heartbeat stale would write its own lock
  with pytest.raises(RunError, match=r"process 7 on host elsewhere is training there.*stopped without saving"):
    lost_lock.check()
  lost_lock.release()
  assert files.listdir(run_dir) == [".lock"]  # the lock of the other process


def test_a_process_whose_lock_file_was_removed_stops_and_keeps_the_new_lock_file(tmp_path):
  run_dir = str(tmp_path / "run")
  lost_lock = DirectoryLock(run_dir, "training")
  lost_lock.acquire()
  os.remove(lost_lock.path)
  with pytest.raises(RunError, match=r"somebody removed .*\.lock, so another process may be training there"):
    lost_lock.check(read=False)
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
    with pytest.raises(
      RunError, match=rf"^{lock_file}: cannot .* \(No space left on device\): run the same command again"
    ):
      DirectoryLock(str(tmp_path), "training").acquire()
  assert not lock_file.exists()
  with DirectoryLock(str(tmp_path), "training"):
    assert lock_file.exists()
