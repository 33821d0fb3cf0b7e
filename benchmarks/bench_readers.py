"""Measures how fast each form of text is converted to sentences on lines, and how much memory it takes.

  PYTHONPATH=. python benchmarks/bench_readers.py --text='NOVELS/*.txt' [--megabytes=200] [--forms=parquet,wikipedia]
    [--processes=1,2]

The text is prose with blank lines between paragraphs. It is repeated until it has --megabytes. Ten paragraphs make a
document. For each form, the documents are written to a temporary directory and converted, by one process and then by
two. The table shows the time, the processor time of all processes together, which depends little on other programs, and
the peak memory of one process, with its imports.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import glob
import gzip
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.sax.saxutils import escape

_PARAGRAPHS_PER_DOCUMENT = 10
_PAGES_PER_STREAM = 100  # of a multistream dump of Wikipedia
_HEADER = '<mediawiki><siteinfo><namespaces><namespace key="6">File</namespace></namespaces></siteinfo>\n'
_PAGE = (
  "  <page>\n    <title>Title {n}</title>\n    <ns>0</ns>\n    <id>{n}</id>\n    <revision>\n      <id>{n}</id>\n"
  "      <model>wikitext</model>\n      <text>{text}</text>\n    </revision>\n  </page>\n"
)


# The paragraphs of a document.
Document = list[str]


def repeated_documents(pattern: str, num_bytes: int) -> Iterator[Document]:
  """Yields the documents of some texts again and again, until they have `num_bytes` together."""
  paragraphs = []
  for path in sorted(glob.glob(pattern)):
    text = Path(path).read_text(encoding="utf-8-sig").replace("\r", "")
    paragraphs += [" ".join(block.split()) for block in text.split("\n\n") if block.strip()]
  num_yielded = 0
  while num_yielded < num_bytes:
    for start in range(0, len(paragraphs), _PARAGRAPHS_PER_DOCUMENT):
      document = paragraphs[start : start + _PARAGRAPHS_PER_DOCUMENT]
      num_yielded += sum(len(paragraph.encode()) + 1 for paragraph in document)
      yield document
      if num_yielded >= num_bytes:
        return


def _in_groups(documents: Iterator[Document], size: int) -> Iterator[list[Document]]:
  """Yields lists of `size` documents. The last one may be shorter."""
  while group := list(itertools.islice(documents, size)):
    yield group


def _encode_json_line(document: Document) -> bytes:
  return json.dumps({"text": "\n".join(document)}).encode() + b"\n"


def _encode_paragraphs_on_lines(document: Document) -> bytes:
  """A paragraph on each line, and a blank line after the document."""
  return ("\n".join(document) + "\n\n").encode()


def _encode_paragraphs_between_blank_lines(document: Document) -> bytes:
  return ("\n\n".join(document) + "\n\n").encode()


def _encode_extracted_article(document: Document) -> bytes:
  """An article as wikiextractor writes it: the title is its first line."""
  return ('<doc id="1" url="u" title="Title">\nTitle\n\n' + "\n".join(document) + "\n</doc>\n").encode()


def _encode_wikitext(document: Document) -> str:
  """Wikitext with about as many links and templates as articles have: the first paragraph has a link in 30 words."""
  words = document[0].split(" ")
  for index in range(5, len(words), 30):
    if words[index].isalpha():
      words[index] = f"[[{words[index]}]]"
  infobox = "{{Infobox|name=A|image=[[File:A.jpg]]}}\n"
  notes = "<ref>{{cite book|title=B|year=1900}}</ref>\n== Heading ==\n"
  return infobox + " ".join(words) + notes + "\n\n".join(document[1:]) + "\n* [[A]]\n* [[B]]\n"


# Writes documents to a file.
Writer = Callable[[Iterator[Document], Path], None]


def _file_writer(encode: Callable[[Document], bytes]) -> Writer:
  """Returns a function that writes encoded documents one after another. The file's ending gives its compression."""

  def write(documents: Iterator[Document], path: Path) -> None:
    with _open_for_writing(path) as file:
      for document in documents:
        file.write(encode(document))

  return write


def _open_for_writing(path: Path) -> IO[bytes]:
  if path.suffix == ".gz":
    return gzip.open(path, "wb", compresslevel=1)  # type: ignore[return-value]
  if path.suffix == ".zst":
    import zstandard

    return zstandard.open(path, "wb")  # type: ignore[no-any-return]
  return path.open("wb")


def _write_parquet(documents: Iterator[Document], path: Path) -> None:
  import pyarrow
  from pyarrow import parquet

  schema = pyarrow.schema([("text", pyarrow.string())])
  with parquet.ParquetWriter(path, schema) as writer:
    for group in _in_groups(documents, 5000):
      writer.write_table(pyarrow.table({"text": ["\n".join(document) for document in group]}))


