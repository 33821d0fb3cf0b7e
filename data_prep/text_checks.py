"""Detects input files that are not plain text, and text that does not fit the vocabulary or the reading settings.

Data preparation and vocabulary training read UTF-8 text with a sentence on each line and a blank line after each
document. A file in another format would be read as if its bytes were sentences. `check_head` detects the most common
other formats by the beginning of the file. All code that reads text calls it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable

from albert.errors import UserError
from albert.io import json_values
from albert.tokenization.tokenizer import Tokenizer, unknown_share, unknown_warnings

#: Bytes at the beginning of a file's text that `check_head` examines.
HEAD_BYTES = 64 << 10
_MAX_SHOWN_LINE_LENGTH = 40
#: The end of a warning that many tokens are <unk>.
UNKNOWN_REMEDY = (
  "train a vocabulary on similar text (data_prep.train_vocab, with a greater --character_coverage), or give text in "
  "the language of the vocabulary"
)

# First bytes of a file, the name of their format, and the remedy.
_KNOWN_FORMATS = (
  (rb"\x1f\x8b\x08", "GZIP data", "give it a name that ends in .gz"),
  (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", "bzip2 data", "give it a name that ends in .bz2, or unpack it with bunzip2"),
  (rb"\xfd7zXZ\x00", "xz data", "unpack it with unxz"),
  (rb"\x28\xb5\x2f\xfd", "Zstandard data", "give it a name that ends in .zst, or unpack it with unzstd"),
  (rb"PK(\x03\x04|\x05\x06)", "a ZIP archive", "unpack it with unzip (save a document or an e-book as plain text)"),
  (
    rb"PAR1[\x00-\x08\x0e-\x1f\x7f-\xff]",
    "a Parquet file",
    "give --text_format=parquet, or write its column of text to a .txt file",
  ),
  (rb"ARROW1\x00\x00", "an Arrow file", "give --text_format=datasets, or write its column of text to a .txt file"),
  (rb"%PDF-\d\.\d", "a PDF file", "extract the text with pdftotext"),
  (rb"\{\\rtf\d", "an RTF file", "save it as plain text"),
  (rb"\xff\xfe|\xfe\xff", "UTF-16 text", "convert it with iconv -f UTF-16 -t UTF-8"),
  (rb".*\x00{8}", "binary data, such as an archive", "extract its text"),  # fields are filled with NUL
)
_JSON_OBJECT = re.compile(r'\[?\s*\{\s*"(?:[^"\\\n]|\\.){0,200}"\s*:')
_WIKIEXTRACTOR_TAG = re.compile(r'<doc\s+(?:id|url|title)="')
_XML_OR_HTML = re.compile(r"<(\?xml\s|!doctype html\b|html(>|\s+[\w:-]+=)|mediawiki\s+[\w:-]+=)", re.IGNORECASE)
_LONE_CR = re.compile(rb"\r(?![\r\n]|\Z)")

# There is a warning if documents have at most this many sentences on average.
_FEW_SENTENCES = 2.5
# If more than this share of the lines begins with a lower-case letter, the lines are probably wrapped.
_MAX_LOWER_CASE_SHARE = 0.4
# Text with a smaller share of lines that begin with a capital was probably converted to lower case.
_MIN_CAPITALS_SHARE = 0.1
# Smaller samples give no warning.
_MIN_LINES = 20
_MIN_DOCUMENTS = 5
_FEW_SENTENCES_REMEDY = (
  "if blank lines are between paragraphs, give --document=file; if each line is a paragraph, give --sentences=split"
)


def check_head(path: str, head: bytes) -> None:
  """Checks that a file begins like plain text. `head` is the beginning of its text, decompressed for a .gz file.

  Raises:
    UserError: the file is compressed, an archive, a document, a table, JSON, XML, HTML or output of wikiextractor, or
      its lines end with CR only. The message gives the format and the remedy.
  """
  head = head[:HEAD_BYTES]
  check_format(path, head)
  num_lone_cr = len(_LONE_CR.findall(head))
  if num_lone_cr and num_lone_cr >= 2 * head.count(b"\n"):  # a few CRs inside lines are white space
    raise UserError(
      f"{path}: its lines end with CR only ({num_lone_cr} times in the first {len(head)} bytes): convert them to LF, "
      "for example with " + _shell_command(path, r"tr '\r' '\n'")
    )
  text = head.decode("utf-8", errors="replace").replace("\ufeff", "")
  body = text.lstrip()
  line_number = text.count("\n", 0, len(text) - len(body)) + 1
  first_line, _, rest = body.partition("\n")
  place = f"line {line_number}, begins with {first_line[:_MAX_SHOWN_LINE_LENGTH]!r}"
  if _WIKIEXTRACTOR_TAG.match(body):
    raise UserError(
      f"{path}, {place}: a line that wikiextractor writes around a document, not a sentence: give "
      "--text_format=wikiextractor, or make such lines blank, for example with "
      + _shell_command(path, "sed -E 's|^</?doc.*||'")
    )
  if _XML_OR_HTML.match(body):
    raise UserError(
      f"{path}, {place}: XML or HTML, not plain text: give --text_format=wikipedia for a dump of Wikipedia, or extract "
      "the text, a sentence on each line and a blank line after each document (from a dump with wikiextractor)"
    )
  if _JSON_OBJECT.match(body) and (not rest or _is_json_line(first_line.rstrip())):
    raise UserError(
      f"{path}, {place}: JSON, not plain text: give --text_format=jsonl if each line is an object, and --text_field "
      "for its text, or write an array as such lines: " + _shell_command(path, "jq -c '.[]'", "text.jsonl")
    )


def _is_json_line(line: str) -> bool:
  """Whether a line is JSON or the beginning of it, and not a text that quotes JSON."""
  with contextlib.suppress(UserError):
    return line[-1] in "{[," or bool(json_values.parse("", line, list if line[0] == "[" else dict))
  return False


def check_format(path: str, head: bytes) -> None:
  """Raises a UserError if a file is compressed, an archive, a document, a table, other binary data, or UTF-16.

  `head` is its beginning, as for `check_head`. The message gives the format and the remedy.
  """
  for pattern, name, remedy in _KNOWN_FORMATS:
    if re.match(pattern, head, re.DOTALL):
      raise UserError(f"{path}: {name}, not plain text: {remedy}")
  if head.count(0) > len(head) // 10:
    raise UserError(
      f"{path}: {head.count(0)} of the first {len(head)} bytes are NUL, so it is not UTF-8 text: convert UTF-16 with "
      "iconv -f UTF-16LE -t UTF-8"
    )


def _shell_command(path: str, stdin_to_stdout: str, output: str = "text.txt") -> str:
  """Returns a shell command that runs a filter on a file, which may be compressed."""
  command = f"zcat {path} | {stdin_to_stdout}" if path.endswith(".gz") else f"{stdin_to_stdout} < {path}"
  return f"{command} > {output}"


# ---- warnings ------------------------------------------------------------------------------------------


def sample_warnings(samples: list[list[str]], tokenizer: Tokenizer) -> list[str]:
  """Returns a warning if many tokens of the sampled lines are <unk>, with the most frequent of their characters."""
  lines = list(itertools.chain.from_iterable(samples))
  share = unknown_share(tokenizer, tokenizer.encode_batch_flat(lines)[0])
  return unknown_warnings("a sample of the text", share, tokenizer, lines, UNKNOWN_REMEDY)


def few_sentences_warnings(num_sentences: int, num_documents: int, source: str, remedy: str) -> list[str]:
  """Returns a warning if documents have so few sentences on average that they are probably paragraphs.

  `source` is the text that was counted, such as "a sample of the text"; the warning ends with the remedy.
  """
  if not num_documents or num_sentences > _FEW_SENTENCES * num_documents:
    return []
  mean = num_sentences / num_documents
  return [
    f"warning: documents have {mean:.1f} sentences on average ({source}), too few for pairs of segments: {remedy}"
  ]


def layout_warnings(samples: Iterable[list[str]]) -> list[str]:
  """Returns warnings about text with a sentence on each line, by the lines at the beginning of some files."""
  num_documents = num_sentences = num_lines = num_lower_case = num_capitals = 0
  for lines in samples:
    groups = itertools.groupby(lines, lambda line: bool(line.strip()))
    documents = [list(group) for has_text, group in groups if has_text]
    for document in documents[:-1]:  # the last one may continue after the sample
      num_documents += 1
      num_sentences += len(document)
    for line in itertools.chain.from_iterable(documents):
      first_letter = next((character for character in line if character.isalpha()), "")
      num_lines += 1
      num_lower_case += first_letter.islower()
      num_capitals += first_letter.isupper()
  warnings: list[str] = []
  if num_lines >= _MIN_LINES and num_capitals >= _MIN_CAPITALS_SHARE * num_lines:
    lower_case_share = num_lower_case / num_lines
    if lower_case_share > _MAX_LOWER_CASE_SHARE:
      warnings.append(
        f"warning: {lower_case_share:.0%} of the lines begin with a lower-case letter (a sample of the text), so they "
        "are probably parts of sentences, but each line is taken for a sentence: for text whose lines are wrapped, "
        "give --document=file, or --sentences=split --paragraph=blank_line"
      )
  if num_documents >= _MIN_DOCUMENTS:
    warnings += few_sentences_warnings(num_sentences, num_documents, "a sample of the text", _FEW_SENTENCES_REMEDY)
  return warnings
