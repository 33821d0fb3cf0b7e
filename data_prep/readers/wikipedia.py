"""Reads dumps of Wikipedia: pages-articles.xml, compressed with bzip2 or not. Articles only, without redirects.

A multistream dump is a sequence of bzip2 streams of 100 pages each. A piece of it is a range of bytes of the compressed
file. The streams that begin in the range belong to the piece, and so do the pages that begin in these streams. So
processes read a dump in parallel without its index. Dumps that were compressed in another way are read correctly, too,
but by fewer processes.
"""

from __future__ import annotations

import bz2
import functools
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree

from albert.errors import UserError
from albert.io import files
from data_prep import text_files
from data_prep.readers import records, wikitext

_READ_BYTES = 1 << 18
_HEADER_BYTES = 1 << 20
# The beginning of a bzip2 stream with at least one block: its level, and the magic number of the block.
_STREAM_START = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_START_BYTES = 10
_PAGE_BEGIN, _PAGE_END = b"<page>", b"</page>"
_TITLE = re.compile(rb"<title>(.*?)</title>", re.DOTALL)
_NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]*)</namespace>')
_MAIN_NAMESPACE = "0"


def _check(path: str, settings: records.ReadingSettings) -> None:
  wikitext.import_parser(path)
  head = text_files.read_head(path)
  if b"<mediawiki" not in head:
    raise UserError(
      f"{path}: begins with {text_files.show_start(head)}, not with <mediawiki: give a dump such as "
      "enwiki-latest-pages-articles.xml.bz2, or --text_format"
    )


def _plan(path: str, settings: records.ReadingSettings, unit_bytes: int) -> Iterator[records.Piece]:
  return records.byte_ranges(path, unit_bytes, divisible_ending=".bz2")


def _read(piece: records.Piece, settings: records.ReadingSettings) -> Iterator[records.Record]:
  namespaces = _read_namespaces(piece.path)
  pages = _PageBuffer(_read_chunks(piece))
  while page := pages.take_page():
    yield _read_page(page, namespaces)


# ---- pages ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _read_namespaces(path: str) -> frozenset[str]:
  """Returns the names of a wiki's namespaces in lower case, without the main one. They are in the dump's header."""
  with text_files.open_stream(path) as stream:
    header = stream.read(_HEADER_BYTES).partition(b"</siteinfo>")[0]
  return frozenset(name.decode("utf-8", errors="replace").lower() for _, name in _NAMESPACE.findall(header) if name)


class _Chunk(NamedTuple):
  """Decompressed bytes of a dump. Those that the piece does not own are read for a page that begins before them."""

  content: bytes
  is_owned: bool


def _read_chunks(piece: records.Piece) -> Iterator[_Chunk]:
  """Reads and decompresses a dump from the piece's beginning to the end of the file."""
  if text_files.compression(piece.path) == ".bz2" and piece.end != records.TO_THE_END:
    yield from _read_bzip2_chunks(piece)
    return
  with text_files.open_stream(piece.path) as stream:
    if piece.start:
      stream.seek(piece.start)
    position = piece.start
    while block := stream.read(_READ_BYTES):
      num_owned = max(0, min(len(block), piece.end - position))
      if num_owned:
        yield _Chunk(block[:num_owned], is_owned=True)
      if num_owned < len(block):
        yield _Chunk(block[num_owned:], is_owned=False)
      position += len(block)


def _read_bzip2_chunks(piece: records.Piece) -> Iterator[_Chunk]:
  """Decompresses the streams from the first one on that begins in the piece."""
  with files.open_file(piece.path) as file:
    position = stream_start = _find_stream(file, piece)
    if position >= piece.end:
      return
    file.seek(position)
    decompressor = bz2.BZ2Decompressor()
    while block := file.read(_READ_BYTES):
      position += len(block)  # where the block ends
      while block:
        if decompressor.eof:
          decompressor, stream_start = bz2.BZ2Decompressor(), position - len(block)
        try:
          content = decompressor.decompress(block)
        except (OSError, ValueError) as error:
          raise UserError(
            f"{piece.path}: the bzip2 stream at byte {stream_start} is damaged ({error}): download the dump again"
          ) from error
        if content:
          yield _Chunk(content, is_owned=stream_start < piece.end)
        block = decompressor.unused_data
    if not decompressor.eof:
      raise UserError(f"{piece.path}: the bzip2 stream at byte {stream_start} is incomplete: download the dump again")


