"""Text files for data preparation: bad ones must be refused, and unusual ones must be read like ordinary ones.

Used by the part "inputs".
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conftest import english_like_documents
from tests.torture.attempts import BAD, VALID, Attempt, Expected
from tests.torture.workplace import Finished, Workplace

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextFile(NamedTuple):
  """A text file.

  Attributes:
    description: what is bad or unusual about it.
    suffix: the end of its name, ".txt" or ".txt.gz".
    content: its bytes.
    ordinary: for an unusual valid file, the content of an ordinary file with the same documents, if there is one.
  """

  description: str
  suffix: str
  content: bytes
  ordinary: bytes | None = None


def text_attempts(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Gives `number` bad text files to data preparation or the training of a vocabulary, then each unusual valid text."""
  for index in range(number):
    seed = rng.randrange(2**31)
    text = _bad_text(rng, seed)
    command = "data preparation" if index % 3 > 0 else "vocabulary"
    yield _text_attempt(workplace, f"text, {command}", text, Expected(BAD, (_name_in_error(text),)))
  for text in _unusual_texts(_ordinary_text(rng.randrange(2**31)), rng):
    yield _unusual_text_attempt(workplace, text)


def _name_in_error(text: TextFile) -> str:
  """Returns what the error about a bad text must name: the file, or the flag if the file holds nothing but blanks."""
  is_blank = not text.content.strip(b" \t\r\n" + _BYTE_ORDER_MARK)
  return "--input_file" if text.content and is_blank else f"text{text.suffix}"


def _ordinary_text(seed: int) -> bytes:
  """Makes twelve documents, with a blank line after each."""
  documents = english_like_documents(12, seed=seed)
  return "".join("\n".join(document) + "\n\n" for document in documents).encode()


def _bad_text(rng: random.Random, seed: int) -> TextFile:
  ordinary = _ordinary_text(seed)
  lines = ordinary.split(b"\n")
  index = rng.randrange(len(lines) - 2)

  def with_line(line: bytes) -> bytes:
    """Inserts a line."""
    return b"\n".join([*lines[:index], line, *lines[index:]])

  not_utf8 = bytes([rng.choice(b"\xff\xfe\xc0\xc1\xf5\x80\xe9")])
  gzipped = gzip.compress(ordinary)
  # Positions between the header of 10 bytes and the trailer of 8 bytes of a GZIP file.
  num_kept, flipped = rng.randrange(12, len(gzipped) - 9), rng.randrange(12, len(gzipped) - 9)
  flipped_byte = bytes([gzipped[flipped] ^ 1 << rng.randrange(8)])
  files: list[tuple[str, str, bytes]] = [
    ("empty", ".txt", b""),
    ("only blank lines", ".txt", b"\n \n\t\r\n" * rng.randrange(1, 50)),
    ("only a byte-order mark", ".txt", _BYTE_ORDER_MARK + b"\n"),
    (f"not UTF-8, line {index + 1}", ".txt", with_line(b"caf" + not_utf8 + b" au lait")),
    (f"a lone surrogate, line {index + 1}", ".txt", with_line(b"a \xed\xa0\x80 b")),
    ("UTF-16", ".txt", ordinary.decode().encode("utf-16")),
    ("UTF-16LE without its mark", ".txt", ordinary.decode().encode("utf-16-le")),
    ("UTF-32", ".txt", ordinary.decode().encode("utf-32")),
    ("NUL", ".txt", bytes(rng.randrange(20, 70_000))),
    ("CR line ends", ".txt", ordinary.replace(b"\n", b"\r")),
    ("GZIP data without .gz", ".txt", gzipped),
    ("plain text in .gz", ".txt.gz", ordinary),
    (f"GZIP data cut after {num_kept} bytes", ".txt.gz", gzipped[:num_kept]),
    ("an empty file in .gz", ".txt.gz", b""),
    (f"a bit of GZIP data flipped at {flipped}", ".txt.gz", gzipped[:flipped] + flipped_byte + gzipped[flipped + 1 :]),
    ("JSON lines", ".txt", b"".join(b'{"text": "%s"}\n' % line for line in lines if line)),
    ("HTML", ".txt", b"<!DOCTYPE html>\n<html><body>" + ordinary),
    ("PDF", ".txt", b"%PDF-1.7\n" + rng.randbytes(500)),
    ("Parquet", ".txt", b"PAR1\x15" + rng.randbytes(500)),
  ]
  return TextFile(*rng.choice(files))


