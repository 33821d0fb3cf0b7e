"""The same documents in every form that data preparation reads, for the tests of readers, conversion and runners."""

from __future__ import annotations

import bz2
import gzip
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from data_prep.readers.records import ReadingSettings
from tests.conftest import english_like_documents
from tests.data_prep.readers import wikipedia_dump

# 80 documents. Each sentence ends with a full stop, so that joined sentences can be split again.
DOCUMENTS = [
  [f"{line.rstrip('.?!;')}." for line in document]
  for document in english_like_documents(40, seed=3) + english_like_documents(40, seed=4)
]


def as_text(documents: list[list[str]]) -> str:
  """Formats documents with a sentence on each line and a blank line after each document."""
  return "".join("\n".join(document) + "\n\n" for document in documents)


class Form(NamedTuple):
  """A form of text. `module` is the library that is needed to read its files; "" if none."""

  write: Callable[[list[list[str]], Path], list[Path]]
  settings: ReadingSettings = ReadingSettings()
  module: str = ""


def _one_file(name: str, encode: Callable[[list[list[str]]], bytes]) -> Callable[[list[list[str]], Path], list[Path]]:
  """Returns a function that writes all documents to one file, as `encode` encodes them."""

  def write(documents: list[list[str]], folder: Path) -> list[Path]:
    (folder / name).write_bytes(encode(documents))
    return [folder / name]

  return write


def json_lines(documents: list[list[str]], sentence_separator: str = "\n") -> bytes:
  """Encodes each document as a JSON object on one line. In every other line, non-ASCII characters are escaped."""
  lines = [
    json.dumps({"id": number, "text": sentence_separator.join(document)}, ensure_ascii=number % 2 == 0) + "\n"
    for number, document in enumerate(documents)
  ]
  return "".join(lines).encode()


def zstandard_bytes(content: bytes) -> bytes:
  """Compresses bytes to two frames, as pzstd does."""
  zstandard = pytest.importorskip("zstandard")
  middle = len(content) // 2
  return zstandard.compress(content[:middle]) + zstandard.compress(content[middle:])


def _file_per_document(documents: list[list[str]], folder: Path) -> list[Path]:
  """Writes each document to a file of up to two paragraphs, whose first words are on lines of their own."""
  paths = []
  for number, document in enumerate(documents):
    middle = len(document) // 2
    paragraphs = [sentences for sentences in (document[:middle], document[middle:]) if sentences]
    wrapped_paragraphs = [" ".join(sentences).replace(" ", "\n", 3) for sentences in paragraphs]
    path = folder / f"{number:04d}.txt"
    path.write_text("\n\n".join(wrapped_paragraphs) + "\n", encoding="utf-8")
    paths.append(path)
  return paths


def _parquet(documents: list[list[str]], folder: Path) -> list[Path]:
  """Writes two files: the first has one row group, the second row groups of 7 documents. The column id is not read."""
  pyarrow = pytest.importorskip("pyarrow")
  from pyarrow import parquet

  paths = [folder / "0.parquet", folder / "1.parquet"]
  split = len(documents) // 3
  for path, file_documents, row_group_size in (
    (paths[0], documents[:split], 1000),
    (paths[1], documents[split:], 7),
  ):
    columns = {
      "id": list(range(len(file_documents))),
      "content": ["\n".join(document) for document in file_documents],
    }
    parquet.write_table(pyarrow.table(columns), path, row_group_size=row_group_size)
  return paths


def _dataset(documents: list[list[str]], folder: Path) -> list[Path]:
  """Writes the files that datasets.Dataset.save_to_disk writes: Arrow streams of record batches, and two JSON files."""
  pyarrow = pytest.importorskip("pyarrow")
  paths = [folder / f"data-{number:05d}-of-00002.arrow" for number in range(2)]
  split = len(documents) // 3
  for path, file_documents in ((paths[0], documents[:split]), (paths[1], documents[split:])):
    table = pyarrow.table({"text": ["\n".join(document) for document in file_documents]})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
      writer.write_table(table, max_chunksize=5)
  (folder / "state.json").write_text('{"_data_files": []}')
  (folder / "dataset_info.json").write_text("{}")
  return paths


