"""A lock on a directory, for work that only one process may do there at a time, such as training.

On a local file system it is flock on a hidden file: the kernel releases it when its owner ends, however it ends. Where
there is no flock (object stores such as gs://, some network file systems), it is a heartbeat: a file that its owner
renews every RENEWAL_SECONDS. Another process watches that file before it takes the lock: a change means that the
owner is alive; no change in STALE_SECONDS means that it is gone. Clocks of hosts are never compared.

An object store has no atomic operation to build on here, so two processes that start within SETTLE_SECONDS may both
write the file. The last one keeps the lock; the other one notices when it reads the file back, or at its next
renewal, or before it saves (`DirectoryLock.check`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import secrets
import shlex
import sys
import threading
import time
from types import TracebackType
from typing import Annotated, Any

import msgspec

from albert.errors import RunError, UserError
from albert.io import files, json_values, processes

LOCK_FILE = ".lock"
RENEWAL_SECONDS = 20.0
STALE_SECONDS = 150.0
SETTLE_SECONDS = 2.0
_POLL_SECONDS = 2.0
# What flock raises on a file system that has none.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class DirectoryLock:
  """Lets one process at a time work in a directory; a context manager.

  Args:
    directory: is made if it is not there.
    activity: what the owner does there, for the message of those it keeps out, such as "training".
    name: of the lock file, where several files of a directory have an owner each.

  Example:
    with DirectoryLock("run", "training") as lock:
      ...
      lock.check()  # before something is written that another process must not overwrite
  """

  def __init__(self, directory: str, activity: str, name: str = LOCK_FILE):
    self.directory = directory
    self.activity = activity
    self.path = files.join(directory, name)
    self._descriptor: int | None = None
    self._token = secrets.token_hex(8)
    self._renewals = 0
    self._thread: threading.Thread | None = None
    self._released = threading.Event()
    self._lost_to: bytes | None = None  # what another process wrote over this one's heartbeat

  def acquire(self) -> None:
    """Takes the lock.

    Raises:
      UserError: another process has it; the message names the process and its host.
    """
    files.makedirs(self.directory)
    if files.is_remote(self.path) or not self._flock():
      self._take_heartbeat()

  def release(self) -> None:
    """Gives the lock back; one that is not held is fine."""
    if self._descriptor is not None:
      # Removed while it is locked: whoever opened it before notices that its name is gone, and opens the new one.
      with contextlib.suppress(OSError):
        if _is_same_file(self._descriptor, self.path):  # not another process's, if somebody removed this one's
          os.remove(self.path)
      os.close(self._descriptor)
      self._descriptor = None
    if self._thread is not None:
      self._released.set()
      self._thread.join()
      self._thread = None
      try:
        if self._is_own(self._read()):
          files.remove(self.path)
      except Exception as error:  # what was done under the lock is done; the next process finds the lock stale
        _warn(f"{self.path}: could not remove it ({error})")

  def check(self, *, read: bool = True) -> None:
    """Checks that the lock is still held, before something is written that another process must not overwrite.

    Args:
      read: read the file of a heartbeat; else what its last renewal saw is enough, since the file may be remote.

    Raises:
      RunError: the lock file was removed, so that another process may have taken the lock, or a heartbeat was not
        renewed for long, and another process has.
    """
    if self._descriptor is not None and not _is_same_file(self._descriptor, self.path):
      raise RunError(
        f"{self.directory}: somebody removed {self.path}, so another process may be {self.activity} there: stopped "
        "without saving; when no other process is, the same command goes on from what was saved"
      )
    if self._thread is None:
      return
    if self._lost_to is None and read and not self._is_own(there := self._read()):
      self._lost_to = there
    if self._lost_to is not None:
      raise RunError(
        f"{self.directory}: {_describe(self._lost_to, self.activity)}, because this process did not renew {self.path} "
        f"for {STALE_SECONDS:.0f} seconds (a machine that was suspended, or lost its network) or somebody removed that "
        "file: stopped without saving"
      )

  def __enter__(self) -> DirectoryLock:
    self.acquire()
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self.release()

  def _content(self, **heartbeat: int) -> bytes:
    values: dict[str, Any] = {
      "host": platform.node(),
      "pid": os.getpid(),
      "command": shlex.join(sys.argv)[:1000],
      "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
      "host_key": processes.host_key(),
      "token": self._token,
    }
    return json.dumps(values | heartbeat).encode()

  def _taken_error(self, content: bytes) -> UserError:
    return UserError(
      f"{self.directory}: {_describe(content, self.activity)}: wait for it, stop it, or give another --output_dir"
    )

  def _flock(self) -> bool:
    """Takes the lock by flock. False where the file system has none."""
    try:
      import fcntl
    except ImportError:  # Windows
      return False
    while True:
      with files.naming(self.path):
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
      is_locked = False
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = True
        if _is_same_file(descriptor, self.path):
          os.ftruncate(descriptor, 0)
          os.pwrite(descriptor, self._content(), 0)
          self._descriptor, descriptor = descriptor, -1
          return True
      except BlockingIOError as error:
        raise self._taken_error(os.pread(descriptor, 1 << 16, 0)) from error
      except OSError as error:
        if error.errno in _UNSUPPORTED:
          return False
        if is_locked:  # a full disk: nothing is left there
          with contextlib.suppress(OSError):
            os.remove(self.path)
        raise RunError(
          f"{self.path}: cannot lock it ({error.strerror}): run the same command again once the cause is mended"
        ) from error
      finally:
        if descriptor >= 0:
          os.close(descriptor)

  def _take_heartbeat(self) -> None:
    there = self._read()
    if there and not _has_ended(there):
      self._watch(there)
    self._write()
    time.sleep(SETTLE_SECONDS)
    there = self._read()
    if not self._is_own(there):
      raise self._taken_error(there)
    self._released.clear()
    self._lost_to = None
    self._thread = threading.Thread(target=self._renew, name="directory lock", daemon=True)
    self._thread.start()

  def _watch(self, content: bytes) -> None:
    """Returns when the file is removed or stale. UserError as soon as it changes: its owner is alive."""
    _warn(
      f"{self.directory}: {_describe(content, self.activity)}, or was; waiting up to {STALE_SECONDS:.0f} seconds "
      f"for it to renew {self.path}"
    )
    started = time.monotonic()
    while time.monotonic() - started < STALE_SECONDS:
      time.sleep(_POLL_SECONDS)
      there = self._read()
      if not there:
        return
      if there != content:
        raise self._taken_error(there)

  def _renew(self) -> None:
    while not self._released.wait(RENEWAL_SECONDS):
      try:
        there = self._read()
        if not self._is_own(there):
          self._lost_to = there
          return
        self._renewals += 1
        self._write()
      except Exception as error:  # a passing fault of the network; the next renewal tries again
        _warn(f"{self.path}: could not renew it ({error})")

  def _read(self) -> bytes:
    """The content of the file; empty if there is none."""
    for _ in range(3):
      try:
        if not files.exists(self.path):
          return b""
        with files.open_file(self.path) as file:
          return file.read()
      except Exception:
        if files.exists(self.path):  # else it was removed in between
          raise
    return b""

  def _write(self) -> None:
    files.write_atomically(self.path, self._content(renewals=self._renewals))

  def _is_own(self, content: bytes) -> bool:
    owner = _owner(content)
    return owner is not None and owner.token == self._token


def _warn(line: str) -> None:
  print(f"warning: {line}", file=sys.stderr, flush=True)


def _is_same_file(descriptor: int, path: str) -> bool:
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False


class _Owner(msgspec.Struct):
  """The process that has the lock, as it says in the file."""

  pid: Annotated[int, msgspec.Meta(gt=0, le=2**31 - 1)]
  host: str = ""
  command: str = ""
  since: str = ""
  host_key: str = ""
  token: str = ""


def _owner(content: bytes) -> _Owner | None:
  """None if the content is not what a process writes."""
  try:
    return json_values.parse("lock", content, _Owner)
  except UserError:
    return None


def _has_ended(content: bytes) -> bool:
  owner = _owner(content)
  return owner is not None and processes.has_ended(owner.host_key, owner.pid)


def _describe(content: bytes, activity: str) -> str:
  owner = _owner(content)
  if owner is None:
    return f"another process is {activity} there"
  return f"process {owner.pid} on host {owner.host} is {activity} there since {owner.since} ({owner.command})"
