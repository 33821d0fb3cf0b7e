"""A remote file system in memory that counts what is asked of it, in place of tf.io.gfile."""

from __future__ import annotations

import fnmatch
import io
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class RemoteFiles:
  """Files by path, such as "mem://bucket/file".

  Args:
    contents: path -> bytes.
    sizes: path -> size of a file that is there but that nobody should read.
  Attributes:
    calls: name of the function -> how often it was called.
    bytes_read: from all files.
    most_at_once: requests under way at the same time, at most.
  """

  def __init__(self, contents: Mapping[str, bytes], sizes: Mapping[str, int] | None = None):
    self.contents = dict(contents)
    self.sizes = dict(sizes or {})
    self.calls: Counter[str] = Counter()
    self.bytes_read = 0
    self.most_at_once = 0
    self._at_once = 0
    self._lock = threading.Lock()

  @contextmanager
  def _request(self, name: str) -> Iterator[None]:
    with self._lock:
      self.calls[name] += 1
      self._at_once += 1
      self.most_at_once = max(self.most_at_once, self._at_once)
    time.sleep(0.0002)  # the way to the server: without it no two requests meet
    yield
    with self._lock:
      self._at_once -= 1

  def glob(self, pattern: str) -> list[str]:
    with self._request("glob"):
      return [path for path in {**self.contents, **self.sizes} if fnmatch.fnmatchcase(path, pattern)]

  def exists(self, path: str) -> bool:
    with self._request("exists"):
      return path in self.contents or path in self.sizes

  def isdir(self, path: str) -> bool:
    with self._request("isdir"):
      return False

  def makedirs(self, path: str) -> None:
    """Directories need not be made."""

  def stat(self, path: str) -> Any:
    with self._request("stat"):
      size = self.sizes[path] if path in self.sizes else len(self.contents[path])
      return types.SimpleNamespace(length=size, mtime_nsec=7, is_directory=False)

  def rename(self, source: str, target: str, overwrite: bool) -> None:
    assert overwrite
    self.contents[target] = self.contents.pop(source)

  def GFile(self, path: str, mode: str) -> io.BytesIO:
    with self._request(f"open {mode}"):
      return _File(self, path, mode)


class _File(io.BytesIO):
  def __init__(self, remote: RemoteFiles, path: str, mode: str):
    super().__init__(remote.contents[path] if mode == "rb" else b"")
    self._remote, self._path, self._mode = remote, path, mode

  def read(self, size: int | None = -1) -> bytes:
    data = super().read(size)
    self._remote.bytes_read += len(data)
    return data

  def close(self) -> None:
    if self._mode == "wb" and not self.closed:
      self._remote.contents[self._path] = self.getvalue()
    super().close()


def gfile_of(remote: RemoteFiles) -> Callable[[], RemoteFiles]:
  """What takes the place of albert.io.files._gfile."""
  return lambda: remote