def _unusual_texts(ordinary: bytes, rng: random.Random) -> Iterator[TextFile]:
  """Yields unusual valid texts: first other notations of an ordinary text, then texts with other words."""
  gzipped = gzip.compress(ordinary, compresslevel=rng.randrange(1, 10))
  two_members = gzip.compress(ordinary[:700]) + gzip.compress(ordinary[700:])
  yield TextFile("CR LF line ends", ".txt", ordinary.replace(b"\n", b"\r\n"), ordinary)
  yield TextFile("a byte-order mark", ".txt", _BYTE_ORDER_MARK + ordinary, ordinary)
  yield TextFile("GZIP", ".txt.gz", gzipped, ordinary)
  yield TextFile("no line end at the end", ".txt", ordinary.rstrip(b"\n"), ordinary)
  yield TextFile("GZIP with two members", ".txt.gz", two_members, ordinary)
  yield TextFile("blank lines at the beginning and at the end", ".txt", b"\n\n" + ordinary + b"\n\r\n \n", ordinary)
  yield TextFile("a line of a megabyte", ".txt", ordinary + b"the captain sold the river " * 40_000 + b"\n")
  yield TextFile("a word of 300,000 letters", ".txt", ordinary + b"x" * 300_000 + b"\n")
  yield TextFile("NUL in a line", ".txt", ordinary.replace(b"the", b"the\0", 1))
  yield TextFile("other line ends of Unicode", ".txt", ordinary.replace(b"the ", "the\u2028".encode(), 3))


_PREPARATION = ["-m", "data_prep.create_pretraining_data", "--max_seq_length=32", "--num_shards=1", "--num_processes=1",
                "--dupe_factor=1"]  # fmt: skip


def _text_attempt(workplace: Workplace, group: str, text: TextFile, expected: Expected) -> Attempt:
  def prepare(directory: Path) -> list[str]:
    path = directory / f"text{text.suffix}"
    path.write_bytes(text.content)
    if group.endswith("vocabulary"):
      return ["-m", "data_prep.train_vocab", f"--input_file={path}", "--vocab_size=90", "--output_dir=out"]
    return [*_PREPARATION, f"--input_file={path}", f"--spm_model_file={workplace.vocabulary}", "--output_dir=out"]

  return Attempt(group, text.description, prepare, expected)


def _unusual_text_attempt(workplace: Workplace, text: TextFile) -> Attempt:
  """Prepares data from an unusual text. It must have as many documents and tokens as the ordinary text.

  The examples cannot be compared: they depend on the documents' offsets in the file.
  """

  def check(finished: Finished, directory: Path) -> str | None:
    counts = _count_documents_and_tokens(directory / "out")
    if not counts:
      return f"no shard: {finished.stdout!r}"
    if text.ordinary is None:
      return None
    (directory / "ordinary").mkdir()
    path = directory / "ordinary" / "text.txt"
    path.write_bytes(text.ordinary)
    flags = [f"--input_file={path}", f"--spm_model_file={workplace.vocabulary}", "--output_dir=ordinary/out"]
    preparation = workplace.run([*_PREPARATION, *flags], cwd=directory)
    if preparation.code:
      return f"the ordinary text is refused: {preparation.error!r}"
    expected = _count_documents_and_tokens(directory / "ordinary" / "out")
    return None if counts == expected else f"(documents, tokens) are {counts} instead of {expected}"

  return _text_attempt(workplace, "text, valid", text, Expected(VALID, (), check))


def _count_documents_and_tokens(directory: Path) -> tuple[int, int] | None:
  """Reads (documents, tokens) from the manifest in a directory; None if there is no manifest."""
  path = directory / "manifest.json"
  if not path.exists():
    return None
  manifest = json.loads(path.read_text(encoding="utf-8"))
  return manifest["num_documents"], manifest["num_tokens"]
