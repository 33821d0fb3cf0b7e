"""The flags of run_tagging.py, and the files that they name. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses

from albert.config.base import changeable_option, form_option, option
from albert.config.run import FinetuningConfig
from albert.errors import UserError
from albert.io import files
from albert.tasks.splits import FILE_FIELDS
from albert.tasks.tagging.schemes import SCHEMES
from albert.tokenization import words

# The values of --offsets.
CHARACTERS, UTF16 = "characters", "utf16"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingConfig(FinetuningConfig):
  """The flags of run_tagging.py that describe its files and tags."""

  train_file: str = changeable_option(
    "", "file to train on: columns as in CoNLL, with one word a line, or JSON (.jsonl, .json)"
  )
  eval_file: str = changeable_option("", "file to evaluate on, in the same forms")
  predict_file: str = changeable_option("", "file to predict, in the same forms; it needs no tags")
  scheme: str = option(
    "BIO",
    "how tags mark spans: BIO (IOB2; files in IOB1 are converted), BILOU, BIOES, which is BILOU with other letters, or "
    "IO, which is converted to BIO; plain: each word has a tag of its own, such as a part of speech",
    choices=tuple(SCHEMES),
  )
  labels: str = option(
    "",
    "types of the spans, such as LOC,PER or a JSON list; if not given, those of the training file, sorted",
  )
  word_column: str = form_option(
    "",
    "column of the words: its number, from 0 (-1: the last), or its name if the first line names the columns; in JSON "
    "lines, the key of the list of words. By default the first column, or tokens",
  )
  tag_column: str = form_option("", "column of the tags, as for --word_column. By default the last column, or tags")
  offsets: str = form_option(
    CHARACTERS,
    "what the offsets of spans in JSON count: characters, or UTF-16 units, which are recognized in files whose spans "
    "repeat their text",
    choices=(CHARACTERS, UTF16),
  )
  word_rule: str = option(
    words.PUNCTUATION,
    "how texts that are not divided into words are divided. punctuation: at spaces, and before and after punctuation "
    "at the edges of what is between them; whitespace: at spaces only",
    choices=words.RULES,
  )
  doc_stride: int = option(128, "tokens between the starts of two successive windows of a long text", minimum=1)


def find_file(config: TaggingConfig, split: str) -> str:
  """Returns the path of the file of a split. Raises UserError if its flag is missing, or there is no such file."""
  flag = FILE_FIELDS[split]
  path: str = getattr(config, flag)
  if not path:
    raise UserError(f"--{flag} is missing: the {split} set, a file of columns with one word a line, or JSON lines")
  if not files.exists(path):
    raise UserError(f"--{flag}={path}: no such file")
  return path
