"""Trains a vocabulary on a sample of text files: ALBERT's SentencePiece unigram model, or one of another type.

The text is normalized as the tokenizer normalizes it before encoding. The same input, flags and seed give the same
bytes.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import random
import time
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from absl import flags

from albert.config import command_flags
from albert.config.command_flags import INT64_MAX, Range
from albert.errors import UserError
from albert.io import files, json_text
from albert.io.progress import Progress, elapsed_time, log
from albert.runs.directory_lock import DirectoryLock
from albert.tokenization import recorded_settings
from albert.tokenization.vocabulary import NAMES, SETTINGS_FILE, SPECIAL_PIECES, TokenizerConfig, vocabulary_paths
from data_prep import vocabulary
from data_prep.conversion.parts import read_sentences
from data_prep.readers import formats
from data_prep.readers.records import ReadingSettings
from data_prep.text_files import cut_line, open_text_lines

FLAGS = flags.FLAGS

_SENTENCES_ON_LINES = ReadingSettings()
# The names of the files of vocabularies that are no SentencePiece models.
_FILE_NAMES = {vocabulary.WORDPIECE: "vocab.txt", vocabulary.BYTE_LEVEL_BPE: "vocab.json"}
# Data preparation stores ids in 16 or 32 bits, and SentencePiece counts pieces in 32 bits.
_MAX_VOCAB_SIZE = 10_000_000


def read_lines(paths: Sequence[str], reading: ReadingSettings = _SENTENCES_ON_LINES) -> Iterator[str]:
  """Yields the sentences of all files, by default their lines that are not blank, and shows a progress bar."""
  with Progress(sum(map(files.size, paths)), "B", "reading text") as progress:
    for path in paths:
      if formats.is_read_directly(path, reading):
        yield from (line for _, line in open_text_lines(path, progress.update) if line.strip())
      else:
        yield from read_sentences(path, reading, progress.update)


def define_flags() -> None:
  define = command_flags.define
  formats.define_flags(without=("drop_duplicates",))
  define(
    "str",
    "type",
    vocabulary.UNIGRAM,
    "unigram: ALBERT's SentencePiece model; bpe: one of merged pairs; wordpiece: the vocab.txt of BERT and the Chinese "
    "ALBERT; byte_level_bpe: RoBERTa's vocab.json and merges.txt (the last two need the package tokenizers)",
    choices=[vocabulary.UNIGRAM, vocabulary.BPE, vocabulary.WORDPIECE, vocabulary.BYTE_LEVEL_BPE],
  )
  outputs = "spiece.model and spiece.vocab, or vocab.txt, or vocab.json and merges.txt"
  define("str", "output_dir", None, f"directory to write to: {outputs}, and tokenizer_config.json", required=True)
  size = Range(len(SPECIAL_PIECES), _MAX_VOCAB_SIZE)
  define("int", "vocab_size", 30000, "number of pieces, special tokens included", allowed=size)
  define("bool", "do_lower_case", True, "convert the text to lower case; byte_level_bpe never does")
  accents = "keep accents and do not decompose characters; byte_level_bpe always does"
  define("bool", "keep_accents", False, accents)
  define(
    "float",
    "character_coverage",
    vocabulary.CHARACTER_COVERAGE,
    "share of the text's characters that the vocabulary must cover; the rarest characters beyond it become <unk>",
    allowed=Range(0.98, 1.0),  # which SentencePiece accepts
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
  command_flags.define_other_name("random_seed", "seed")
  # The default is not the number of cores, since the number of threads changes the scores' last bits.
  threads = "number of threads; another number may give a slightly different vocabulary"
  define("int", "num_threads", 16, threads, allowed=Range(1, 1024))


def main() -> None:
  reading = formats.settings_from_flags()
  paths = formats.find_inputs(FLAGS.input_file)
  formats.check_inputs(paths, reading)
  if FLAGS.byte_fallback and FLAGS.type in _FILE_NAMES:
    raise UserError(f"--byte_fallback with --type={FLAGS.type}: only unigram and bpe have it: leave it out")
  name = _FILE_NAMES.get(FLAGS.type, "spiece.model")
  path = files.join(FLAGS.output_dir, name)
  # A directory has one file that records the settings of all vocabularies in it.
  has_others = any(files.exists(files.join(FLAGS.output_dir, other)) for other in NAMES if other != name)
  if FLAGS.type != vocabulary.BYTE_LEVEL_BPE and has_others:
    switches = {"do_lower_case": FLAGS.do_lower_case, "keep_accents": FLAGS.keep_accents}
    recorded_settings.known_settings(path, **switches)
  if FLAGS.type in _FILE_NAMES:
    vocabulary.import_tokenizers(FLAGS.type)  # before the text is read
  # The lock keeps another process from replacing one of the two files while this one writes the other.
  with DirectoryLock(FLAGS.output_dir, f"training {name}", f".{name.partition('.')[0]}.lock") as lock:
    if files.exists(path):
      log(f"warning: replacing {path}, which shards and models that were made with it need: another path keeps it")
    _train(paths, reading, path, lock)


def _train(paths: Sequence[str], reading: ReadingSettings, path: str, lock: DirectoryLock) -> None:
  """Draws a sample of the lines, trains a vocabulary on it, and writes its files and the settings of the text."""
  rng = random.Random(FLAGS.random_seed)
  sample, num_lines = vocabulary.sample_lines(read_lines(paths, reading), FLAGS.input_sentence_size, rng)
  print(f"training {FLAGS.vocab_size:,} pieces on {len(sample):,} of {num_lines:,} lines ...", flush=True)
  start = time.monotonic()
  with elapsed_time("training the vocabulary"):
    contents, num_pieces = _TRAINERS.get(FLAGS.type, _train_sentence_piece)(sample, path)
  lock.check()
  if FLAGS.type != vocabulary.BYTE_LEVEL_BPE:
    config = TokenizerConfig(path, FLAGS.do_lower_case, keep_accents=FLAGS.keep_accents)
    values = recorded_settings.huggingface_tokenizer_config(config)
    del values["tokenizer_class"]  # the directory may have vocabularies of several kinds
    files.write_json(files.join(FLAGS.output_dir, SETTINGS_FILE), values)
  for file, content in reversed(contents.items()):
    files.write_atomically(file, content)
  print(f"{path}: {num_pieces:,} pieces, trained in {time.monotonic() - start:.0f} s")


# The contents of the files of a vocabulary, first the one that names it; and its number of pieces.
_Vocabulary: TypeAlias = tuple[dict[str, bytes | str], int]


def _train_wordpiece(sample: Sequence[str], path: str) -> _Vocabulary:
  pieces = vocabulary.train_wordpiece(
    (line for sentence in sample for line in cut_line(sentence)),
    vocab_size=FLAGS.vocab_size,
    do_lower_case=FLAGS.do_lower_case,
    keep_accents=FLAGS.keep_accents,
    character_coverage=FLAGS.character_coverage,
    required_chars=vocabulary.ascii_characters(do_lower_case=FLAGS.do_lower_case) if FLAGS.keep_ascii else "",
  )
  return {path: "".join(f"{piece}\n" for piece in pieces)}, len(pieces)


def _train_byte_level_bpe(sample: Sequence[str], path: str) -> _Vocabulary:
  lines = (line for sentence in sample for line in cut_line(sentence))
  contents = vocabulary.train_byte_level_bpe(lines, vocab_size=FLAGS.vocab_size)
  num_pieces = len(json_text.decode("vocab.json", contents[0]))
  return dict(zip(vocabulary_paths(path), contents, strict=True)), num_pieces


def _train_sentence_piece(sample: Sequence[str], path: str) -> _Vocabulary:
  model = vocabulary.train_model(
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
  scores = vocabulary.format_vocab_file(model)
  return {path: model, files.join(FLAGS.output_dir, "spiece.vocab"): scores}, FLAGS.vocab_size


_TRAINERS = {vocabulary.WORDPIECE: _train_wordpiece, vocabulary.BYTE_LEVEL_BPE: _train_byte_level_bpe}


if __name__ == "__main__":
  startup.run_command_of(__name__)
