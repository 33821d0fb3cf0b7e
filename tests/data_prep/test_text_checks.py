"""Files that are not plain text are refused with their format and a remedy, by all code that reads text."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from albert.errors import UserError
from data_prep import text_checks
from data_prep.create_pretraining_data import prepare
from data_prep.documents import TextDocument, parse_documents
from data_prep.examples.settings import PreparationSettings
from data_prep.readers import formats
from data_prep.readers.records import ReadingSettings
from data_prep.train_vocab import read_lines
from data_prep.units import plan_units, read_range
from tests.conftest import english_like_documents
from tests.data_prep.readers.forms import as_text
from tests.data_prep.runners.jobs import make_job

PROSE = b"The captain sold the river.\nNobody watched the teacher.\n\nThe train was late.\n" * 20


def _zip() -> bytes:
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as archive:
    archive.writestr("a.txt", PROSE)
  return file.getvalue()


def _tar(content: bytes) -> bytes:
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode="w") as archive:
    entry = tarfile.TarInfo("a.txt")
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
  return file.getvalue()


def _json_lines(**record: object) -> bytes:
  """Returns 30 JSON objects with these members and a number, one on each line."""
  return "\n".join(json.dumps({**record, "n": number}) for number in range(30)).encode()


LONG_PROSE = PROSE.decode() * 100  # longer than the part of a file that is checked
# Kind of file -> (its content, pattern of the error).
BINARY_FILES = {
  "gzip": (gzip.compress(PROSE), r"GZIP data.*give it a name that ends in \.gz"),
  "bzip2": (bz2.compress(PROSE), "bzip2 data.*bunzip2"),
  "empty bzip2": (bz2.compress(b""), "bzip2 data.*bunzip2"),
  "xz": (lzma.compress(PROSE), "xz data.*unxz"),
  "zstd": (b"\x28\xb5\x2f\xfd\x24\x05)\x00\x00hello", "Zstandard data.*unzstd"),
  "zip": (_zip(), "a ZIP archive.*unzip"),
  "tar": (_tar(PROSE * 1000), "binary data, such as an archive, not plain text: extract its text"),
  "parquet": (b"PAR1\x15\x04\x15\x10\x15\x14", "a Parquet file.*column of text"),
  "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF file.*pdftotext"),
  "utf-16": (PROSE.decode().encode("utf-16"), "UTF-16 text.*iconv -f UTF-16"),
  "utf-16 without mark": (PROSE.decode().encode("utf-16-le"), "are NUL.*iconv -f UTF-16LE"),
}
# The same for files that hold text, but not plain text.
TEXT_FILES = {
  "JSON lines": (_json_lines(text="A story."), r"line 1, begins with '{\"text\": .*--text_format=jsonl.*--text_field"),
  "JSON lines of great length": (_json_lines(id="7", text=LONG_PROSE), "JSON, not plain text"),
  "a JSON array": (json.dumps([{"main text": "A story."}] * 9).encode(), r"jq -c '\.\[\]'.* > text\.jsonl$"),
  "a JSON array on many lines": (
    b"[\n" + _json_lines(text="x").replace(b"\n", b",\n") + b"\n]",
    "JSON, not plain text",
  ),
  "nested JSON": (b'{"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "JSON, not plain text"),
  "indented JSON": (json.dumps({"text": LONG_PROSE}, indent=2).encode(), "JSON, not plain text"),
  "JSON after blank lines": (b"\n \n" + _json_lines(text="x"), r"line 3, begins with '{"),
  "wikiextractor": (
    b'<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">\nAnarchism\n\nA movement.\n</doc>\n',
    r"line 1, begins with '<doc id.*wikiextractor.*sed -E 's\|\^</\?doc\.\*\|\|'",
  ),
  "Wikipedia": (b'<mediawiki xmlns="http://www.mediawiki.org/">\n  <siteinfo>\n', "XML or HTML.*wikiextractor"),
  "XML": (b'\xef\xbb\xbf<?xml version="1.0"?>\n<TEI>\n', "XML or HTML"),
  "HTML": (b"<!DOCTYPE html>\n<html>\n", "XML or HTML"),
  "CR": (PROSE.replace(b"\n", b"\r"), r"lines end with CR only.*tr '\\r' '\\n'"),
  "CR and one LF": (PROSE.replace(b"\n", b"\r") + b"\n", "lines end with CR only"),
}


def parse_file(path: Path) -> list[TextDocument]:
  """Returns the documents of a file, as data preparation reads them. A GZIP file is only checked."""
  if path.name.endswith(".gz"):
    formats.check_inputs([str(path)], ReadingSettings())
    return []
  ranges = [text_range for unit in plan_units([str(path)], with_donors=False) for text_range in unit.ranges]
  return [document for text_range in ranges for document in parse_documents(read_range(text_range))]


def get_error_of_readers(path: Path, content: bytes = b"") -> str:
  """Returns the error of vocabulary training and of data preparation for a file. Both must give the same one."""
  if content:  # gzip data is compressed once more for a name that ends in .gz, and is still recognized
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
  with pytest.raises(UserError) as vocabulary_error:
    list(read_lines([str(path)]))
  with pytest.raises(UserError) as preparation_error:
    parse_file(path)
  assert str(vocabulary_error.value) == str(preparation_error.value)
  assert str(vocabulary_error.value).startswith(str(path))
  return str(vocabulary_error.value)


@pytest.mark.parametrize("file_name", ["text.txt", "text.txt.gz"])
@pytest.mark.parametrize("kind", BINARY_FILES)
def test_binary_files_with_the_name_of_a_text_file_are_refused(tmp_path: Path, kind: str, file_name: str) -> None:
  content, message = BINARY_FILES[kind]
  error = get_error_of_readers(tmp_path / file_name, content)
  assert re.search(message, error)
  assert not re.search("UTF-8|iconv", error) or kind.startswith("utf-16")


@pytest.mark.parametrize("file_name", ["text.txt", "text.txt.gz"])
@pytest.mark.parametrize("kind", TEXT_FILES)
def test_text_in_other_formats_is_refused(tmp_path: Path, kind: str, file_name: str) -> None:
  content, message = TEXT_FILES[kind]
  error = get_error_of_readers(tmp_path / file_name, content)
  assert re.search(message, error), error
  if "example" in error:  # a command line that converts the file
    assert error.endswith("> text.txt")
    assert ("zcat" in error) == file_name.endswith(".gz")


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (PROSE, r"not GZIP data, though its name ends in \.gz: rename it without \.gz"),
    (bz2.compress(PROSE), "bzip2 data"),
  ],
)
def test_a_file_with_the_suffix_gz_that_is_not_gzip_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
  path = tmp_path / "text.txt.gz"
  path.write_bytes(content)
  assert re.search(message, get_error_of_readers(path))


@pytest.mark.parametrize(
  "text",
  [
    '{"word": 7} is how Python writes a dictionary.\nThe next sentence.',
    '{"the only word": in a brace}\nThe next sentence.',
    "{He} said so.",
    '["A quotation," he said] and so on.',
    '[{"a": 1}] stands for a list.\nThe next sentence.',
    "<doc> is a word here.",
    "<documents> are what he wrote.",
    "<html is a word.",
    "A line.\nAnother line.\n" + json.dumps({"text": "quoted"}) + "\nA line.",
    "PAR1 was the name of the ship.",
    "PK was his name.",
    "BZh9 and so on.",
    "Lines of Windows.\r\nAnother.\r\n\r\nOne more.\r\n",
    "Lines that a tool has damaged.\r\r\nAnother.\r\r\nOne more.\r\r\n",
    "A stray \r within a sentence.\nAnother sentence.\nOne more.\n",
    "A line by itself that ends in CR.\r",
    "A NUL \0 within a sentence that is as long as this one is.",
    "\ufeffA mark of byte order in front.\n",
    "\n" * 70_000 + "A sentence after many blank lines.",
  ],
)
def test_plain_text_that_resembles_another_format_is_accepted(tmp_path: Path, text: str) -> None:
  path = tmp_path / "text.txt"
  path.write_bytes(text.encode())
  words = text.replace("\ufeff", "").split()
  assert " ".join(read_lines([str(path)])).split() == words
  sentences = [sentence for document in parse_file(path) for sentence in document.sentences]
  assert " ".join(sentences).split() == words


@pytest.mark.parametrize("file_name", ["b.txt", "b.txt.gz"])
def test_a_bad_last_file_is_reported_before_the_first_is_read(
  tmp_path: Path, spm_model: str, file_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  json_lines = _json_lines(text="A story.")
  (tmp_path / "a.txt").write_bytes(PROSE)
  (tmp_path / file_name).write_bytes(gzip.compress(json_lines) if file_name.endswith(".gz") else json_lines)
  monkeypatch.setattr("data_prep.prepare.Workers", None)  # to start a process would fail
  with pytest.raises(UserError, match=f"{file_name}, line 1.*JSON"):
    prepare(make_job([str(tmp_path / "a.txt"), str(tmp_path / file_name)], spm_model, tmp_path / "out"))
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file_name", ["a.txt", "a.txt.gz"])
def test_unknown_characters_give_a_warning_at_the_start(
  tmp_path: Path, spm_model: str, file_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
  chinese = "船长卖掉了那条河。没有人看老师。火车晚点了。\n".encode() * 9
  path = tmp_path / file_name
  settings = PreparationSettings(max_seq_length=32, dupe_factor=1)
  for folder, text, num_warnings in (("english", PROSE, 0), ("chinese", PROSE[:80] + chinese, 1)):
    path.write_bytes(gzip.compress(text) if file_name.endswith(".gz") else text)
    manifest = prepare(make_job(str(path), spm_model, tmp_path / folder, settings=settings, num_shards=1))
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(warnings) == num_warnings
    if warnings:
      # The text is short, so the sample is the whole text.
      assert f"a sample of the text: {manifest.unknown_share:.1%} of the tokens are <unk>" in warnings[0]
      character = r"'.' \(U\+[0-9A-F]{4}\)"
      assert re.search(f"not in the vocabulary, such as {character}(, {character}){{4}}: train a vocab", warnings[0])
      assert "'了' (U+4E86)" in warnings[0]  # the most frequent one


# ---- lines that are not sentences, or blank lines that do not end documents -------------------------------

WRAPPED_LINES = """The captain sold the river, because
nobody had watched the teacher. The train
was late, and so was the painter.
""".splitlines()


def test_good_text_gives_no_warning() -> None:
  lines = as_text(english_like_documents(50, seed=1)).splitlines()
  assert text_checks.layout_warnings([lines, lines]) == []
  assert text_checks.layout_warnings([[line.lower() for line in lines]]) == []
  assert text_checks.layout_warnings([["漢字。"] * 9 + [""]] * 9) == []
  assert text_checks.layout_warnings([]) == []


def test_a_blank_line_after_each_paragraph_gives_a_warning() -> None:
  lines = as_text([["A paragraph. It has some sentences."]] * 30).splitlines()
  (warning,) = text_checks.layout_warnings([lines])
  assert warning.startswith("warning: documents have 1.0 sentences on average (a sample of the text)")
  assert warning.endswith("give --document=file; if each line is a paragraph, give --sentences=split")


def test_wrapped_lines_give_a_warning() -> None:
  (warning,) = text_checks.layout_warnings([[*WRAPPED_LINES, ""] * 30])
  # Two of three lines begin with a lower-case letter.
  assert warning.startswith("warning: 67% of the lines begin with a lower-case letter")
  assert "--document=file, or --sentences=split --paragraph=blank_line" in warning


def test_the_warning_is_printed_and_the_remedy_works(
  tmp_path: Path, spm_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
  text_file = tmp_path / "novel.txt"
  text_file.write_text("\n".join([*WRAPPED_LINES, ""] * 30))
  settings = PreparationSettings(max_seq_length=32, dupe_factor=1)
  manifest = prepare(make_job(str(text_file), spm_model, tmp_path / "wrong", settings=settings))
  assert manifest.num_documents == 30
  assert "warning: 67% of the lines" in capsys.readouterr().err
  reading = ReadingSettings(document="file")
  manifest = prepare(make_job(str(text_file), spm_model, tmp_path / "right", settings=settings, reading=reading))
  assert manifest.num_documents == 1
  assert manifest.reading is not None
  assert manifest.reading["sentences"] == 60  # two in each of the 30 copies of WRAPPED_LINES
  assert "warning" not in capsys.readouterr().err
