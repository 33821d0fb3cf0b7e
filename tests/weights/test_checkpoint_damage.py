"""Damaged checkpoints are recognized, described and skipped. One that cannot be read ends the command instead."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from albert.errors import RunError, UserError
from tests.weights.small_checkpoints import make_tensors, newest_step, reopen

DATA_FILE = "weights.data-00000-of-00001"


def edit_manifest(files: dict[str, Any], checkpoint: Path) -> None:
  (checkpoint / "manifest.json").write_text(json.dumps({"step": 2, "files": files}))


def replace_file(name: str, make: Callable[[Path], object], checkpoint: Path) -> None:
  """Removes a file of a checkpoint and calls `make` with its path."""
  (checkpoint / name).unlink()
  make(checkpoint / name)


def change_file(name: str, change: Callable[[bytes], bytes], checkpoint: Path) -> None:
  (checkpoint / name).write_bytes(change((checkpoint / name).read_bytes()))


def make_broken_link(path: Path) -> None:
  path.symlink_to("gone")


def replace_checkpoint_by_file(checkpoint: Path) -> None:
  shutil.rmtree(checkpoint)
  checkpoint.write_text("")


def replace_checkpoint_by_step_1(checkpoint: Path) -> None:
  shutil.rmtree(checkpoint)
  shutil.copytree(checkpoint.parent / "step-1", checkpoint)


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (partial(edit_manifest, {}), r"manifest.json is damaged \(it does not list weights.index"),
    (partial(edit_manifest, {"weights.index": {"bytes": 1, "sha256": ""}}), "does not list albert_config.json"),
    (
      partial(edit_manifest, {name: {"bytes": 1, "sha256": ""} for name in ("weights.index", "albert_config.json")}),
      r"does not list weights\.data-",
    ),
    (
      partial(edit_manifest, {"../x": {"bytes": 1, "sha256": ""}}),
      r"damaged .*a key in \$\.files must be a text that names a file ",
    ),
    (partial(edit_manifest, {"weights.index": 1}), r"damaged .*\$\.files\[\.\.\.\] must be an object, it is a whole"),
    (partial(replace_file, "weights.index", os.mkdir), r"weights.index has \d+ bytes instead of \d+"),
    (partial(replace_file, DATA_FILE, os.mkfifo), f"{DATA_FILE} has 0 bytes instead of"),
    (partial(replace_file, "manifest.json", os.mkfifo), "no file manifest.json, so it was never finished"),
    (partial(replace_file, "manifest.json", make_broken_link), "no file manifest.json, so it was never finished"),
    (partial(replace_file, "albert_config.json", make_broken_link), "albert_config.json is missing"),
    (partial(replace_file, "albert_config.json", lambda path: path.write_text("{}")), "albert_config.json has 2 bytes"),
    (partial(change_file, DATA_FILE, lambda content: bytes([content[0] ^ 1]) + content[1:]), f"{DATA_FILE} is damaged"),
    (partial(change_file, DATA_FILE, lambda content: content[:-1]), rf"{DATA_FILE} has \d+ bytes instead of \d+"),
    (partial(change_file, "manifest.json", lambda content: b"{"), r"manifest.json is damaged \("),
    (lambda checkpoint: (checkpoint / DATA_FILE).unlink(), f"{DATA_FILE} is missing"),
    (lambda checkpoint: (checkpoint / "manifest.json").unlink(), "no file manifest.json, so it was never finished"),
    (replace_checkpoint_by_file, "it is not a directory"),
    (replace_checkpoint_by_step_1, "manifest.json says step 1"),
  ],
)
def test_the_damage_of_a_checkpoint_is_described(manager, capsys, damage, message):
  manager.save(1, make_tensors(1))
  path = Path(manager.save(2, make_tensors(2)))
  damage(path)
  assert newest_step(manager) == 1
  assert re.search(rf"skipped .*step-2: .*{message}", capsys.readouterr().err)


@pytest.mark.parametrize(("error_number", "error_class"), [(errno.EACCES, UserError), (errno.EIO, RunError)])
@pytest.mark.parametrize("name", [DATA_FILE, "manifest.json"])
def test_a_checkpoint_that_cannot_be_read_does_not_count_as_damaged(
  manager, capsys, monkeypatch, name, error_number, error_class
):
  """It may be whole: a user may repair the permission or the disk. So no older checkpoint is used instead."""
  for step in (1, 2):
    manager.save(step, make_tensors(step))
    manager.record_evaluation(step, "loss", float(step), higher_is_better=True)
  original_open = os.open

  def refuse(path, *args, **kwargs):
    if str(path).endswith(f"step-2/{name}"):
      raise OSError(error_number, os.strerror(error_number), path)
    return original_open(path, *args, **kwargs)

  monkeypatch.setattr(os, "open", refuse)
  manager = reopen(manager, keep=1)
  reason = os.strerror(error_number)
  message = rf"step-2/{name}: cannot read it \({reason}\).*move .*step-2 away, and an older checkpoint is"
  for find_checkpoint in (
    manager.latest,
    lambda: manager.select("best"),
    lambda: manager.latest_to_resume(start_over=True),
  ):
    with pytest.raises(error_class, match=message):
      find_checkpoint()

  # A run that is already training goes on. It keeps the newest checkpoint and, since nothing is known about it, step 2.
  manager.save(3, make_tensors(3))
  assert not manager.record_evaluation(3, "loss", 1.5, higher_is_better=True)
  manager.save(4, make_tensors(4))
  assert manager.steps() == [2, 4]
  assert "step-2 is not deleted: " in capsys.readouterr().err
