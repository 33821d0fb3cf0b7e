"""Opens files that may be compressed (.gz, .bz2 and .zst), reads the lines of text, and writes files as a whole."""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar, cast

from albert.errors import UserError
from albert.io import files
from albert.io.local_files import required_library
from data_prep.text_checks import HEAD_BYTES, check_format, check_head

Schema = TypeVar("Schema")
_BYTE_ORDER_MARK = "\ufeff"
_LINES_BETWEEN_REPORTS = 4096
# Longer lines are cut. Tokenization and SentencePiece's trainer need memory in proportion to the length of a line, and
# the trainer skips lines over 1 MiB.
_MAX_LINE_CHARS = 20_000
_BYTES_PER_READ = 1 << 20
_BUFFER_BYTES = 1 << 18
# A Zstandard block of 4 bytes may hold 128 kB of text, so this many compressed bytes hold at most 32 MB.
_ZSTANDARD_BYTES = 1 << 10
# Ending of a compressed file's name -> the file's format.
_FORMATS = {".gz": "GZIP", ".bz2": "bzip2", ".zst": "Zstandard"}
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_SHOWN_BYTES = 40


def compression(path: str) -> str:
  """Returns the ending of a compressed file's name: ".gz", ".bz2" or ".zst"; "" for other files."""
  return next((ending for ending in _FORMATS if path.endswith(ending)), "")


# ---- compressed files ----------------------------------------------------------------------------------


class _DecompressedStream(io.RawIOBase):
  """A stream of the decompressed data of an iterator. If the data is damaged, a UserError names the file."""

  def __init__(self, path: str, file: BinaryIO, chunks: Iterator[bytes]):
    self._path, self._file, self._chunks = path, file, chunks
    self._unread = io.BytesIO()

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    try:
      while not (num_bytes := self._unread.readinto(buffer)):
        self._unread = io.BytesIO(next(self._chunks))
    except StopIteration:
      return 0
    except (EOFError, ValueError, OSError, zlib.error) as error:
      raise UserError(
        f"{self._path}: the {_FORMATS[compression(self._path)]} file is damaged or incomplete ({error}): compress it "
        "again, or leave it out of the input"
      ) from error
    return num_bytes

  def close(self) -> None:
    self._file.close()
    super().close()


def _decompress_zstandard(file: BinaryIO, module: Any) -> Iterator[bytes]:
  """Decompresses a Zstandard file. zstandard's own readers do not notice if a file ends within a frame."""
  decompressor = None  # of the current frame
  while compressed := file.read(_ZSTANDARD_BYTES):
    while compressed:
      if decompressor is None or decompressor.eof:
        decompressor = module.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
      try:
        content = decompressor.decompress(compressed)
      except module.ZstdError as error:
        raise EOFError(str(error)) from error
      if content:
        yield content
      compressed = decompressor.unused_data
  if decompressor is not None and not decompressor.eof:
    raise EOFError("the file ends within a frame")


def open_stream(path: str) -> BinaryIO:
  """Opens a file, and decompresses it if its name ends in .gz, .bz2 or .zst. Damaged data raises UserError.

  Raises:
    UserError: the file cannot be read, it is not compressed as its name says, or zstandard is not installed.
  """
  return _open(path)[1]


def _open(path: str) -> tuple[BinaryIO, BinaryIO]:
  """Returns the open file, whose position shows the progress, and the stream of its decompressed bytes."""
  ending = compression(path)
  file = files.open_file(path)
  if not ending:
    return file, file
  if ending == ".gz":
    head = file.read(HEAD_BYTES)
    if not head.startswith(_GZIP_MAGIC):
      check_format(path, head)  # names the format if it is a known one
      raise UserError(
        f"{path}: not GZIP data, though its name ends in .gz: rename it without .gz, or compress it with gzip"
      )
    file.seek(0)
    chunks = iter(functools.partial(gzip.GzipFile(fileobj=file).read, _BUFFER_BYTES), b"")
  elif ending == ".bz2":
    chunks = iter(functools.partial(bz2.BZ2File(file).read, _BUFFER_BYTES), b"")
  else:
    with required_library(path, "reading .zst files needs zstandard", "pip install 'zstandard>=0.22'"):
      import zstandard
    chunks = _decompress_zstandard(file, zstandard)
  return file, cast("BinaryIO", io.BufferedReader(_DecompressedStream(path, file, chunks), _BUFFER_BYTES))


