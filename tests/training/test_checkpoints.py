"""Checkpoints are whole or absent; the newest that verifies is restored; nothing unknown is deleted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.training.checkpoints import CheckpointManager, find_damage, restore
from tests.synthetic import TINY_MODEL


def tensors(step: int) -> dict[str, tf.Tensor]:
  return {"a/kernel": tf.fill([3, 5], float(step)), "b": tf.range(7, dtype=tf.float32) + step}


@pytest.fixture
def manager(tmp_path: Path) -> CheckpointManager:
  return CheckpointManager(str(tmp_path / "checkpoints"), keep=2, model_config=TINY_MODEL)


def test_what_is_saved_is_restored(manager):
  manager.save(4, tensors(4))
  newest, skipped = manager.latest()
  assert newest is not None
  assert (newest.step, skipped) == (4, [])
  variables = {"a/kernel": tf.Variable(tf.zeros([3, 5])), "b": tf.Variable(tf.zeros([7]))}
  restore(newest, variables)
  np.testing.assert_array_equal(variables["a/kernel"], np.full([3, 5], 4.0))
  np.testing.assert_array_equal(variables["b"], np.arange(7) + 4.0)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "manifest", "no manifest"])
def test_a_damaged_checkpoint_is_skipped_and_said_so(manager, damage):
  manager.save(1, tensors(1))
  path = Path(manager.save(2, tensors(2)))
  data = path / "weights.data-00000-of-00001"
  if damage == "flip":
    raw = bytearray(data.read_bytes())
    raw[20] ^= 1
    data.write_bytes(bytes(raw))
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
  assert manager.best() == {"step": 2, "metric": "loss", "value": 1.0}


def test_what_it_does_not_know_is_left_alone(manager):
  root = Path(manager.directory)
  for name in ("step-old", "mine", ".step-7.tmp"):
    (root / name).mkdir(parents=True)
    (root / name / "note").write_text("x")
  manager.remove_leftovers()
  for step in (1, 2, 3):
    manager.save(step, tensors(step))
  assert (root / "step-old" / "note").exists()
  assert (root / "mine" / "note").exists()
  assert not (root / ".step-7.tmp").exists()


def test_a_half_written_directory_is_no_checkpoint(manager):
  aside = Path(manager.directory) / ".step-9.tmp"
  aside.mkdir(parents=True)
  (aside / "weights.index").write_bytes(b"x")
  assert manager.latest() == (None, [])


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


def test_the_manifest_covers_every_file(manager):
  path = Path(manager.save(1, tensors(1)))
  assert find_damage(str(path)) is None
  (path / "albert_config.json").write_text("{}")
  assert "albert_config.json" in str(find_damage(str(path)))
