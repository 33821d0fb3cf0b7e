"""Units of text, and the documents in them: offsets, boundaries, invalid bytes and long lines."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import SENTENCE_PIECE_IDS
from data_prep.documents import Counts, concatenate_documents, load_documents, parse_documents
from data_prep.units import TextRange, TextUnit, plan_units, read_range

# The size of a unit in bytes, in most tests.
UNIT_BYTES = 64


class WordTokenizer:
  """Makes one token of each character of a word: its code, plus 256 if it starts the word. "-" gives no token."""

  word_starts = np.arange(512) >= 256

  special_ids = SENTENCE_PIECE_IDS
  encode_batch_flat = Tokenizer.encode_batch_flat

  def encode_batch(self, texts: list[str]) -> list[list[int]]:
    return [self._encode(text) for text in texts]

  def _encode(self, text: str) -> list[int]:
    ids = []
    for word in text.replace("-", "").split():
      codes = [min(ord(character), 255) for character in word]
      ids += [codes[0] + 256, *codes[1:]]
    return ids


TOKENIZER = cast("Tokenizer", WordTokenizer())
# Offset in bytes and sentences of a document.
OffsetAndSentences = tuple[int, list[str]]


def read_documents(path: Path, unit_bytes: int = 1 << 20) -> list[OffsetAndSentences]:
  ranges = [text_range for unit in plan([path], unit_bytes) for text_range in unit.ranges]
  documents = [document for text_range in ranges for document in parse_documents(read_range(text_range, unit_bytes))]
  return [(document.offset, document.sentences) for document in documents]


def plan(paths: list[Path], unit_bytes: int, with_donors: bool = False) -> list[TextUnit]:
  return list(plan_units([str(path) for path in paths], with_donors=with_donors, unit_bytes=unit_bytes))


def write_file(path: Path, content: bytes) -> Path:
  path.write_bytes(content)
  return path


@pytest.mark.parametrize(
  ("content", "documents"),
  [
    (b"one\ntwo\n\nthree\n", [(0, ["one", "two"]), (9, ["three"])]),
    (b"one\r\ntwo\r\n\r\nthree", [(0, ["one", "two"]), (12, ["three"])]),
    (b"\xef\xbb\xbfone\n \t\n\xef\xbb\xbftwo", [(0, ["one"]), (10, ["two"])]),
    (b"\n\n\n  one  \n\n\n\n", [(3, ["one"])]),
    ("a\n\u00a0\u3000\nb\n".encode(), [(0, ["a"]), (8, ["b"])]),
    (b"\n \n", []),
  ],
)
def test_documents_have_the_expected_offsets_and_sentences(
  tmp_path: Path, content: bytes, documents: list[OffsetAndSentences]
) -> None:
  assert read_documents(write_file(tmp_path / "text.txt", content)) == documents


def parse_with_a_loop(text: bytes) -> list[OffsetAndSentences]:
  """Splits a text into documents, line by line. The reference for `read_documents`."""
  documents: list[OffsetAndSentences] = []
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
  line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_units_cut_no_short_document(tmp_path_factory: pytest.TempPathFactory, lines: list[str], line_end: str) -> None:
  """Documents shorter than a unit are never cut."""
  # A blank line after every three lines, so that no document is longer than a unit.
  lines_with_ends = [line + line_end * (2 if index % 3 == 2 else 1) for index, line in enumerate(lines)]
  text = "".join(lines_with_ends).encode()
  path = write_file(tmp_path_factory.mktemp("text") / "text.txt", text)
  assert read_documents(path, 128) == parse_with_a_loop(text)


def test_long_document_is_cut_at_lines_and_counted(tmp_path: Path) -> None:
  lines = [f"line {number:03d}" for number in range(40)]
  path = write_file(tmp_path / "text.txt", "\n".join(lines).encode())
  units = plan([path], UNIT_BYTES)
  assert len(units) == 6  # 40 lines of 9 bytes, without the last line end, in units of 64 bytes
  ranges = [read_range(unit.ranges[0], UNIT_BYTES) for unit in units]
  documents = [parse_documents(text_range) for text_range in ranges]
  assert [line for parsed in documents for document in parsed for line in document.sentences] == lines
  assert [text_range.is_cut for text_range in ranges] == [False, True, True, True, True, False]
  assert documents[5] == []  # the file ends soon after the nominal start of this unit: the unit before has the rest
  total = Counts()
  for text_range in ranges:
    _, counts = load_documents((text_range,), TOKENIZER, min_words=2, max_num_tokens=61)
    total += counts
  # A line has seven tokens: its letters and digits.
  assert total == Counts(documents=5, tokens=40 * 7, dropped=0, cut=4)


@pytest.mark.parametrize("text", ["ab cd " * 100, "é" * 300, "x" * 600])
def test_one_endless_line_is_cut_at_spaces_or_characters(tmp_path: Path, text: str) -> None:
  path = write_file(tmp_path / "text.txt", text.encode())
  units = plan([path], UNIT_BYTES)
  documents = [document for unit in units for document in parse_documents(read_range(unit.ranges[0], UNIT_BYTES))]
  sentences = [sentence for document in documents for sentence in document.sentences]
  assert len(sentences) > 5
  separator = " " if " " in text else ""
  assert separator.join(sentences) == text.strip()
  assert max(len(sentence.encode()) for sentence in sentences) <= 2 * UNIT_BYTES


def test_long_lines_become_sentences_of_bounded_length(tmp_path: Path) -> None:
  words = [f"w{number}" for number in range(9000)]
  path = write_file(tmp_path / "text.txt", " ".join(words).encode())
  ((_, sentences),) = read_documents(path)
  assert len(sentences) > 1
  assert max(map(len, sentences)) <= 20_000
  assert " ".join(sentences).split() == words


def test_short_files_share_a_unit(tmp_path: Path) -> None:
  rng = random.Random(0)
  paths = []
  for number, size in enumerate((30, 20, 200, 10, 70, 5)):
    content = "".join(rng.choice("ab \n") for _ in range(size)).encode() + b"\n\n"
    paths.append(write_file(tmp_path / f"{number}.txt", content))
  units = plan(paths, UNIT_BYTES)
  assert [text_range.ordinal for text_range in units[0].ranges] == [0, 1]
  assert sum(unit.progress_bytes for unit in units) == sum(path.stat().st_size for path in paths)


def test_donors_come_from_the_next_unit_and_for_the_last_unit_from_the_one_before(tmp_path: Path) -> None:
  """Donors are the documents from which random second segments are taken."""
  path = write_file(tmp_path / "text.txt", b"some words\n\n" * 16)  # 192 bytes
  units = plan([path], UNIT_BYTES, with_donors=True)
  assert [[text_range.start for text_range in unit.ranges] for unit in units] == [[0], [64], [128]]
  assert [unit.donors for unit in units] == [units[1].ranges, units[2].ranges, units[1].ranges]
  assert plan([path], 1 << 20, with_donors=True)[0].donors == ()


def test_load_documents_drops_documents_with_too_few_words(tmp_path: Path) -> None:
  """Tokens are the letters. Documents "alone" and "-" have one word and none. The second call needs only one word.

  The other documents are "ab c" with the sentence "d", and "ef gh": 4 tokens each.
  """
  path = write_file(tmp_path / "text.txt", b"ab c\n-\nd\n\nalone\n\n-\n\nef gh\n")
  text_range = TextRange(str(path), 3, 0, path.stat().st_size)  # the whole of file number 3
  documents, counts = load_documents((text_range,), TOKENIZER, min_words=2, max_num_tokens=61)
  assert counts == Counts(documents=4, tokens=13, dropped=2, cut=0)
  assert "".join(chr(token & 255) for token in documents.ids) == "abcdefgh"
  assert documents.word_starts.tolist() == [True, False, True, True, True, False, True, False]
  assert documents.sentence_ends.tolist() == [3, 4, 8]
  assert documents.splits.tolist() == [0, 4, 8]
  assert documents.file_ordinals.tolist() == [3, 3]
  assert documents.offsets.tolist() == [0, 20]
  with_alone, _ = load_documents((text_range,), TOKENIZER, min_words=1, max_num_tokens=61)
  assert with_alone.splits.tolist() == [0, 4, 9, 13]
  concatenated = concatenate_documents(documents, with_alone)
  assert concatenated.splits.tolist() == [0, 4, 8, 12, 17, 21]
  assert concatenated.sentence_ends.tolist() == [3, 4, 8, 11, 12, 17, 21]
