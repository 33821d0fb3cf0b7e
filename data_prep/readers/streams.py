"""Opens files that may be compressed: .gz, .bz2 and .zst."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from typing import Any, BinaryIO, cast

from albert.errors import UserError
from albert.io import files
from data_prep import text_checks
from data_prep.readers import optional_libraries

ENDINGS = (".gz", ".bz2", ".zst")
_BUFFER_BYTES = 1 << 18
_FORMATS = {".gz": "GZIP", ".bz2": "bzip2", ".zst": "Zstandard"}


def compression(path: str) -> str:
  """Returns the ending of a compressed file's name: ".gz", ".bz2" or ".zst"; "" for other files."""
  return next((ending for ending in ENDINGS if path.endswith(ending)), "")


class _CheckedStream(io.RawIOBase):
  """A stream of decompressed data in which damage is a UserError that names the file."""

  def __init__(self, path: str, file: BinaryIO, source: Any):
    self._path, self._file, self._source = path, file, source

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    try:
      data = self._source.read(len(buffer))
    except (EOFError, ValueError, OSError, zlib.error) as error:
      raise damage_error(self._path, error) from error
    buffer[: len(data)] = data
    return len(data)

  def close(self) -> None:
    self._file.close()
    super().close()


class _ZstandardReader:
  """Reads the frames of a Zstandard file. zstandard's own readers do not report a file that ends within a frame."""

  def __init__(self, file: BinaryIO, module: Any):
    self._file, self._module = file, module
    self._decompressor: Any = None
    self._decoded = b""
    self._rest = b""  # compressed bytes after the last frame

  def read(self, size: int) -> bytes:
    while not self._decoded:
      data = self._rest or self._file.read(_BUFFER_BYTES)
      self._rest = b""
      if not data:
        if self._decompressor is not None:
          raise EOFError("the file ends within a frame")
        return b""
      if self._decompressor is None:
        self._decompressor = self._module.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
      try:
        self._decoded = self._decompressor.decompress(data)
      except self._module.ZstdError as error:
        raise EOFError(str(error)) from error
      if self._decompressor.eof:
        self._rest, self._decompressor = self._decompressor.unused_data, None
    data, self._decoded = self._decoded[:size], self._decoded[size:]
    return data


def damage_error(path: str, error: BaseException) -> UserError:
  """Returns the error for a compressed file that cannot be decompressed."""
  return UserError(
    f"{path}: the {_FORMATS[compression(path)]} file is damaged or incomplete ({error}): compress it again, or leave "
    "it out of the input"
  )


def check_libraries(path: str) -> None:
  """Checks that the library that decompresses a file is installed.

  Raises:
    UserError: it is not.
  """
  if compression(path) == ".zst":
    _import_zstandard(path)


def _import_zstandard(path: str) -> Any:
  with optional_libraries.required(path, "reading .zst files needs zstandard", "pip install 'zstandard>=0.22'"):
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
    source: Any = gzip.GzipFile(fileobj=file)
  elif ending == ".bz2":
    source = bz2.BZ2File(file)
  else:
    source = _ZstandardReader(file, _import_zstandard(path))
  return cast("BinaryIO", io.BufferedReader(_CheckedStream(path, file, source), _BUFFER_BYTES))


def read_head(path: str) -> bytes:
  """Reads the first bytes (`text_checks.HEAD_BYTES`) of a file, decompressed."""
  with open_stream(path) as stream:
    return stream.read(text_checks.HEAD_BYTES)
