"""Checkpoints appear completely or not at all; the newest that verifies is restored; unknown files are not deleted."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import RunError, UserError
from albert.io import files
from albert.weights import checkpoints
from albert.weights.checkpoint_damage import find_damage
from albert.weights.checkpoint_files import Checkpoint, restore
from albert.weights.checkpoints import BestEvaluation, CheckpointManager
from tests.file_limits import file_size_limit
from tests.synthetic import TINY_MODEL


def tensors(step: int) -> dict[str, tf.Tensor]:
  return {"a/kernel": tf.fill([3, 5], float(step)), "b": tf.range(7, dtype=tf.float32) + step}


@pytest.fixture
def manager(tmp_path: Path) -> CheckpointManager:
  return CheckpointManager(str(tmp_path / "checkpoints"), keep=2, model_config=TINY_MODEL)


def test_saved_tensors_are_restored(manager):
  manager.save(4, tensors(4))
  newest, skipped = manager.latest()
  assert newest is not None
  assert (newest.step, skipped) == (4, [])
  variables = {"a/kernel": tf.Variable(tf.zeros([3, 5])), "b": tf.Variable(tf.zeros([7]))}
  restore(newest, variables)
  np.testing.assert_array_equal(variables["a/kernel"], np.full([3, 5], 4.0))
  np.testing.assert_array_equal(variables["b"], np.arange(7) + 4.0)


def reopened(manager: CheckpointManager, keep: int = 2) -> CheckpointManager:
  """The manager of the next process, which has verified nothing yet."""
  return CheckpointManager(manager.directory, keep=keep, model_config=TINY_MODEL)


def flip_one_bit(manager: CheckpointManager, step: int) -> bytes:
  """Damages a checkpoint; returns the damaged bytes."""
  data = Path(manager.directory) / f"step-{step}" / "weights.data-00000-of-00001"
  content = bytearray(data.read_bytes())
  content[20] ^= 1
  data.write_bytes(bytes(content))
  return bytes(content)


def remove_from_manifest(name: str) -> Callable[[Path], object]:
  """Returns a function that edits a checkpoint's manifest so that it does not list a file."""

  def edit(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"][name]
    (path / "manifest.json").write_text(json.dumps(manifest))

  return edit


def replace_by(make: Callable[[Path], object], name: str) -> Callable[[Path], object]:
  """Returns a function that removes a file of a checkpoint and calls `make` with its path."""

  def replace(path: Path) -> None:
    (path / name).unlink()
    make(path / name)

  return replace


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (remove_from_manifest("weights.index"), "does not list weights.index"),
    (remove_from_manifest("weights.data-00000-of-00001"), "does not list weights.data-00000-of-00001"),
    (remove_from_manifest("albert_config.json"), "does not list albert_config.json"),
    (replace_by(Path.mkdir, "weights.index"), "weights.index is not a regular file"),
    (replace_by(os.mkfifo, "weights.data-00000-of-00001"), "weights.data-00000-of-00001 is not a regular file"),
    (replace_by(os.mkfifo, "manifest.json"), "manifest.json is not a regular file"),
    (replace_by(lambda path: path.symlink_to("gone"), "manifest.json"), "manifest.json is not a regular file"),
    (replace_by(lambda path: path.symlink_to("gone"), "albert_config.json"), "albert_config.json is missing"),
    (lambda path: (shutil.rmtree(path), path.write_text("")), "it is not a directory"),
    (lambda path: (shutil.rmtree(path), shutil.copytree(path.parent / "step-1", path)), "manifest.json says step 1"),
  ],
)
def test_the_damage_of_a_checkpoint_is_described(manager, damage, message):
  manager.save(1, tensors(1))
  path = Path(manager.save(2, tensors(2)))
  damage(path)
  newest, skipped = manager.latest()
  assert (newest.step, len(skipped)) == (1, 1)
  assert re.search(rf"skipped .*step-2: .*{message}", skipped[0])


@pytest.mark.parametrize(("number", "kind"), [(errno.EACCES, UserError), (errno.EIO, RunError)])
@pytest.mark.parametrize("name", ["weights.data-00000-of-00001", "manifest.json"])
def test_a_checkpoint_that_cannot_be_read_does_not_count_as_damaged(manager, capsys, monkeypatch, name, number, kind):
  """Otherwise an older checkpoint would be used, although only a permission or a cable has to be repaired."""
  for step in (1, 2):
    manager.save(step, tensors(step))
    manager.record_evaluation(step, "loss", float(step), higher_is_better=True)
  original_open = os.open

  def refuse(path, *args, **kwargs):
    if str(path).endswith(f"step-2/{name}"):
      raise OSError(number, os.strerror(number), path)
    return original_open(path, *args, **kwargs)

  monkeypatch.setattr(os, "open", refuse)
  manager = reopened(manager, keep=1)
  message = rf"step-2/{name}: cannot read it \({os.strerror(number)}\).*move .*step-2 away, and an older checkpoint is"
  for attempt in (manager.latest, manager.best_or_latest, lambda: manager.latest_to_resume(start_over=True)):
    with pytest.raises(kind, match=message):
      attempt()
  manager.save(3, tensors(3))  # a run that is already training continues
  assert not manager.record_evaluation(3, "loss", 1.5, higher_is_better=True)
  manager.save(4, tensors(4))
  assert manager.steps() == [2, 4]
  assert "step-2 is not deleted: " in capsys.readouterr().err


