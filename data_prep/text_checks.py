"""Recognizes input that is not prose by the beginning of each file, and text that the vocabulary does not fit.

Data preparation and vocabulary training read UTF-8 text: a sentence on each line, a blank line after each document.
Any other format would be taken for sentences. `check_head` refuses the usual ones; every reader of text calls it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from albert.errors import UserError
from albert.io import files, json_values
from albert.tokenization.tokenizer import UNK_ID, Tokenizer

#: How much of a file's text `check_head` looks at.
HEAD_BYTES = 64 << 10
# A remote file system may fetch many megabytes for a few bytes, so only some remote files are checked before the
# start. The processes that read the text check every file.
_MAX_REMOTE_FILES = 4
# The sample in which <unk> is counted before the start: so many files, so many bytes of each.
_SAMPLE_FILES = 16
_SAMPLE_BYTES = 16 << 10
# A vocabulary that was trained on text of the same kind leaves far less: 0.01% in the held-out text of `make demo`.
_MUCH_UNKNOWN = 0.01
_SHOWN_CHARACTERS = 5
_SHOWN_LINE = 40

# First bytes, the format they belong to, and the remedy.
_MAGIC = tuple(
  (re.compile(pattern, re.DOTALL), name, remedy)
  for pattern, name, remedy in (
    (rb"\x1f\x8b\x08", "GZIP data", "give it a name that ends in .gz"),
    (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", "bzip2 data", "unpack it with bunzip2"),
    (rb"\xfd7zXZ\x00", "xz data", "unpack it with unxz"),
    (rb"\x28\xb5\x2f\xfd", "Zstandard data", "unpack it with unzstd"),
    (rb"\x04\x22\x4d\x18", "LZ4 data", "unpack it with unlz4"),
    (rb"PK(\x03\x04|\x05\x06)", "a ZIP archive", "unpack it with unzip (save a document or an e-book as plain text)"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it with 7z x"),
    (rb".{257}ustar[\x00 ]", "a tar archive", "unpack it with tar -xf"),
    (rb"PAR1[\x00-\x08\x0e-\x1f\x7f-\xff]", "a Parquet file", "write its column of text to a .txt file"),
    (rb"ARROW1\x00\x00", "an Arrow file", "write its column of text to a .txt file"),
    (rb"%PDF-\d\.\d", "a PDF file", "extract the text with pdftotext"),
    (rb"\{\\rtf\d", "an RTF file", "save it as plain text"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16 text", "convert it with iconv -f UTF-16 -t UTF-8"),
  )
)
_IS_GZIP = b"\x1f\x8b"
_NAME = r'"((?:[^"\\\n]|\\.){0,200})"\s*:'
_JSON_OBJECT = re.compile(r"\[?\s*\{\s*" + _NAME)
_REST_OF_ARRAY = re.compile(r"\]|,(\s*\{.*)?")
_JSON_STRINGS = re.compile(_NAME + r'\s*"')
_WIKIEXTRACTOR = re.compile(r'<doc\s+(?:id|url|title)="')
_MARKUP = re.compile(r"<(\?xml\s|!doctype html\b|html(>|\s+[\w:-]+=)|mediawiki\s+[\w:-]+=)", re.IGNORECASE)
_LONE_CR = re.compile(rb"\r(?![\r\n]|\Z)")
_WANTED = "a sentence on each line and a blank line after each document"


def check_inputs(paths: Sequence[str], tokenizer: Tokenizer | None = None) -> str | None:
  """Checks the beginning of every local file, and of some remote ones, before any work is done.

  Args:
    paths: text files; .gz files are unpacked.
    tokenizer: counts <unk> in a sample of the text.

  Returns:
    A warning if more than 1% of the tokens of the sample are <unk>.

  Raises:
    UserError: for a file that is not text, see `check_head`.
  """
  remote = _spread([path for path in paths if files.is_remote(path)], _MAX_REMOTE_FILES)
  checked = [path for path in paths if path in remote or not files.is_remote(path)]
  sampled = set(_spread(checked, _SAMPLE_FILES))
  sample: list[str] = []
  for path in checked:
    head = _read_head(path)
    check_head(path, head)
    if tokenizer is not None and path in sampled:
      sample += head[:_SAMPLE_BYTES].decode("utf-8", errors="ignore").splitlines()
  return None if tokenizer is None else _sample_warning(sample, tokenizer)


def check_head(path: str, head: bytes) -> None:
  """Refuses a file that does not begin as text does.

  Args:
    path: the file, which the error names.
    head: the first HEAD_BYTES of its text, or all there is; of a .gz file, after unpacking.

  Raises:
    UserError: it is compressed, an archive, a document, a table, JSON, XML, HTML or wikiextractor's output, or its
      lines end in CR alone. Names the format and the remedy.
  """
  head = head[:HEAD_BYTES]
  _check_format(path, head)
  lone = len(_LONE_CR.findall(head))
  if lone and lone >= 2 * head.count(b"\n"):  # a few of them elsewhere are white space
    raise UserError(
      f"{path}: its lines end in CR alone ({lone} of them in the first {len(head)} bytes): convert them to LF, for "
      "example with " + _command(path, r"tr '\r' '\n'")
    )
  text = head.decode("utf-8", errors="replace").replace("\ufeff", "")
  body = text.lstrip()
  number = text.count("\n", 0, len(text) - len(body)) + 1
  line = f"line {number}, begins with {body.split(chr(10), 1)[0][:_SHOWN_LINE]!r}"
  if _WIKIEXTRACTOR.match(body):
    raise UserError(
      f"{path}, {line}, as wikiextractor writes it, which is not a sentence: make its lines blank, for example with "
      + _command(path, "sed -E 's|^</?doc.*||'")
    )
  if _MARKUP.match(body):
    raise UserError(
      f"{path}, {line}: XML or HTML, not plain text: extract the text, {_WANTED} (from a dump of Wikipedia with "
      "wikiextractor)"
    )
  if key := _json_key(body, is_cut=len(head) == HEAD_BYTES):
    raise UserError(
      f"{path}, {line}: JSON, not plain text: extract the text, {_WANTED}, for example with "
      + _command(path, f"jq -r '{'.[] | ' if body[0] == '[' else ''}.{key}, \"\"'")
    )


def check_is_gzip(path: str, first_bytes: bytes) -> None:
  """UserError for a file whose name ends in .gz and whose first bytes are not GZIP's: names what it is."""
  if not first_bytes.startswith(_IS_GZIP):
    _check_format(path, first_bytes)
    raise UserError(f"{path}: not GZIP data, though its name ends in .gz: rename it without .gz, or pack it with gzip")


