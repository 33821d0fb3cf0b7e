"""Opens files that may be compressed: .gz, .bz2 and .zst."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from typing import Any, BinaryIO, cast

from albert.io import files
from albert.io.local_files import required_library
from data_prep.text import text_checks

_BUFFER_BYTES = 1 << 18
# A Zstandard block of 4 bytes may hold 128 kB of text, so this many compressed bytes hold at most 32 MB.
_ZSTANDARD_BYTES = 1 << 10
# Ending of a compressed file's name -> the file's format.
_FORMATS = {".gz": "GZIP", ".bz2": "bzip2", ".zst": "Zstandard"}
_MAX_SHOWN_BYTES = 40


def compression(path: str) -> str:
  """Returns the ending of a compressed file's name: ".gz", ".bz2" or ".zst"; "" for other files."""
  return next((ending for ending in _FORMATS if path.endswith(ending)), "")


class _CheckedStream(io.RawIOBase):
  """A stream of decompressed data in which damage is a UserError that names the file."""

  def __init__(self, path: str, file: BinaryIO, decompressor: Any):
    self._path, self._file, self._decompressor = path, file, decompressor

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    try:
      data = self._decompressor.read(len(buffer))
    except (EOFError, ValueError, OSError, zlib.error) as error:
      file_format = _FORMATS[compression(self._path)]
      raise text_checks.damaged_file_error(self._path, file_format, error) from error
    buffer[: len(data)] = data
    return len(data)

  def close(self) -> None:
    self._file.close()
    super().close()


class _ZstandardReader:
  """Decompresses the frames of a Zstandard file. zstandard's own readers do not notice if a file ends within a frame.

  Args:
    file: the compressed file.
    module: the library zstandard.
  """

  def __init__(self, file: BinaryIO, module: Any):
    self._file, self._module = file, module
    self._decompressor: Any = None  # of the current frame; None between frames
    self._decoded = io.BytesIO()  # decompressed bytes; those before its position have been returned
    self._unused = b""  # compressed bytes after the last frame

  def read(self, size: int) -> bytes:
    while not (data := self._decoded.read(size)):
      compressed = self._unused or self._file.read(_ZSTANDARD_BYTES)
      self._unused = b""
      if not compressed:
        if self._decompressor is not None:
          raise EOFError("the file ends within a frame")
        return b""
      if self._decompressor is None:
        self._decompressor = self._module.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
      try:
        self._decoded = io.BytesIO(self._decompressor.decompress(compressed))
      except self._module.ZstdError as error:
        raise EOFError(str(error)) from error
      if self._decompressor.eof:
        self._unused, self._decompressor = self._decompressor.unused_data, None
    return data


def check_libraries(path: str) -> None:
  """Checks that the library that decompresses a file is installed.

  Raises:
    UserError: it is not.
  """
  if compression(path) == ".zst":
    _import_zstandard(path)


def _import_zstandard(path: str) -> Any:
  with required_library(path, "reading .zst files needs zstandard", "pip install 'zstandard>=0.22'"):
    import zstandard
  return zstandard


def open_stream(path: str) -> BinaryIO:
  """Opens a file, and decompresses it if its name ends in .gz, .bz2 or .zst.

  Args:
    path: the file.

  Returns:
    A stream of its decompressed bytes. Damaged data raises UserError.

  Raises:
    UserError: the file cannot be read, it is not compressed as its name says, or zstandard is not installed.
  """
  ending = compression(path)
  file = files.open_file(path)
  if not ending:
    return file
  if ending == ".gz":
    text_checks.check_is_gzip(path, file.read(text_checks.HEAD_BYTES))
    file.seek(0)
    decompressor: Any = gzip.GzipFile(fileobj=file)
  elif ending == ".bz2":
    decompressor = bz2.BZ2File(file)
  else:
    decompressor = _ZstandardReader(file, _import_zstandard(path))
  return cast("BinaryIO", io.BufferedReader(_CheckedStream(path, file, decompressor), _BUFFER_BYTES))


def read_head(path: str) -> bytes:
  """Reads the first bytes (`text_checks.HEAD_BYTES`) of a file, decompressed."""
  with open_stream(path) as stream:
    return stream.read(text_checks.HEAD_BYTES)


def show_start(head: bytes) -> str:
  """Returns the first bytes of a file as a quoted text, for an error message."""
  return repr(head[:_MAX_SHOWN_BYTES].decode("utf-8", errors="replace"))
