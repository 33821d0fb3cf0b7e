"""The texts of a file and their ids; files of embeddings, which hold all rows and their ids, or do not exist."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from albert.embed.input_output import NearestRows, check_output, open_texts, write_vectors
from albert.errors import UserError

VECTORS = np.arange(15, dtype=np.float32).reshape(5, 3) / 7


def read(path: Path, text_column: str = "", id_column: str = "") -> tuple[list, list]:
  texts = open_texts(str(path), text_column, id_column)
  pairs = list(texts.pairs)
  assert len(pairs) == texts.num_texts
  return [text_id for text_id, _ in pairs], [text for _, text in pairs]


@pytest.mark.parametrize("end", ["", "\n"])
def test_each_line_is_a_text_with_its_number_as_id(tmp_path: Path, end: str) -> None:
  path = tmp_path / "texts.txt"
  path.write_bytes(f"\ufeffone\r\n\n three\tß\nf\x85our\u2028{end}".encode())
  assert read(path) == ([1, 2, 3, 4], ["one", "", " three\tß", "f\x85our\u2028"])


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
  assert read(path, "text", "key") == (["b", "a", "c"], ["one", "", "three"])
  lines = [1, 3, 4] if name == "x.jsonl" else [2, 3, 4]
  assert read(path, "text") == (lines, ["one", "", "three"])


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
  with pytest.raises(UserError, match="no column 'texts'; there are: 'key', 'text'"):
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
    list(texts.pairs)


def write(path: Path, ids: Sequence[int] | Sequence[str]) -> None:
  """Writes VECTORS in two pieces."""
  check_output(str(path))
  with write_vectors(str(path), 5, 3, ids_are_numbers=isinstance(ids[0], int)) as append:
    append(ids[:2], VECTORS[:2])
    append(ids[2:], VECTORS[2:])


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
  with write_vectors(str(path), 5, 3, ids_are_numbers=True) as append:
    append([7], VECTORS[:1])
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
  with pytest.raises(UserError, match=r"x.parquet: reading or writing Parquet .* needs pyarrow .*: pip install"):
    check_output(f"{tmp_path}/x.parquet")


@pytest.mark.parametrize("top_k", [1, 4, 300])
@pytest.mark.parametrize("block", [7, 200])
def test_nearest_rows_are_those_of_the_matrix_product(top_k: int, block: int) -> None:
  rng = np.random.default_rng(5)
  rows, queries = (rng.normal(size=(size, 6)).astype(np.float32) for size in (200, 700))
  rows[150] = 3 * rows[20]  # equal cosines
  rows[30] = queries[1] = 0.0
  nearest = NearestRows(queries, top_k)
  for start in range(0, 200, block):
    nearest.add(rows[start : start + block])
  found, scores = nearest.result()
  a, b = queries.astype(np.float64), rows.astype(np.float64)
  lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
  cosines = np.round(a @ b.T / np.where(lengths, lengths, 1.0), 6)
  order = np.argsort(-cosines, axis=1, kind="stable")[:, :top_k]
  np.testing.assert_array_equal(found, order)
  np.testing.assert_allclose(scores, np.take_along_axis(cosines, order, axis=1), atol=1e-9)
