"""Trains a vocabulary on a sample of text files: ALBERT's SentencePiece unigram model, or one of another type.

The text is normalized as the tokenizer normalizes it before encoding. The same input, flags and seed give the same
bytes.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import io
import math
import os
import random
import re
import string
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece
from absl import flags

from albert import app
from albert.config import command_flags
from albert.config.command_flags import INT64_MAX, Range
from albert.errors import UserError
from albert.io import files
from albert.io.progress import ElapsedTime, Progress
from albert.runs.directory_lock import DirectoryLock
from albert.tokenization import recorded_settings
from albert.tokenization.normalization import normalize_text
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import (
  CLS_ID,
  MASK_ID,
  NAMES,
  PAD_ID,
  SEP_ID,
  SPECIAL_PIECES,
  UNK_ID,
  TokenizerConfig,
  vocabulary_paths,
)
from data_prep.byte_bpe_training import train_byte_level_bpe
from data_prep.conversion.sentences_of_files import read_sentences
from data_prep.readers import formats
from data_prep.readers.reading_flags import define_flags, settings_from_flags
from data_prep.readers.settings import ReadingSettings
from data_prep.text import text_checks
from data_prep.text.text_files import cut_line, open_text_lines
from data_prep.wordpiece_training import train_wordpiece

FLAGS = flags.FLAGS

_SENTENCES_ON_LINES = ReadingSettings()
# SentencePiece skips longer lines. `cut_line` gives far shorter ones, even if normalization lengthens them.
_MAX_LINE_BYTES = 1 << 20
# SentencePiece marks <unk> with this character, and skips lines that contain it.
_RESERVED_CHARACTER = "\u2585"
# The types of vocabularies. The first two are SentencePiece models.
UNIGRAM, BPE, WORDPIECE, BYTE_LEVEL_BPE = "unigram", "bpe", "wordpiece", "byte_level_bpe"
# The extensions of the files of the other types.
_EXTENSIONS = {WORDPIECE: "txt", BYTE_LEVEL_BPE: "json"}
# The value in the README of the original ALBERT.
_CHARACTER_COVERAGE = 0.99995
# The range of character coverage that SentencePiece accepts.
_COVERAGE_RANGE = 0.98, 1.0
_MAX_THREADS = 1024
# Data preparation stores ids in 16 or 32 bits, and SentencePiece counts pieces in 32 bits.
_MAX_VOCAB_SIZE = 10_000_000
# Error messages of SentencePiece's trainer. The group is the greatest or the smallest possible size.
_TOO_LARGE = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")


def sample_lines(lines: Iterable[str], size: int, rng: random.Random) -> list[str]:
  """Draws a uniform sample of lines in one pass (reservoir sampling, algorithm L).

  Args:
    lines: the lines.
    size: greatest number of lines to draw, and to hold in memory.
    rng: the random generator.

  Returns:
    All lines in order if there are at most `size`, else a random sample of `size` lines.
  """
  iterator = iter(lines)
  sample = [line for _, line in zip(range(size), iterator, strict=False)]
  if len(sample) < size:
    return sample
  weight = math.exp(math.log(1.0 - rng.random()) / size)
  num_to_skip = _draw_num_to_skip(weight, rng)
  for line in iterator:
    if num_to_skip:
      num_to_skip -= 1
      continue
    sample[rng.randrange(size)] = line
    weight *= math.exp(math.log(1.0 - rng.random()) / size)
    num_to_skip = _draw_num_to_skip(weight, rng)
  return sample


def _draw_num_to_skip(weight: float, rng: random.Random) -> int:
  """Draws how many lines to skip before the next one that enters the sample. `weight` is W in algorithm L."""
  return math.floor(math.log(1.0 - rng.random()) / math.log1p(-weight)) if weight < 1.0 else 0


def ascii_characters(*, do_lower_case: bool) -> str:
  """Returns the letters, digits and punctuation of ASCII; with `do_lower_case`, without upper-case letters."""
  letters = string.ascii_lowercase if do_lower_case else string.ascii_letters
  return letters + string.digits + string.punctuation


def train_model(
  sentences: Iterable[str],
  *,
  vocab_size: int,
  do_lower_case: bool = True,
  keep_accents: bool = False,
  character_coverage: float = _CHARACTER_COVERAGE,
  keep_ascii: bool = True,
  user_defined_symbols: Sequence[str] = (),
  num_threads: int = 16,
  model_type: str = UNIGRAM,
  byte_fallback: bool = False,
) -> bytes:
  """Trains a SentencePiece model with ALBERT's special tokens at the ids 0 to 4.

  SentencePiece's own normalization in the model is nmt_nfkc.

  Args:
    sentences: lines of the corpus. They are normalized here, and long ones are cut.
    vocab_size: number of pieces.
    do_lower_case: whether the text is lower-cased.
    keep_accents: whether characters are neither decomposed nor lose their accents.
    character_coverage: share of the text's characters that the vocabulary must cover. The other ones, which are the
      rarest, become <unk>.
    keep_ascii: whether every character of `ascii_characters` becomes a piece, even if it is rare in the text.
    user_defined_symbols: strings that become pieces and are never parts of longer pieces. They are normalized like the
      text, in which they would not occur otherwise.
    num_threads: number of threads. The scores depend on it in their last bits.
    model_type: UNIGRAM or BPE.
    byte_fallback: whether characters that are in no piece become pieces of their bytes instead of <unk>.

  Returns:
    The contents of the model file.

  Raises:
    UserError: there is no text, a symbol is in the vocabulary already, or the vocabulary size is impossible for this
      text. In the last case the message gives a possible size.
  """
  switches = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
  user_defined_symbols = [_normalized_symbol(symbol, **switches) for symbol in user_defined_symbols]
  for symbol in (*SPECIAL_PIECES, *user_defined_symbols):
    if [*SPECIAL_PIECES, *user_defined_symbols].count(symbol) > 1:
      raise UserError(f"--user_defined_symbols: {symbol!r} is in the vocabulary already: leave it out")
    if _RESERVED_CHARACTER in symbol:
      raise UserError(
        f"--user_defined_symbols: SentencePiece reserves {_RESERVED_CHARACTER} (U+2585), as in {symbol!r}: leave it out"
      )
  ascii_chars = ascii_characters(do_lower_case=do_lower_case) if keep_ascii else ""
  # SentencePiece rejects a character that is both required and a user-defined symbol.
  required_chars = "".join(sorted(set(ascii_chars) - set(user_defined_symbols)))
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=_training_lines(sentences, **switches),
      model_writer=model,
      model_type=model_type,
      byte_fallback=byte_fallback,
      vocab_size=vocab_size,
      character_coverage=character_coverage,
      required_chars=required_chars,
      pad_id=PAD_ID,
      unk_id=UNK_ID,
      bos_id=-1,
      eos_id=-1,
      control_symbols=[SPECIAL_PIECES[i] for i in (CLS_ID, SEP_ID, MASK_ID)],
      user_defined_symbols=user_defined_symbols,
      normalization_rule_name="nmt_nfkc",
      shuffle_input_sentence=False,
      max_sentence_length=_MAX_LINE_BYTES,
      num_threads=num_threads,
      minloglevel=2,  # its log is long, and errors are raised as exceptions
    )
  except RuntimeError as error:
    raise _training_error(str(error), vocab_size, keep_ascii) from error
  return model.getvalue()


def _normalized_symbol(symbol: str, **switches: bool) -> str:
  """Returns a user-defined symbol as it stands in the normalized text, and prints a line if that differs."""
  if symbol in SPECIAL_PIECES:
    return symbol  # the caller refuses it
  normalized = normalize_text(symbol, **switches)
  if not normalized or " " in normalized:
    raise UserError(
      f"--user_defined_symbols: {symbol!r} becomes {normalized!r} when the text is normalized, which is not one symbol:"
      " leave it out"
    )
  if normalized != symbol:
    print(f"--user_defined_symbols: {symbol} becomes {normalized}, as the text is normalized", file=sys.stderr)
  return normalized


def _training_lines(sentences: Iterable[str], **switches: bool) -> Iterator[str]:
  """Yields sentences as the trainer gets them: cut if they are long, normalized, and without blank ones."""
  for sentence in sentences:
    for line in cut_line(sentence.replace(_RESERVED_CHARACTER, " ")):
      if normalized := normalize_text(line, **switches):
        yield normalized


def _training_error(message: str, vocab_size: int, keep_ascii: bool) -> UserError:
  """Returns the error for an exception of SentencePiece's trainer."""
  if match := _TOO_LARGE.search(message):
    return UserError(
      f"--vocab_size={vocab_size}: this text gives at most {match.group(1)} pieces: "
      f"set --vocab_size={match.group(1)} or give more text"
    )
  if match := _TOO_SMALL.search(message):
    return UserError(
      f"--vocab_size={vocab_size}: the required characters and the symbols take "
      f"{match.group(1)} pieces: set --vocab_size={match.group(1)} or more, or lower --character_coverage"
      + (", or give --nokeep_ascii" if keep_ascii else "")
    )
  if "sentences_.empty()" in message:
    return UserError("--input_file: the files hold no text: give files with text in them")
  return UserError(
    f"--input_file: SentencePiece cannot train --vocab_size={vocab_size} pieces on this text ({message}): give other "
    "text, or change --vocab_size, --character_coverage or --user_defined_symbols"
  )