def _find_stream(file: BinaryIO, piece: records.Piece) -> int:
  """Returns the position of the first bzip2 stream that begins in a piece, or a position after the piece."""
  if piece.start == 0:
    return 0
  file.seek(piece.start)
  position, window = piece.start, b""  # the window is the bytes that were read last; it begins at the position
  while position < piece.end and (block := file.read(_READ_BYTES)):
    window += block
    if match := _STREAM_START.search(window):
      return position + match.start()
    # A stream may begin in the last bytes of the window.
    num_searched = max(0, len(window) - _STREAM_START_BYTES + 1)
    position += num_searched
    window = window[num_searched:]
  return piece.end


class _PageBuffer:
  """The part of the decompressed dump in which pages are searched. Each chunk that is read is added at its end."""

  def __init__(self, chunks: Iterator[_Chunk]):
    self._chunks = chunks
    self._content = bytearray()  # adding at its end and removing from its start do not copy the rest
    self._num_owned = 0  # number of bytes that belong to the piece; they come first
    self._reads_owned = True  # whether the next chunk may belong to the piece

  def _read(self) -> bool:
    """Adds the next chunk. Returns False at the end of the file."""
    content, self._reads_owned = next(self._chunks, _Chunk(b"", is_owned=False))
    self._content += content
    if self._reads_owned:
      self._num_owned += len(content)
    return bool(content)

  def take(self, size: int) -> bytes:
    """Removes the first `size` bytes, and returns them."""
    taken = bytes(memoryview(self._content)[:size])
    del self._content[:size]
    self._num_owned = max(0, self._num_owned - size)
    return taken

  def take_page(self) -> bytes:
    """Removes the next page that begins in text of the piece, with all text before it, and returns the page.

    It returns the remaining text if the dump ends inside the page, and b"" if there is no such page.
    """
    while (begin := self._content.find(_PAGE_BEGIN)) < 0:
      # The tag <page> may begin in the last bytes of the buffer.
      self.take(max(0, len(self._content) - len(_PAGE_BEGIN) + 1))
      may_have_page = self._num_owned or self._reads_owned
      if not may_have_page or not self._read():
        return b""
    self.take(begin)
    if not self._num_owned:
      return b""
    search_start = 0
    while (end := self._content.find(_PAGE_END, search_start)) < 0:
      search_start = max(0, len(self._content) - len(_PAGE_END) + 1)
      if not self._read():
        return self.take(len(self._content))
    return self.take(end + len(_PAGE_END))


def _read_page(page: bytes, namespaces: frozenset[str]) -> records.Record:
  get_place = _place_getter(page)
  try:
    element = ElementTree.fromstring(page)
  except ElementTree.ParseError as error:
    return records.BadRecord(
      get_place, f"not XML ({error}, counted from <page>): download the dump again, or leave the page out"
    )
  if element.findtext("ns", _MAIN_NAMESPACE) != _MAIN_NAMESPACE:
    return records.DroppedRecord(get_place, "not an article")
  if element.find("redirect") is not None:
    return records.DroppedRecord(get_place, "redirect")
  revisions = element.findall("revision") or [element]
  revision = revisions[-1]
  if revision.findtext("model", "wikitext") != "wikitext":
    return records.DroppedRecord(get_place, "not an article")
  text = revision.findtext("text") or ""
  try:
    article = wikitext.parse(text, namespaces)
  except MemoryError:
    raise
  except Exception as error:
    return records.BadRecord(get_place, f"cannot be parsed ({type(error).__name__}: {error}): leave the page out")
  return records.SourceDocument(get_place, article.paragraphs, article.left_out)


def _place_getter(page: bytes) -> records.GetPlace:
  def get_place() -> str:
    title = _TITLE.search(page)
    return f"page {title[1].decode('utf-8', errors='replace')!r}" if title else f"page {page[:40]!r}"

  return get_place


READER = records.Reader(_check, _plan, _read)