def _check_format(path: str, head: bytes) -> None:
  for pattern, name, remedy in _MAGIC:
    if pattern.match(head):
      raise UserError(f"{path}: {name}, not plain text: {remedy}")
  if head.count(0) > len(head) // 10:
    raise UserError(
      f"{path}: {head.count(0)} of the first {len(head)} bytes are NUL, so it is not UTF-8 text: convert UTF-16 with "
      "iconv -f UTF-16LE -t UTF-8"
    )


def _json_key(body: str, *, is_cut: bool) -> str:
  """If the text begins with a JSON object (or an array of objects): its key with the most text, for jq; else ""."""
  if not _JSON_OBJECT.match(body):
    return ""
  try:
    value, end = json_values.decode_start(body, body.index("{"))
  except json.JSONDecodeError as error:
    if not is_cut or not (error.msg.startswith("Unterminated string") or error.pos >= len(body) - _SHOWN_LINE):
      return ""
    strings = dict.fromkeys(_JSON_STRINGS.findall(body), "")
  except RecursionError:
    strings = {}
  else:
    rest = body[end:].split("\n", 1)[0].strip()
    if rest and not (body[0] == "[" and _REST_OF_ARRAY.fullmatch(rest)):
      return ""  # prose that quotes JSON
    strings = {key: item for key, item in value.items() if isinstance(item, str)}
  key = "text" if "text" in strings or not strings else max(reversed(strings), key=lambda key: len(strings[key]))
  return key if key.isidentifier() else json.dumps(key, ensure_ascii=False)


def _command(path: str, stdin_to_stdout: str) -> str:
  return (
    f"zcat {path} | {stdin_to_stdout} > text.txt" if path.endswith(".gz") else f"{stdin_to_stdout} < {path} > text.txt"
  )


def _spread(paths: Sequence[str], most: int) -> list[str]:
  """At most `most` of the paths, evenly spread."""
  return [paths[index * len(paths) // most] for index in range(most)] if len(paths) > most else list(paths)


def _read_head(path: str) -> bytes:
  """The first HEAD_BYTES of a file's text. Damage to a GZIP file is left to its reader."""
  with files.open_file(path) as file:
    head = file.read(HEAD_BYTES)
  if not path.endswith(".gz"):
    return head
  check_is_gzip(path, head)
  try:
    return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
  except zlib.error:
    return b""


def _sample_warning(lines: list[str], tokenizer: Tokenizer) -> str | None:
  ids, _ = tokenizer.encode_batch_flat(lines)
  share = np.count_nonzero(ids == UNK_ID) / max(ids.size, 1)
  characters = Counter(tokenizer.normalize("".join(lines)))
  known = set("".join(tokenizer.pieces)) | {" "}
  lacking = [c for c, _ in characters.most_common() if c not in known and UNK_ID in tokenizer.encode(c)]
  return unknown_warning("a sample of the text", float(share), lacking[:_SHOWN_CHARACTERS])


def unknown_warning(where: str, share: float, characters: Sequence[str] = ()) -> str | None:
  """A line if more than 1% of the tokens are <unk>.

  Args:
    where: what the tokens are of; the line begins with it.
    share: of <unk> among the tokens.
    characters: some that the vocabulary lacks.
  """
  if share <= _MUCH_UNKNOWN:
    return None
  shown = "".join(f", {c} U+{ord(c):04X}" for c in characters)
  return (
    f"warning: {where}: {share:.1%} of the tokens are <unk>, since the vocabulary lacks characters of this text"
    f"{shown}: train a vocabulary on text of this kind (data_prep.train_vocab, with a greater --character_coverage), "
    "or give text in the language of the vocabulary"
  )
