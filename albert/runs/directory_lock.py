"""A lock on a directory, for work that only one process may do there at a time, such as training.

On a local file system the lock is flock on a hidden file. The kernel releases it when the owner ends, even if it is
killed. Where flock is not supported (object stores such as gs://, some network file systems), the file holds a token of
the process that started last. Each process reads it before it saves (`DirectoryLock.check`) and stops if it holds
another token. So a machine that was preempted and comes back continues at once, though nobody knows whether its earlier
process has ended. Only the chief of several workers locks a directory and saves, so they share its token.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import secrets
import shlex
import sys
import time
from typing import Annotated

import msgspec

from albert.errors import RunError, UserError
from albert.io import files, json_values, local_files
from albert.io.progress import log

LOCK_FILE = ".lock"
_MAX_COMMAND_CHARS = 1000
_MAX_CONTENT_BYTES = 1 << 16  # more than a lock file has
# Error numbers of flock on a file system that does not support flock.
_UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class DirectoryLock:
  """Allows one process at a time to work in a directory. It is a context manager.

  Args:
    directory: the directory; it is made if it does not exist.
    activity: what the owner of the lock does, such as "training", for messages of other processes.
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
    self._descriptor: int | None = None  # of the file that is locked with flock
    self._token = ""  # what the file holds where there is no flock

  def acquire(self) -> None:
    """Takes the lock. Without flock, it is taken from another process, which a warning names.

    Raises:
      UserError: another process has the lock; the message names the process and its host.
      RunError: the system cannot lock the file, for example because the disk is full.
    """
    self._is_new = not files.exists(self.directory)  # whether this lock makes it
    files.makedirs(self.directory)
    if not files.is_remote(self.path) and self._take_flock():
      return
    if (owner := self._read()) and not local_files.has_ended(owner.host_key, owner.pid):
      log(
        f"warning: {self.directory}: {owner.describe(self.activity)}: this process takes its place; if the other one "
        "still runs, it stops before its next save"
      )
    self._token = secrets.token_hex(8)
    files.write_atomically(self.path, self._content())

  def release(self) -> None:
    """Releases the lock. Does nothing if it is not held."""
    if self._descriptor is not None:
      # The file is removed while it is locked. A process that opened it before finds that the path no longer leads to
      # this file, and opens the new one.
      with contextlib.suppress(OSError):
        if _is_same_file(self._descriptor, self.path):  # false if this file was removed and another process made one
          os.remove(self.path)
          if self._is_new:  # a command that failed before it wrote anything leaves nothing
            os.rmdir(self.directory)  # raises OSError if the directory is not empty
      os.close(self._descriptor)
      self._descriptor = None
    if self._token:
      try:
        if (owner := self._read()) and owner.token == self._token:
          files.remove(self.path)
      except Exception as error:  # the work under the lock is done; the next process takes the place of this one
        log(f"warning: {self.path}: could not remove it ({error})")
      self._token = ""

  def check(self) -> None:
    """Checks that the lock is still held, before something is written that another process must not overwrite.

    Raises:
      RunError: the lock file was removed, so that another process may have taken the lock, or another process has
        taken the place of this one.
    """
    owner = self._read() if self._token else None
    is_removed = self._descriptor is not None and not _is_same_file(self._descriptor, self.path)
    if is_removed or (self._token and owner is None):
      raise RunError(
        f"{self.directory}: somebody removed {self.path}, so another process may be {self.activity} there: stopped "
        "without saving; if no other process is, the same command continues from the newest checkpoint"
      )
    if owner and owner.token != self._token:
      raise RunError(
        f"{self.directory}: {owner.describe(self.activity)} and started later than this one: stopped without "
        "saving; stop that process before you run this command again"
      )

  def __enter__(self) -> DirectoryLock:
    self.acquire()
    return self

  def __exit__(self, *error: object) -> None:
    self.release()

  def _content(self) -> bytes:
    """Returns what this process writes into the lock file."""
    values = {
      "host": platform.node(),
      "pid": os.getpid(),
      "command": shlex.join(sys.argv)[:_MAX_COMMAND_CHARS],
      "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
      "host_key": local_files.host_key(),
      "token": self._token,
    }
    return json.dumps(values).encode()

  def _take_flock(self) -> bool:
    """Takes the lock with flock. Returns False if the file system does not support it."""
    # Between opening and locking the file, its previous owner may have removed it. Then the lock is on a file without a
    # path, which no other process would see, and the loop opens the file that the path now names.
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
        owner = _parse_owner(os.pread(descriptor, _MAX_CONTENT_BYTES, 0)).describe(self.activity)
        raise UserError(f"{self.directory}: {owner}: wait for it, stop it, or give another --output_dir") from error
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

  def _read(self) -> _Owner | None:
    """Reads the lock file. Returns None if it does not exist or is empty."""
    try:
      content = files.read(self.path)
    except Exception:
      if files.exists(self.path):
        raise
      return None
    return _parse_owner(content) if content else None


def _is_same_file(descriptor: int, path: str) -> bool:
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False


class _Owner(msgspec.Struct):
  """The process that has the lock, as recorded in the lock file. `pid` is 0 if the file has another form."""

  pid: Annotated[int, msgspec.Meta(gt=0, le=2**31 - 1)]
  host: str = ""
  command: str = ""
  since: str = ""
  host_key: str = ""
  token: str = ""

  def describe(self, activity: str) -> str:
    """Describes the process and its activity, for a message."""
    if not self.pid:
      return f"another process is {activity} there"
    return f"process {self.pid} on host {self.host} is {activity} there since {self.since} ({self.command})"


def _parse_owner(content: bytes) -> _Owner:
  try:
    return json_values.parse("lock", content, _Owner)
  except UserError:
    return _Owner(pid=0)
