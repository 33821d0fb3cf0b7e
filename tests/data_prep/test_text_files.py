"""Reading text line by line: line ends, byte-order marks, compression and faulty files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from albert.errors import UserError
from data_prep.text_files import open_text_lines

TEXT = "\ufefffirst\r\nzweite Zeile: äöü\n\n \u2028 \x0bkept in one line\rhere\nlast without end"
LINES = ["first", "zweite Zeile: äöü", "", " \u2028 \x0bkept in one line\rhere", "last without end"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_and_progress(tmp_path: Path, name: str) -> None:
  path = tmp_path / name
  data = TEXT.encode()
  path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
  read: list[int] = []
  assert list(open_text_lines(str(path), read.append)) == list(enumerate(LINES, start=1))
  assert sum(read) == path.stat().st_size


def test_progress_is_reported_while_reading(tmp_path: Path) -> None:
  path = tmp_path / "a.txt"
  path.write_bytes(b"a line of text\n" * 50_000)
  read: list[int] = []
  assert sum(1 for _ in open_text_lines(str(path), read.append)) == 50_000
  assert len(read) > 10
  assert sum(read) == path.stat().st_size


def test_not_utf8(tmp_path: Path) -> None:
  path = tmp_path / "latin.txt"
  path.write_bytes("gut\nschön\n".encode("latin-1"))
  lines = open_text_lines(str(path))
  assert next(lines) == (1, "gut")
  with pytest.raises(UserError, match=r"latin\.txt, line 2: not UTF-8 text \(byte 0xf6.*iconv"):
    next(lines)


@pytest.mark.parametrize("data", [gzip.compress(b"a line\n" * 1000, mtime=0)[:-9]])
def test_an_incomplete_gzip_file(tmp_path: Path, data: bytes) -> None:
  path = tmp_path / "a.txt.gz"
  path.write_bytes(data)
  with pytest.raises(UserError, match=r"a\.txt\.gz, after line \d+: the GZIP file is damaged or incomplete"):
    list(open_text_lines(str(path)))


def test_missing_file(tmp_path: Path) -> None:
  with pytest.raises(UserError, match=r"nowhere\.txt: cannot read it"):
    list(open_text_lines(str(tmp_path / "nowhere.txt")))
