"""Reading text line by line: line ends, byte-order marks, compression and damaged files."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from pathlib import Path

import pytest

from albert.errors import UserError
from data_prep.text_files import cut_line, open_stream, open_text_lines

# One text, and the lines in it.
TEXT = "\ufefffirst\r\nzweite Zeile: äöü\n\n \u2028 \x0bkept in one line\rhere\nlast without end"
LINES = ["first", "zweite Zeile: äöü", "", " \u2028 \x0bkept in one line\rhere", "last without end"]


@pytest.mark.parametrize("file_name", ["a.txt", "a.txt.gz"])
def test_lines_are_read_and_progress_adds_up_to_the_size_of_the_file(tmp_path: Path, file_name: str) -> None:
  path = tmp_path / file_name
  content = TEXT.encode()
  path.write_bytes(gzip.compress(content) if file_name.endswith(".gz") else content)
  progress: list[int] = []  # the bytes read in each step
  assert list(open_text_lines(str(path), progress.append)) == list(enumerate(LINES, start=1))
  assert sum(progress) == path.stat().st_size


def test_progress_is_reported_while_reading(tmp_path: Path) -> None:
  path = tmp_path / "a.txt"
  path.write_bytes(b"a line of text\n" * 50_000)
  progress: list[int] = []
  assert len(list(open_text_lines(str(path), progress.append))) == 50_000
  assert len(progress) > 10
  assert sum(progress) == path.stat().st_size


def test_long_lines_are_cut_at_spaces_in_time_in_proportion_to_their_length() -> None:
  words = "x" * 15_000
  assert list(cut_line(f"{words} y z  \u3000{words}")) == [f"{words} y z ", words]
  assert list(cut_line("x" * 40_001)) == ["x" * 20_000, "x" * 20_000, "x"]
  assert not list(cut_line(""))
  start = time.process_time()
  assert sum(map(len, cut_line("\u6f22" * 40_000_000))) == 40_000_000
  assert time.process_time() - start < 2


def test_text_that_is_not_utf8_is_an_error_that_names_the_line(tmp_path: Path) -> None:
  path = tmp_path / "latin.txt"
  path.write_bytes("gut\nschön\n".encode("latin-1"))
  lines = open_text_lines(str(path))
  assert next(lines) == (1, "gut")
  with pytest.raises(UserError, match=r"latin\.txt, line 2: not UTF-8 text \(byte 0xf6.*iconv"):
    next(lines)


def test_very_compressible_zstandard_data_is_read_in_bounded_memory(tmp_path: Path) -> None:
  """The file has 10 kB, its content 100 MB, in two frames."""
  zstandard = pytest.importorskip("zstandard")
  block = b"A good line. Another one. And 38 more characters.\n" * 20_000
  path = tmp_path / "a.zst"
  path.write_bytes(zstandard.compress(block * 75) + zstandard.compress(block * 25))
  num_blocks = 0
  tracemalloc.start()
  try:
    with open_stream(str(path)) as stream:
      while content := stream.read(len(block)):
        assert content == block
        num_blocks += 1
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert num_blocks == 100
  assert peak < 48 << 20