def _wikiextractor(documents: list[list[str]]) -> bytes:
  """Encodes documents as the tool wikiextractor writes them. The first sentence is a paragraph of its own."""
  articles = []
  for number, document in enumerate(documents):
    start_tag = f'<doc id="{number}" url="https://en.wikipedia.org/wiki?curid={number}" title="Title &amp; {number}">'
    text = html.escape(document[0] + "\n\n" + " ".join(document[1:]), quote=False)
    articles.append(f"{start_tag}\nTitle &amp; {number}\n\n{text}\n\n</doc>\n")
  return "".join(articles).encode()


def _wikiextractor_json(documents: list[list[str]]) -> bytes:
  """Encodes documents as `wikiextractor --json` writes them."""
  articles = [
    {"id": str(number), "revid": "7", "url": "https://x", "title": f"T{number}", "text": " ".join(document)}
    for number, document in enumerate(documents)
  ]
  return "".join(json.dumps(article) + "\n" for article in articles).encode()


# For records with a sentence on each line.
SENTENCE_LINES = ReadingSettings(sentences="lines")
# Name of the form -> how to write and read it.
FORMS: dict[str, Form] = {
  "text.bz2": Form(_one_file("a.txt.bz2", lambda documents: bz2.compress(as_text(documents).encode()))),
  "text.zst": Form(
    _one_file("a.txt.zst", lambda documents: zstandard_bytes(as_text(documents).encode())), module="zstandard"
  ),
  "paragraphs": Form(
    _one_file("a.txt", lambda documents: as_text([[" ".join(document)] for document in documents]).encode()),
    ReadingSettings(sentences="split"),
  ),
  "wrapped lines": Form(
    _one_file(
      "a.txt",
      lambda documents: as_text([[" ".join(document).replace(" ", "\n", 5)] for document in documents]).encode(),
    ),
    ReadingSettings(sentences="split", paragraph="blank_line"),
  ),
  "a file for each document": Form(_file_per_document, ReadingSettings(document="file")),
  "JSON lines": Form(_one_file("a.jsonl", json_lines), SENTENCE_LINES),
  "JSON lines of paragraphs": Form(
    _one_file("a.jsonl", lambda documents: json_lines(documents, " ")), ReadingSettings(sentences="split")
  ),
  "jsonl.gz": Form(_one_file("a.jsonl.gz", lambda documents: gzip.compress(json_lines(documents))), SENTENCE_LINES),
  "jsonl.zst": Form(
    _one_file("a.jsonl.zst", lambda documents: zstandard_bytes(json_lines(documents))), SENTENCE_LINES, "zstandard"
  ),
  "Parquet": Form(_parquet, ReadingSettings(text_field="content", sentences="lines"), "pyarrow"),
  "a saved dataset": Form(_dataset, SENTENCE_LINES, "pyarrow"),
  "wikiextractor": Form(_one_file("wiki_00", _wikiextractor)),
  "wikiextractor, bz2": Form(_one_file("wiki_01.bz2", lambda documents: bz2.compress(_wikiextractor(documents)))),
  "wikiextractor, JSON": Form(_one_file("wiki_02", _wikiextractor_json)),
  "Wikipedia": Form(_one_file("pages-articles.xml", wikipedia_dump.make_dump), module="mwparserfromhell"),
  "Wikipedia, multistream": Form(
    _one_file("enwiki-pages-articles-multistream.xml.bz2", wikipedia_dump.make_multistream_dump),
    module="mwparserfromhell",
  ),
  "Wikipedia, other bzip2 streams": Form(
    _one_file("enwiki-pages-articles.xml.bz2", wikipedia_dump.make_dump_of_cut_pages), module="mwparserfromhell"
  ),
  "jsonl.bz2": Form(_one_file("a.jsonl.bz2", lambda documents: bz2.compress(json_lines(documents))), SENTENCE_LINES),
}