def format_vocab_file(model: bytes) -> str:
  """Returns the contents of a model's .vocab file: for each id a line with its piece, a tab and its score."""
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  ids = range(processor.get_piece_size())
  return "".join(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in ids)


def read_lines(paths: Sequence[str], reading: ReadingSettings = _SENTENCES_ON_LINES) -> Iterator[str]:
  """Yields the sentences of all files, which are their lines that are not blank, and shows a progress bar.

  Args:
    paths: the files.
    reading: how documents and sentences are found in them; by default each line is a sentence.
  """
  with Progress(sum(map(files.size, paths)), "B", "reading text") as progress:
    for path in paths:
      if formats.is_read_directly(path, reading):
        yield from (line for _, line in open_text_lines(path, progress.update) if line.strip())
      else:
        yield from read_sentences(path, reading, progress.update)


def _define_flags() -> None:
  define = command_flags.define
  define_flags(without=("drop_duplicates",))
  define(
    "str",
    "type",
    UNIGRAM,
    "unigram: ALBERT's SentencePiece model; bpe: a SentencePiece model of merged pairs; wordpiece: the vocab.txt of "
    "BERT and of the Chinese ALBERT; byte_level_bpe: the vocab.json and merges.txt of RoBERTa (the last two need the "
    "package tokenizers)",
    choices=[UNIGRAM, BPE, WORDPIECE, BYTE_LEVEL_BPE],
  )
  outputs = "spiece.model and spiece.vocab, or vocab.txt, or vocab.json and merges.txt"
  define("str", "output_dir", None, f"directory to write to: {outputs}, and tokenizer_config.json")
  outputs = "PREFIX.model and PREFIX.vocab, or PREFIX.txt, or PREFIX-vocab.json and PREFIX-merges.txt"
  define("str", "output_prefix", None, f"instead of --output_dir: write {outputs}")
  size = Range(len(SPECIAL_PIECES), _MAX_VOCAB_SIZE)
  define("int", "vocab_size", 30000, "number of pieces, special tokens included", allowed=size)
  define("bool", "do_lower_case", True, "convert the text to lower case; byte_level_bpe never does")
  accents = "keep accents and do not decompose characters; byte_level_bpe always does"
  define("bool", "keep_accents", False, accents)
  define(
    "float",
    "character_coverage",
    _CHARACTER_COVERAGE,
    "share of the text's characters that the vocabulary must cover; the rarest characters beyond it become <unk>",
    allowed=Range(*_COVERAGE_RANGE),
  )
  define(
    "bool",
    "keep_ascii",
    True,
    "put the letters (with --do_lower_case: lower-case letters), digits and punctuation of ASCII into the vocabulary, "
    "even if they are rare in the text",
  )
  define(
    "bool",
    "byte_fallback",
    False,
    "write characters that are in no piece as pieces of their bytes instead of <unk>; for unigram and bpe",
  )
  define(
    "str",
    "user_defined_symbols",
    '( ) " - . – £ €',
    "symbols that are always pieces of their own, separated by spaces; they are normalized like the text, so "
    "--do_lower_case makes <url> of <URL>; for unigram and bpe",
  )
  define(
    "int",
    "input_sentence_size",
    2_000_000,
    "greatest number of lines to train on, drawn at random; a million lines need about 1 GB of memory",
    allowed=Range(1),
  )
  seed = "seed for drawing the lines of --input_sentence_size; --seed is another name for it"
  define("int", "random_seed", 12345, seed, allowed=Range(0, INT64_MAX))
  # The scripts for training call their seed --seed.
  flags.DEFINE_alias("seed", "random_seed", module_name=sys.argv[0])
  # The default is not the number of cores, since the number of threads changes the scores' last bits.
  threads = "number of threads; another number may give a slightly different vocabulary"
  define("int", "num_threads", 16, threads, allowed=Range(1, _MAX_THREADS))


