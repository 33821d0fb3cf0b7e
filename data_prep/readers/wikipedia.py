"""Reads dumps of Wikipedia: pages-articles.xml, compressed with bzip2 or not. Articles only, without redirects.

A multistream dump is a sequence of bzip2 streams of 100 pages each. A piece of it is a range of bytes of the compressed
file. Its pages are those that begin in one of the streams that begin in the range, so processes read a dump in parallel
without its index. Dumps that were compressed in another way are read correctly, too, but by fewer processes.
"""

from __future__ import annotations

import bz2
import functools
import re
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

from albert.errors import UserError
from albert.io import files
from data_prep.readers import lines, streams, wikitext
from data_prep.readers.records import BadRecord, DroppedRecord, Piece, Record, SourceDocument
from data_prep.readers.settings import WIKIPEDIA, ReadingSettings

_READ_BYTES = 1 << 18
_HEADER_BYTES = 1 << 20
# The beginning of a bzip2 stream with at least one block: its level, and the magic number of the block.
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_BYTES = 10
_BEGIN, _END = b"<page>", b"</page>"
_TITLE = re.compile(rb"<title>(.*?)</title>", re.DOTALL)
_NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]*)</namespace>')
_MAIN_NAMESPACE = "0"


def check(path: str, settings: ReadingSettings) -> None:
  """See `records.Reader`."""
  streams.check_libraries(path)
  wikitext.check_library(path)
  head = streams.read_head(path)
  if b"<mediawiki" not in head:
    begin = head[:40].decode("utf-8", errors="replace")
    raise UserError(
      f"{path}: begins with {begin!r}, not with <mediawiki: give a dump such as enwiki-latest-pages-articles.xml.bz2, "
      "or --text_format"
    )


