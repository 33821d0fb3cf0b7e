"""Tokenizer: converts text to ids with a vocabulary of any kind; and texts in which [MASK] stands for a token.

It needs no libraries but NumPy and the library of the vocabulary's kind: programs that serve exported models may not
have TensorFlow, and data preparation starts many processes that need a tokenizer.
`albert.tokenization.graph` has the same tokenizers in TensorFlow ops.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import multiprocessing
import os
import pkgutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from albert.errors import UserError
from albert.io import files
from albert.io.text import format_value
from albert.tokenization.packing import pack_pair, pack_single, padded
from albert.tokenization.recorded_settings import find_tokenizer_config, tokenizer_config
from albert.tokenization.vocabulary import (
  SETTINGS_FILE,
  TokenizerConfig,
  TokensWithOffsets,
  Vocabulary,
  kind_of,
  read_vocabulary_files,
  vocabulary_paths,
)

MASK = "[MASK]"
# A greater share of <unk> gives a warning. A vocabulary that was trained on similar text gives far less: 0.01% in the
# held-out text of `make demo`.
MAX_UNKNOWN_SHARE = 0.01
_MAX_SHOWN_CHARACTERS = 5
_REMEDY = "give weights and their vocabulary that were trained on text in this language"
# Kind of a vocabulary -> its class, "module:name". Only the module of the kind that is used is imported.
_CLASSES = {
  "sentencepiece": "albert.tokenization.sentence_piece:SentencePieceVocabulary",
  "wordpiece": "albert.tokenization.wordpiece:WordPieceVocabulary",
  "byte_level_bpe": "albert.tokenization.byte_bpe:ByteLevelBPEVocabulary",
}


class Tokenizer:
  """Converts text to ids with a vocabulary: a SentencePiece model, or one of another kind.

  A file whose name ends in .txt, such as vocab.txt, is a WordPiece vocabulary; one whose name ends in .json
  (tokenizer.json, or vocab.json with merges.txt) a byte-level BPE vocabulary; any other file is a SentencePiece model.

  Text never yields special tokens: "[CLS]" in a text does not become the id of [CLS].

  A word has the same ids wherever it stands in a text (with byte-level BPE, the same ids after every space), and the
  same ids in a TensorFlow graph (`albert.tokenization.graph`).

  Pickling stores the settings, the absolute path and the hash of the vocabulary; unpickling opens the file again.

  Args:
    model_file: path of the vocabulary.
    do_lower_case: whether to lower-case text; None for what a file beside the vocabulary says (see
      `albert.tokenization.recorded_settings`), and True if there is none.
    convert_quotes: whether to replace `` and '' by "; None for what that file says, and False if there is none.
    keep_accents: whether characters keep their accents and are not decomposed; None for what that file says, and False
      if there is none.

  Attributes:
    config: the settings.
    model_file: the path of the vocabulary.
    vocabulary: the vocabulary, with what is special to its kind.
    sha256: SHA-256 of the vocabulary, in hex.
    pieces: the V pieces, in order of their ids.
    vocab_size: the number of pieces, V.
    special_ids: the ids of padding, unknown text, [CLS], [SEP] and [MASK].

  Raises:
    UserError: the file is missing, is not a vocabulary, or lacks a special piece; or an argument contradicts the file
      that says how the vocabulary was made.

  Example:
    >>> import albert
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> tokenizer.decode(tokenizer.encode("They drank the pub dry."))
    'they drank the pub dry.'
    >>> batch = tokenizer(["They drank the pub dry.", "A short one."])
    >>> sorted(batch)
    ['input_ids', 'input_mask', 'segment_ids']
    >>> batch["input_ids"].shape == batch["input_mask"].shape == batch["segment_ids"].shape
    True
  """

  def __init__(
    self,
    model_file: files.AnyPath,
    do_lower_case: bool | None = None,
    *,
    convert_quotes: bool | None = None,
    keep_accents: bool | None = None,
  ):
    if files.is_dir(str(model_file)):
      raise UserError(f"{model_file}: is a directory: give the vocabulary in it, or use Tokenizer.from_pretrained")
    given = {"do_lower_case": do_lower_case, "convert_quotes": convert_quotes, "keep_accents": keep_accents}
    self._open(tokenizer_config(str(model_file), **given))

  def _open(self, config: TokenizerConfig) -> None:
    self.config, self.model_file = config, config.model_file
    if config.model_file.endswith("merges.txt"):
      raise UserError(
        f"{config.model_file}: has only the merges of a byte-level BPE vocabulary: give the vocab.json beside it"
      )
    contents = read_vocabulary_files(config.model_file)
    self.vocabulary: Vocabulary = pkgutil.resolve_name(_CLASSES[kind_of(config.model_file)])(config, contents)
    self.sha256, self.special_ids = self.vocabulary.sha256, self.vocabulary.special_ids
    self.pieces, self.vocab_size = self.vocabulary.pieces, len(self.vocabulary.pieces)
    # The absolute path, for pickling: the process may have another working directory then.
    self._path = config.model_file if files.is_remote(config.model_file) else os.path.abspath(config.model_file)

  @classmethod
  def from_config(cls, config: TokenizerConfig) -> Tokenizer:
    """Makes a tokenizer from its settings; `load_tokenizer` also caches it."""
    tokenizer = cls.__new__(cls)
    tokenizer._open(config)
    return tokenizer

  @classmethod
  def from_pretrained(
    cls,
    path: files.AnyPath,
    *,
    do_lower_case: bool | None = None,
    convert_quotes: bool | None = None,
    keep_accents: bool | None = None,
  ) -> Tokenizer:
    """Makes the tokenizer of pretrained weights.

    Args:
      path: where the weights are: a directory from Google or Hugging Face, the output_dir of a run, one of its step-N
        directories, the prefix of a checkpoint, or the directory of an exported model; or the path of the vocabulary
        itself. `vocabulary.NAMES` lists the names that the vocabulary there may have.
      do_lower_case: whether text is lower-cased; None for what the exported model (servable.json), the run
        (config.json) or Hugging Face's tokenizer_config.json say, and True if none of these files exists.
      convert_quotes: whether `` and '' are replaced by "; None for what these files say, and False if none exists.
      keep_accents: whether characters keep their accents and are not decomposed; None for what these files say, and
        False if none exists.

    Returns:
      The tokenizer.

    Raises:
      UserError: there is no vocabulary, it cannot be used, or an argument contradicts these files (convert_quotes may).

    Example:
      >>> import albert
      >>> albert.Tokenizer.from_pretrained("downloads/albert_base").encode("[CLS]")[0] == 2
      False
    """
    given = {"do_lower_case": do_lower_case, "convert_quotes": convert_quotes, "keep_accents": keep_accents}
    return cls.from_config(find_tokenizer_config(path, **given))

  def __reduce__(self) -> tuple[object, ...]:
    return type(self)._unpickle, (dataclasses.replace(self.config, model_file=self._path), self.sha256)

  @classmethod
  def _unpickle(cls, config: TokenizerConfig, sha256: str) -> Tokenizer:
    tokenizer = cls.from_config(config)
    if tokenizer.sha256 != sha256:
      raise UserError(
        f"{config.model_file}: is not the vocabulary that was pickled (SHA-256 {sha256[:12]}...): put that one there"
      )
    return tokenizer

  @property
  def is_special(self) -> np.ndarray:
    """bool [V]: True for pieces that do not represent text, such as [CLS] and [MASK]."""
    return self.vocabulary.is_special

  @property
  def word_starts(self) -> np.ndarray:
    """bool [V]: True for pieces that start a word, by the rule of the vocabulary's kind."""
    return self.vocabulary.word_starts

  def normalize(self, text: str) -> str:
    """Normalizes a text with the settings of this tokenizer."""
    return self.vocabulary.normalize(text)

  def __call__(
    self, texts: Iterable[str], text_pairs: Iterable[str] | None = None, *, max_length: int = 512
  ) -> dict[str, np.ndarray]:
    """Converts texts, or pairs of texts, to a padded batch, the input of the encoder.

    A sequence is `[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]`. Too long sequences are cut as in fine-tuning: a
    single text is cut at its end; in a pair, the last token of the longer text is removed until both fit.

    Args:
      texts: N texts, or one.
      text_pairs: the second texts of N pairs; None for single texts.
      max_length: largest number of tokens in a sequence, [CLS] and [SEP] included.

    Returns:
      input_ids, input_mask and segment_ids, int32 [N, S], where S is the length of the longest sequence. The mask is 1
      for tokens and 0 for padding; segment_ids are 1 for the second text and its [SEP], 0 elsewhere.

    Raises:
      UserError: one of the texts is no string, the numbers of texts and pairs differ, or
        max_length leaves no room for text.

    Example:
      >>> import albert
      >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
      >>> batch = tokenizer(["Who drank it?"], ["They drank the pub dry."], max_length=10)
      >>> batch["input_ids"].shape
      (1, 10)
      >>> int(batch["input_ids"][0, 0]), int(batch["segment_ids"][0, -1])
      (2, 1)
    """
    ids, offsets = self.encode_batch_flat(check_texts(texts, "texts"))
    if text_pairs is None:
      return padded(*pack_single((ids, offsets), max_length, self.special_ids), pad_id=self.special_ids.pad)
    pair_ids, pair_offsets = self.encode_batch_flat(check_texts(text_pairs, "text_pairs"))
    if len(offsets) != len(pair_offsets):
      raise UserError(f"{len(offsets) - 1} texts, but {len(pair_offsets) - 1} text_pairs: give one for each text")
    packed = pack_pair((ids, offsets), (pair_ids, pair_offsets), max_length, self.special_ids)
    return padded(*packed, pad_id=self.special_ids.pad)

  def encode(self, text: str) -> list[int]:
    """Converts a text to a list of ids, without [CLS] and [SEP]."""
    return self.encode_batch([text])[0]

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Converts texts to lists of ids, without [CLS] and [SEP]. Much faster than calling `encode` for each text."""
    return self.vocabulary.encode_batch(check_texts(texts, "texts"))

  def encode_with_offsets(self, text: str) -> TokensWithOffsets:
    """Converts a text to ids with their offsets.

    Args:
      text: any string.

    Returns:
      The ids and, for each, its range in `text`.

    Raises:
      UserError: the pieces do not add up to the text, so offsets are unknown. This happens with a SentencePiece model
        that writes unknown characters as bytes.
    """
    return self.vocabulary.encode_with_offsets(text)

  def encode_batch_flat(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Converts texts to ids, like `encode_batch`, but returns arrays.

    Returns:
      ids: int32 [T], the ids of all texts, concatenated.
      offsets: int64 [len(texts) + 1]; the ids of text i are ids[offsets[i] : offsets[i + 1]].
    """
    batch = self.encode_batch(texts)
    offsets = np.cumsum([0, *map(len, batch)], dtype=np.int64)
    ids = np.fromiter(itertools.chain.from_iterable(batch), np.int32, int(offsets[-1]))
    return ids, offsets

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Converts ids to text. Special tokens are left out; a SentencePiece model writes <unk> as " ⁇ ".

    Raises:
      UserError: an id is outside the vocabulary, or the ids are those of several texts.
    """
    if any(map(np.ndim, ids)):
      raise UserError("ids are those of several texts: give the ids of one text")
    ids = [int(i) for i in ids]
    for i in ids:
      self.piece(i)
    return self.vocabulary.decode(ids)

  def piece(self, piece_id: int) -> str:
    """Returns the piece with this id.

    Raises:
      UserError: the id is outside the vocabulary.
    """
    if not 0 <= piece_id < self.vocab_size:
      raise UserError(
        f"id {piece_id} is outside the {self.vocab_size} pieces of {self.model_file}: use the vocabulary that made it"
      )
    return self.pieces[piece_id]


def check_texts(texts: Iterable[str], name: str) -> list[str]:
  """Returns the texts as a list. A single string is one text.

  Raises:
    UserError: `texts` is a dict, a frame or no collection of texts at all, or one of the texts is no string.
  """
  if isinstance(texts, str):
    return [texts]
  if isinstance(texts, bytes | Mapping) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
    raise UserError(f"{name} is a {type(texts).__name__}: give a list of texts, such as one column of a table")
  text_list = list(texts)
  for index, text in enumerate(text_list):
    if not isinstance(text, str):
      raise UserError(f"{name}[{index}] is {format_value(text)}, of type {type(text).__name__}: give texts only")
  return text_list


def unknown_share(tokenizer: Tokenizer, ids: np.ndarray) -> float:
  """Returns the share of <unk> among the tokens of texts. [CLS] and [SEP] do not count."""
  special = tokenizer.special_ids
  num_tokens = np.count_nonzero((ids != special.cls) & (ids != special.sep))
  return float(np.count_nonzero(ids == special.unk) / max(num_tokens, 1))


def unknown_characters(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
  """Returns the most frequent characters of texts that the vocabulary lacks, at most five."""
  frequencies = Counter(tokenizer.normalize("".join(texts)))
  known, unk = {*"".join(tokenizer.pieces), " "}, tokenizer.special_ids.unk
  unknown = (c for c, _ in frequencies.most_common() if c not in known and unk in tokenizer.encode(c))
  return list(itertools.islice(unknown, _MAX_SHOWN_CHARACTERS))


def unknown_warnings(
  source: str, share: float, tokenizer: Tokenizer | None = None, texts: Iterable[str] = (), remedy: str = _REMEDY
) -> list[str]:
  """Returns a warning if more than 1% of the tokens of a text are <unk>.

  Args:
    source: the text, for the warning.
    share: see unknown_share.
    tokenizer, texts: if given, the warning names the most frequent characters of these texts that are unknown.
    remedy: the end of the warning.
  """
  if share <= MAX_UNKNOWN_SHARE:
    return []
  characters = [] if tokenizer is None else unknown_characters(tokenizer, texts)
  examples = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in characters)
  return [
    f"warning: {source}: {share:.1%} of the tokens are <unk>, since characters of this text are not in the vocabulary"
    f"{', such as ' if characters else ''}{examples}: {remedy}"
  ]


def _check_settings(tokenizer: Tokenizer) -> None:
  """Logs a warning if more than 5% of the pieces have capital letters, or accents, which normalized text lacks."""
  file, wrong = tokenizer.model_file, {}
  pieces = list(itertools.compress(tokenizer.pieces, ~tokenizer.is_special))
  changed = {c for c in {*"".join(pieces)} if tokenizer.normalize(c).strip() != c}
  capitals = {c for c in changed if c.lower() != c}
  accents = '"strip_accents": false' if kind_of(file) == "wordpiece" else '"keep_accents": true'
  for characters, setting in ((capitals, '"do_lower_case": false'), (changed - capitals, accents)):
    lost = [piece for piece in pieces if not characters.isdisjoint(piece)]
    if len(lost) > 0.05 * len(pieces):  # the English ALBERT's vocabulary has none
      wrong[setting] = f"{len(lost)} of the {len(pieces)} pieces ({lost[0]!r})"
  if wrong:
    from albert.io.progress import log  # needs tqdm, which programs that serve exports may not have

    log(
      f"warning: {file}: text loses its capital letters or accents, so {' and '.join(wrong.values())} never occur: if "
      f"the model was trained on text that has them, put {{{', '.join(wrong)}}} into "
      f"{files.join(os.path.dirname(file), SETTINGS_FILE)}"
    )


def load_tokenizer(config: TokenizerConfig) -> Tokenizer:
  """Returns the tokenizer of a config, for commands; logs a warning if its pieces do not fit the settings.

  The most recently used tokenizers of a process are cached.
  """
  return _load_tokenizer(config, tuple(map(files.stat, vocabulary_paths(config.model_file))))


@functools.lru_cache(maxsize=4)
def _load_tokenizer(config: TokenizerConfig, metadata: tuple[files.Stat, ...]) -> Tokenizer:
  del metadata  # a part of the cache key: files that have changed are read again
  tokenizer = Tokenizer.from_config(config)
  if not config.model_file.endswith(".json") and multiprocessing.parent_process() is None:
    _check_settings(tokenizer)  # not of a tokenizer.json, which says itself how text is normalized
  return tokenizer


def masked_batch(tokenizer: Tokenizer, texts: Iterable[str], *, max_length: int = 512) -> dict[str, np.ndarray]:
  """Converts texts with [MASK] to a padded batch, the input of a masked language model.

  Args:
    tokenizer: the tokenizer of the model.
    texts: N texts, in which each [MASK] stands for one token. (In `tokenizer(texts)`, "[MASK]" is text like any other.)
    max_length: largest number of tokens in a sequence, [CLS] and [SEP] included; a longer text is cut at its end.

  Returns:
    input_ids, input_mask and segment_ids, int32 [N, S], see Tokenizer.__call__.

  Raises:
    UserError: one of the texts is no string, or max_length leaves no room for text.

  Example:
    >>> import albert
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> batch = albert.masked_batch(tokenizer, ["They drank the [MASK] dry."])
    >>> int((batch["input_ids"] == 4).sum())
    1
  """
  ids_of_texts = [encode_with_masks(tokenizer, text) for text in check_texts(texts, "texts")]
  offsets = np.cumsum([0, *map(len, ids_of_texts)])
  ids = np.array([token for text_ids in ids_of_texts for token in text_ids], np.int32)
  special_ids = tokenizer.special_ids
  return padded(*pack_single((ids, offsets), max_length, special_ids), pad_id=special_ids.pad)


def encode_with_masks(tokenizer: Tokenizer, text: str) -> list[int]:
  """Encodes a text that contains [MASK].

  Args:
    tokenizer: the tokenizer.
    text: the text. Each [MASK] stands for one piece.
  Returns: the ids, without [CLS] and [SEP].
  """
  ids: list[int] = []
  parts = text.split(MASK)
  for index, part in enumerate(parts):
    if index:
      ids.append(tokenizer.special_ids.mask)
    # The space before a mask belongs to the token that the mask stands for. Only byte-level BPE has tokens for spaces.
    part_ids = tokenizer.encode(part if index == len(parts) - 1 else part.rstrip())
    if index and part_ids and not part[0].isspace():
      # SentencePiece marks the first piece of a text as the start of a word. If text such as "." follows a mask
      # without a space, its first piece must not be marked.
      first_id = int(tokenizer.vocabulary.ids_inside_word[part_ids[0]])
      part_ids[:1] = [first_id] if first_id >= 0 else []
    ids += part_ids
  return ids