def _make_output_prefix() -> str:
  """Returns the path of the model without .model, and makes its directory."""
  if bool(FLAGS.output_dir) == bool(FLAGS.output_prefix):
    raise UserError("give either --output_dir (for spiece.model in it) or --output_prefix (for PREFIX.model)")
  if FLAGS.byte_fallback and FLAGS.type in _EXTENSIONS:
    reason = "WordPiece has no pieces for bytes" if FLAGS.type == WORDPIECE else "byte_level_bpe has every byte already"
    raise UserError(f"--byte_fallback: {reason}: leave it out, or give another --type")
  prefix = str(FLAGS.output_prefix or files.join(FLAGS.output_dir, "vocab" if FLAGS.type in _EXTENSIONS else "spiece"))
  if FLAGS.output_prefix and FLAGS.type == BYTE_LEVEL_BPE:
    prefix += "-vocab"
  if folder := prefix.rpartition("/")[0]:
    files.makedirs(folder)
  return prefix


def main() -> None:
  reading = settings_from_flags()
  paths = formats.find_inputs(FLAGS.input_file)
  direct_paths, converted_paths = formats.split_by_conversion(paths, reading)
  text_checks.check_inputs(direct_paths)
  formats.check_inputs(converted_paths, reading)
  prefix = _make_output_prefix()
  folder, name = os.path.split(prefix)
  # The lock keeps another process from replacing one of the two files while this one writes the other.
  extension = _EXTENSIONS.get(FLAGS.type, "model")
  _check_other_vocabularies(f"{prefix}.{extension}")
  with DirectoryLock(folder or ".", f"training {name}.{extension}", f".{name}.lock") as lock:
    _train(paths, reading, prefix, lock)


