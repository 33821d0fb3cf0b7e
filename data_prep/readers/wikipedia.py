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
from typing import BinaryIO, TypeAlias
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
    expected = "<mediawiki: give a dump such as enwiki-latest-pages-articles.xml.bz2"
    raise text_files.wrong_start_error(path, head, expected)


def _plan(path: str, settings: records.ReadingSettings, unit_bytes: int) -> Iterator[records.Piece]:
  return records.byte_ranges(path, unit_bytes, divisible_ending=".bz2")


def _read(piece: records.Piece, settings: records.ReadingSettings) -> Iterator[records.Record]:
  namespaces = _read_namespaces(piece.path)
  for page in _find_pages(_read_chunks(piece)):
    yield _read_page(page, namespaces)


# ---- pages ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _read_namespaces(path: str) -> frozenset[str]:
  """Returns the names of a wiki's namespaces in lower case, without the main one. They are in the dump's header."""
  with text_files.open_stream(path) as stream:
    header = stream.read(_HEADER_BYTES).partition(b"</siteinfo>")[0]
  return frozenset(name.decode("utf-8", errors="replace").lower() for _, name in _NAMESPACE.findall(header) if name)


# Decompressed bytes of a dump, and whether the piece owns them. Others are read for a page that begins before them.
_Chunk: TypeAlias = tuple[bytes, bool]


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
        yield block[:num_owned], True
      if num_owned < len(block):
        yield block[num_owned:], False
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
          yield content, stream_start < piece.end
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


def _find_pages(chunks: Iterator[_Chunk]) -> Iterator[bytes]:
  """Yields the pages that begin in text of the piece. The last one may be incomplete."""
  buffer = bytearray()
  num_owned = 0  # bytes at the beginning of the buffer that belong to the piece
  num_searched = 0  # no page ends in these bytes
  begin = -1  # of the next page in the buffer
  for content, is_owned in chunks:
    buffer += content
    num_owned += len(content) if is_owned else 0
    while 0 <= (begin := buffer.find(_PAGE_BEGIN)) < num_owned:
      if (end := buffer.find(_PAGE_END, max(begin, num_searched))) < 0:
        break
      end += len(_PAGE_END)
      yield bytes(memoryview(buffer)[begin:end])
      del buffer[:end]
      num_owned, num_searched = max(0, num_owned - end), 0
    num_searched = max(0, len(buffer) - len(_PAGE_END) + 1)
    if begin < 0:  # the tag <page> may begin in the last bytes
      num_dropped = max(0, len(buffer) - len(_PAGE_BEGIN) + 1)
      del buffer[:num_dropped]
      num_owned, num_searched = max(0, num_owned - num_dropped), 0
    if not is_owned and num_owned <= max(begin, 0):
      return
  if 0 <= begin < num_owned:
    yield bytes(buffer[begin:])


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
  revision = (element.findall("revision") or [element])[-1]
  if revision.findtext("model", "wikitext") != "wikitext":
    return records.DroppedRecord(get_place, "not an article")
  try:
    paragraphs, left_out = wikitext.parse(revision.findtext("text") or "", namespaces)
  except MemoryError:
    raise
  except Exception as error:
    return records.BadRecord(get_place, f"cannot be parsed ({type(error).__name__}: {error}): leave the page out")
  return records.SourceDocument(get_place, paragraphs, left_out)


def _place_getter(page: bytes) -> records.GetPlace:
  def get_place() -> str:
    title = _TITLE.search(page)
    return f"page {title[1].decode('utf-8', errors='replace')!r}" if title else f"page {page[:40]!r}"

  return get_place


READER = records.Reader(_check, _plan, _read)
