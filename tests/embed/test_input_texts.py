"""The texts of a file and their ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert.embed.input_texts import open_texts
from albert.errors import UserError


def read(path: Path, chunk_size: int = 99, text_column: str = "", id_column: str = "") -> list[tuple[list, list]]:
  """The chunks of the texts of a file."""
  texts = open_texts(str(path), text_column, id_column)
  chunks = [(list(chunk.ids), list(chunk.texts)) for chunk in texts.chunks(chunk_size)]
  assert sum(len(ids) for ids, _ in chunks) == texts.num_texts
  return chunks


@pytest.mark.parametrize("end", ["", "\n"])
def test_each_line_is_a_text_with_its_number_as_id(tmp_path: Path, end: str) -> None:
  path = tmp_path / "texts.txt"
  path.write_bytes(f"\ufeffone\r\n\n three\tß\nf\x85our\u2028{end}".encode())
  assert read(path) == [([1, 2, 3, 4], ["one", "", " three\tß", "f\x85our\u2028"])]
  assert read(path, chunk_size=3) == [([1, 2, 3], ["one", "", " three\tß"]), ([4], ["f\x85our\u2028"])]


@pytest.mark.parametrize(
  ("name", "content"),
  [
    ("x.tsv", "key\ttext\tmore\nb\tone\t1\na\t\t2\nc\tthree\t3\n"),
    ("x.csv", 'text,key\none,b\n"",a\nthree,c\n'),
    ("x.jsonl", '{"key": "b", "text": "one"}\n\n{"text": "", "key": "a"}\n{"text": "three", "key": "c"}\n'),
  ],
)
def test_a_column_of_a_table_has_the_texts(tmp_path: Path, name: str, content: str) -> None:
  path = tmp_path / name
  path.write_text(content)
  expected = [(["b", "a"], ["one", ""]), (["c"], ["three"])]
  assert read(path, chunk_size=2, text_column="text", id_column="key") == expected
  lines = [1, 3, 4] if name == "x.jsonl" else [2, 3, 4]
  assert read(path, text_column="text") == [(lines, ["one", "", "three"])]


def test_bad_files_are_refused(tmp_path: Path) -> None:
  path, table = tmp_path / "x.txt", tmp_path / "x.tsv"
  table.write_text("key\ttext\na\tone\na\ttwo\n")
  path.write_bytes(b"one\n\xff\n")
  with pytest.raises(UserError, match=r"x.txt, line 2: not UTF-8 \(byte 1 of the line is 0xff\): save"):
    read(path)
  path.write_text("one\n", encoding="utf-16")
  with pytest.raises(UserError, match="is UTF-16: save it as UTF-8"):
    read(path)
  path.write_bytes(b"")
  with pytest.raises(UserError, match=f"--input_file={path}: has no texts"):
    read(path)
  with pytest.raises(UserError, match="--id_column=key: give --text_column, too: without it, each line is a text"):
    read(path, id_column="key")
  with pytest.raises(UserError, match=r"x.tsv: is a table: give --text_column"):
    read(table)
  with pytest.raises(UserError, match="no column 'texts'; there are: key, text"):
    read(table, text_column="texts")
  with pytest.raises(UserError, match="line 3: key 'a' is already used in line 2"):
    read(table, text_column="text", id_column="key")


@pytest.mark.parametrize("content", ["one\n", "one\ntwo\nthree\n"])
def test_a_file_that_changes_is_refused(tmp_path: Path, content: str) -> None:
  path = tmp_path / "x.txt"
  path.write_text("one\ntwo\n")
  texts = open_texts(str(path), "", "")
  path.write_text(content)
  with pytest.raises(UserError, match=r"x.txt: changed while it was read: run the command again"):
    list(texts.chunks(9))
