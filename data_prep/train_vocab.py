"""Trains ALBERT's vocabulary, a SentencePiece unigram model, on a sample of text files.

The text is normalized as `albert.tokenization` does before it encodes. Equal input, flags and seed give equal bytes.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the other imports, so that a signal during them ends the command with one line
  from albert import startup

  startup.begin()

import io
import math
import os
import random
import re
import string
import time
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece
from absl import flags

from albert import app
from albert.config import command_flags
from albert.config.ranges import INT64_MAX, Range
from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress
from albert.runs.directory_lock import DirectoryLock
from albert.tokenization.normalization import normalize_text
from albert.tokenization.tokenizer import CLS_ID, MASK_ID, PAD_ID, SEP_ID, SPECIAL_PIECES, UNK_ID
from data_prep import text_checks
from data_prep.text_files import cut_line, open_text_lines

FLAGS = flags.FLAGS

# SentencePiece leaves out lines with more bytes, and `cut_line` gives far fewer, also after normalization.
_MAX_LINE_BYTES = 1 << 20
# SentencePiece's own mark for <unk>; it leaves out lines that hold one.
_RESERVED = "\u2585"
# The README of the original: --character_coverage=0.99995.
_CHARACTER_COVERAGE = 0.99995
# What SentencePiece takes.
_COVERAGES = 0.98, 1.0
_MAX_THREADS = 1024
# Data preparation keeps ids in 16 or 32 bits, and SentencePiece counts pieces in 32 bits.
_MAX_VOCAB_SIZE = 10_000_000
_TOO_LARGE = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")


def sample_lines(lines: Iterable[str], size: int, rng: random.Random) -> list[str]:
  """A uniform sample of at most `size` lines in one pass, holding no more than them (reservoir, algorithm L)."""
  iterator = iter(lines)
  sample = [line for _, line in zip(range(size), iterator, strict=False)]
  if len(sample) < size:
    return sample
  weight = math.exp(math.log(1.0 - rng.random()) / size)
  skip = _skip(weight, rng)
  for line in iterator:
    if skip:
      skip -= 1
      continue
    sample[rng.randrange(size)] = line
    weight *= math.exp(math.log(1.0 - rng.random()) / size)
    skip = _skip(weight, rng)
  return sample


def _skip(weight: float, rng: random.Random) -> int:
  """How many lines go by before the next one enters a reservoir whose largest key is `weight`."""
  return math.floor(math.log(1.0 - rng.random()) / math.log1p(-weight)) if weight < 1.0 else 0


def ascii_characters(*, do_lower_case: bool) -> str:
  """Letters, digits and punctuation of ASCII; only lower-case letters where the text is lower-cased."""
  letters = string.ascii_lowercase if do_lower_case else string.ascii_letters
  return letters + string.digits + string.punctuation


def train_model(
  sentences: Iterable[str],
  *,
  vocab_size: int,
  do_lower_case: bool = True,
  character_coverage: float = _CHARACTER_COVERAGE,
  keep_ascii: bool = True,
  user_defined_symbols: Sequence[str] = (),
  num_threads: int = 16,
) -> bytes:
  """Trains a unigram model with the control symbols at ids 0..4 and SentencePiece's own normalization nmt_nfkc.

  Args:
    sentences: text as it is in the corpus; it is normalized here, and long ones are cut.
    vocab_size: number of pieces.
    do_lower_case: as `albert.tokenization.normalize_text` takes it.
    character_coverage: share of the characters of the text that must be in the vocabulary; the rarest others become
      <unk>.
    keep_ascii: every character of `ascii_characters` becomes a piece, however rare it is in the text.
    user_defined_symbols: always pieces of their own.
    num_threads: the model depends on it in the last bits of its scores.

  Returns:
    The model file's contents.

  Raises:
    UserError: no text, a symbol that is there already, or a vocabulary size that this text does not allow, naming one
      that it does.
  """
  for symbol in (*SPECIAL_PIECES, *user_defined_symbols):
    if [*SPECIAL_PIECES, *user_defined_symbols].count(symbol) > 1:
      raise UserError(f"--user_defined_symbols: {symbol!r} is in the vocabulary already: leave it out")
    if _RESERVED in symbol:
      raise UserError(
        f"--user_defined_symbols: SentencePiece reserves {_RESERVED} (U+2585), as in {symbol!r}: leave it out"
      )
  kept = ascii_characters(do_lower_case=do_lower_case) if keep_ascii else ""
  # SentencePiece refuses a character that is both required and a user-defined symbol.
  required_chars = "".join(sorted(set(kept) - set(user_defined_symbols)))
  parts = (part for sentence in sentences for part in cut_line(sentence.replace(_RESERVED, " ")))
  normalized = (normalize_text(part, do_lower_case=do_lower_case) for part in parts)
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=(text for text in normalized if text),
      model_writer=model,
      model_type="unigram",
      vocab_size=vocab_size,
      character_coverage=character_coverage,
      required_chars=required_chars,
      pad_id=PAD_ID,
      unk_id=UNK_ID,
      bos_id=-1,
      eos_id=-1,
      control_symbols=[SPECIAL_PIECES[i] for i in (CLS_ID, SEP_ID, MASK_ID)],
      user_defined_symbols=list(user_defined_symbols),
      normalization_rule_name="nmt_nfkc",
      shuffle_input_sentence=False,
      max_sentence_length=_MAX_LINE_BYTES,
      num_threads=num_threads,
      minloglevel=2,  # its log is long; what goes wrong comes as an exception
    )
  except RuntimeError as error:
    raise _explained(str(error), vocab_size, keep_ascii) from error
  return model.getvalue()


def _explained(message: str, vocab_size: int, keep_ascii: bool) -> UserError:
  if found := _TOO_LARGE.search(message):
    return UserError(
      f"--vocab_size={vocab_size}: this text gives at most {found.group(1)} pieces: "
      f"set --vocab_size={found.group(1)} or give more text"
    )
  if found := _TOO_SMALL.search(message):
    return UserError(
      f"--vocab_size={vocab_size}: the characters that must be in the vocabulary and the symbols take "
      f"{found.group(1)} pieces: set --vocab_size={found.group(1)} or more, or lower --character_coverage"
      + (", or give --nokeep_ascii" if keep_ascii else "")
    )
  if "sentences_.empty()" in message:
    return UserError("--input_file: the files hold no text: give files with text in them")
  return UserError(
    f"--input_file: SentencePiece cannot train --vocab_size={vocab_size} pieces on this text ({message}): give other "
    "text, or change --vocab_size, --character_coverage or --user_defined_symbols"
  )


def vocab_text(model: bytes) -> str:
  """The .vocab file of a model: a line "piece, tab, score" for each id."""
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  rows = ((processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size()))
  return "".join(f"{piece}\t{score:g}\n" for piece, score in rows)


def read_lines(paths: Sequence[str]) -> Iterator[str]:
  """Lines with text of all files. Shows how far it is."""
  with Progress(sum(map(files.size, paths)), "B", "reading text") as progress:
    for path in paths:
      yield from (line for _, line in open_text_lines(path, progress.update) if line.strip())


def _define_flags() -> None:
  define = command_flags.define
  define("str", "input_file", None, "text files, .txt or .txt.gz: comma-separated globs", required=True)
  define("str", "output_dir", None, "folder for spiece.model and spiece.vocab")
  define("str", "output_prefix", None, "instead of --output_dir: writes PREFIX.model and PREFIX.vocab")
  size = Range(len(SPECIAL_PIECES), _MAX_VOCAB_SIZE)
  define("int", "vocab_size", 30000, "number of pieces, the control symbols included", allowed=size)
  define("bool", "do_lower_case", True, "lower-case the text")
  define(
    "float",
    "character_coverage",
    _CHARACTER_COVERAGE,
    "share of the characters of the text that must be in the vocabulary; the rarest others become <unk>",
    allowed=Range(*_COVERAGES),
  )
  define(
    "bool",
    "keep_ascii",
    True,
    "the letters (with --do_lower_case the lower-case ones), digits and punctuation of ASCII are in the vocabulary, "
    "however rare they are in the text",
  )
  define(
    "str",
    "user_defined_symbols",
    '( ) " - . – £ €',
    "symbols that are always a piece of their own, separated by spaces",
  )
  define(
    "int",
    "input_sentence_size",
    2_000_000,
    "most lines to train on, drawn at random; a million take about 1 GB",
    allowed=Range(1),
  )
  define("int", "random_seed", 12345, "seed of that draw", allowed=Range(0, INT64_MAX))
  # A constant, not the number of cores: sums are made by thread, and their order decides the scores' last bits.
  threads = "threads; another number may give a slightly different vocabulary"
  define("int", "num_threads", 16, threads, allowed=Range(1, _MAX_THREADS))


def _output_prefix() -> str:
  if bool(FLAGS.output_dir) == bool(FLAGS.output_prefix):
    raise UserError("give one of --output_dir (for spiece.model in it) and --output_prefix (for PREFIX.model)")
  prefix = str(FLAGS.output_prefix or files.join(FLAGS.output_dir, "spiece"))
  if folder := prefix.rpartition("/")[0]:
    files.makedirs(folder)
  return prefix


def main() -> None:
  paths = files.expand_globs(FLAGS.input_file)
  text_checks.check_inputs(paths)
  prefix = _output_prefix()
  folder, name = os.path.split(prefix)
  # Both files must be of one vocabulary: no other process may write them meanwhile.
  with DirectoryLock(folder or ".", f"training {name}.model", f".{name}.lock") as lock:
    _train(paths, prefix, lock)


def _train(paths: Sequence[str], prefix: str, lock: DirectoryLock) -> None:
  num_lines = 0

  def lines() -> Iterator[str]:
    nonlocal num_lines
    for line in read_lines(paths):
      num_lines += 1
      yield line

  sample = sample_lines(lines(), FLAGS.input_sentence_size, random.Random(FLAGS.random_seed))
  print(f"training {FLAGS.vocab_size:,} pieces on {len(sample):,} of {num_lines:,} lines ...", flush=True)
  start = time.monotonic()
  model = train_model(
    sample,
    vocab_size=FLAGS.vocab_size,
    do_lower_case=FLAGS.do_lower_case,
    character_coverage=FLAGS.character_coverage,
    keep_ascii=FLAGS.keep_ascii,
    user_defined_symbols=FLAGS.user_defined_symbols.split(),
    num_threads=FLAGS.num_threads,
  )
  lock.check()
  files.write_atomically(f"{prefix}.vocab", vocab_text(model))
  files.write_atomically(f"{prefix}.model", model)
  print(f"{prefix}.model: {FLAGS.vocab_size:,} pieces, trained in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
  _define_flags()
  app.run(main)