def _check_other_vocabularies(path: str) -> None:
  """Refuses a directory whose other vocabularies were made with other settings: one file there records them for all."""
  folder, name = os.path.split(path)
  has_others = any(files.exists(files.join(folder or ".", other)) for other in NAMES if other != name)
  if FLAGS.type != BYTE_LEVEL_BPE and (FLAGS.output_prefix or has_others):
    recorded_settings.known_settings(path, do_lower_case=FLAGS.do_lower_case, keep_accents=FLAGS.keep_accents)


def _record_settings(path: str) -> None:
  """Writes how the text was normalized beside the vocabulary, from where all commands take it."""
  config = TokenizerConfig(path, FLAGS.do_lower_case, keep_accents=FLAGS.keep_accents)
  if FLAGS.output_dir:
    values = recorded_settings.huggingface_tokenizer_config(config)
    del values["tokenizer_class"]  # the directory may have vocabularies of several kinds
    files.write_json(files.join(FLAGS.output_dir, recorded_settings.FILE_NAME), values)
  elif config != TokenizerConfig(path):
    words = ["--nodo_lower_case"] * (not FLAGS.do_lower_case) + ["--keep_accents"] * FLAGS.keep_accents
    print(f"{path}: give {' '.join(words)} with it to every command; only --output_dir records it", file=sys.stderr)


