"""Disks that are full, read-only or fail: small file systems in memory, and system calls that return an error.

The functions that fail system calls are preludes of a command (see tests.torture.workplace).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import struct
import threading
from pathlib import Path
from types import TracebackType

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
_READ_ONLY, _REMOUNT, _RECURSIVE, _PRIVATE, _DETACH = 1, 32, 16384, 1 << 18, 2
_PAGE = 4  # KiB
_LARGE = 1 << 20  # KiB


def _check(result: int, what: str) -> None:
  if result != 0:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_namespace() -> None:
  """Gives this process mounts of its own, which end with it, if it may have them. Call it before threads start."""
  with contextlib.suppress(OSError):
    _check(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    _check(_LIBC.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "mount --make-rprivate")


class SmallDisk:
  """A tmpfs of limited size, mounted on a new directory. As a context manager it is unmounted at the end."""

  def __init__(self, path: Path, kib: int = _LARGE):
    self.path = path
    path.mkdir(parents=True)
    self._mount(0, kib)

  def _mount(self, flags: int, kib: int) -> None:
    options = f"size={max(_PAGE, kib // _PAGE * _PAGE)}k".encode()
    _check(_LIBC.mount(b"tmpfs", os.fsencode(self.path), b"tmpfs", flags, options), f"mount {self.path}")

  def resize(self, kib: int = _LARGE) -> None:
    """Gives it another size, not below what it holds."""
    self._mount(_REMOUNT, max(kib, self.used_kib))

  def make_read_only(self) -> None:
    """Refuses every write from now on."""
    self._mount(_REMOUNT | _READ_ONLY, _LARGE)

  @property
  def used_kib(self) -> int:
    """KiB that its files take."""
    found = os.statvfs(self.path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // 1024

  def fill(self) -> Path:
    """Writes a file that takes all space that is left; returns its path."""
    path = self.path / "filler"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
      while file.write(bytes(1 << 16)):
        pass
    return path

  def __enter__(self) -> SmallDisk:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    _check(_LIBC.umount2(os.fsencode(self.path), _DETACH), f"umount {self.path}")


def can_mount(directory: Path) -> bool:
  """Whether this process may mount file systems."""
  try:
    with SmallDisk(directory):
      return True
  except OSError:
    return False
  finally:
    directory.rmdir()


# ---- preludes --------------------------------------------------------------------------------------------

# Numbers of system calls, by machine: write, pwrite64, writev; fsync, fdatasync; pread64.
_CALLS = {
  "x86_64": {"write": (1, 18, 20), "sync": (74, 75), "pread": (17,)},
  "aarch64": {"write": (64, 68, 66), "sync": (82, 83), "pread": (67,)},
}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS = 38


def can_fail_calls() -> bool:
  """Whether the numbers of this machine's system calls are known."""
  return os.uname().sysname == "Linux" and platform.machine() in _CALLS


def limit_files(num_bytes: int) -> None:
  """No file grows over `num_bytes`: EFBIG, as Python ignores the signal."""
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def fail_calls(calls: str, number: int, seconds: float) -> None:
  """After `seconds`, every call of a kind ("write", "sync", "pread") on a file returns the error `number`."""
  timer = threading.Timer(seconds, _install, (_CALLS[platform.machine()][calls], number))
  timer.daemon = True
  timer.start()


def _install(calls: tuple[int, ...], number: int) -> None:
  """A seccomp filter for all threads: the calls fail on descriptors above 2, which are standard input and output."""
  program = [(_LOAD, 0, 0, 0)]  # the number of the call
  program += [(_JUMP_IF_EQUAL, len(calls) - index, 0, call) for index, call in enumerate(calls)]
  program += [(_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, 16), (_JUMP_IF_GREATER, 0, 1, 2)]  # the descriptor
  program += [(_RETURN, 0, 0, _ERROR | number), (_RETURN, 0, 0, _ALLOW)]
  code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
  filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
  _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
  _check(_LIBC.syscall(_SECCOMP[platform.machine()], 1, 1, filters), "seccomp")


def fail_reads(below: str, number: int, after: int) -> None:
  """Reading a file below a directory through albert.io.files returns the error `number`, after so many reads."""
  from albert.io import local_files

  left = [after]
  readinto, readall = local_files._LocalFile.readinto, local_files._LocalFile.readall

  def count(path: str) -> None:
    if str(path).startswith(below):
      left[0] -= 1
      if left[0] < 0:
        with local_files.convert_errors(str(path), "read"):
          raise OSError(number, os.strerror(number))

  def failing_readinto(file: local_files._LocalFile, buffer: bytearray) -> int | None:
    count(str(file.name))
    return readinto(file, buffer)

  def failing_readall(file: local_files._LocalFile) -> bytes:
    count(str(file.name))
    return readall(file)

  local_files._LocalFile.readinto = failing_readinto  # type: ignore[method-assign]
  local_files._LocalFile.readall = failing_readall  # type: ignore[method-assign]
