"""Damaged input is an error that names the file and the line, or it is left out, counted and listed."""

from __future__ import annotations

import bz2
import gzip
import re
import struct
import sys
from pathlib import Path

import pytest

from albert.errors import UserError
from data_prep import sentences
from data_prep.conversion import report
from data_prep.create_pretraining_data import prepare
from data_prep.readers import formats
from data_prep.readers.records import ReadingSettings
from data_prep.split_text import split_files
from data_prep.train_vocab import read_lines
from tests.data_prep.runners.jobs import make_job

GOOD_LINE = b'{"text": "A good line. Another one."}\n'
# Bad line of JSON lines -> pattern of its error.
BAD_LINES = {
  b'{"text": "not closed\n': r"line 3: not a JSON object with a text 'text' \(.*malformed.*correct or remove the line",
  b'["text"]\n': "line 3: not a JSON object",
  b'{"body": "x"}\n': r"line 3: no field 'text' \(its fields: body\): give --text_field",
  b"{}\n": r"line 3: no field 'text' \(its fields: none\)",
  b'{"text": 7}\n': "line 3: not a JSON object with a text 'text' .*Expected",
  b'{"text": "\xff"}\n': "line 3: not UTF-8 text .byte 0xff.*iconv",
  b'{"text": "\\ud800"}\n': "line 3: not a JSON object with a text",
  b'{"text": "a"} {"text": "b"}\n': "line 3: not a JSON object with a text",
  b'{"text": ' + b"[" * 100_000 + b"\n": "line 3: not a JSON object with a text",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: repr(line[:12]))
def test_a_bad_line_of_json_lines_is_an_error_or_skipped(tmp_path: Path, line: bytes) -> None:
  path = tmp_path / "a.jsonl"
  path.write_bytes(GOOD_LINE + b"\n" + line + GOOD_LINE)

  def convert(settings: ReadingSettings) -> object:
    return split_files([str(path)], settings, str(tmp_path / "out"))

  def read_for_vocabulary(settings: ReadingSettings) -> object:
    return list(read_lines([str(path)], settings))

  for read in (convert, read_for_vocabulary):
    with pytest.raises(UserError, match=BAD_LINES[line]) as caught:
      read(ReadingSettings())
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: ")
    assert "\n" not in message
    assert message.endswith("(or leave such records out with --skip_bad_records)")
    read(ReadingSettings(skip_bad_records=1))
  converted = split_files([str(path)], ReadingSettings(skip_bad_records=1), str(tmp_path / "out"))
  assert converted.report.documents == 2
  ((reason, dropped),) = converted.report.dropped.items()
  assert (reason, dropped.documents) == (report.BAD_RECORD, 1)
  assert re.search(BAD_LINES[line], dropped.examples[0])


class _Panic(BaseException):
  """Like the exception for a failure of Rust code: it is no Exception."""


def test_text_that_a_library_fails_at_is_an_error_or_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  segment = sentences.sentencex.segment

  def fail_at_odd_text(language: str, text: str) -> list[str]:
    if "odd" in text:
      raise _Panic("byte index 3 is not a char boundary")
    return segment(language, text)

  monkeypatch.setattr(sentences.sentencex, "segment", fail_at_odd_text)
  path = tmp_path / "a.jsonl"
  path.write_bytes(GOOD_LINE + b'{"text": "An odd line. Another."}\n' + GOOD_LINE)
  pattern = r"a\.jsonl, line 2: the text .*'An odd line.*cannot be split into sentences \(sentencex: byte index 3"
  with pytest.raises(UserError, match=pattern):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))
  with pytest.raises(UserError, match=pattern):
    list(read_lines([str(path)], ReadingSettings()))
  settings = ReadingSettings(skip_bad_records=1)
  assert len(list(read_lines([str(path)], settings))) == 4
  converted = split_files([str(path)], settings, str(tmp_path / "out"))
  assert (converted.report.documents, converted.report.num_bad) == (2, 1)


def test_lines_are_numbered_in_later_parts_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr("data_prep.conversion.convert.PART_BYTES", 1000)
  path = tmp_path / "a.jsonl"
  path.write_bytes(GOOD_LINE * 200 + b"bad\n" + GOOD_LINE * 200)
  with pytest.raises(UserError, match=f"{path}, line 201: not a JSON object"):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))