def _train(paths: Sequence[str], reading: ReadingSettings, prefix: str, lock: DirectoryLock) -> None:
  """Draws a sample of the lines, trains a model on it, and writes the model and its .vocab file."""
  num_lines = 0

  def count_lines(lines: Iterable[str]) -> Iterator[str]:
    nonlocal num_lines
    for line in lines:
      num_lines += 1
      yield line

  lines = count_lines(read_lines(paths, reading))
  sample = sample_lines(lines, FLAGS.input_sentence_size, random.Random(FLAGS.random_seed))
  print(f"training {FLAGS.vocab_size:,} pieces on {len(sample):,} of {num_lines:,} lines ...", flush=True)
  start = time.monotonic()
  with ElapsedTime("training the vocabulary"):
    if FLAGS.type == WORDPIECE:
      path, num_pieces = f"{prefix}.txt", _train_wordpiece(sample, f"{prefix}.txt", lock)
    elif FLAGS.type == BYTE_LEVEL_BPE:
      path, num_pieces = f"{prefix}.json", _train_byte_level_bpe(sample, f"{prefix}.json", lock)
    else:
      path, num_pieces = f"{prefix}.model", _train_sentence_piece(sample, prefix, lock)
  print(f"{path}: {num_pieces:,} pieces, trained in {time.monotonic() - start:.0f} s")


def _train_wordpiece(sample: Sequence[str], path: str, lock: DirectoryLock) -> int:
  """Trains and writes a WordPiece vocabulary; returns its number of pieces."""
  pieces = train_wordpiece(
    (line for sentence in sample for line in cut_line(sentence)),
    vocab_size=FLAGS.vocab_size,
    do_lower_case=FLAGS.do_lower_case,
    keep_accents=FLAGS.keep_accents,
    character_coverage=FLAGS.character_coverage,
    required_chars=ascii_characters(do_lower_case=FLAGS.do_lower_case) if FLAGS.keep_ascii else "",
  )
  lock.check()
  _record_settings(path)
  files.write_atomically(path, "".join(f"{piece}\n" for piece in pieces))
  return len(pieces)


def _train_byte_level_bpe(sample: Sequence[str], path: str, lock: DirectoryLock) -> int:
  """Trains and writes a byte-level BPE vocabulary and its merges; returns its number of pieces."""
  lines = (line for sentence in sample for line in cut_line(sentence))
  contents = train_byte_level_bpe(lines, vocab_size=FLAGS.vocab_size)
  lock.check()
  for file, content in zip(vocabulary_paths(path), contents, strict=True):
    files.write_atomically(file, content)
  return Tokenizer(path).vocab_size


def _train_sentence_piece(sample: Sequence[str], prefix: str, lock: DirectoryLock) -> int:
  """Trains and writes a SentencePiece model and its .vocab file; returns its number of pieces."""
  model = train_model(
    sample,
    vocab_size=FLAGS.vocab_size,
    do_lower_case=FLAGS.do_lower_case,
    keep_accents=FLAGS.keep_accents,
    character_coverage=FLAGS.character_coverage,
    keep_ascii=FLAGS.keep_ascii,
    user_defined_symbols=FLAGS.user_defined_symbols.split(),
    num_threads=FLAGS.num_threads,
    model_type=FLAGS.type,
    byte_fallback=FLAGS.byte_fallback,
  )
  lock.check()
  _record_settings(f"{prefix}.model")
  files.write_atomically(f"{prefix}.vocab", format_vocab_file(model))
  files.write_atomically(f"{prefix}.model", model)
  return int(FLAGS.vocab_size)


def run_command() -> None:
  """Runs the command: albert-train-vocab, or python -m data_prep.train_vocab."""
  _define_flags()
  app.run(main)


if __name__ == "__main__":
  run_command()
