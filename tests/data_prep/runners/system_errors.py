"""Errors of the operating system in the steps of a job, for test_resume."""

from __future__ import annotations

import errno
import itertools
import os
from typing import Any, NamedTuple

import pytest

from data_prep import units

_read_range = units.read_range


class Fault(NamedTuple):
  """A system call that fails in a job.

  Attributes:
    step: the step of the job.
    error_number: the error.
    file_prefix: the names of the files that cannot be written begin with this; "" if the text cannot be read.
    num_kept_units: how many of the 17 units the repeated job keeps.
  """

  step: str
  error_number: int
  file_prefix: str
  num_kept_units: int

  def install(self, patch: pytest.MonkeyPatch) -> None:
    """Makes the calls fail, from the sixth on for the text, from the third on for files."""
    calls = itertools.count()

    def read_or_fail(text_range: units.TextRange) -> object:
      if next(calls) >= 5:
        raise OSError(self.error_number, os.strerror(self.error_number))
      return _read_range(text_range)

    call_name = "open" if self.step == "open a block" else "fsync"
    system_call = getattr(os, call_name)

    def call_or_fail(file: Any, *arguments: Any, **keywords: Any) -> Any:
      # os.open gets a path, os.fsync a descriptor, whose path is in /proc.
      path = file if isinstance(file, str) else os.readlink(f"/proc/self/fd/{file}")
      if f".{self.file_prefix}" in str(path) and next(calls) >= 2:
        raise OSError(self.error_number, os.strerror(self.error_number))
      return system_call(file, *arguments, **keywords)

    if self.file_prefix:
      patch.setattr(os, call_name, call_or_fail)
    else:
      patch.setattr(units, "read_range", read_or_fail)


# The first five reads of a unit's text succeed, and the first two calls for block files, so 5 or 2 units are kept: in
# these jobs a block is a single unit. A shard comes after all 17 units.
FAULTS = (
  Fault("open a block", errno.EMFILE, "block-", 2),
  Fault("sync a block", errno.EDQUOT, "block-", 2),
  Fault("read the text", errno.EIO, "", 5),
  Fault("shard", errno.ENOSPC, "pretraining-", 17),
)