def plan(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  """See `records.Reader`."""
  size = files.size(path)
  if streams.compression(path) not in ("", ".bz2") or size <= unit_bytes:
    yield lines.whole_file(path, WIKIPEDIA)
    return
  for start in range(0, size, unit_bytes):
    end = min(start + unit_bytes, size)
    yield Piece(path, WIKIPEDIA, start, end, end - start)


def read(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  """See `records.Reader`."""
  namespaces = _read_namespaces(piece.path)
  for page in _pages(_chunks(piece)):
    yield _read_page(page, namespaces)


# ---- pages ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _read_namespaces(path: str) -> frozenset[str]:
  """Returns the names of a wiki's namespaces in lower case, without the main one. They are in the dump's header."""
  with streams.open_stream(path) as stream:
    header = stream.read(_HEADER_BYTES).partition(b"</siteinfo>")[0]
  return frozenset(name.decode("utf-8", errors="replace").lower() for _, name in _NAMESPACE.findall(header) if name)


def _chunks(piece: Piece) -> Iterator[tuple[bytes, bool]]:
  """Yields decompressed text from the piece's beginning to the end of the file, and whether the piece owns it."""
  if streams.compression(piece.path) == ".bz2" and piece.end != lines.TO_THE_END:
    yield from _bzip2_chunks(piece)
    return
  with streams.open_stream(piece.path) as stream:
    if piece.start:
      stream.seek(piece.start)
    position = piece.start
    while block := stream.read(_READ_BYTES):
      num_owned = max(0, min(len(block), piece.end - position))
      if num_owned:
        yield block[:num_owned], True
      if num_owned < len(block):
        yield block[num_owned:], False
      position += len(block)


def _bzip2_chunks(piece: Piece) -> Iterator[tuple[bytes, bool]]:
  with files.open_file(piece.path) as file:
    start = _find_stream(file, piece)
    if start is None:
      return
    file.seek(start)
    position = start  # of the next byte that is read from the file
    data = b""
    while True:
      stream_start = position - len(data)
      data = data or file.read(_READ_BYTES)
      if not data:
        return
      position = max(position, stream_start + len(data))
      decompressor = bz2.BZ2Decompressor()
      while not decompressor.eof:
        try:
          text = decompressor.decompress(data, _READ_BYTES)
        except (OSError, ValueError) as error:
          raise UserError(
            f"{piece.path}: the bzip2 stream at byte {stream_start} is damaged ({error}): download the dump again"
          ) from error
        data = b""
        if text:
          yield text, stream_start < piece.end
        if decompressor.needs_input and not decompressor.eof:
          data = file.read(_READ_BYTES)
          position += len(data)
          if not data:
            raise UserError(
              f"{piece.path}: the bzip2 stream at byte {stream_start} is incomplete: download the dump again"
            )
      data = decompressor.unused_data


def _find_stream(file: streams.BinaryIO, piece: Piece) -> int | None:
  """Returns the position of the first bzip2 stream that begins in a piece; None if there is none."""
  if piece.start == 0:
    return 0
  file.seek(piece.start)
  position, window = piece.start, b""
  while position < piece.end and (block := file.read(_READ_BYTES)):
    window += block
    if match := _STREAM.search(window):
      found = position + match.start()
      return found if found < piece.end else None
    keep = min(len(window), _STREAM_BYTES - 1)
    position += len(window) - keep
    window = window[len(window) - keep :]
  return None


def _pages(chunks: Iterator[tuple[bytes, bool]]) -> Iterator[bytes]:
  """Yields the pages that begin in text that the piece owns. The last one may end in text that it does not own."""
  text, num_owned = b"", 0
  searched = 0  # there is no beginning of a page before this position
  at_end = False

  def read_more() -> bool:
    nonlocal text, num_owned
    chunk, is_owned = next(chunks, (b"", False))
    num_owned += len(chunk) if is_owned else 0
    text += chunk
    return bool(chunk)

  while not at_end:
    begin = text.find(_BEGIN, searched)
    if begin < 0 or begin >= num_owned:
      owns_all = num_owned == len(text)
      if not owns_all and begin < 0 and len(text) - num_owned >= len(_BEGIN):
        return
      if begin >= num_owned and begin >= 0:
        return
      keep = max(0, len(text) - len(_BEGIN) + 1)
      text, num_owned, searched = text[keep:], max(0, num_owned - keep), 0
      at_end = not read_more()
      continue
    end, position = -1, begin
    while (end := text.find(_END, position)) < 0 and not at_end:
      position = max(begin, len(text) - len(_END) + 1)
      at_end = not read_more()
    if end < 0:
      yield text[begin:]
      return
    end += len(_END)
    yield text[begin:end]
    text, num_owned, searched = text[end:], num_owned - end, 0


def _read_page(page: bytes, namespaces: frozenset[str]) -> Record:
  place = _place(page)
  try:
    element = ElementTree.fromstring(page)
  except ElementTree.ParseError as error:
    return BadRecord(place, f"not XML ({error}, counted from <page>): download the dump again, or leave the page out")
  if element.findtext("ns", _MAIN_NAMESPACE) != _MAIN_NAMESPACE:
    return DroppedRecord(place, "not an article", "")
  if element.find("redirect") is not None:
    return DroppedRecord(place, "redirect", "")
  revisions = element.findall("revision")
  revision = revisions[-1] if revisions else element
  if revision.findtext("model", "wikitext") != "wikitext":
    return DroppedRecord(place, "not an article", "")
  text = revision.findtext("text") or ""
  try:
    article = wikitext.parse(text, namespaces)
  except (ValueError, RecursionError) as error:
    return BadRecord(place, f"cannot be parsed ({error}): leave the page out")
  return SourceDocument(place, article.paragraphs, article.left_out)


def _place(page: bytes) -> Callable[[], str]:
  def place() -> str:
    title = _TITLE.search(page)
    return f"page {title[1].decode('utf-8', errors='replace')!r}" if title else f"page {page[:40]!r}"

  return place
