"""Trains vocabularies: SentencePiece models, WordPiece, and byte-level BPE (with the library tokenizers).

The same lines give the same pieces in the same order.
"""

from __future__ import annotations

import io
import itertools
import math
import random
import re
import string
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from albert.errors import UserError
from albert.io.local_files import required_library
from albert.io.progress import log
from albert.io.text import encode_utf8
from albert.tokenization import byte_bpe, wordpiece
from albert.tokenization.normalization import normalize_text
from albert.tokenization.vocabulary import CLS_ID, MASK_ID, PAD_ID, SEP_ID, SPECIAL_PIECES, UNK_ID
from data_prep.text_files import cut_line

# The types of vocabularies. The first two are SentencePiece models.
UNIGRAM, BPE, WORDPIECE, BYTE_LEVEL_BPE = "unigram", "bpe", "wordpiece", "byte_level_bpe"
# The value in the README of the original ALBERT.
CHARACTER_COVERAGE = 0.99995
# SentencePiece skips longer lines. `cut_line` gives far shorter ones, even if normalization lengthens them.
_MAX_LINE_BYTES = 1 << 20
# SentencePiece marks <unk> with this character, and skips lines that contain it.
_RESERVED_CHARACTER = "\u2585"
# Error messages of SentencePiece's trainer. The group is the greatest or the smallest possible size.
_TOO_LARGE = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")
_NO_TEXT = "--input_file: the files hold no text: give files with text in them"
# In WordPiece and byte-level BPE, a pair of pieces becomes a piece if it occurs at least this often, as in
# tensorflow-text, transformers and ByteLevelBPETokenizer of tokenizers.
_MIN_FREQUENCY = 2
# In the order of the first ids of RoBERTa's vocabulary.
_BYTE_LEVEL_BPE_PIECES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def sample_lines(lines: Iterable[str], size: int, rng: random.Random) -> tuple[list[str], int]:
  """Draws a uniform sample of lines in one pass (reservoir sampling, algorithm L).

  Returns:
    All lines in order if there are at most `size`, else a random sample of `size` lines; and the number of all lines.
  """
  iterator = iter(lines)
  sample = list(itertools.islice(iterator, size))
  num_lines = len(sample)
  if num_lines < size:
    return sample, num_lines
  weight = math.exp(math.log(1.0 - rng.random()) / size)
  num_to_skip = _draw_num_to_skip(weight, rng)
  for line in iterator:
    num_lines += 1
    if num_to_skip:
      num_to_skip -= 1
      continue
    sample[rng.randrange(size)] = line
    weight *= math.exp(math.log(1.0 - rng.random()) / size)
    num_to_skip = _draw_num_to_skip(weight, rng)
  return sample, num_lines


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
  character_coverage: float = CHARACTER_COVERAGE,
  keep_ascii: bool = True,
  user_defined_symbols: Sequence[str] = (),
  num_threads: int = 16,
  model_type: str = UNIGRAM,
  byte_fallback: bool = False,
) -> bytes:
  """Trains a SentencePiece model with ALBERT's special tokens at the ids 0 to 4, whose own normalization is nmt_nfkc.

  Args:
    sentences: lines of the corpus. They are normalized here, and long ones are cut.
    vocab_size: number of pieces.
    do_lower_case, keep_accents: how the text is normalized.
    character_coverage: share of the text's characters that the vocabulary must cover. The rarest become <unk>.
    keep_ascii: whether every character of `ascii_characters` becomes a piece, even if it is rare in the text.
    user_defined_symbols: strings that become pieces and are never parts of longer pieces; normalized like the text.
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
  lines = (line for sentence in sentences for line in cut_line(sentence.replace(_RESERVED_CHARACTER, " ")))
  ascii_chars = ascii_characters(do_lower_case=do_lower_case) if keep_ascii else ""
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=filter(None, (normalize_text(line, **switches) for line in lines)),
      model_writer=model,
      model_type=model_type,
      byte_fallback=byte_fallback,
      vocab_size=vocab_size,
      character_coverage=character_coverage,
      # SentencePiece rejects a character that is both required and a user-defined symbol.
      required_chars="".join(sorted(set(ascii_chars) - set(user_defined_symbols))),
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
      f"--user_defined_symbols: {symbol!r} is normalized to {normalized!r}, which is not one symbol: leave it out"
    )
  if normalized != symbol:
    log(f"--user_defined_symbols: {symbol} becomes {normalized}, as the text is normalized")
  return normalized


def _training_error(message: str, vocab_size: int, keep_ascii: bool) -> UserError:
  """Returns the error for an exception of SentencePiece's trainer."""
  if match := _TOO_LARGE.search(message):
    return UserError(
      f"--vocab_size={vocab_size}: this text gives at most {match[1]} pieces: set --vocab_size={match[1]} or add text"
    )
  if match := _TOO_SMALL.search(message):
    return UserError(
      f"--vocab_size={vocab_size}: the required characters and the symbols take "
      f"{match.group(1)} pieces: set --vocab_size={match.group(1)} or more, or lower --character_coverage"
      + (", or give --nokeep_ascii" if keep_ascii else "")
    )
  if "sentences_.empty()" in message:
    return UserError(_NO_TEXT)
  return UserError(
    f"--input_file: SentencePiece cannot train --vocab_size={vocab_size} pieces on this text ({message}): give other "
    "text, or change --vocab_size, --character_coverage or --user_defined_symbols"
  )


