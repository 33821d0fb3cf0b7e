"""--drop_duplicates leaves out exact copies of documents, with bounded memory, for any number of processes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from data_prep.conversion import convert, duplicates
from data_prep.conversion.duplicates import find_duplicates, save_hashes
from data_prep.create_pretraining_data import prepare
from data_prep.readers.records import ReadingSettings
from data_prep.split_text import split_files
from tests.data_prep.readers.forms import DOCUMENTS, as_text
from tests.data_prep.runners.jobs import contents, make_job

DROP_DUPLICATES = ReadingSettings(drop_duplicates=True)
DROP_DUPLICATE_LINES = ReadingSettings(drop_duplicates=True, sentences="lines")  # with a sentence on each line


def without_duplicates(documents: list[list[str]]) -> list[list[str]]:
  return [list(lines) for lines in dict.fromkeys(map(tuple, documents))]


@pytest.fixture
def documents() -> list[list[str]]:
  """DOCUMENTS, copies of some of them, and documents that differ from one of them in the last character."""
  rng = random.Random(5)
  copies = rng.choices(DOCUMENTS[:20], k=30)
  copies_with_spaces = [[f"{line} " for line in lines] for lines in DOCUMENTS[:3]]  # equal when lines are stripped
  similar = [[*lines[:-1], lines[-1].replace(".", "!")] for lines in DOCUMENTS[:5]]
  shuffled = [*DOCUMENTS, *copies, *copies_with_spaces, *similar]
  rng.shuffle(shuffled)
  return shuffled


@pytest.fixture
def two_files(tmp_path: Path, documents: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
  """The paths of a text file and a JSON lines file with half of the documents each. Each file has several parts."""
  monkeypatch.setattr(convert, "PART_BYTES", 3000)
  middle = len(documents) // 2
  (tmp_path / "a.txt").write_text(as_text(documents[:middle]))
  json_lines = [json.dumps({"text": "\n".join(document)}) for document in documents[middle:]]
  (tmp_path / "b.jsonl").write_text("\n".join(json_lines))
  return [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]


@pytest.mark.parametrize("step_bytes", [pytest.param(32 << 20, marks=pytest.mark.thorough), 500])
def test_split_text_keeps_the_first_copy_of_each_document(
  tmp_path: Path, documents: list[list[str]], two_files: list[str], monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
  """At most `step_bytes` of hashes are sorted in memory at a time, so with 500 there are several steps."""
  monkeypatch.setattr(duplicates, "_STEP_BYTES", step_bytes)
  converted = split_files(two_files, DROP_DUPLICATE_LINES, str(tmp_path / "out"))
  stripped = [[line.strip() for line in document] for document in documents]
  expected = without_duplicates(stripped)
  assert "".join(Path(path).read_text() for path in converted.paths) == as_text(expected)
  assert len(expected) < len(documents) - 30  # 30 copies, and those with spaces
  report = converted.report
  assert report.documents == len(expected)
  assert report.sentences == sum(map(len, expected))
  assert report.characters == sum(len(line) for document in expected for line in document)
  assert report.dropped["duplicate"].documents == len(documents) - len(expected)
  assert len(report.dropped["duplicate"].examples) == 3
  names = {path.name for path in (tmp_path / "out").iterdir() if not path.name.endswith(".json")}
  assert names - {".lock"} == {Path(path).name for path in converted.paths}  # no file of hashes is left


def test_shards_equal_those_of_the_text_without_duplicates(
  tmp_path: Path, documents: list[list[str]], spm_model: str
) -> None:
  documents = [[line.strip() for line in document] for document in documents]
  (tmp_path / "a.txt").write_text(as_text(documents))
  (tmp_path / "b.txt").write_text(as_text(without_duplicates(documents)))
  manifest = prepare(make_job(str(tmp_path / "a.txt"), spm_model, tmp_path / "a", reading=DROP_DUPLICATES))
  prepare(make_job(str(tmp_path / "b.txt"), spm_model, tmp_path / "b"))
  output, expected = contents(tmp_path / "a"), contents(tmp_path / "b")
  assert output.keys() == expected.keys()
  assert all(output[name] == expected[name] for name in output if name != "manifest.json")
  assert manifest.reading is not None
  assert manifest.reading["dropped"]["duplicate"]["documents"] == len(documents) - manifest.num_documents
  assert manifest.settings["reading"]["drop_duplicates"]


def test_documents_with_equal_first_64_bits_of_their_hashes_are_kept(tmp_path: Path) -> None:
  """Hashes have 128 bits.

  Document 2 of part 0 is a copy of the part's document 0. Document 0 of part 1 is a copy of document 1 of part 0.
  """
  a_b, a_c = b"A" * 8 + b"B" * 8, b"A" * 8 + b"C" * 8
  for part, digests in enumerate([[a_b, a_c, a_b, b"D" * 16], [a_c, b"E" * 16], []]):
    save_hashes(str(tmp_path / str(part)), part, digests)
  assert find_duplicates([str(tmp_path / str(part)) for part in range(3)]) == {0: [2], 1: [0]}
  assert find_duplicates([str(tmp_path / "2")]) == {}
