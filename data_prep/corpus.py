"""Plain text to tokenized documents, in units of bounded size that depend on the files' contents alone.

A document ends at a blank line or at the end of a file; every other line is a sentence. A file's text (of a
.txt.gz: the unpacked text) is cut into ranges at the first blank line after every UNIT_BYTES, so that one
large file is many units. A document without a blank line for that long is cut at a line's end instead, or at
white space, and goes on as a new document; such cuts are counted.
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol, cast

import numpy as np

from albert.errors import UserError
from albert.io import files
from albert.tokenization.tokenizer import UNK_ID
from data_prep import text_checks
from data_prep.segments import Documents, Rules, cut_long_sentences
from data_prep.text_files import cut_line, is_gzip

UNIT_BYTES = 2 << 20
_BATCH_CHARS = 1 << 18
_BLOCK = 1 << 20
# The blank line may have begun a little before the place where the search for it starts.
_LOOK_BACK = 64
_SHORT_WINDOW = 1 << 16
_BLANK_LINE = re.compile(rb"\n[ \t\r\v\f]*\n")
_LINE_END = re.compile(rb"\n")
_SPACE = re.compile(rb"[ \t\r\v\f]")
_CHARACTER = re.compile(rb"(?s).(?=[\x00-\x7f\xc0-\xff])")
_BYTE_ORDER_MARK = "\ufeff"


class SupportsEncode(Protocol):
  """What is needed of albert.tokenization.tokenizer.Tokenizer."""

  @property
  def word_starts(self) -> np.ndarray: ...

  def encode_batch(self, texts: list[str]) -> list[list[int]]: ...


@dataclasses.dataclass(frozen=True)
class Range:
  """Text of one file from byte `start` to `end`, or of a packed file: its unpacked bytes, then in `data`.

  `start` and `end` of a plain file are the nominal ones, multiples of UNIT_BYTES; `read_range` moves both to
  the next blank line. Those of a packed file are final.
  """

  path: str
  ordinal: int
  start: int
  end: int
  is_cut: bool = False
  data: bytes | None = None


@dataclasses.dataclass(frozen=True)
class Unit:
  """One piece of work: some ranges, and for NSP those of a neighbour, for donors when it has too few."""

  index: int
  ranges: tuple[Range, ...]
  donors: tuple[Range, ...] = ()
  progress_bytes: int = 0

  @property
  def data_bytes(self) -> int:
    return sum(len(part.data or b"") for part in self.ranges + self.donors)


@dataclasses.dataclass(frozen=True)
class Counts:
  """What a unit held: documents (dropped ones too), their tokens, documents dropped, cuts inside documents, and how
  many of the tokens are <unk>."""

  documents: int = 0
  tokens: int = 0
  dropped: int = 0
  cut: int = 0
  unknown: int = 0

  def __add__(self, other: Counts) -> Counts:
    return Counts(
      self.documents + other.documents,
      self.tokens + other.tokens,
      self.dropped + other.dropped,
      self.cut + other.cut,
      self.unknown + other.unknown,
    )


# ---- cutting files into units --------------------------------------------------------------------------


def find_boundary(window: bytes, look_back: int, *, is_last: bool) -> tuple[int, bool]:
  """Where to cut text, at or after byte `look_back` of `window`, and whether that cuts a document.

  The end of the first blank line; without one the end of the file, if the window reaches it (`is_last`);
  else the end of the first line, of the first white space, or of the first character.
  """
  for match in _BLANK_LINE.finditer(window):
    if match.end() >= look_back:
      return match.end(), False
  if is_last:
    return len(window), False
  for pattern in (_LINE_END, _SPACE, _CHARACTER):
    found = pattern.search(window, max(0, look_back - 1))
    if found:
      return found.end(), True
  return len(window), True


def _boundary(read_at: Callable[[int, int], bytes], nominal: int, unit_bytes: int) -> tuple[int, bool]:
  """`find_boundary` for byte `nominal` of a file, at most `unit_bytes` after it."""
  if nominal == 0:
    return 0, False
  start = max(0, nominal - _LOOK_BACK)
  # Most boundaries are near: the long window is read only where the short one has no blank line.
  short = read_at(start, nominal - start + min(_SHORT_WINDOW, unit_bytes))
  place, is_cut = find_boundary(short, nominal - start, is_last=False)
  if is_cut:
    wanted = nominal - start + unit_bytes
    window = read_at(start, wanted)
    place, is_cut = find_boundary(window, nominal - start, is_last=len(window) < wanted)
  return start + place, is_cut


def packed_ranges(path: str, ordinal: int, unit_bytes: int = UNIT_BYTES) -> Iterator[tuple[Range, int]]:
  """Ranges of a .gz file with their unpacked text, and the packed bytes read for each."""
  with files.open_file(path) as file:
    text_checks.check_is_gzip(path, file.read(text_checks.HEAD_BYTES))
    file.seek(0)
    stream = gzip.GzipFile(fileobj=file)
    text, offset, packed, is_cut = b"", 0, 0, False  # the text in hand begins at byte `offset`
    for nominal in itertools.count(unit_bytes, unit_bytes):
      wanted = nominal + unit_bytes - offset
      text += _read_packed(stream, path, wanted - len(text))
      if offset + len(text) <= nominal:
        break
      skipped = max(0, nominal - _LOOK_BACK - offset)
      is_last = len(text) < wanted
      place, next_is_cut = find_boundary(text[skipped:], nominal - offset - skipped, is_last=is_last)
      end, done = skipped + place, file.tell()
      yield Range(path, ordinal, offset, offset + end, is_cut, text[:end]), done - packed
      text, offset, packed, is_cut = text[end:], offset + end, done, next_is_cut
    yield Range(path, ordinal, offset, offset + len(text), is_cut, text), files.size(path) - packed


def _read_packed(stream: gzip.GzipFile, path: str, size: int) -> bytes:
  try:
    return stream.read(size) if size > 0 else b""
  except (EOFError, zlib.error, gzip.BadGzipFile) as error:
    raise UserError(f"{path}: not a whole GZIP file ({error}): pack it again or take it out of the input") from error


def plain_ranges(path: str, ordinal: int, unit_bytes: int = UNIT_BYTES) -> Iterator[tuple[Range, int]]:
  size = files.size(path)
  for start in range(0, size, unit_bytes):
    end = min(start + unit_bytes, size)
    yield Range(path, ordinal, start, end), end - start


def plan_units(paths: list[str], *, with_donors: bool, unit_bytes: int = UNIT_BYTES) -> Iterator[Unit]:
  """Units of about `unit_bytes` of text, in order; short files share one.

  Args:
    paths: text files; their order gives the documents' file ordinals.
    with_donors: give every unit the ranges of the next one too (the last: of the one before).
    unit_bytes: greatest nominal size; the text itself is at most twice as long.
  """
  plain = _grouped(paths, unit_bytes)
  if not with_donors:
    for index, (ranges, progress) in enumerate(plain):
      yield Unit(index, ranges, (), progress)
    return
  previous: tuple[Range, ...] = ()
  current = next(plain, None)
  index = 0
  while current is not None:
    following = next(plain, None)
    yield Unit(index, current[0], following[0] if following else previous, current[1])
    previous, current = current[0], following
    index += 1


def _grouped(paths: list[str], unit_bytes: int) -> Iterator[tuple[tuple[Range, ...], int]]:
  """Ranges in groups of at most `unit_bytes` by nominal size, and the bytes read from disk for each."""
  group: list[Range] = []
  size, progress = 0, 0
  for ordinal, path in enumerate(paths):
    ranges = packed_ranges if is_gzip(path) else plain_ranges
    for number, (part, read) in enumerate(ranges(path, ordinal, unit_bytes)):
      # A packed file's ranges count as its plain text's would, so that both make the same units.
      nominal = max(0, min(unit_bytes, part.end - number * unit_bytes))
      if group and size + nominal > unit_bytes:
        yield tuple(group), progress
        group, size, progress = [], 0, 0
      group.append(part)
      size += nominal
      progress += read
  if group:
    yield tuple(group), progress


# ---- reading units -------------------------------------------------------------------------------------


def read_range(part: Range, unit_bytes: int = UNIT_BYTES) -> tuple[bytes, int, bool]:
  """The text of a range, the byte of the file it begins at, and whether that cuts a document in two."""
  if part.data is not None:
    return part.data, part.start, part.is_cut
  with files.open_file(part.path) as file:

    def read_at(start: int, length: int) -> bytes:
      file.seek(start)
      return file.read(length)

    size = files.size(part.path)
    start, is_cut = _boundary(read_at, part.start, unit_bytes)
    end = size if part.end >= size else _boundary(read_at, part.end, unit_bytes)[0]
    return read_at(start, max(0, end - start)), start, is_cut and start < end


def _count_lines(part: Range, stop: int) -> int:
  """Line ends before byte `stop` of the range's file."""
  with files.open_file(part.path) as file:
    stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_gzip(part.path) else file
    total = 0
    while stop > 0 and (block := stream.read(min(_BLOCK, stop))):
      total += block.count(b"\n")
      stop -= len(block)
  return total


