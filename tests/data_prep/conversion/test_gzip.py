"""GZIP files that are decompressed: the text, and what a later command keeps."""

from __future__ import annotations

import gzip
import hashlib
import shutil
from pathlib import Path

import pytest

from albert.errors import UserError
from data_prep.conversion.convert import GzipTask, decompress


@pytest.fixture
def task(tmp_path: Path) -> GzipTask:
  """The task to decompress a.txt.gz, to out/gzip-00000003-*.txt."""
  (tmp_path / "out").mkdir()
  path = tmp_path / "a.txt.gz"
  path.write_bytes(gzip.compress(b"One sentence.\n\nAnother one.\n" * 200_000))  # more than is read at a time
  return GzipTask(str(path), str(tmp_path / "out" / "gzip-00000003"))


def text_paths(task: GzipTask) -> list[Path]:
  return sorted(Path(task.text_prefix).parent.iterdir())


def test_the_text_is_written_and_the_gzip_file_is_hashed(task: GzipTask) -> None:
  gzip_bytes = Path(task.path).read_bytes()
  manifest_entry = decompress(task)
  assert manifest_entry == {
    "file": "a.txt.gz",
    "bytes": len(gzip_bytes),
    "sha256": hashlib.sha256(gzip_bytes).hexdigest(),
  }
  (text_path,) = text_paths(task)
  assert str(text_path) == task.text_path(manifest_entry)
  assert text_path.read_bytes() == gzip.decompress(gzip_bytes)


def test_a_later_command_does_not_keep_the_text_of_another_gzip_file(task: GzipTask) -> None:
  decompress(task)
  Path(task.path).write_bytes(gzip.compress(b"A new text.\n"))
  assert Path(task.text_path(decompress(task))).read_bytes() == b"A new text.\n"


def test_a_file_that_changes_is_an_error(task: GzipTask, monkeypatch: pytest.MonkeyPatch) -> None:
  copy = shutil.copyfileobj

  def copy_and_change(*arguments: object) -> None:
    copy(*arguments)  # type: ignore[arg-type]
    Path(task.path).write_bytes(b"other")

  monkeypatch.setattr(shutil, "copyfileobj", copy_and_change)
  with pytest.raises(UserError, match=r"a\.txt\.gz changed while it was being read"):
    decompress(task)
  assert text_paths(task) == []
