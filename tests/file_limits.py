"""A limit on the size of files, so that writes fail as on a full disk, in Python and in TensorFlow's writers."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
  """Makes writes beyond `num_bytes` in any file fail with EFBIG. (Python ignores the signal SIGXFSZ.)"""
  soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard_limit))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft_limit, hard_limit))