def parse_documents(part: Range, unit_bytes: int = UNIT_BYTES) -> tuple[list[tuple[int, list[str]]], bool]:
  """Documents of a range as (byte offset of the first line, sentences), and whether the first continues one.

  Byte-order marks are taken away, and lines of white space alone are blank.

  Raises:
    UserError: naming the file and the line where the text is not UTF-8; the file is not prose (`text_checks`).
  """
  data, offset, is_cut = read_range(part, unit_bytes)
  if offset == 0:
    text_checks.check_head(part.path, data)
  documents: list[tuple[int, list[str]]] = []
  sentences: list[str] = []
  for line in data.split(b"\n"):
    try:
      text = line.decode("utf-8")
    except UnicodeDecodeError as error:
      number = _count_lines(part, offset) + 1
      raise UserError(
        f"{part.path}, line {number}: not UTF-8 text (byte 0x{line[error.start]:02x}, {error.reason}): "
        "convert the file to UTF-8, for example with iconv"
      ) from error
    if _BYTE_ORDER_MARK in text:
      text = text.replace(_BYTE_ORDER_MARK, "")
    text = text.strip()
    if not text:
      sentences = []
    else:
      if not sentences:
        documents.append((offset, sentences))
      sentences.extend(cut_line(text))
    offset += len(line) + 1
  return documents, is_cut