def test_the_limit_of_bad_records_holds_for_all_files_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """Four files have one bad record each. A later command with a greater limit succeeds."""
  paths = [tmp_path / f"{number}.jsonl" for number in range(4)]
  for path in paths:
    path.write_bytes(GOOD_LINE + b"bad\n" + GOOD_LINE)
  inputs = list(map(str, paths))
  monkeypatch.setattr("data_prep.conversion.convert.PART_BYTES", 60)
  with pytest.raises(UserError, match=r"line 2: not a JSON.*\(one bad record more than --skip_bad_records=3\)"):
    split_files(inputs, ReadingSettings(skip_bad_records=3), str(tmp_path / "out"))
  converted = split_files(inputs, ReadingSettings(skip_bad_records=4), str(tmp_path / "out"))
  assert converted.report.documents == 8
  assert [example.split(": ")[0] for example in converted.report.dropped[report.BAD_RECORD].examples] == [
    f"{path}, line 2" for path in paths
  ]


@pytest.mark.parametrize("document", ["file", "blank_line"])
def test_text_that_is_not_utf8_is_an_error_or_its_document_is_skipped(tmp_path: Path, document: str) -> None:
  (tmp_path / "a.txt").write_bytes(b"Good one. And two.\n\nA bad \xff line.\nMore.\n\nThe end. Really.\n")
  (tmp_path / "b.txt").write_bytes(b"Another file. With text.\n")
  inputs = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
  settings = ReadingSettings(document=document, sentences="split")
  with pytest.raises(UserError, match=r"a\.txt, line 3: not UTF-8 text \(byte 0xff.*with iconv"):
    split_files(inputs, settings, str(tmp_path / "out"))
  settings = ReadingSettings(document=document, sentences="split", skip_bad_records=1)
  converted = split_files(inputs, settings, str(tmp_path / "out"))
  text = "".join(Path(path).read_text() for path in converted.paths)
  other_documents_of_a = "" if document == "file" else "Good one.\nAnd two.\n\nThe end.\nReally.\n\n"
  assert text == other_documents_of_a + "Another file.\nWith text.\n\n"
  assert converted.report.num_bad == 1


def test_articles_of_wikiextractor_without_an_end_are_errors_or_skipped(tmp_path: Path) -> None:
  """The first article ends where the second one begins, and the third one at the end of the file."""
  path = tmp_path / "wiki_00"
  path.write_text(
    '<doc id="1" title="A">\nLost.\n<doc id="2" title="B">\nKept.\n</doc>\n<doc id="3" title="C">\nLost, too.\n'
  )
  pattern = f"{path}, line %d: the article does not end with </doc>"
  with pytest.raises(UserError, match=pattern % 1):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))
  with pytest.raises(UserError, match=pattern % 6):
    split_files([str(path)], ReadingSettings(skip_bad_records=1), str(tmp_path / "out"))
  converted = split_files([str(path)], ReadingSettings(skip_bad_records=2), str(tmp_path / "out"))
  assert "".join(Path(path).read_text() for path in converted.paths) == "Kept.\n\n"
  assert converted.report.num_bad == 2


def test_the_field_of_json_lines_of_wikiextractor_can_be_given(tmp_path: Path) -> None:
  path = tmp_path / "wiki_00"
  path.write_text('{"title": "A", "body": "A\\nOne. Two."}\n')
  with pytest.raises(UserError, match=r"line 1: no field 'text' \(its fields: title, body\): give --text_field"):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))
  converted = split_files([str(path)], ReadingSettings(text_field="body"), str(tmp_path / "out"))
  assert Path(converted.paths[0]).read_text() == "One.\nTwo.\n\n"


