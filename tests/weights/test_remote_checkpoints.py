"""Checkpoints on an object store: each file is written once, without renaming, and unfinished uploads are recognized.

TensorFlow's file system in memory (ram://) stands in for the object store.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.io import files
from albert.weights import checkpoints
from albert.weights.checkpoints import Checkpoint, find_damage, restore
from tests.weights.small_checkpoints import make_tensors, newest_step, reopen

WEIGHT_FILES = ("weights.data-00000-of-00001", "weights.index")


class RemoteCalls:
  """Records which remote files are opened and renamed.

  Attributes:
    opened: mode and name of each opened file, such as "wb manifest.json".
    renamed: the new path of each renamed file.
  """

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
        self.opened += [f"wb {name}" for name in WEIGHT_FILES]
      write(prefix, tensors)

    monkeypatch.setattr(files, "open_file", open_and_record)
    monkeypatch.setattr(files, "replace", replace_and_record)
    monkeypatch.setattr(checkpoints, "write_bundle", write_and_record)


def test_saving_to_an_object_store_writes_each_file_once_and_reads_none(remote_manager, tmp_path, monkeypatch):
  for step in (1, 2):
    remote_manager.save(step, make_tensors(step))
  calls = RemoteCalls(monkeypatch)
  path = remote_manager.save(3, make_tensors(3))
  # A file .uploading marks step-3 as unfinished. Another one marks step-1, which is then deleted.
  written_names = [".uploading", ".uploading", "albert_config.json", "manifest.json", *WEIGHT_FILES]
  assert sorted(calls.opened) == [f"wb {name}" for name in written_names]
  assert calls.opened[-2:] == ["wb manifest.json", "wb .uploading"]
  assert calls.renamed == []
  assert remote_manager.steps() == [2, 3]  # pruned without reading
  assert files.listdir(path) == ["albert_config.json", "manifest.json", *WEIGHT_FILES]
  assert find_damage(path) is None  # the hashes agree with the files
  assert newest_step(reopen(remote_manager)) == 3
  # TensorFlow cannot load a checkpoint from ram://, because it treats the prefix as a directory. So it is copied.
  for name in WEIGHT_FILES:
    with files.open_file(files.join(path, name)) as file:
      (tmp_path / name).write_bytes(file.read())
  variable = tf.Variable(tf.zeros([7]))
  restore(Checkpoint(3, str(tmp_path)), {"b": variable})
  np.testing.assert_array_equal(variable, np.arange(7) + 3.0)


def test_an_unfinished_upload_does_not_count_as_damaged_and_is_replaced(remote_manager, monkeypatch, capsys):
  def interrupt(*unused: object) -> None:
    raise KeyboardInterrupt  # in place of kill -9

  with monkeypatch.context() as patch:
    patch.setattr(checkpoints.shutil, "copyfileobj", interrupt)
    with pytest.raises(KeyboardInterrupt):
      remote_manager.save(4, make_tensors(4))
  remote_manager = reopen(remote_manager)
  assert remote_manager.steps() == [4]
  assert remote_manager.latest_to_resume(start_over=False) is None
  assert "never finished" in capsys.readouterr().err
  remote_manager.save(4, make_tensors(40))
  assert newest_step(reopen(remote_manager)) == 4
  assert remote_manager.steps() == [4]


def test_an_unfinished_upload_is_removed_and_a_damaged_checkpoint_is_not(remote_manager):
  remote_manager.save(4, make_tensors(4))
  files.remove(files.join(remote_manager.path(4), "manifest.json"))  # damage
  remote_manager.remove_leftovers()
  with pytest.raises(UserError, match="all of its 1 checkpoints are damaged"):
    reopen(remote_manager).latest_to_resume(start_over=False)
  files.write_atomically(files.join(remote_manager.path(4), ".uploading"), "x")
  remote_manager.remove_leftovers()
  assert remote_manager.steps() == []