def _write_dataset(documents: Iterator[Document], path: Path) -> None:
  import pyarrow

  schema = pyarrow.schema([("text", pyarrow.string())])
  with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
    for group in _in_groups(documents, 1000):
      writer.write_table(pyarrow.table({"text": ["\n".join(document) for document in group]}))


def _write_wikipedia(documents: Iterator[Document], path: Path) -> None:
  page_number = 0
  with path.open("wb") as file:
    file.write(bz2.compress(_HEADER.encode()))
    for group in _in_groups(documents, _PAGES_PER_STREAM):
      pages = []
      for document in group:
        pages.append(_PAGE.format(n=page_number, text=escape(_encode_wikitext(document))))
        page_number += 1
      file.write(bz2.compress("".join(pages).encode()))
    file.write(bz2.compress(b"</mediawiki>\n"))


class Form(NamedTuple):
  """A form of text.

  Attributes:
    file_name: the name of its file.
    write: writes documents to the file.
    settings: fields of ReadingSettings that differ from their defaults.
  """

  file_name: str
  write: Writer
  settings: dict[str, Any]


FORMS = {
  "lines": Form("a.txt", _file_writer(_encode_paragraphs_on_lines), {}),
  "paragraphs": Form("a.txt", _file_writer(_encode_paragraphs_on_lines), {"sentences": "split"}),
  "file": Form("a.txt", _file_writer(_encode_paragraphs_between_blank_lines), {"document": "file"}),
  "jsonl": Form("a.jsonl", _file_writer(_encode_json_line), {}),
  "jsonl.gz": Form("a.jsonl.gz", _file_writer(_encode_json_line), {}),
  "jsonl.zst": Form("a.jsonl.zst", _file_writer(_encode_json_line), {}),
  "parquet": Form("a.parquet", _write_parquet, {}),
  "datasets": Form("a.arrow", _write_dataset, {}),
  "wikipedia": Form("a.xml.bz2", _write_wikipedia, {}),
  "wikiextractor": Form("wiki_00", _file_writer(_encode_extracted_article), {}),
}


def _measure(name: str, folder: str, num_processes: int) -> None:
  """Converts a form, and prints seconds, processor seconds, megabytes of memory, and bytes of the result."""
  from data_prep.readers.records import ReadingSettings
  from data_prep.split_text import split_files

  form = FORMS[name]
  start = time.perf_counter()
  with contextlib.redirect_stdout(sys.stderr):
    settings = ReadingSettings(**form.settings)
    converted = split_files(
      [str(Path(folder) / form.file_name)], settings, str(Path(folder) / f"out-{num_processes}"), num_processes
    )
  seconds = time.perf_counter() - start
  usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  measured = {
    "seconds": seconds,
    "processor_seconds": sum(usage.ru_utime + usage.ru_stime for usage in usages),
    "memory": max(usage.ru_maxrss for usage in usages) / 1024,
    "bytes": sum(Path(path).stat().st_size for path in converted.paths),
  }
  print(json.dumps(measured))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--text", default="")
  parser.add_argument("--megabytes", type=int, default=200)
  parser.add_argument("--forms", default=",".join(FORMS))
  parser.add_argument("--processes", default="1,2")
  parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
  parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.write:
    name, folder = arguments.write
    documents = repeated_documents(arguments.text, arguments.megabytes * 1_000_000)
    FORMS[name].write(documents, Path(folder) / FORMS[name].file_name)
    return
  if arguments.measure:
    name, folder, num_processes = arguments.measure
    _measure(name, folder, int(num_processes))
    return
  print("| form | input, MB | text, MB | processes | s | MB of text/s | MB of text/processor s | memory, MB |")
  print("|---|---|---|---|---|---|---|---|")
  for name in arguments.forms.split(","):
    with tempfile.TemporaryDirectory() as folder:
      # The file is written by another process: a process inherits the peak memory of the process that starts it.
      size_flags = [f"--text={arguments.text}", f"--megabytes={arguments.megabytes}"]
      subprocess.run([sys.executable, __file__, "--write", name, folder, *size_flags], check=True)
      input_megabytes = (Path(folder) / FORMS[name].file_name).stat().st_size / 1e6
      for num_processes in arguments.processes.split(","):
        command = [sys.executable, __file__, "--measure", name, folder, num_processes]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        measured = json.loads(process.stdout.splitlines()[-1])
        text_megabytes, seconds = measured["bytes"] / 1e6, measured["seconds"]
        print(
          f"| {name} | {input_megabytes:.0f} | {text_megabytes:.0f} | {num_processes} | {seconds:.1f} | "
          f"{text_megabytes / seconds:.1f} | {text_megabytes / measured['processor_seconds']:.1f} | "
          f"{measured['memory']:.0f} |",
          flush=True,
        )


if __name__ == "__main__":
  main()