def test_a_file_in_place_of_the_directory_of_checkpoints_is_named(manager):
  for make in (lambda path: path.write_text(""), os.mkfifo, lambda path: path.symlink_to("gone")):
    make(Path(manager.directory))
    with pytest.raises(UserError, match="checkpoints: must be a directory of checkpoints, but is not a directory"):
      manager.latest_to_resume(start_over=False)
    Path(manager.directory).unlink()


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "manifest", "no manifest"])
def test_a_damaged_checkpoint_is_skipped_with_a_message(manager, damage):
  manager.save(1, tensors(1))
  path = Path(manager.save(2, tensors(2)))
  data = path / "weights.data-00000-of-00001"
  if damage == "flip":
    flip_one_bit(manager, 2)
  elif damage == "truncate":
    data.write_bytes(data.read_bytes()[:-1])
  elif damage == "delete":
    data.unlink()
  elif damage == "manifest":
    (path / "manifest.json").write_text("{")
  else:
    (path / "manifest.json").unlink()
  newest, skipped = manager.latest()
  assert newest is not None
  assert newest.step == 1
  assert len(skipped) == 1
  assert "step-2" in skipped[0]


def test_the_newest_and_the_best_are_kept(manager):
  for step in (1, 2, 3, 4):
    manager.save(step, tensors(step))
    value = {1: 5.0, 2: 1.0, 3: 2.0, 4: 3.0}[step]
    is_best = manager.record_evaluation(step, "loss", value, higher_is_better=False)
    assert is_best == (step in (1, 2))
  manager.save(5, tensors(5))
  assert manager.steps() == [2, 4, 5]
  assert manager.best() == BestEvaluation(step=2, value=1.0, metric="loss")


def test_undamaged_checkpoints_are_not_deleted_because_of_a_damaged_one(manager, capsys):
  manager.save(4, tensors(4))
  manager.save(8, tensors(8))
  damaged = flip_one_bit(manager, 8)
  manager = reopened(manager, keep=1)
  newest, skipped = manager.latest()
  assert newest is not None
  assert newest.step == 4
  assert "step-8" in skipped[0]
  manager.save(5, tensors(5))
  assert manager.steps() == [5, 8]  # 5 is the newest that verifies
  manager.save(6, tensors(6))
  assert manager.steps() == [6, 8]
  assert manager.latest()[0].step == 6
  manager.save(8, tensors(80))  # the damaged one has this name
  assert manager.latest()[0].step == 8
  renamed = Path(manager.directory) / "step-8.damaged"
  assert (renamed / "weights.data-00000-of-00001").read_bytes() == damaged
  assert manager.steps() == [8]
  assert f"renamed to {renamed}" in capsys.readouterr().err


def test_pruning_counts_undamaged_checkpoints_and_names_each_damaged_one_once(manager, capsys):
  manager.keep = 5
  for step in (1, 2, 3, 4):
    manager.save(step, tensors(step))
  flip_one_bit(manager, 1)
  flip_one_bit(manager, 3)
  manager = reopened(manager)
  for step in (5, 6):
    manager.save(step, tensors(step))
  assert manager.steps() == [1, 3, 5, 6]
  assert [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()] == [
    f"{manager.directory}/step-{step} is not deleted" for step in (3, 1)
  ]


def test_pruning_hashes_a_checkpoint_once_in_a_process(manager, monkeypatch):
  manager.keep = 5
  for step in (1, 2, 3):
    manager.save(step, tensors(step))
  manager = reopened(manager, keep=5)
  manager.latest()
  verified: list[str] = []

  def find_and_record(path: str, step: int) -> str | None:
    verified.append(Path(path).name)
    return find_damage(path, step)

  monkeypatch.setattr(checkpoints, "find_damage", find_and_record)
  for step in (4, 5, 6, 7):
    manager.save(step, tensors(step))
  assert verified == ["step-2", "step-1"]  # 3 was verified by latest(), 4 to 7 were saved by this process


