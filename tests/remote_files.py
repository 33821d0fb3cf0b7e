"""A remote file system in memory that counts requests. It replaces tf.io.gfile in tests."""

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
  """A file system with the functions of tf.io.gfile, for paths such as "mem://bucket/file".

  Args:
    contents: path -> contents of the file.
    sizes: path -> size of a file without contents, which the code under test must not read.

  Attributes:
    calls: name of a function -> number of calls.
    bytes_read: number of bytes read from all files.
    max_concurrent: largest number of requests at the same time.
  """

  def __init__(self, contents: Mapping[str, bytes], sizes: Mapping[str, int] | None = None):
    self.contents = dict(contents)
    self.sizes = dict(sizes or {})
    self.calls: Counter[str] = Counter()
    self.bytes_read = 0
    self.max_concurrent = 0
    self._concurrent = 0
    self._lock = threading.Lock()

  @contextmanager
  def _request(self, name: str) -> Iterator[None]:
    with self._lock:
      self.calls[name] += 1
      self._concurrent += 1
      self.max_concurrent = max(self.max_concurrent, self._concurrent)
    time.sleep(0.0002)  # latency; without it, requests would never overlap
    yield
    with self._lock:
      self._concurrent -= 1

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
    """Does nothing: the file system has no directories."""

  def stat(self, path: str) -> Any:
    with self._request("stat"):
      size = self.sizes[path] if path in self.sizes else len(self.contents[path])
      return types.SimpleNamespace(length=size, mtime_nsec=7, is_directory=False)

  def rename(self, source: str, target: str, overwrite: bool) -> None:
    assert overwrite
    self.contents[target] = self.contents.pop(source)

  def GFile(self, path: str, mode: str) -> io.BytesIO:
    with self._request(f"open {mode}"):
      return _RemoteFile(self, path, mode)


class _RemoteFile(io.BytesIO):
  """An open file. What was written reaches RemoteFiles.contents when the file is closed."""

  def __init__(self, remote: RemoteFiles, path: str, mode: str):
    super().__init__(remote.contents[path] if mode == "rb" else b"")
    self._remote, self._path, self._mode = remote, path, mode

  def read(self, size: int | None = -1) -> bytes:
    content = super().read(size)
    self._remote.bytes_read += len(content)
    return content

  def close(self) -> None:
    if self._mode == "wb" and not self.closed:
      self._remote.contents[self._path] = self.getvalue()
    super().close()


def gfile_replacement(remote: RemoteFiles) -> Callable[[], RemoteFiles]:
  """Returns a replacement for albert.io.files._gfile, which returns the module tf.io.gfile."""
  return lambda: remote