@pytest.mark.parametrize(
  ("file_name", "format_name"), [("a.txt.bz2", "bzip2"), ("a.jsonl.gz", "GZIP"), ("a.jsonl.zst", "Zst")]
)
def test_an_incomplete_compressed_file_is_an_error(tmp_path: Path, file_name: str, format_name: str) -> None:
  if file_name.endswith(".zst"):
    compress = pytest.importorskip("zstandard").compress
  else:
    compress = bz2.compress if file_name.endswith(".bz2") else gzip.compress
  path = tmp_path / file_name
  lines = [GOOD_LINE.replace(b"good", str(number).encode()) for number in range(9000)]
  path.write_bytes(compress(b"".join(lines))[:-20])
  with pytest.raises(UserError, match=f"{file_name}: the {format_name}.* file is damaged or incomplete"):
    split_files([str(path)], ReadingSettings(sentences="split", skip_bad_records=9), str(tmp_path / "out"))


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  path = tmp_path / "a.jsonl"
  path.write_bytes(GOOD_LINE)
  reader = formats.READERS["jsonl"]

  def read_and_change(piece: object, settings: object) -> object:
    yield from reader.read(piece, settings)  # type: ignore[arg-type]
    path.write_bytes(GOOD_LINE.replace(b"good", b"fine"))

  monkeypatch.setitem(formats.READERS, "jsonl", reader._replace(read=read_and_change))  # type: ignore[arg-type]
  with pytest.raises(UserError, match=r"a\.jsonl changed while it was being read"):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))


@pytest.mark.parametrize(
  ("file_name", "content", "message"),
  [
    ("a.json", b'[{"text": "a"}]', "a JSON array, not JSON lines: .*jq -c"),
    (
      "a.jsonl",
      b"A sentence.",
      "begins with 'A sentence.', not with a JSON object: correct the file, or give --text_format",
    ),
    ("a.jsonl", gzip.compress(GOOD_LINE), "GZIP data"),
    ("a.txt.bz2", b"A sentence.", r"bzip2 file is damaged or incomplete"),
  ],
  # GZIP data holds the time, so the content cannot be part of the test's name.
  ids=["array", "text as jsonl", "gzip as jsonl", "text as bz2"],
)
def test_a_file_whose_name_has_the_wrong_suffix_is_an_error(
  tmp_path: Path, spm_model: str, file_name: str, content: bytes, message: str
) -> None:
  path = tmp_path / file_name
  path.write_bytes(content)
  with pytest.raises(UserError, match=message):
    prepare(make_job(str(path), spm_model, tmp_path / "out"))
  assert not (tmp_path / "out").exists()


def test_a_missing_library_is_an_error_that_says_how_to_install_it(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  for module, file_name in (
    ("zstandard", "a.txt.zst"),
    ("pyarrow", "a.parquet"),
    ("pyarrow", "a.arrow"),
    ("mwparserfromhell", "a.xml"),
  ):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / file_name).write_bytes(b"x")
    with pytest.raises(UserError, match=rf"{file_name}: reading .* needs {module} \(.*\): pip install '{module}>="):
      formats.check_inputs([str(tmp_path / file_name)], ReadingSettings())


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize(
  ("columns", "message"),
  [
    ({"text": [["One.", "Two."], None]}, r"the column 'text' is not text, but list<.*>: give --text_field"),
    ({"text": [{"value": "One.", "lang": "en"}]}, r"is not text, but struct<.*value: string.*>: give --text_field"),
    ({"text": [1, 2]}, "is not text, but int64: give --text_field"),
    ({"text": ["One."], "text ": ["Two."]}, "2 columns are called 'text': rename all but one"),
    ({"body": ["One."]}, r"no column 'text' \(its columns: 'body'\): give --text_field"),
  ],
  ids=["list", "struct", "numbers", "doubled", "missing"],
)
def test_a_table_without_one_column_of_text_is_an_error(
  tmp_path: Path, ending: str, columns: dict[str, list[object]], message: str
) -> None:
  pyarrow = pytest.importorskip("pyarrow")
  from pyarrow import parquet

  table = pyarrow.table(columns).rename_columns([name.strip() for name in columns])
  path = tmp_path / f"a.{ending}"
  if ending == "parquet":
    parquet.write_table(table, path)
  else:
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
      writer.write_table(table)
  with pytest.raises(UserError, match=message):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))


def test_a_row_that_is_not_utf8_is_an_error_or_skipped(tmp_path: Path) -> None:
  pyarrow = pytest.importorskip("pyarrow")
  from pyarrow import parquet

  column = pyarrow.array([b"One.", b"A bad \xff row.", b"Three."]).view(pyarrow.string())
  path = tmp_path / "a.parquet"
  parquet.write_table(pyarrow.table({"text": column}), path)
  with pytest.raises(UserError, match=r"a\.parquet, row 2: not UTF-8 text \(invalid start byte\)"):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))
  converted = split_files([str(path)], ReadingSettings(skip_bad_records=1), str(tmp_path / "out"))
  assert (converted.report.documents, converted.report.num_bad) == (2, 1)


