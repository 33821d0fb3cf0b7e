"""Trains WordPiece vocabularies with the library tokenizers (the extra `tokenizers`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from albert.errors import UserError
from albert.tokenization.wordpiece import CONTINUES_WORD, SPECIAL_PIECES, split_words

# A pair of pieces becomes a piece if it occurs at least this often, as in tensorflow-text and transformers.
_MIN_FREQUENCY = 2


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

  The same lines give the same pieces in the same order.

  Args:
    lines: lines of the corpus. They are cut into words by the rules of the original BERT here.
    vocab_size: number of pieces.
    do_lower_case: whether the text is lower-cased and accents are stripped.
    keep_accents: whether lower-cased text keeps its accents.
    character_coverage: share of the text's characters that must be pieces. Words with another character become [UNK].
    required_chars: characters that become pieces, even if they are rare.

  Returns:
    The pieces in order of their ids; fewer than vocab_size if no pair of pieces occurs twice.

  Raises:
    UserError: tokenizers is not installed, there is no text, or the characters alone take more than vocab_size pieces.
  """
  try:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
  except ImportError as error:
    raise UserError("--type=wordpiece needs the package tokenizers: pip install 'tokenizers>=0.20,<1'") from error
  switches = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
  counts = Counter(word for line in lines for word in split_words(line, **switches))
  if not counts:
    raise UserError("--input_file: the files hold no text: give files with text in them")
  initial, inner = _alphabets(counts, character_coverage, required_chars)
  # The trainer adds the pieces ##c in an order that differs from run to run, unless they are given to it.
  first_pieces = [*SPECIAL_PIECES, *(CONTINUES_WORD + character for character in inner)]
  if len(first_pieces) + len(initial) > vocab_size:
    size = len(first_pieces) + len(initial)
    raise UserError(
      f"--vocab_size={vocab_size}: the special pieces and the characters take {size} pieces: set "
      f"--vocab_size={size} or more, or lower --character_coverage"
    )
  tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL_PIECES[1]))
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  trainer = trainers.WordPieceTrainer(
    vocab_size=vocab_size,
    min_frequency=_MIN_FREQUENCY,
    show_progress=False,
    special_tokens=first_pieces,
    initial_alphabet=list(initial),
    limit_alphabet=len(initial),
    continuing_subword_prefix=CONTINUES_WORD,
  )
  tokenizer.train_from_iterator(repeated(counts), trainer)
  pieces = tokenizer.get_vocab()
  return sorted(pieces, key=pieces.__getitem__)


def repeated(counts: Counter[str]) -> Iterable[Sequence[str]]:
  """Yields batches of text in which each word occurs as often as in the corpus."""
  for word, count in counts.items():
    words_per_text = min(count, 1024)
    yield [" ".join([word] * words_per_text)] * (count // words_per_text)
    if count % words_per_text:
      yield [" ".join([word] * (count % words_per_text))]


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
