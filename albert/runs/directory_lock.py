"""A lock on a directory, for work that only one process may do there at a time, such as training.

On a local file system the lock is flock on a hidden file. The kernel releases it when the owner ends, even if it is
killed. Where flock is not supported (object stores such as gs://, some network file systems), the lock is a heartbeat:
a file that the owner rewrites every RENEWAL_SECONDS. Another process that wants the lock watches this file first. If
the file changes, its owner is alive. If it does not change for STALE_SECONDS, its owner is assumed to be dead. The
clocks of two hosts are never compared.

Object stores offer no atomic operation for this, so two processes that start within SETTLE_SECONDS may both write the
file. The process that writes last keeps the lock. The other one finds this out when it reads the file back, at its next
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
from albert.io import files, json_values
from albert.io.parallel import processes

LOCK_FILE = ".lock"
RENEWAL_SECONDS = 20.0
STALE_SECONDS = 150.0
SETTLE_SECONDS = 2.0
_POLL_SECONDS = 2.0
# Number of times to read a lock file that its owner removes and writes again in between.
_MAX_READS = 3
_MAX_COMMAND_CHARS = 1000
_MAX_CONTENT_BYTES = 1 << 16  # more than a lock file has
# Error numbers of flock on a file system that does not support flock.
_UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class DirectoryLock:
  """Allows one process at a time to work in a directory. It is a context manager.

  Args:
    directory: the directory; it is made if it does not exist.
    activity: what the owner of the lock does, such as "training", for the error message of other processes.
    name: file name of the lock, for directories with several locks.

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
    # The content of the lock file after another process has taken the heartbeat's lock; None while it is held.
    self._content_of_next_owner: bytes | None = None

  def acquire(self) -> None:
    """Takes the lock.

    Raises:
      UserError: another process has the lock; the message names the process and its host.
      RunError: the system cannot lock the file, for example because the disk is full.
    """
    files.makedirs(self.directory)
    if files.is_remote(self.path) or not self._take_flock():
      self._take_heartbeat()

  def release(self) -> None:
    """Releases the lock. Does nothing if it is not held."""
    if self._descriptor is not None:
      # The file is removed while it is locked. A process that opened it before finds that the path no longer leads to
      # this file, and opens the new one.
      with contextlib.suppress(OSError):
        if _is_same_file(self._descriptor, self.path):  # false if this file was removed and another process made one
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
      except Exception as error:  # the work under the lock is done; the next process will find the lock stale
        _warn(f"{self.path}: could not remove it ({error})")

  def check(self, *, read: bool = True) -> None:
    """Checks that the lock is still held, before something is written that another process must not overwrite.

    Args:
      read: whether to read the file of a heartbeat. If not, the check uses the result of the last renewal, which saves
        the access to a remote file.

    Raises:
      RunError: the lock file was removed, so that another process may have taken the lock, or another process has
        taken it because the heartbeat was not renewed in time.
    """
    if self._descriptor is not None and not _is_same_file(self._descriptor, self.path):
      raise RunError(
        f"{self.directory}: somebody removed {self.path}, so another process may be {self.activity} there: stopped "
        "without saving; if no other process is, the same command continues from the newest checkpoint"
      )
    if self._thread is None:
      return
    if self._content_of_next_owner is None and read:
      content = self._read()
      if not self._is_own(content):
        self._content_of_next_owner = content
    if self._content_of_next_owner is not None:
      next_owner = _describe_owner(self._content_of_next_owner, self.activity)
      raise RunError(
        f"{self.directory}: {next_owner}, because this process did not renew {self.path} "
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
    """Returns what this process writes into the lock file. `heartbeat` adds values that change at each renewal."""
    values: dict[str, Any] = {
      "host": platform.node(),
      "pid": os.getpid(),
      "command": shlex.join(sys.argv)[:_MAX_COMMAND_CHARS],
      "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
      "host_key": processes.host_key(),
      "token": self._token,
    }
    return json.dumps(values | heartbeat).encode()

  def _taken_error(self, content: bytes) -> UserError:
    """Makes the error for a lock that another process has. `content` is the content of the lock file."""
    return UserError(
      f"{self.directory}: {_describe_owner(content, self.activity)}: wait for it, stop it, or give another --output_dir"
    )

  def _take_flock(self) -> bool:
    """Takes the lock with flock. Returns False if the file system does not support it.

    Between opening and locking the file, its previous owner may have removed it. Then the lock is on a file without a
    path, which no other process would see, and the loop opens the file that the path now names.
    """
    try:
      import fcntl
    except ImportError:  # Windows
      return False
    while True:
      with files.convert_errors(self.path):
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
      is_locked = False
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = True
        if _is_same_file(descriptor, self.path):
          os.ftruncate(descriptor, 0)
          os.pwrite(descriptor, self._content(), 0)
          self._descriptor = descriptor
          return True
      except BlockingIOError as error:
        raise self._taken_error(os.pread(descriptor, _MAX_CONTENT_BYTES, 0)) from error
      except OSError as error:
        if error.errno in _UNSUPPORTED_ERRORS:
          return False
        if is_locked:  # writing failed, for example on a full disk: the empty file is removed
          with contextlib.suppress(OSError):
            os.remove(self.path)
        raise RunError(
          f"{self.path}: cannot lock it ({error.strerror}): run the same command again once the cause is fixed"
        ) from error
      finally:
        if self._descriptor is None:  # the lock was not taken
          os.close(descriptor)

  def _take_heartbeat(self) -> None:
    """Takes the lock with a heartbeat file and starts the thread that renews it."""
    content = self._read()
    if content and not _owner_has_ended(content):
      self._wait_until_stale(content)
    self._write()
    time.sleep(SETTLE_SECONDS)  # another process may have written at the same time: the last writer has the lock
    content = self._read()
    if not self._is_own(content):
      raise self._taken_error(content)
    self._released.clear()
    self._content_of_next_owner = None
    self._thread = threading.Thread(target=self._renew, name="directory lock", daemon=True)
    self._thread.start()

  def _wait_until_stale(self, content: bytes) -> None:
    """Waits until the lock file is removed, or has not changed for STALE_SECONDS."""
    _warn(
      f"{self.directory}: {_describe_owner(content, self.activity)}, unless it has died; waiting up to "
      f"{STALE_SECONDS:.0f} seconds to see whether it renews {self.path}"
    )
    start_time = time.monotonic()
    while time.monotonic() - start_time < STALE_SECONDS:
      time.sleep(_POLL_SECONDS)
      new_content = self._read()
      if not new_content:
        return
      if new_content != content:
        raise self._taken_error(new_content)

  def _renew(self) -> None:
    """Rewrites the heartbeat file until the lock is released or lost; runs in a thread."""
    while not self._released.wait(RENEWAL_SECONDS):
      try:
        content = self._read()
        if not self._is_own(content):
          self._content_of_next_owner = content
          return
        self._renewals += 1
        self._write()
      except Exception as error:  # for example a network error that may pass: the next renewal tries again
        _warn(f"{self.path}: could not renew it ({error})")

  def _read(self) -> bytes:
    """Returns the content of the lock file; empty if it does not exist."""
    for _ in range(_MAX_READS):
      try:
        if not files.exists(self.path):
          return b""
        with files.open_file(self.path) as file:
          return file.read()
      except Exception:
        if files.exists(self.path):  # otherwise it was removed after the first check, which is no error
          raise
    return b""

  def _write(self) -> None:
    files.write_atomically(self.path, self._content(renewals=self._renewals))

  def _is_own(self, content: bytes) -> bool:
    owner = _parse_owner(content)
    return owner is not None and owner.token == self._token


def _warn(line: str) -> None:
  print(f"warning: {line}", file=sys.stderr, flush=True)


def _is_same_file(descriptor: int, path: str) -> bool:
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False


class _Owner(msgspec.Struct):
  """The process that has the lock, as recorded in the lock file."""

  pid: Annotated[int, msgspec.Meta(gt=0, le=2**31 - 1)]
  host: str = ""
  command: str = ""
  since: str = ""
  host_key: str = ""
  token: str = ""


def _parse_owner(content: bytes) -> _Owner | None:
  """Parses the content of a lock file. Returns None if it is empty or has another form."""
  try:
    return json_values.parse("lock", content, _Owner)
  except UserError:
    return None


def _owner_has_ended(content: bytes) -> bool:
  """Whether the owner ran on this host and has ended."""
  owner = _parse_owner(content)
  return owner is not None and processes.has_ended(owner.host_key, owner.pid)


def _describe_owner(content: bytes, activity: str) -> str:
  """Describes the owner of a lock and its activity, for a message."""
  owner = _parse_owner(content)
  if owner is None:
    return f"another process is {activity} there"
  return f"process {owner.pid} on host {owner.host} is {activity} there since {owner.since} ({owner.command})"