def read_head(path: str) -> bytes:
  """Reads the first bytes (`text_checks.HEAD_BYTES`) of a file, decompressed."""
  with open_stream(path) as stream:
    return stream.read(HEAD_BYTES)


def wrong_start_error(path: str, head: bytes, expected: str) -> UserError:
  """Returns the error for a file whose first bytes are not the expected ones. `expected` ends with a remedy."""
  start = repr(head[:_MAX_SHOWN_BYTES].decode("utf-8", errors="replace"))
  return UserError(f"{path}: begins with {start}, not with {expected}, or give --text_format")


# ---- lines ---------------------------------------------------------------------------------------------


def open_text_lines(path: str, on_read: Callable[[int], None] | None = None) -> Iterator[tuple[int, str]]:
  """Yields the number, from 1, of each line of a UTF-8 text file, and the line without its line end.

  Lines end with LF or CR LF. Byte-order marks are removed. `on_read` is called from time to time with the number of
  (compressed) bytes read since the last call.

  Raises:
    UserError: the file cannot be read, is not plain text (`text_checks.check_head`), is not UTF-8 (the message names
      the line), or is a damaged or incomplete compressed file.
  """
  check_head(path, read_head(path))
  reported_bytes = 0
  file, stream = _open(path)
  with stream:
    for line_number, line in enumerate(stream, 1):
      if on_read is not None and line_number % _LINES_BETWEEN_REPORTS == 0:
        position = file.tell()
        on_read(position - reported_bytes)
        reported_bytes = position
      try:
        text = line.decode("utf-8")
      except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {line_number}: {decoding_problem(line, error)}") from error
      yield line_number, text.removesuffix("\n").removesuffix("\r").replace(_BYTE_ORDER_MARK, "")
  if on_read is not None:
    on_read(files.size(path) - reported_bytes)


def cut_line(text: str) -> Iterator[str]:
  """Cuts a line into parts of at most 20,000 characters, at a space if there is one."""
  start = 0
  while len(text) - start > _MAX_LINE_CHARS:
    # The text that is left is not copied, so that the time is in proportion to the length.
    end = text.rfind(" ", start + 1, start + _MAX_LINE_CHARS)
    end = end if end > 0 else start + _MAX_LINE_CHARS
    yield text[start:end]
    start = end
    while text[start : start + 1].isspace():
      start += 1
  if start < len(text):
    yield text[start:]


def decoding_problem(line: bytes, error: UnicodeDecodeError) -> str:
  """Returns what is wrong with a line that is not UTF-8, and the remedy."""
  problem = f"byte 0x{line[error.start]:02x}, {error.reason}"
  return f"not UTF-8 text ({problem}): convert the file to UTF-8, for example with iconv"


def strip_line(line: str) -> str:
  """Returns a line without byte-order marks and without white space around it."""
  return line.replace(_BYTE_ORDER_MARK, "").strip() if _BYTE_ORDER_MARK in line else line.strip()


@functools.lru_cache(maxsize=16)
def count_line_ends(path: str, stop: int) -> int:
  """Counts the line ends before byte `stop` of a file, for messages about many lines of the same part of it."""
  num_line_ends, bytes_left = 0, stop
  with files.open_file(path) as file:
    while bytes_left > 0 and (block := file.read(min(_BYTES_PER_READ, bytes_left))):
      num_line_ends += block.count(b"\n")
      bytes_left -= len(block)
  return num_line_ends


# ---- files of a job -------------------------------------------------------------------------------------


def read_record(path: str, schema: type[Schema]) -> Schema | None:
  """Reads a JSON file that an earlier command may have written. Returns None if it is missing or damaged."""
  with contextlib.suppress(UserError):
    if files.exists(path):
      return files.read_json(path, schema)
  return None
