"""Compressed files are read in bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from data_prep import text_files


def test_very_compressible_zstandard_data_is_read_in_bounded_memory(tmp_path: Path) -> None:
  """The file has 10 kB, its content 100 MB, in two frames."""
  zstandard = pytest.importorskip("zstandard")
  block = b"A good line. Another one. And 38 more characters.\n" * 20_000
  path = tmp_path / "a.zst"
  path.write_bytes(zstandard.compress(block * 75) + zstandard.compress(block * 25))
  num_blocks = 0
  tracemalloc.start()
  try:
    with text_files.open_stream(str(path)) as stream:
      while content := stream.read(len(block)):
        assert content == block
        num_blocks += 1
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert num_blocks == 100
  assert peak < 48 << 20
