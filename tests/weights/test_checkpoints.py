"""Saving checkpoints completely or not at all, keeping the newest and the best, and restoring variables from them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import RunError, UserError
from albert.io import files
from albert.weights import checkpoints
from albert.weights.arrays import open_bundle
from albert.weights.checkpoints import BestEvaluation, CheckpointManager, find_damage, restore
from tests.file_limits import file_size_limit
from tests.synthetic import TINY_MODEL
from tests.weights.small_checkpoints import flip_one_bit, make_tensors, newest_step, reopen


def test_a_file_in_place_of_the_directory_of_checkpoints_is_named(manager):
  for make in (lambda path: path.write_text(""), os.mkfifo, lambda path: path.symlink_to("gone")):
    make(Path(manager.directory))
    with pytest.raises(UserError, match=r"checkpoints: cannot read it \((Not a directory|No such file or directory)\)"):
      manager.latest_to_resume(start_over=False)
    Path(manager.directory).unlink()


def test_the_newest_and_the_best_are_kept(manager):
  for step, loss, is_best in ((1, 5.0, True), (2, 1.0, True), (3, 2.0, False), (4, 3.0, False)):
    manager.save(step, make_tensors(step))
    assert manager.record_evaluation(step, "loss", loss, higher_is_better=False) == is_best
  manager.save(5, make_tensors(5))
  assert manager.steps() == [2, 4, 5]
  assert manager.best() == BestEvaluation(step=2, value=1.0, metric="loss")


def test_the_newest_intact_one_up_to_the_healthy_step_is_kept(manager):
  manager.keep = 4
  for step in (10, 20, 30):
    manager.save(step, make_tensors(step))
  flip_one_bit(manager, 30)
  manager = reopen(manager, keep=2)
  manager.healthy_step = 35
  for step in (40, 50, 60):
    manager.save(step, make_tensors(step))
  assert manager.steps() == [20, 30, 50, 60]
  manager.healthy_step = 60
  manager.save(70, make_tensors(70))
  assert manager.steps() == [30, 60, 70]


def test_undamaged_checkpoints_are_not_deleted_because_of_a_damaged_one(manager, capsys):
  manager.save(4, make_tensors(4))
  manager.save(8, make_tensors(8))
  damaged_bytes = flip_one_bit(manager, 8)
  manager = reopen(manager, keep=1)
  assert newest_step(manager) == 4
  assert f"skipped {manager.path(8)}: " in capsys.readouterr().err
  manager.save(5, make_tensors(5))
  assert manager.steps() == [5, 8]  # 5 is the newest undamaged checkpoint
  manager.save(6, make_tensors(6))
  assert manager.steps() == [6, 8]
  assert newest_step(manager) == 6
  manager.save(8, make_tensors(80))  # the damaged checkpoint, which has this name, is renamed
  assert newest_step(manager) == 8
  renamed = Path(manager.directory) / "step-8.damaged"
  assert (renamed / "weights.data-00000-of-00001").read_bytes() == damaged_bytes
  assert manager.steps() == [8]
  assert f"renamed to {renamed}" in capsys.readouterr().err


def test_pruning_keeps_damaged_checkpoints_and_names_each_of_them_once(manager, capsys):
  manager.keep = 5
  for step in (1, 2, 3, 4):
    manager.save(step, make_tensors(step))
  flip_one_bit(manager, 1)
  flip_one_bit(manager, 3)
  manager = reopen(manager)
  for step in (5, 6):
    manager.save(step, make_tensors(step))
  assert manager.steps() == [1, 3, 5, 6]  # 1 and 3 are damaged, 5 and 6 are the two newest
  warnings = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
  assert warnings == [f"{manager.directory}/step-{step} is not deleted" for step in (3, 1)]


def test_pruning_verifies_a_checkpoint_once_in_a_process(manager, monkeypatch):
  manager.keep = 5
  for step in (1, 2, 3):
    manager.save(step, make_tensors(step))
  manager = reopen(manager, keep=5)
  manager.latest()
  verified: list[str] = []

  def find_and_record(path: str, step: int) -> str | None:
    verified.append(Path(path).name)
    return find_damage(path, step)

  monkeypatch.setattr(checkpoints, "find_damage", find_and_record)
  for step in (4, 5, 6, 7):
    manager.save(step, make_tensors(step))
  assert verified == ["step-2", "step-1"]  # 3 was verified by latest(), 4 to 7 were saved by this process


def test_if_all_checkpoints_are_damaged_nothing_is_written_without_start_over(manager, capsys):
  for step in (1, 2):
    manager.save(step, make_tensors(step))
    flip_one_bit(manager, step)
  paths_before = sorted(str(path) for path in Path(manager.directory).rglob("*"))
  manager = reopen(manager)
  message = r"checkpoints: all of its 2 checkpoints are damaged \(step-2: weights.data.* damaged.*--start_over"
  with pytest.raises(UserError, match=message):
    manager.latest_to_resume(start_over=False)
  assert sorted(str(path) for path in Path(manager.directory).rglob("*")) == paths_before
  assert manager.latest_to_resume(start_over=True) is None
  manager.rename_damaged()
  manager.save(1, make_tensors(1))
  assert manager.steps() == [1]
  renamed = f"{manager.directory}.damaged"
  assert newest_step(reopen(manager)) == 1
  assert CheckpointManager(renamed, keep=1, model_config=TINY_MODEL).steps() == [1, 2]
  assert f"kept in {renamed}" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["flip", "delete"])
def test_if_the_best_checkpoint_is_lost_the_next_evaluation_is_the_best(manager, damage, capsys):
  manager.save(1, make_tensors(1))
  assert manager.record_evaluation(1, "f1", 0.9, higher_is_better=True)
  manager.save(2, make_tensors(2))
  if damage == "flip":
    flip_one_bit(manager, 1)
  else:
    files.remove_tree(manager.path(1))
  manager = reopen(manager, keep=1)
  newest = manager.select("best")
  assert newest is not None
  assert newest.step == 2
  assert "step-1, the best: " in capsys.readouterr().err
  assert manager.record_evaluation(2, "f1", 0.5, higher_is_better=True)
  manager.save(3, make_tensors(3))
  assert 2 in manager.steps()


def test_of_equal_metrics_the_lower_loss_is_better(manager):
  evaluations = ((0.5, 0.9, True), (0.5, 0.7, True), (0.5, 0.7, False), (0.4, 0.1, False), (0.6, 2.0, True))
  for step, (value, loss, is_best) in enumerate(evaluations, start=1):
    manager.save(step, make_tensors(step))
    assert manager.record_evaluation(step, "f1", value, higher_is_better=True, loss=loss) == is_best
  assert manager.best() == BestEvaluation(step=5, value=0.6, metric="f1", loss=2.0)


def test_any_number_is_better_than_nan(manager):
  for step, value, is_best in ((1, float("nan"), True), (2, 0.5, True), (3, float("nan"), False), (4, 0.6, True)):
    manager.save(step, make_tensors(step))
    assert manager.record_evaluation(step, "f1", value, higher_is_better=True) == is_best


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("{}", "lacks 'step'"),
    ('{"step": -1, "value": 1}', r": \$\.step must be a whole number >= 0"),
  ],
)
def test_a_damaged_best_json_is_refused(manager, content, message):
  (Path(manager.directory)).mkdir()
  (Path(manager.directory) / "best.json").write_text(content)
  with pytest.raises(UserError, match=rf"best.json:? ?{message}: restore or delete this file"):
    manager.latest_to_resume(start_over=False)  # so that the error comes before hours of training


def interrupt_remote_removal(monkeypatch: pytest.MonkeyPatch) -> None:
  """Raises KeyboardInterrupt, in place of a kill, after the removal of two files of step-1."""
  remove = files.remove
  removed: list[str] = []

  def remove_two_files(path: str) -> None:
    if "step-1/" in path:
      if len(removed) == 2:
        raise KeyboardInterrupt
      removed.append(path)
    remove(path)

  monkeypatch.setattr(files, "remove", remove_two_files)


def interrupt_local_removal(monkeypatch: pytest.MonkeyPatch) -> None:
  """Raises KeyboardInterrupt, in place of a kill, after the removal of one file of step-1."""

  def remove_one_file(path: str) -> None:
    if "step-1" in Path(path).name:
      (Path(path) / "weights.index").unlink()
      raise KeyboardInterrupt
    shutil.rmtree(path, ignore_errors=True)

  monkeypatch.setattr(files, "remove_tree", remove_one_file)


@pytest.mark.parametrize("scheme", ["", "ram://"])
def test_a_kill_while_pruning_leaves_no_damaged_checkpoint(scheme, tmp_path, monkeypatch, capsys):
  directory = f"ram://{tmp_path.name}/checkpoints" if scheme else str(tmp_path / "checkpoints")
  manager = CheckpointManager(directory, keep=1, model_config=TINY_MODEL)
  manager.save(1, make_tensors(1))
  with monkeypatch.context() as patch:
    if scheme == "ram://":
      interrupt_remote_removal(patch)
    else:
      interrupt_local_removal(patch)
    with pytest.raises(KeyboardInterrupt):
      manager.save(2, make_tensors(2))
  manager = reopen(manager, keep=1)
  assert newest_step(manager) == 2
  manager.remove_leftovers()
  assert files.listdir(directory) == ["step-2"]
  assert "skipped" not in capsys.readouterr().err


def test_staging_directories_are_removed_and_unknown_directories_are_left_alone(manager):
  root = Path(manager.directory)
  staging_name = Path(files.staging_path(manager.path(7))).name
  for name in ("step-old", "mine", ".step-7.tmp", staging_name):
    (root / name).mkdir(parents=True)
    (root / name / "note").write_text("x")
  manager.remove_leftovers()
  for step in (1, 2, 3):
    manager.save(step, make_tensors(step))
  assert (root / "step-old" / "note").exists()
  assert (root / "mine" / "note").exists()
  assert not (root / ".step-7.tmp").exists()
  assert not (root / staging_name).exists()


@pytest.mark.parametrize("kind", ["local", "object store"])
def test_a_failed_save_leaves_only_the_older_checkpoints(manager, remote_manager, kind, monkeypatch):
  manager = manager if kind == "local" else remote_manager
  manager.save(1, make_tensors(1))
  written_prefixes: list[str] = []

  def fail(prefix: str, tensors: dict[str, tf.Tensor]) -> None:
    Path(prefix).write_bytes(b"half")
    written_prefixes.append(prefix)
    raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

  monkeypatch.setattr(checkpoints, "write_bundle", fail)
  with pytest.raises(RunError, match=r"step-2: cannot save it \(No space left on device\): check space"):
    manager.save(2, make_tensors(2))
  assert not Path(written_prefixes[0]).parent.exists()
  assert files.listdir(manager.directory) == ["step-1"]


def test_a_full_disk_is_an_error_that_leaves_the_older_checkpoint(manager):
  manager.save(1, make_tensors(1))
  with (
    file_size_limit(100),
    pytest.raises(RunError, match=r"/step-2: cannot save it \(File too large\): check space"),
  ):
    manager.save(2, make_tensors(2))
  assert files.listdir(manager.directory) == ["step-1"]
  assert newest_step(manager) == 1


def test_the_loss_of_a_device_while_saving_is_not_reported_as_a_full_disk(manager, monkeypatch):
  def fail(prefix: str, tensors: dict[str, tf.Tensor]) -> None:
    raise tf.errors.UnavailableError(None, None, "Socket closed")

  monkeypatch.setattr(checkpoints, "write_bundle", fail)
  with pytest.raises(tf.errors.UnavailableError):
    manager.save(1, make_tensors(1))
  assert files.listdir(manager.directory) == []


@pytest.mark.parametrize("name", ["run", "run[v2]", "a\\b"])  # TensorFlow takes the last two for globs
def test_saved_tensors_are_restored(tmp_path: Path, name: str):
  manager = CheckpointManager(str(tmp_path / name), keep=2, model_config=TINY_MODEL)
  manager.save(4, make_tensors(4))
  newest = manager.latest()
  assert newest is not None
  assert newest.step == 4
  variables = {"a/kernel": tf.Variable(tf.zeros([3, 5])), "b": tf.Variable(tf.zeros([7]))}
  scale = tf.Variable([1.0, 0.0])
  restore(newest, {**variables, "output_scale": scale})  # runs of earlier versions have no scale
  assert scale.numpy().tolist() == [1.0, 0.0]
  np.testing.assert_array_equal(variables["a/kernel"], np.full([3, 5], 4.0))
  np.testing.assert_array_equal(variables["b"], np.arange(7) + 4.0)
  np.testing.assert_array_equal(open_bundle(newest.prefix, "--x")["b"].read(), np.arange(7) + 4.0)


@pytest.mark.parametrize(
  ("variables", "message"),
  [
    ({"c": tf.zeros([2])}, "has no c: give its run's .*--precision"),
    ({"b": tf.zeros([8])}, r"b has shape \[7\], the model needs \[8\]"),
  ],
)
def test_a_missing_tensor_or_another_shape_is_refused(manager, variables, message):
  manager.save(1, make_tensors(1))
  newest = manager.latest()
  with pytest.raises(UserError, match=message):
    restore(newest, {name: tf.Variable(tensor) for name, tensor in variables.items()})


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
def test_other_dtypes_and_numbers_that_are_not_finite_are_refused(manager, saved, message):
  manager.save(1, {"b": saved})
  newest = manager.latest()
  with pytest.raises(UserError, match=message):
    restore(newest, {"b": tf.Variable(tf.zeros([2]))})
