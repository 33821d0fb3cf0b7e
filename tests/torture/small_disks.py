"""Disks that are full, read-only or fail: small file systems in memory, and system calls that return an error.

Used by the part "disks". The functions that make system calls fail are preludes of a command (see Workplace.start).
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
# Constants of sched.h and sys/mount.h: CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_REC, MS_PRIVATE, MNT_DETACH.
_NEW_MOUNTS = 0x00020000
_READ_ONLY, _REMOUNT, _RECURSIVE, _PRIVATE, _DETACH = 1, 32, 16384, 1 << 18, 2
_PAGE_KIB = 4
_LARGE_KIB = 1 << 20


def _check(result: int, what: str) -> None:
  """Raises OSError if a call of the C library has failed."""
  if result != 0:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_namespace() -> None:
  """Lets this process mount disks that others do not see, if it has the right. Must be called before threads start."""
  with contextlib.suppress(OSError):
    _check(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    _check(_LIBC.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "mount --make-rprivate")


class SmallDisk:
  """A tmpfs (file system in memory) of limited size, on a new directory. It is unmounted at the end of its context."""

  def __init__(self, path: Path, kib: int = _LARGE_KIB):
    self.path = path
    path.mkdir(parents=True)
    self._mount(0, kib)

  def _mount(self, flags: int, kib: int) -> None:
    options = f"size={max(_PAGE_KIB, kib // _PAGE_KIB * _PAGE_KIB)}k".encode()
    _check(_LIBC.mount(b"tmpfs", os.fsencode(self.path), b"tmpfs", flags, options), f"mount {self.path}")

  def resize(self, kib: int = _LARGE_KIB) -> None:
    """Changes the size of the disk. The size is at least that of the files on it."""
    self._mount(_REMOUNT, max(kib, self.used_kib))

  def make_read_only(self) -> None:
    """Makes every later write fail."""
    self._mount(_REMOUNT | _READ_ONLY, _LARGE_KIB)

  @property
  def used_kib(self) -> int:
    status = os.statvfs(self.path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize // 1024

  def fill(self) -> Path:
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

# Machine -> kind of call -> numbers of the system calls: (write, pwrite64, writev), (fsync, fdatasync), (pread64,).
_SYSTEM_CALLS = {
  "x86_64": {"write": (1, 18, 20), "sync": (74, 75), "pread": (17,)},
  "aarch64": {"write": (64, 68, 66), "sync": (82, 83), "pread": (67,)},
}
# Machine -> number of the system call seccomp.
_SECCOMP = {"x86_64": 317, "aarch64": 277}
# Instructions of seccomp's filter language (BPF), and values that a filter returns.
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS = 38


def can_fail_calls() -> bool:
  """Whether the numbers of this machine's system calls are known."""
  return os.uname().sysname == "Linux" and platform.machine() in _SYSTEM_CALLS


def limit_files(num_bytes: int) -> None:
  """Makes writes beyond `num_bytes` of a file fail with EFBIG. (Python ignores the signal SIGXFSZ.)"""
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def fail_calls(calls: str, number: int, seconds: float) -> None:
  """Makes each system call of a kind ("write", "sync", "pread") on a file return error `number`, after `seconds`."""
  timer = threading.Timer(seconds, _install_filter, (_SYSTEM_CALLS[platform.machine()][calls], number))
  timer.daemon = True
  timer.start()


def _install_filter(calls: tuple[int, ...], number: int) -> None:
  """Installs a seccomp filter in all threads, with which these calls return error `number`."""
  # (operation, instructions to skip if true, instructions to skip if false, operand). A load reads the structure
  # seccomp_data: the number of the call is at offset 0, and the first argument, the descriptor, at offset 16.
  program = [(_LOAD, 0, 0, 0)]
  # If the call is one of these, the program goes on behind the other comparisons and the return that allows the call.
  program += [(_JUMP_IF_EQUAL, len(calls) - index, 0, call) for index, call in enumerate(calls)]
  program += [
    (_RETURN, 0, 0, _ALLOW),  # another call
    (_LOAD, 0, 0, 16),
    (_JUMP_IF_GREATER, 0, 1, 2),
    (_RETURN, 0, 0, _ERROR | number),
    (_RETURN, 0, 0, _ALLOW),  # descriptors 0 to 2
  ]
  code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
  filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
  _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
  _check(_LIBC.syscall(_SECCOMP[platform.machine()], 1, 1, filters), "seccomp")


def fail_reads(below: str, number: int, after: int) -> None:
  """Makes reading fail with error `number` after `after` reads. Only reads through albert.io.files are counted."""
  from albert.io import local_files

  num_reads = 0
  readinto, readall = local_files._LocalFile.readinto, local_files._LocalFile.readall

  def count_read(path: str) -> None:
    nonlocal num_reads
    if path.startswith(below):
      num_reads += 1
      if num_reads > after:
        with local_files.convert_errors(path, "read"):
          raise OSError(number, os.strerror(number))

  def failing_readinto(file: local_files._LocalFile, buffer: bytearray) -> int | None:
    count_read(str(file.name))
    return readinto(file, buffer)

  def failing_readall(file: local_files._LocalFile) -> bytes:
    count_read(str(file.name))
    return readall(file)

  local_files._LocalFile.readinto = failing_readinto  # type: ignore[method-assign, assignment]
  local_files._LocalFile.readall = failing_readall  # type: ignore[method-assign, assignment]