def test_if_all_are_damaged_nothing_is_written_without_start_over(manager, capsys):
  for step in (1, 2):
    manager.save(step, tensors(step))
    flip_one_bit(manager, step)
  before = sorted(str(path) for path in Path(manager.directory).rglob("*"))
  manager = reopened(manager)
  message = (
    r"checkpoints: all of its 2 checkpoints are damaged \(step-2: weights.data.* damaged.*; step-1: .*--start_over"
  )
  with pytest.raises(UserError, match=message):
    manager.latest_to_resume(start_over=False)
  assert sorted(str(path) for path in Path(manager.directory).rglob("*")) == before
  assert manager.latest_to_resume(start_over=True)[0] is None
  manager.rename_damaged()
  manager.save(1, tensors(1))
  assert manager.steps() == [1]
  renamed = f"{manager.directory}.damaged"
  assert reopened(manager).latest()[0].step == 1
  assert CheckpointManager(renamed, keep=1, model_config=TINY_MODEL).steps() == [1, 2]
  assert f"kept in {renamed}" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["flip", "delete"])
def test_a_best_checkpoint_that_is_lost_is_replaced_by_the_next_evaluation(manager, damage):
  manager.save(1, tensors(1))
  assert manager.record_evaluation(1, "f1", 0.9, higher_is_better=True)
  manager.save(2, tensors(2))
  if damage == "flip":
    flip_one_bit(manager, 1)
  else:
    files.remove_tree(manager.path(1))
  manager = reopened(manager, keep=1)
  newest, skipped = manager.best_or_latest()
  assert newest is not None
  assert newest.step == 2
  assert "the best" in skipped[0]
  assert manager.record_evaluation(2, "f1", 0.5, higher_is_better=True)
  manager.save(3, tensors(3))
  assert 2 in manager.steps()


def test_any_number_is_better_than_nan(manager):
  for step, value, is_best in ((1, float("nan"), True), (2, 0.5, True), (3, float("nan"), False), (4, 0.6, True)):
    manager.save(step, tensors(step))
    assert manager.record_evaluation(step, "f1", value, higher_is_better=True) == is_best


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ('{"value": null}', "lacks 'step'"),
    ("{}", "lacks 'step'"),
    ('{"step": true, "value": 1}', r": \$\.step must be a whole number, it is true"),
    ('{"step": -1, "value": 1}', r": \$\.step must be a whole number >= 0, it is -1"),
    ('{"step": 1, "value": "x"}', r": \$\.value must be a number or null, it is 'x'"),
  ],
)
def test_a_damaged_best_json_is_one_line(manager, content, message):
  (Path(manager.directory)).mkdir()
  (Path(manager.directory) / "best.json").write_text(content)
  with pytest.raises(UserError, match=rf"best.json:? ?{message}: restore or delete this file"):
    manager.latest_to_resume(start_over=False)  # so that the error comes before hours of training


@pytest.mark.parametrize(
  ("files_entry", "message"),
  [
    ({}, "does not list weights.index"),
    (5, r"\$\.files must be an object, it is 5"),
    ({"../x": {"bytes": 1, "sha256": ""}}, r"'\.\./x', which must be a text that names a file of this directory"),
    ({"/etc/passwd": {"bytes": 1, "sha256": ""}}, "'/etc/passwd', which must be"),
    ({"weights.index": {"bytes": "9", "sha256": ""}}, r"\$\.files\['weights\.index'\]\.bytes must be a whole number"),
    ({"weights.index": {"bytes": 9, "sha256": 1}}, r"\$\.files\['weights\.index'\]\.sha256 must be a text"),
    ({"weights.index": 1}, r"\$\.files\['weights\.index'\] must be an object"),
  ],
)
def test_an_edited_manifest_is_damage(manager, files_entry, message):
  manager.save(1, tensors(1))
  path = Path(manager.save(2, tensors(2)))
  (path / "manifest.json").write_text(json.dumps({"step": 2, "files": files_entry}))
  newest, (skipped,) = manager.latest()
  assert newest.step == 1
  assert re.search(r"step-2: manifest\.json is damaged .*" + message, skipped)


@pytest.mark.parametrize("scheme", ["", "ram://"])
def test_a_kill_while_pruning_leaves_no_damaged_checkpoint(scheme, tmp_path, monkeypatch):
  directory = f"ram://{tmp_path.name}/checkpoints" if scheme else str(tmp_path / "checkpoints")
  manager = CheckpointManager(directory, keep=1, model_config=TINY_MODEL)
  manager.save(1, tensors(1))
  if scheme:
    remove, removed = files.remove, list[str]()

    def interrupt_after_two_files(path: str) -> None:
      if "step-1/" in path and len(removed) == 2:
        raise KeyboardInterrupt
      removed.append(path) if "step-1/" in path else None
      remove(path)

    monkeypatch.setattr(files, "remove", interrupt_after_two_files)
  else:

    def interrupt_after_one_file(path: str) -> None:
      if "step-1" in Path(path).name:
        (Path(path) / "weights.index").unlink()
        raise KeyboardInterrupt
      shutil.rmtree(path, ignore_errors=True)

    monkeypatch.setattr(files, "remove_tree", interrupt_after_one_file)
  with pytest.raises(KeyboardInterrupt):
    manager.save(2, tensors(2))
  monkeypatch.undo()
  manager = reopened(manager, keep=1)
  newest, skipped = manager.latest()
  assert newest is not None
  assert newest.step == 2
  manager.remove_leftovers()
  assert files.listdir(directory) == ["step-2"]
  assert skipped == []


