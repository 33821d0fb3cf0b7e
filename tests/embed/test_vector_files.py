"""Files of embeddings hold all rows and their ids, or do not exist."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from albert.embed.vector_files import check_output, write_vectors
from albert.errors import UserError

VECTORS = np.arange(15, dtype=np.float32).reshape(5, 3) / 7


def write(path: Path, ids: Sequence[int] | Sequence[str]) -> None:
  """Writes VECTORS in two pieces."""
  check_output(str(path))
  with write_vectors(str(path), 5, 3, ids_are_numbers=isinstance(ids[0], int)) as writer:
    writer.write(ids[:2], VECTORS[:2])
    writer.write(ids[2:], VECTORS[2:])


@pytest.mark.parametrize("ids", [[3, 4, 5, 7, 1 << 40], ["b", "ä", "c d", "1", "x"]])
def test_numpy_and_pandas_read_the_rows_and_their_ids(tmp_path: Path, ids: list) -> None:
  write(tmp_path / "x.npy", ids)
  write(tmp_path / "x.parquet", ids)
  np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), VECTORS)
  assert np.load(tmp_path / "x.npy", mmap_mode="r").dtype == np.float32
  assert (tmp_path / "x.ids.txt").read_text(encoding="utf-8").splitlines() == [str(text_id) for text_id in ids]
  frame = pd.read_parquet(tmp_path / "x.parquet")
  assert frame["id"].tolist() == ids
  np.testing.assert_array_equal(np.stack(frame["embedding"].tolist()), VECTORS)
  assert len(os.listdir(tmp_path)) == 3


@pytest.mark.parametrize("name", ["x.npy", "x.parquet"])
def test_after_an_error_nothing_has_changed(tmp_path: Path, name: str) -> None:
  for is_first in (True, False):
    if not is_first:
      write(tmp_path / name, ["a", "b", "c", "d", "e"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(KeyboardInterrupt):
      _write_and_stop(tmp_path / name, num_files_before=len(before))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def _write_and_stop(path: Path, num_files_before: int) -> None:
  with write_vectors(str(path), 5, 3, ids_are_numbers=True) as writer:
    writer.write([7], VECTORS[:1])
    assert len(os.listdir(path.parent)) > num_files_before  # the staging files
    raise KeyboardInterrupt


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  with pytest.raises(UserError, match=r"--output_file=x.txt: must end in .npy or .parquet"):
    check_output("x.txt")
  with pytest.raises(UserError, match=r"no/x.npy: there is no directory .*no: make it first"):
    check_output(f"{tmp_path}/no/x.npy")
  (tmp_path / "d.npy").mkdir()
  with pytest.raises(UserError, match=r"d.npy: is a directory"):
    check_output(f"{tmp_path}/d.npy")
  monkeypatch.setitem(sys.modules, "pyarrow", None)
  with pytest.raises(UserError, match=r"x.parquet: writing Parquet files needs pyarrow .*or give a .npy file"):
    check_output(f"{tmp_path}/x.parquet")