@pytest.mark.parametrize("encoding", ["text", "dictionary"])
def test_damaged_offsets_of_an_arrow_file_are_an_error(tmp_path: Path, encoding: str) -> None:
  """Without a check, pyarrow ends the process, or raises an error in the middle of the file."""
  pyarrow = pytest.importorskip("pyarrow")
  column = pyarrow.array(["One.", "Two more.", "One."])
  offsets = struct.pack("<4i", 0, 4, 13, 17)
  damaged_offsets = struct.pack("<4i", 0, 4, 2**31 - 1, 17)
  if encoding == "dictionary":
    column = column.dictionary_encode()
    offsets, damaged_offsets = struct.pack("<3i", 0, 1, 0), struct.pack("<3i", 0, 700, 0)
  path = tmp_path / "a.arrow"
  table = pyarrow.table({"text": column})
  with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
    writer.write_table(table)
  content = path.read_bytes()
  assert content.count(offsets) == 1
  path.write_bytes(content.replace(offsets, damaged_offsets))
  with pytest.raises(UserError, match=r"a\.arrow: cannot be read \(.*\): write the file again, or leave it out"):
    split_files([str(path)], ReadingSettings(skip_bad_records=9), str(tmp_path / "out"))


def test_the_files_of_a_directory_are_found(tmp_path: Path) -> None:
  (tmp_path / "a" / "b").mkdir(parents=True)
  for name in ("a/1.txt", "a/b/2.jsonl", "a/.hidden", "a/reading.json"):
    (tmp_path / name).write_text("x")
  assert formats.find_inputs(f"{tmp_path}/a") == [f"{tmp_path}/a/1.txt", f"{tmp_path}/a/b/2.jsonl"]
  assert formats.find_inputs(f"{tmp_path}/a/*.txt") == [f"{tmp_path}/a/1.txt"]
  (tmp_path / "a" / "1.txt").rename(tmp_path / "a" / "1,[2].txt")
  assert formats.find_inputs(f"{tmp_path}/a") == [f"{tmp_path}/a/1,[2].txt", f"{tmp_path}/a/b/2.jsonl"]
  (tmp_path / "a" / "dataset_dict.json").write_text("{}")
  with pytest.raises(UserError, match="holds several splits of a dataset"):
    formats.find_inputs(f"{tmp_path}/a")
  (tmp_path / "empty").mkdir()
  with pytest.raises(UserError, match="empty has no files"):
    formats.find_inputs(f"{tmp_path}/empty")


def test_warnings_name_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  (tmp_path / "a.jsonl").write_bytes(GOOD_LINE + b'{"text": null}\n' * 9)
  converted = split_files([str(tmp_path / "a.jsonl")], ReadingSettings(), str(tmp_path / "out"))
  few_sentences, much_dropped = report.warnings(converted.report, "REMEDY")
  assert "2.0 sentences on average" in few_sentences
  assert few_sentences.endswith("REMEDY")
  assert "most of the text is left out (9 no text): look at the examples" in much_dropped
  # One good line has 24 characters. Nine lines have no text.
  assert report.format_table(converted.report).splitlines() == [
    "text               documents  sentences  characters",
    "kept                       1          2          24",
    "left out: no text          9                      0",
    f"no text, for example {tmp_path}/a.jsonl, line 2",
  ]
  assert not report.warnings(report.ReadingReport(documents=3, sentences=30), "REMEDY")


def test_a_long_file_without_blank_lines_is_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """The file is longer than the longest paragraph, so it is read in pieces."""
  monkeypatch.setattr("data_prep.readers.records._MAX_PARAGRAPH_CHARS", 100)
  sentences = [f"Sentence number {number} is here." for number in range(99)]
  (tmp_path / "a.txt").write_text("\n".join(sentences))
  converted = split_files([str(tmp_path / "a.txt")], ReadingSettings(document="file"), str(tmp_path / "out"))
  assert Path(converted.paths[0]).read_text() == "\n".join(sentences) + "\n\n"