def test_files_that_the_manager_does_not_know_are_left_alone(manager):
  root = Path(manager.directory)
  leftover = Path(files.staging_path(manager.path(7))).name
  for name in ("step-old", "mine", ".step-7.tmp", leftover):
    (root / name).mkdir(parents=True)
    (root / name / "note").write_text("x")
  manager.remove_leftovers()
  for step in (1, 2, 3):
    manager.save(step, tensors(step))
  assert (root / "step-old" / "note").exists()
  assert (root / "mine" / "note").exists()
  assert not (root / ".step-7.tmp").exists()
  assert not (root / leftover).exists()


def test_a_half_written_directory_is_no_checkpoint(manager):
  staging = Path(files.staging_path(manager.path(9)))
  staging.mkdir(parents=True)
  (staging / "weights.index").write_bytes(b"x")
  assert manager.latest() == (None, [])


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


@pytest.fixture
def remote(tmp_path: Path) -> CheckpointManager:
  return CheckpointManager(f"ram://{tmp_path.name}/checkpoints", keep=2, model_config=TINY_MODEL)


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


@pytest.mark.parametrize("kind", ["local", "object store"])
def test_a_failed_save_leaves_only_the_older_checkpoints(manager, remote, kind, monkeypatch):
  manager = manager if kind == "local" else remote
  manager.save(1, tensors(1))
  staged: list[str] = []

  def fail(prefix: str, tensors: dict[str, tf.Tensor]) -> None:
    Path(prefix).write_bytes(b"half")
    staged.append(prefix)
    raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

  monkeypatch.setattr(checkpoints, "write_bundle", fail)
  with pytest.raises(RunError, match=r"step-2: cannot save it \(No space left on device\): check space"):
    manager.save(2, tensors(2))
  assert not Path(staged[0]).parent.exists()
  assert files.listdir(manager.directory) == ["step-1"]


def test_a_disk_that_is_full_while_tensors_are_written_is_an_error_of_one_line(manager):
  manager.save(1, tensors(1))
  with (
    file_size_limit(100),
    pytest.raises(RunError, match=r"/step-2: cannot save it \(File too large\): check space"),
  ):
    manager.save(2, tensors(2))
  assert files.listdir(manager.directory) == ["step-1"]
  assert manager.latest()[0].step == 1


def test_a_device_that_is_lost_while_saving_is_not_reported_as_a_full_disk(manager, monkeypatch):
  def fail(prefix: str, tensors: dict[str, tf.Tensor]) -> None:
    raise tf.errors.UnavailableError(None, None, "Socket closed")

  monkeypatch.setattr(checkpoints, "write_bundle", fail)
  with pytest.raises(tf.errors.UnavailableError):
    manager.save(1, tensors(1))
  assert files.listdir(manager.directory) == []


@pytest.mark.parametrize(
  ("variables", "message"),
  [
    ({"c": tf.zeros([2])}, "has no c"),
    ({"b": tf.zeros([8])}, r"b has shape \[7\], the model needs \[8\]"),
  ],
)
def test_other_weights_are_refused(manager, variables, message):
  manager.save(1, tensors(1))
  newest, _ = manager.latest()
  with pytest.raises(UserError, match=message):
    restore(newest, {name: tf.Variable(value) for name, value in variables.items()})


@pytest.mark.parametrize(
  ("saved", "message"),
  [
    (np.ones([2], np.int32), "b holds int32 values, the model needs float32"),
    (np.ones([2], np.complex64), "b holds complex64 values"),
    (np.array(["1", "2"]), "b holds string values"),
    (np.array([1, np.nan], np.float32), "b holds values that are not finite"),
    (np.array([np.inf, 1], np.float32), "b holds values that are not finite"),
  ],
)
def test_values_that_no_run_saves_are_refused(manager, saved, message):
  manager.save(1, {"b": saved})
  newest, _ = manager.latest()
  with pytest.raises(UserError, match=message):
    restore(newest, {"b": tf.Variable(tf.zeros([2]))})


def test_the_manifest_covers_every_file(manager):
  path = Path(manager.save(1, tensors(1)))
  assert find_damage(str(path)) is None
  (path / "albert_config.json").write_text("{}")
  assert "albert_config.json" in str(find_damage(str(path)))
