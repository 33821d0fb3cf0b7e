"""Units of text and documents: positions, boundaries, invalid bytes and long lines."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from data_prep.documents import Counts, concatenate_documents, load_documents, parse_documents
from data_prep.units import TextRange, TextUnit, plan_units

UNIT = 64


class WordTokenizer:
  """Makes one token of each character of a word; the first one starts the word. "-" gives no token."""

  word_starts = np.arange(512) >= 256

  def encode_batch(self, texts: list[str]) -> list[list[int]]:
    return [
      [min(ord(c), 255) + (256 if i == 0 else 0) for word in text.replace("-", "").split() for i, c in enumerate(word)]
      for text in texts
    ]


def read(path: Path, unit_bytes: int = 1 << 20) -> list[tuple[int, list[str]]]:
  parts = [part for unit in plan([path], unit_bytes) for part in unit.ranges]
  return [(offset, sentences) for part in parts for _, offset, sentences in parse_documents(part, unit_bytes)[0]]


def plan(paths: list[Path], unit_bytes: int, with_donors: bool = False) -> list[TextUnit]:
  return list(plan_units([str(path) for path in paths], with_donors=with_donors, unit_bytes=unit_bytes))


def write(path: Path, data: bytes) -> Path:
  path.write_bytes(data)
  return path


@pytest.mark.parametrize(
  ("data", "documents"),
  [
    (b"one\ntwo\n\nthree\n", [(0, ["one", "two"]), (9, ["three"])]),
    (b"one\r\ntwo\r\n\r\nthree", [(0, ["one", "two"]), (12, ["three"])]),
    (b"\xef\xbb\xbfone\n \t\n\xef\xbb\xbftwo", [(0, ["one"]), (10, ["two"])]),
    (b"\n\n\n  one  \n\n\n\n", [(3, ["one"])]),
    ("a\n\u00a0\u3000\nb\n".encode(), [(0, ["a"]), (8, ["b"])]),
    (b"\n \n", []),
  ],
)
def test_documents_by_hand(tmp_path: Path, data: bytes, documents: list[tuple[int, list[str]]]) -> None:
  assert read(write(tmp_path / "text.txt", data)) == documents
  (tmp_path / "text.txt.gz").write_bytes(gzip.compress(data))
  assert read(tmp_path / "text.txt.gz") == documents


def reference_documents(text: bytes) -> list[tuple[int, list[str]]]:
  documents: list[tuple[int, list[str]]] = []
  offset, is_open = 0, False
  for line in text.splitlines(keepends=True):
    sentence = line.decode().strip()
    if not sentence:
      is_open = False
    elif is_open:
      documents[-1][1].append(sentence)
    else:
      documents.append((offset, [sentence]))
      is_open = True
    offset += len(line)
  return documents


@settings(max_examples=60, deadline=None)
@given(
  lines=st.lists(st.sampled_from(["", " ", "word", "two words", "é" * 9, "x" * 20]), min_size=1, max_size=60),
  end=st.sampled_from(["\n", "\r\n"]),
)
def test_units_change_no_document(tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str) -> None:
  """Documents shorter than a unit are never cut, in plain and in GZIP files."""
  # A blank line at least every four lines, so that no document is longer than a unit.
  text = "".join(line + end + (end if index % 3 == 2 else "") for index, line in enumerate(lines)).encode()
  directory = tmp_path_factory.mktemp("text")
  plain = write(directory / "text.txt", text)
  packed = write(directory / "text.txt.gz", gzip.compress(text))
  assert read(plain, 128) == read(packed, 128) == reference_documents(text)
  parsed = []
  for path in (plain, packed):
    units = plan([path], 128)
    parsed.append([parse_documents(part, 128)[0] for unit in units for part in unit.ranges])
  assert parsed[0] == parsed[1]


def test_long_document_is_cut_at_lines_and_counted(tmp_path: Path) -> None:
  lines = [f"line {number:03d}" for number in range(40)]
  path = write(tmp_path / "text.txt", "\n".join(lines).encode())
  units = plan([path], UNIT)
  assert len(units) == 6  # 359 bytes
  documents = [parse_documents(unit.ranges[0], UNIT) for unit in units]
  assert [line for texts, _ in documents for text in texts for line in text.sentences] == lines
  assert [is_cut for _, is_cut in documents] == [False, True, True, True, True, False]
  assert documents[5][0] == []  # the end of the file is near, so the unit before it includes the last lines
  counts = sum((load_documents(unit.ranges, WordTokenizer(), 2, 61, UNIT)[1] for unit in units), Counts())
  assert counts == Counts(documents=5, tokens=40 * 7, dropped=0, cut=4)


@pytest.mark.parametrize("text", ["ab cd " * 100, "é" * 300, "x" * 600])
def test_one_endless_line_is_cut_at_spaces_or_characters(tmp_path: Path, text: str) -> None:
  path = write(tmp_path / "text.txt", text.encode())
  units = plan([path], UNIT)
  parts = [parse_documents(unit.ranges[0], UNIT)[0] for unit in units]
  pieces = [sentence for documents in parts for document in documents for sentence in document.sentences]
  assert len(pieces) > 5
  assert (" " if " " in text else "").join(pieces) == text.strip()
  assert max(len(piece.encode()) for piece in pieces) <= 2 * UNIT


def test_long_lines_become_sentences_of_bounded_length(tmp_path: Path) -> None:
  words = [f"w{number}" for number in range(9000)]
  path = write(tmp_path / "text.txt", " ".join(words).encode())
  ((_, sentences),) = read(path)
  assert len(sentences) > 1
  assert max(map(len, sentences)) <= 20_000
  assert " ".join(sentences).split() == words


def test_short_files_share_a_unit_and_gzip_changes_nothing(tmp_path: Path) -> None:
  rng = random.Random(0)
  plain, packed = [], []
  for number, size in enumerate((30, 20, 200, 10, 70, 5)):
    data = "".join(rng.choice("ab \n") for _ in range(size)).encode() + b"\n\n"
    plain.append(write(tmp_path / f"{number}.txt", data))
    packed.append(write(tmp_path / f"{number}.txt.gz", gzip.compress(data)))
  parsed = [
    [[(part.ordinal, parse_documents(part, UNIT)[0]) for part in unit.ranges] for unit in plan(paths, UNIT)]
    for paths in (plain, packed)
  ]
  assert parsed[0] == parsed[1]
  assert [ordinal for ordinal, _ in parsed[0][0]] == [0, 1]
  assert sum(unit.progress_bytes for unit in plan(plain, UNIT)) == sum(p.stat().st_size for p in plain)
  assert sum(unit.progress_bytes for unit in plan(packed, UNIT)) == sum(p.stat().st_size for p in packed)


def test_donors_are_the_next_unit_and_for_the_last_the_one_before(tmp_path: Path) -> None:
  path = write(tmp_path / "text.txt", b"some words\n\n" * 16)  # 192 bytes
  units = plan([path], UNIT, with_donors=True)
  assert [unit.index for unit in units] == [0, 1, 2]
  assert [unit.donors for unit in units] == [units[1].ranges, units[2].ranges, units[1].ranges]
  assert plan([path], 1 << 20, with_donors=True)[0].donors == ()


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_not_utf8_names_file_and_line(tmp_path: Path, ending: str) -> None:
  data = b"good text\n\n" * 20 + b"caf\xe9\n"
  path = write(tmp_path / f"text{ending}", gzip.compress(data) if ending.endswith("gz") else data)
  with pytest.raises(UserError, match=rf"{path}, line 41: not UTF-8 text \(byte 0xe9"):
    read(path, UNIT)


@pytest.mark.parametrize("data", [gzip.compress(b"text\n" * 1000, mtime=0)[:-12]])
def test_broken_gzip(tmp_path: Path, data: bytes) -> None:
  path = write(tmp_path / "text.txt.gz", data)
  with pytest.raises(UserError, match=f"{path}: the GZIP file is damaged or incomplete"):
    read(path)


def test_load_documents_by_hand(tmp_path: Path) -> None:
  path = write(tmp_path / "text.txt", b"ab c\n-\nd\n\nalone\n\n-\n\nef gh\n")
  part = TextRange(str(path), 3, 0, path.stat().st_size)
  documents, counts = load_documents((part,), WordTokenizer(), 2, 61)
  assert counts == Counts(documents=4, tokens=13, dropped=2, cut=0)
  assert "".join(chr(token & 255) for token in documents.ids) == "abcdefgh"
  assert documents.word_starts.tolist() == [True, False, True, True, True, False, True, False]
  assert documents.sentence_ends.tolist() == [3, 4, 8]
  assert documents.splits.tolist() == [0, 4, 8]
  assert documents.file_ordinals.tolist() == [3, 3]
  assert documents.offsets.tolist() == [0, 20]
  alone, _ = load_documents((part,), WordTokenizer(), 1, 62)
  assert alone.splits.tolist() == [0, 4, 9, 13]
  both = concatenate_documents(documents, alone)
  assert both.splits.tolist() == [0, 4, 8, 12, 17, 21]
  assert both.sentence_ends.tolist() == [3, 4, 8, 11, 12, 17, 21]
