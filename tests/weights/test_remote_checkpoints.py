"""Checkpoints on an object store are written once, without renaming; unfinished uploads are recognized."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.io import files
from albert.weights import checkpoints
from albert.weights.checkpoint_damage import find_damage
from albert.weights.checkpoint_files import Checkpoint, restore
from tests.weights.small_checkpoints import reopened, tensors


class RemoteCalls:
  """Records which files of a remote file system are opened and renamed. TensorFlow's in-memory one takes its place."""

  def __init__(self, monkeypatch: pytest.MonkeyPatch):
    self.opened: list[str] = []
    self.renamed: list[str] = []
    open_file, replace, write = files.open_file, files.replace, checkpoints.write_bundle

    def open_and_record(path: str, mode: str = "rb") -> BinaryIO:
      if files.is_remote(path):
        self.opened.append(f"{mode} {path.rsplit('/', 1)[1]}")
      return open_file(path, mode)

    def replace_and_record(source: str, target: str) -> None:
      if files.is_remote(target):
        self.renamed.append(target)
      replace(source, target)

    def write_and_record(prefix: str, tensors: dict[str, tf.Tensor]) -> None:
      if files.is_remote(prefix):
        self.opened += [f"wb {name}" for name in WEIGHTS]
      write(prefix, tensors)

    monkeypatch.setattr(files, "open_file", open_and_record)
    monkeypatch.setattr(files, "replace", replace_and_record)
    monkeypatch.setattr(checkpoints, "write_bundle", write_and_record)


WEIGHTS = ("weights.data-00000-of-00001", "weights.index")


def test_saving_to_an_object_store_writes_each_file_once_and_reads_none(remote, tmp_path, monkeypatch):
  for step in (1, 2):
    remote.save(step, tensors(step))
  calls = RemoteCalls(monkeypatch)
  path = remote.save(3, tensors(3))
  # .uploading also marks step-1, which is then deleted.
  assert sorted(calls.opened) == [
    f"wb {name}" for name in (".uploading", ".uploading", "albert_config.json", "manifest.json", *WEIGHTS)
  ]
  assert calls.opened[-2:] == ["wb manifest.json", "wb .uploading"]
  assert calls.renamed == []
  assert remote.steps() == [2, 3]  # pruned without reading
  assert files.listdir(path) == ["albert_config.json", "manifest.json", *WEIGHTS]
  assert find_damage(path) is None  # the hashes agree with the files
  assert reopened(remote).latest()[0].step == 3
  for name in WEIGHTS:  # copied, because load_checkpoint treats a prefix of ram:// as a directory
    with files.open_file(files.join(path, name)) as file:
      (tmp_path / name).write_bytes(file.read())
  variable = tf.Variable(tf.zeros([7]))
  restore(Checkpoint(3, str(tmp_path)), {"b": variable})
  np.testing.assert_array_equal(variable, np.arange(7) + 3.0)


def test_an_upload_that_was_killed_is_no_damage_and_is_removed(remote, monkeypatch):
  def interrupt(source: str, target: str) -> None:
    raise KeyboardInterrupt  # instead of kill -9

  with monkeypatch.context() as patch:
    patch.setattr(checkpoints, "_upload_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
      remote.save(4, tensors(4))
  remote = reopened(remote)
  assert remote.steps() == [4]
  newest, skipped = remote.latest_to_resume(start_over=False)
  assert newest is None
  assert "never finished" in skipped[0]
  remote.save(4, tensors(40))
  assert reopened(remote).latest()[0].step == 4
  assert remote.steps() == [4]
  files.remove(files.join(remote.path(4), "manifest.json"))  # a damaged checkpoint, which is not deleted
  remote.remove_leftovers()
  with pytest.raises(UserError, match="all of its 1 checkpoints are damaged"):
    reopened(remote).latest_to_resume(start_over=False)
  files.write_atomically(files.join(remote.path(4), ".uploading"), "x")
  remote.remove_leftovers()
  assert remote.steps() == []