def format_vocab_file(model: bytes) -> str:
  """Returns the contents of a model's .vocab file: for each id a line with its piece, a tab and its score."""
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  ids = range(processor.get_piece_size())
  return "".join(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in ids)


# ---- WordPiece and byte-level BPE ----------------------------------------------------------------------


def import_tokenizers(vocabulary_type: str) -> Any:
  """Returns the library tokenizers. Raises UserError, with the command that installs it, if it is missing."""
  with required_library(f"--type={vocabulary_type}", "training needs tokenizers", "pip install 'tokenizers>=0.20,<1'"):
    import tokenizers
  return tokenizers


def _train(tokenizers: Any, model: Any, trainer: Any, counts: Counter[str]) -> Any:
  """Trains a model of the library on words and their numbers. Returns the library's tokenizer."""
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()  # no word has a space in it
  # Texts in which each word occurs as often as in the corpus.
  texts = (" ".join([word] * min(1024, count - i)) for word, count in counts.items() for i in range(0, count, 1024))
  tokenizer.train_from_iterator(texts, trainer)
  return tokenizer


def train_wordpiece(
  lines: Iterable[str],
  *,
  vocab_size: int,
  do_lower_case: bool,
  keep_accents: bool = False,
  character_coverage: float,
  required_chars: str = "",
) -> list[str]:
  """Trains a WordPiece vocabulary: the special pieces, all characters, then the most frequent merges of pieces.

  The lines are cut into words by the rules of the original BERT. Words with characters beyond `character_coverage`
  become [UNK]. The required characters become pieces, even if they are rare.

  Returns:
    The pieces in order of their ids; fewer than vocab_size if no pair of pieces occurs twice.
  """
  tokenizers = import_tokenizers("wordpiece")
  rules = wordpiece.WordRules(do_lower_case, do_lower_case and not keep_accents)
  counts = Counter(word for line in lines for word in wordpiece.split_words(line, rules))
  if not counts:
    raise UserError(_NO_TEXT)
  initial, inner = _alphabets(counts, character_coverage, required_chars)
  # The trainer adds the pieces ##c in an order that differs from run to run, unless they are given to it.
  first_pieces = [*wordpiece.SPECIAL_PIECES, *(wordpiece.CONTINUES_WORD + character for character in inner)]
  if len(first_pieces) + len(initial) > vocab_size:
    size = len(first_pieces) + len(initial)
    raise UserError(
      f"--vocab_size={vocab_size}: the special pieces and the characters take {size} pieces: set "
      f"--vocab_size={size} or more, or lower --character_coverage"
    )
  trainer = tokenizers.trainers.WordPieceTrainer(
    vocab_size=vocab_size,
    min_frequency=_MIN_FREQUENCY,
    show_progress=False,
    special_tokens=first_pieces,
    initial_alphabet=list(initial),
    limit_alphabet=len(initial),
    continuing_subword_prefix=wordpiece.CONTINUES_WORD,
  )
  model = tokenizers.models.WordPiece(unk_token=wordpiece.SPECIAL_PIECES[1])
  pieces = _train(tokenizers, model, trainer, counts).get_vocab()
  return sorted(pieces, key=pieces.__getitem__)


def _alphabets(counts: Counter[str], character_coverage: float, required_chars: str) -> tuple[str, str]:
  """Returns the characters that become pieces, and those of them that also occur after the start of a word, sorted."""
  frequencies: Counter[str] = Counter()
  after_start = set(required_chars)
  for word, count in counts.items():
    for character in word:
      frequencies[character] += count
    after_start.update(word[1:])
  to_cover = math.ceil(character_coverage * sum(frequencies.values()))
  covered = set(required_chars)
  for character, frequency in sorted(frequencies.items(), key=lambda item: (-item[1], item[0])):
    if to_cover <= 0:
      break
    covered.add(character)
    to_cover -= frequency
  return "".join(sorted(covered)), "".join(sorted(covered & after_start))


def train_byte_level_bpe(lines: Iterable[str], *, vocab_size: int) -> tuple[bytes, bytes]:
  """Trains a vocabulary: the special pieces, the 256 bytes, then the most frequent merges of pieces.

  A space is put before each line, as before most sentences in shards. There are fewer pieces than `vocab_size` if no
  pair of pieces occurs twice. The memory grows with the number of different words.

  Returns:
    The contents of vocab.json and of merges.txt.
  """
  tokenizers = import_tokenizers("byte_level_bpe")
  smallest = len(_BYTE_LEVEL_BPE_PIECES) + len(byte_bpe.BYTE_CHARACTERS)
  if vocab_size < smallest:
    raise UserError(
      f"--vocab_size={vocab_size}: the special pieces and the 256 bytes take {smallest} pieces: give {smallest} or more"
    )
  counts = Counter(
    byte_bpe.bytes_to_piece(encode_utf8(word)) for line in lines for word in byte_bpe.split_words(f" {line}")
  )
  if not counts:
    raise UserError(_NO_TEXT)
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=vocab_size,
    min_frequency=_MIN_FREQUENCY,
    show_progress=False,
    special_tokens=list(_BYTE_LEVEL_BPE_PIECES),
    initial_alphabet=list(byte_bpe.BYTE_CHARACTERS),
  )
  tokenizer = _train(tokenizers, tokenizers.models.BPE(), trainer, counts)
  with tempfile.TemporaryDirectory() as directory:
    tokenizer.model.save(directory)
    return Path(directory, "vocab.json").read_bytes(), Path(directory, "merges.txt").read_bytes()
