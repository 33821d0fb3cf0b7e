"""Trains byte-level BPE vocabularies with the library tokenizers (the extra `tokenizers`)."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from albert.errors import UserError
from albert.io.text import encode_utf8
from albert.tokenization.byte_bpe import BYTE_CHARACTERS, bytes_to_piece, split_words
from data_prep.wordpiece_training import repeated

# In the order of the first ids of RoBERTa's vocabulary.
SPECIAL_PIECES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
# A pair of pieces becomes a piece if it occurs at least this often, as in ByteLevelBPETokenizer of tokenizers.
_MIN_FREQUENCY = 2


def train_byte_level_bpe(lines: Iterable[str], *, vocab_size: int) -> tuple[bytes, bytes]:
  """Trains a vocabulary: the special pieces, the 256 bytes, then the most frequent merges of pieces.

  The same lines give the same pieces in the same order. The memory grows with the number of different words.

  Args:
    lines: lines of the corpus. A space is put before each of them, as before most sentences in shards.
    vocab_size: number of pieces; fewer if no pair of pieces occurs twice.

  Returns:
    The contents of vocab.json and of merges.txt.

  Raises:
    UserError: tokenizers is not installed, there is no text, or vocab_size has no room for the 256 bytes.
  """
  try:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
  except ImportError as error:
    raise UserError("--type=byte_level_bpe needs the package tokenizers: pip install 'tokenizers>=0.20,<1'") from error
  smallest = len(SPECIAL_PIECES) + len(BYTE_CHARACTERS)
  if vocab_size < smallest:
    raise UserError(
      f"--vocab_size={vocab_size}: the special pieces and the 256 bytes take {smallest} pieces: set "
      f"--vocab_size={smallest} or more"
    )
  counts = Counter(bytes_to_piece(encode_utf8(word)) for line in lines for word in split_words(f" {line}"))
  if not counts:
    raise UserError("--input_file: the files hold no text: give files with text in them")
  tokenizer = Tokenizer(models.BPE())
  # No byte is written as whitespace, so the words stay as they are.
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    min_frequency=_MIN_FREQUENCY,
    show_progress=False,
    special_tokens=list(SPECIAL_PIECES),
    initial_alphabet=list(BYTE_CHARACTERS),
  )
  tokenizer.train_from_iterator(repeated(counts), trainer)
  with tempfile.TemporaryDirectory() as directory:
    tokenizer.model.save(directory)
    return Path(directory, "vocab.json").read_bytes(), Path(directory, "merges.txt").read_bytes()
