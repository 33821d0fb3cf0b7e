"""The same documents in every form that data preparation reads."""

from __future__ import annotations

import bz2
import gzip
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from data_prep.readers.settings import ReadingSettings
from tests.conftest import english_like_documents
from tests.data_prep.readers import wikipedia_dump

# Each sentence ends in a full stop, so that sentences can be split again.
DOCUMENTS = [
  [f"{line.rstrip('.?!;')}." for line in document] for seed in (3, 4) for document in english_like_documents(40, seed)
]


def as_text(documents: list[list[str]]) -> str:
  """A sentence on each line and a blank line after each document."""
  return "".join("\n".join(document) + "\n\n" for document in documents)


class Form(NamedTuple):
  """A form of text.

  Attributes:
    write: writes documents to files in a folder, and returns their paths.
    settings: how they are read.
    module: a library that the form needs.
  """

  write: Callable[[list[list[str]], Path], list[Path]]
  settings: ReadingSettings = ReadingSettings()
  module: str = ""


def _one_file(name: str, encode: Callable[[list[list[str]]], bytes]) -> Callable[[list[list[str]], Path], list[Path]]:
  def write(documents: list[list[str]], folder: Path) -> list[Path]:
    (folder / name).write_bytes(encode(documents))
    return [folder / name]

  return write


def json_lines(documents: list[list[str]], separator: str = "\n") -> bytes:
  return "".join(
    json.dumps({"id": n, "text": separator.join(document)}, ensure_ascii=n % 2 == 0) + "\n"
    for n, document in enumerate(documents)
  ).encode()


def zstandard_bytes(data: bytes) -> bytes:
  """Two frames, as pzstd writes them."""
  module = pytest.importorskip("zstandard")
  return module.compress(data[: len(data) // 2]) + module.compress(data[len(data) // 2 :])


def _file_per_document(documents: list[list[str]], folder: Path) -> list[Path]:
  paths = []
  for number, document in enumerate(documents):
    paths.append(folder / f"{number:04d}.txt")
    middle = len(document) // 2
    paragraphs = [part for part in (document[:middle], document[middle:]) if part]
    words = [" ".join(paragraph).replace(" ", "\n", 3) for paragraph in paragraphs]
    paths[-1].write_text("\n\n".join(words) + "\n", encoding="utf-8")
  return paths


def _parquet(documents: list[list[str]], folder: Path) -> list[Path]:
  """Two files: one with several row groups, one with a single one. Another column is not read."""
  pyarrow = pytest.importorskip("pyarrow")
  from pyarrow import parquet

  paths = [folder / "0.parquet", folder / "1.parquet"]
  middle = len(documents) // 3
  for path, part, rows in ((paths[0], documents[:middle], 1000), (paths[1], documents[middle:], 7)):
    table = {"id": list(range(len(part))), "content": ["\n".join(document) for document in part]}
    parquet.write_table(pyarrow.table(table), path, row_group_size=rows)
  return paths


def _dataset(documents: list[list[str]], folder: Path) -> list[Path]:
  """The files that datasets.Dataset.save_to_disk writes: Arrow streams of record batches."""
  pyarrow = pytest.importorskip("pyarrow")
  paths = [folder / f"data-{number:05d}-of-00002.arrow" for number in range(2)]
  middle = len(documents) // 3
  for path, part in ((paths[0], documents[:middle]), (paths[1], documents[middle:])):
    table = pyarrow.table({"text": ["\n".join(document) for document in part]})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
      writer.write_table(table, max_chunksize=5)
  (folder / "state.json").write_text('{"_data_files": []}')
  (folder / "dataset_info.json").write_text("{}")
  return paths


def _wikiextractor(documents: list[list[str]]) -> bytes:
  articles = []
  for number, document in enumerate(documents):
    begin = f'<doc id="{number}" url="https://en.wikipedia.org/wiki?curid={number}" title="Title &amp; {number}">'
    text = html.escape("\n\n".join((" ".join(document[:1]), " ".join(document[1:]))), quote=False)
    articles.append(f"{begin}\nTitle &amp; {number}\n\n{text}\n\n</doc>\n")
  return "".join(articles).encode()


def _wikiextractor_json(documents: list[list[str]]) -> bytes:
  rows = (
    {
      "id": str(number),
      "revid": "7",
      "url": "https://x",
      "title": f"T{number}",
      "text": "\n".join([" ".join(document)]),
    }
    for number, document in enumerate(documents)
  )
  return "".join(json.dumps(row) + "\n" for row in rows).encode()


LINES = ReadingSettings(sentences="lines")
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
  "JSON lines": Form(_one_file("a.jsonl", json_lines), LINES),
  "JSON lines of paragraphs": Form(
    _one_file("a.jsonl", lambda documents: json_lines(documents, " ")), ReadingSettings(sentences="split")
  ),
  "jsonl.gz": Form(_one_file("a.jsonl.gz", lambda documents: gzip.compress(json_lines(documents))), LINES),
  "jsonl.zst": Form(
    _one_file("a.jsonl.zst", lambda documents: zstandard_bytes(json_lines(documents))), LINES, "zstandard"
  ),
  "Parquet": Form(_parquet, ReadingSettings(text_field="content", sentences="lines"), "pyarrow"),
  "a saved dataset": Form(_dataset, LINES, "pyarrow"),
  "wikiextractor": Form(_one_file("wiki_00", _wikiextractor)),
  "wikiextractor, bz2": Form(_one_file("wiki_01.bz2", lambda documents: bz2.compress(_wikiextractor(documents)))),
  "wikiextractor, JSON": Form(_one_file("wiki_02", _wikiextractor_json)),
  "Wikipedia": Form(_one_file("pages-articles.xml", wikipedia_dump.dump), module="mwparserfromhell"),
  "Wikipedia, multistream": Form(
    _one_file("enwiki-pages-articles-multistream.xml.bz2", wikipedia_dump.multistream), module="mwparserfromhell"
  ),
  "Wikipedia, other bzip2 streams": Form(
    _one_file("enwiki-pages-articles.xml.bz2", wikipedia_dump.cut_anywhere), module="mwparserfromhell"
  ),
  "jsonl.bz2": Form(_one_file("a.jsonl.bz2", lambda documents: bz2.compress(json_lines(documents))), LINES),
}
