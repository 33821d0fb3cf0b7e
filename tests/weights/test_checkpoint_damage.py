"""Damaged checkpoints are recognized, described and skipped; those that cannot be read are not taken for damaged."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from albert.errors import RunError, UserError
from albert.weights.checkpoint_damage import find_damage
from tests.weights.small_checkpoints import flip_one_bit, reopened, tensors


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


def test_the_manifest_covers_every_file(manager):
  path = Path(manager.save(1, tensors(1)))
  assert find_damage(str(path)) is None
  (path / "albert_config.json").write_text("{}")
  assert "albert_config.json" in str(find_damage(str(path)))
