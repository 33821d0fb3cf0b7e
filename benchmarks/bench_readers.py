"""Measures how fast each form of text is converted to sentences on lines, and how much memory it takes.

  PYTHONPATH=. python benchmarks/bench_readers.py --text='NOVELS/*.txt' [--megabytes=200] [--forms=parquet,wikipedia]
    [--processes=1,2]

The text is prose with blank lines between paragraphs; it is repeated up to the size. Ten paragraphs make a document.
Each form is written to a temporary directory and converted by one process, then by two. Printed are the time, the
processor time of all processes together (which other programs disturb little), and the greatest memory of one process,
imports included.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import glob
import gzip
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

_PARAGRAPHS = 10
_PAGES_PER_STREAM = 100
_HEADER = '<mediawiki><siteinfo><namespaces><namespace key="6">File</namespace></namespaces></siteinfo>\n'
_PAGE = (
  "  <page>\n    <title>Title {n}</title>\n    <ns>0</ns>\n    <id>{n}</id>\n    <revision>\n      <id>{n}</id>\n"
  "      <model>wikitext</model>\n      <text>{text}</text>\n    </revision>\n  </page>\n"
)


def _documents(pattern: str, num_bytes: int) -> Iterator[list[str]]:
  """Yields documents of ten paragraphs each, together of at least `num_bytes` bytes."""
  paragraphs = []
  for path in sorted(glob.glob(pattern)):
    text = Path(path).read_text(encoding="utf-8-sig").replace("\r", "")
    paragraphs += [" ".join(block.split()) for block in text.split("\n\n") if block.strip()]
  written = 0
  while written < num_bytes:
    for start in range(0, len(paragraphs), _PARAGRAPHS):
      document = paragraphs[start : start + _PARAGRAPHS]
      written += sum(len(paragraph.encode()) + 1 for paragraph in document)
      yield document
      if written >= num_bytes:
        return


def _json_line(document: list[str]) -> bytes:
  return json.dumps({"text": "\n".join(document)}).encode() + b"\n"


def _markup(document: list[str]) -> str:
  """Wikitext with as many links and templates as articles have: one in every 30 words."""
  words = " ".join(document[:1]).split(" ")
  linked = [f"[[{word}]]" if index % 30 == 5 and word.isalpha() else word for index, word in enumerate(words)]
  head = "{{Infobox|name=A|image=[[File:A.jpg]]}}\n"
  notes = "<ref>{{cite book|title=B|year=1900}}</ref>\n== Heading ==\n"
  return head + " ".join(linked) + notes + "\n\n".join(document[1:]) + "\n* [[A]]\n* [[B]]\n"


def _write_lines(open_file: Callable[[str], io.IOBase], encode: Callable[[list[str]], bytes]):  # type: ignore[no-untyped-def]
  def write(documents: Iterator[list[str]], folder: Path, name: str) -> None:
    with open_file(str(folder / name)) as file:
      for document in documents:
        file.write(encode(document))

  return write


def _write_parquet(documents: Iterator[list[str]], folder: Path, name: str) -> None:
  import pyarrow
  from pyarrow import parquet

  schema = pyarrow.schema([("text", pyarrow.string())])
  with parquet.ParquetWriter(folder / name, schema) as writer:
    while rows := ["\n".join(document) for document, _ in zip(documents, range(5000), strict=False)]:
      writer.write_table(pyarrow.table({"text": rows}))


def _write_dataset(documents: Iterator[list[str]], folder: Path, name: str) -> None:
  import pyarrow

  schema = pyarrow.schema([("text", pyarrow.string())])
  with pyarrow.OSFile(str(folder / name), "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
    while rows := ["\n".join(document) for document, _ in zip(documents, range(1000), strict=False)]:
      writer.write_table(pyarrow.table({"text": rows}))


def _write_wikipedia(documents: Iterator[list[str]], folder: Path, name: str) -> None:
  with (folder / name).open("wb") as file:
    file.write(bz2.compress(_HEADER.encode()))
    number = 0
    while pages := [document for document, _ in zip(documents, range(_PAGES_PER_STREAM), strict=False)]:
      texts = (_PAGE.format(n=number + n, text=escape(_markup(document))) for n, document in enumerate(pages))
      file.write(bz2.compress("".join(texts).encode()))
      number += len(pages)
    file.write(bz2.compress(b"</mediawiki>\n"))


def _open(path: str) -> io.IOBase:
  return open(path, "wb")


def _open_gzip(path: str) -> io.IOBase:
  return gzip.open(path, "wb", compresslevel=1)  # type: ignore[return-value]


def _open_zstandard(path: str) -> io.IOBase:
  import zstandard

  return zstandard.open(path, "wb")  # type: ignore[no-any-return]


def _extracted_article(document: list[str]) -> bytes:
  """An article as wikiextractor writes it: the title is its first line."""
  return ('<doc id="1" url="u" title="Title">\nTitle\n\n' + "\n".join(document) + "\n</doc>\n").encode()


def _paragraphs(document: list[str]) -> bytes:
  return ("\n".join(document) + "\n\n").encode()


def _wrapped(document: list[str]) -> bytes:
  return ("\n\n".join(document) + "\n\n").encode()


# Name -> file name, function that writes it, settings.
FORMS = {
  "lines": ("a.txt", _write_lines(_open, _paragraphs), {}),
  "paragraphs": ("a.txt", _write_lines(_open, _paragraphs), {"sentences": "split"}),
  "file": ("a.txt", _write_lines(_open, _wrapped), {"document": "file"}),
  "jsonl": ("a.jsonl", _write_lines(_open, _json_line), {}),
  "jsonl.gz": ("a.jsonl.gz", _write_lines(_open_gzip, _json_line), {}),
  "jsonl.zst": ("a.jsonl.zst", _write_lines(_open_zstandard, _json_line), {}),
  "parquet": ("a.parquet", _write_parquet, {}),
  "datasets": ("a.arrow", _write_dataset, {}),
  "wikipedia": ("a.xml.bz2", _write_wikipedia, {}),
  "wikiextractor": ("wiki_00", _write_lines(_open, _extracted_article), {}),
}


def _measure(form: str, folder: str, num_processes: int) -> None:
  """Converts a form, and prints seconds, processor seconds, megabytes of memory, and bytes of the result."""
  from data_prep.readers.settings import ReadingSettings
  from data_prep.split_text import split_files

  name, _, settings = FORMS[form]
  start = time.perf_counter()
  with contextlib.redirect_stdout(sys.stderr):
    reading = ReadingSettings(**settings)  # type: ignore[arg-type]
    converted = split_files(
      [str(Path(folder) / name)], reading, str(Path(folder) / f"out-{num_processes}"), num_processes
    )
  seconds = time.perf_counter() - start
  usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  numbers = {
    "seconds": seconds,
    "processor_seconds": sum(usage.ru_utime + usage.ru_stime for usage in usages),
    "memory": max(usage.ru_maxrss for usage in usages) / 1024,
    "bytes": sum(Path(path).stat().st_size for path in converted.paths),
  }
  print(json.dumps(numbers))


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
    form, folder = arguments.write
    name, write, _ = FORMS[form]
    write(_documents(arguments.text, arguments.megabytes * 1_000_000), Path(folder), name)
    return
  if arguments.measure:
    form, folder, num_processes = arguments.measure
    _measure(form, folder, int(num_processes))
    return
  print("| form | input, MB | text, MB | processes | s | MB of text/s | MB of text/processor s | memory, MB |")
  print("|---|---|---|---|---|---|---|---|")
  for form in arguments.forms.split(","):
    name = FORMS[form][0]
    with tempfile.TemporaryDirectory() as folder:
      # In a process of its own: a process that is started by another one counts that one's memory as its own.
      size_flags = [f"--text={arguments.text}", f"--megabytes={arguments.megabytes}"]
      subprocess.run([sys.executable, __file__, "--write", form, folder, *size_flags], check=True)
      size = (Path(folder) / name).stat().st_size / 1e6
      for num_processes in arguments.processes.split(","):
        command = [sys.executable, __file__, "--measure", form, folder, num_processes]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        result = json.loads(done.stdout.splitlines()[-1])
        text, seconds = result["bytes"] / 1e6, result["seconds"]
        print(
          f"| {form} | {size:.0f} | {text:.0f} | {num_processes} | {seconds:.1f} | {text / seconds:.1f} | "
          f"{text / result['processor_seconds']:.1f} | {result['memory']:.0f} |",
          flush=True,
        )


if __name__ == "__main__":
  main()