def _tokenize(tokenizer: SupportsEncode, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
  """Ids of all sentences end to end (int32), and each one's number of tokens."""
  ids: list[np.ndarray] = [np.zeros(0, np.int32)]
  lengths: list[np.ndarray] = [np.zeros(0, np.int64)]
  start, chars = 0, 0
  for index, sentence in enumerate(sentences):
    chars += len(sentence)
    if chars >= _BATCH_CHARS or index == len(sentences) - 1:
      batch = tokenizer.encode_batch(sentences[start : index + 1])
      count = np.fromiter(map(len, batch), np.int64, len(batch))
      ids.append(np.fromiter(itertools.chain.from_iterable(batch), np.int32, int(count.sum())))
      lengths.append(count)
      start, chars = index + 1, 0
  return np.concatenate(ids), np.concatenate(lengths)


def load_documents(
  ranges: tuple[Range, ...], tokenizer: SupportsEncode, rules: Rules, unit_bytes: int = UNIT_BYTES
) -> tuple[Documents, Counts]:
  """Reads and tokenizes the documents of a unit. Those with fewer than `rules.min_words` words are dropped."""
  found: list[tuple[int, int, list[str]]] = []
  cuts = 0
  for part in ranges:
    texts, is_cut = parse_documents(part, unit_bytes)
    cuts += is_cut and bool(texts)
    found += [(part.ordinal, offset, sentences) for offset, sentences in texts]
  ids, lengths = _tokenize(tokenizer, list(itertools.chain.from_iterable(item[2] for item in found)))
  num_sentences = np.fromiter((len(item[2]) for item in found), np.int64, len(found))
  token_ends = np.concatenate([[0], np.cumsum(lengths)])
  sentence_ends, word_starts = cut_long_sentences(
    token_ends[1:][lengths > 0], tokenizer.word_starts[ids], rules.max_num_tokens
  )
  documents = Documents(
    ids=ids,
    word_starts=word_starts,
    sentence_ends=sentence_ends,
    splits=token_ends[np.concatenate([[0], np.cumsum(num_sentences)])],
    file_ordinals=np.fromiter((item[0] for item in found), np.int64, len(found)),
    offsets=np.fromiter((item[1] for item in found), np.int64, len(found)),
  )
  kept = _without_short(documents, rules.min_words)
  num_unknown = int(np.count_nonzero(ids == UNK_ID))
  return kept, Counts(len(found), int(ids.size), len(found) - len(kept), cuts, num_unknown)


def _without_short(documents: Documents, min_words: int) -> Documents:
  """The documents with at least `min_words` words."""
  splits = documents.splits
  words_before = np.concatenate([[0], np.cumsum(documents.word_starts)])[splits]
  keep = np.diff(words_before) >= min_words
  if keep.all():
    return documents
  keep_token = np.repeat(keep, np.diff(splits))
  kept_before = np.concatenate([[0], np.cumsum(keep_token)])
  keep_sentence = keep[np.searchsorted(splits, documents.sentence_ends) - 1]
  return Documents(
    ids=documents.ids[keep_token],
    word_starts=documents.word_starts[keep_token],
    sentence_ends=kept_before[documents.sentence_ends[keep_sentence]],
    splits=np.concatenate([[0], kept_before[splits[1:][keep]]]),
    file_ordinals=documents.file_ordinals[keep],
    offsets=documents.offsets[keep],
  )


def join_documents(first: Documents, second: Documents) -> Documents:
  """The documents of both, `first`'s in front."""
  shift = first.ids.size
  return Documents(
    ids=np.concatenate([first.ids, second.ids]),
    word_starts=np.concatenate([first.word_starts, second.word_starts]),
    sentence_ends=np.concatenate([first.sentence_ends, second.sentence_ends + shift]),
    splits=np.concatenate([first.splits, second.splits[1:] + shift]),
    file_ordinals=np.concatenate([first.file_ordinals, second.file_ordinals]),
    offsets=np.concatenate([first.offsets, second.offsets]),
  )
