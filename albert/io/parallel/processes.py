"""Identifies hosts and processes, so that a process can find out whether another one has ended."""

from __future__ import annotations

import functools
import hashlib
import os
import platform


def _first_line(path: str) -> str:
  try:
    with open(path, encoding="ascii") as file:
      return file.readline().strip()
  except OSError:  # not Linux
    return ""


@functools.cache
def host_key() -> str:
  """Returns eight hexadecimal digits that identify the host, its last start and the container.

  Process ids can be compared only between processes with the same key.
  """
  try:
    namespace = os.readlink("/proc/self/ns/pid")
  except OSError:
    namespace = ""
  parts = (platform.node(), _first_line("/proc/sys/kernel/random/boot_id"), namespace)
  return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:8]


def has_ended(key: str, pid: int) -> bool:
  """Whether a process has certainly ended.

  Args:
    key: `host_key()` of the process.
    pid: its process id.

  Returns:
    True if it has ended; False if it is running, or if it is on another host, where this is unknown.
  """
  if key != host_key():
    return False
  try:
    os.kill(pid, 0)  # signal 0 only checks that the process exists
  except ProcessLookupError:
    return True
  except (OSError, OverflowError):  # another user's process, or a number that is no process id
    return False
  return False
