"""Vocabularies of every kind: the settings of a tokenizer, the files, the special pieces, and what each kind can do.

The name of a vocabulary says of which kind it is: a SentencePiece model, a WordPiece vocabulary (.txt), or byte-level
BPE (.json); a tokenizer.json is of the kind that its content says (see `tokenizer_json`).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from albert.errors import UserError
from albert.io import files
from albert.io.json_text import decode

_SENTENCE_PIECE, _WORDPIECE = "spiece.model", "vocab.txt"
SENTENCE_PARTS = "modules.json"  # of a directory of sentence-transformers
# Byte-level BPE: one file with everything, or one with the pieces beside one with the merges.
_TOKENIZER, _BPE_PIECES, _BPE_MERGES = "tokenizer.json", "vocab.json", "merges.txt"
SETTINGS_FILE = "tokenizer_config.json"  # of Hugging Face, see `recorded_settings`
# 30k-clean.model and vocab_chinese.txt are the names in Google's archives of pretrained models. Hugging Face's models
# may have a tokenizer.json beside another vocabulary.
NAMES = (_SENTENCE_PIECE, "30k-clean.model", _WORDPIECE, "vocab_chinese.txt", _BPE_PIECES, _TOKENIZER)
# What a directory of weights without a vocabulary lacks, the end of an error message.
NO_VOCABULARY = f"has no {' or '.join(NAMES)} beside it: put the vocabulary there"

WORD_START = "▁"  # U+2581: how SentencePiece writes a space
# First and last code points of scripts that put no spaces between words. A piece of these scripts counts as a word.
_SCRIPTS_WITHOUT_SPACES = (
  (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
  (0x1000, 0x109F),  # Myanmar
  (0x1780, 0x17FF),  # Khmer
  (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
  (0x1A20, 0x1AAF),  # Tai Tham
  (0x2E80, 0x312F),  # CJK radicals and punctuation, Hiragana, Katakana, Bopomofo
  (0x31A0, 0x4DBF),  # Bopomofo and Katakana extensions, CJK extension A
  (0x4E00, 0xA4CF),  # CJK ideographs, Yi
  (0xA980, 0xA9DF),  # Javanese
  (0xF900, 0xFAFF),  # CJK compatibility ideographs
  (0x16FE0, 0x18DFF),  # Tangut, Khitan
  (0x1B000, 0x1B2FF),  # Kana extensions, Nushu
  (0x20000, 0x3FFFF),  # CJK extensions B and later
)

# The ids of this many different words are kept, of words up to this length. (Text in Thai or Han characters is cut into
# words at punctuation only, so long words seldom occur twice.)
MAX_CACHED_WORDS, MAX_CACHED_CHARS = 1 << 18, 32


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """Which vocabulary a tokenizer uses and how it normalizes text.

  `albert.tokenization.recorded_settings` finds the values that a vocabulary was made with.

  Attributes:
    model_file: path of the vocabulary (--spm_model_file); its name says of which kind it is.
    do_lower_case: whether text is lower-cased. It must be as it was when the vocabulary was trained.
    convert_quotes: whether `` and '' are replaced by ". The original ALBERT does not do this.
    keep_accents: whether characters are neither decomposed nor lose their accents, which the original ALBERT does not
      do. It must be as it was when the vocabulary was trained.
  """

  model_file: str
  do_lower_case: bool = True
  convert_quotes: bool = False
  keep_accents: bool = False

  def switches(self) -> dict[str, bool]:
    """Returns the settings besides the vocabulary by name, the arguments of `normalization.normalize_text`."""
    return {name: value for name, value in vars(self).items() if name != "model_file"}


class VocabularyId(NamedTuple):
  """Identifies a vocabulary by the contents of its file.

  Attributes:
    sha256: SHA-256 of the vocabulary, in hex, see `contents_sha256`.
    name: where the vocabulary comes from, for error messages, such as "--spm_model_file=PATH".
  """

  sha256: str
  name: str


class VocabularySize(NamedTuple):
  """The number of pieces of a vocabulary.

  Attributes:
    size: the number of pieces.
    file: the path of the file that says so: the vocabulary, or the manifest of shards.
  """

  size: int
  file: str


class SpecialIds(NamedTuple):
  """The ids of a vocabulary's special pieces.

  Attributes:
    pad: padding, which no text contains.
    unk: text that the other pieces cannot represent.
    cls: the start of every sequence.
    sep: the end of every segment.
    mask: a token that a masked language model predicts.
  """

  pad: int
  unk: int
  cls: int
  sep: int
  mask: int


# ALBERT's control symbols in SentencePiece models, in order of their ids.
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = 0, 1, 2, 3, 4
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
# Kind of a vocabulary -> the names that its special pieces may have, in the order of SpecialIds. If a vocabulary has
# several names of a piece, the first one counts.
_CLS_SEP_MASK_NAMES = (("[CLS]", "<cls>", "<s>"), ("[SEP]", "<sep>", "</s>"), ("[MASK]", "<mask>"))
SPECIAL_NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
  "sentencepiece": (("<pad>", "[PAD]"), ("<unk>", "[UNK]"), *_CLS_SEP_MASK_NAMES),
  "wordpiece": (("[PAD]", "<pad>"), ("[UNK]", "<unk>"), *_CLS_SEP_MASK_NAMES),
  "byte_level_bpe": (("<pad>", "[PAD]"), ("<unk>", "[UNK]"), ("<s>", "[CLS]"), ("</s>", "[SEP]"), ("<mask>", "[MASK]")),
}
SENTENCE_PIECE_IDS = SpecialIds(PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID)


class TokensWithOffsets(NamedTuple):
  """The T tokens of a text, without [CLS] and [SEP].

  Attributes:
    ids: int32 [T], the ids that `Tokenizer.encode` returns.
    starts, ends: int32 [T], offsets into the text, in characters. Token i stands for text[starts[i]:ends[i]], which
      neither begins nor ends in whitespace. Both arrays are non-decreasing. If one character becomes several tokens
      (½ becomes 1, ⁄ and 2), each of them has the range of that character. A token that stands for a space only (a
      lone ▁) has an empty range: it starts where the next token starts, and ends where the previous token ends. So an
      answer text[starts[i]:ends[j]] whose first or last token is a lone ▁ does not include that space.
  """

  ids: np.ndarray
  starts: np.ndarray
  ends: np.ndarray

  @classmethod
  def of(cls, ids: Sequence[int], starts: np.ndarray, ends: np.ndarray) -> TokensWithOffsets:
    """Converts ids and offsets to int32."""
    return cls(np.array(ids, np.int32), starts.astype(np.int32), ends.astype(np.int32))


def written_ranges(text: str, origins: np.ndarray, is_written: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the range of a text that each written character stands for; `graph.written_ranges` does so in a graph.

  A dropped character counts as part of the written one before it in its word. At the edges of a word (words are
  separated by whitespace), what is dropped or replaced by spaces counts as part of the nearest written character.

  Args:
    text: the text.
    origins: int64 [C], the index of the character that each written character or space comes from, ascending.
    is_written: bool [C], False for spaces.

  Returns:
    starts, ends: int64 [written characters]. Those with the same origin have the same end.
  """
  ends = np.append(origins, len(text))[np.searchsorted(origins, origins, side="right")]  # the next larger origin
  starts, ends = origins[is_written], ends[is_written]
  if not len(starts):
    return starts, ends
  word_starts, word_ends = np.array([word.span() for word in re.finditer(r"\S+", text)], np.int64).T
  # For each character: the index of its word, and the indices of the first and the last character of this word.
  word_indices = np.searchsorted(word_starts, starts, side="right") - 1
  first_of_word = np.searchsorted(word_indices, word_indices, side="left")
  last_of_word = np.searchsorted(word_indices, word_indices, side="right") - 1
  starts = np.where(starts == starts[first_of_word], word_starts[word_indices], starts)
  ends = np.where(ends == ends[last_of_word], word_ends[word_indices], ends)
  return starts, ends


def find_special_ids(path: str, kind: str, id_of_piece: Mapping[str, int]) -> SpecialIds:
  """Finds the special pieces of a vocabulary, a file of a kind, by their names. Raises UserError if one is missing."""
  ids = []
  for names in SPECIAL_NAMES[kind]:
    found = [name for name in names if name in id_of_piece]
    if not found:
      raise UserError(
        f"{path}: none of its {len(id_of_piece)} pieces is {' or '.join(names)}: give a vocabulary of ALBERT, BERT or "
        "RoBERTa, or train one with data_prep/train_vocab.py"
      )
    ids.append(id_of_piece[found[0]])
  return SpecialIds(*ids)


class Vocabulary(abc.ABC):
  """A vocabulary and its rules: how text becomes ids, and which pieces start a word.

  `albert.tokenization.tokenizer.Tokenizer` makes the kind that belongs to a file.

  Args:
    config: the file and the normalization.
    contents: the contents of the vocabulary's files, see `read_vocabulary_files`.

  Attributes:
    kind: name of the kind, as in manifests and config.json.
    keeps_case: whether text is never lower-cased, whatever `config` says.
    config: see above.
    file: the path of the vocabulary.
    sha256: the SHA-256 that identifies the vocabulary, in hex, see `contents_sha256`.
    pieces: the V pieces, in order of their ids.
    special_ids: the ids of padding, unknown text, [CLS], [SEP] and [MASK].
    export_problem: why a model with this vocabulary cannot be exported, with the remedy; "" if it can.
  """

  export_problem = ""
  kind: ClassVar[str]
  keeps_case: ClassVar[bool] = False
  pieces: list[str]
  special_ids: SpecialIds

  def __init__(self, config: TokenizerConfig, contents: Mapping[str, bytes]):
    self.config, self.file, self.sha256 = config, config.model_file, contents_sha256(contents)

  @property
  @abc.abstractmethod
  def is_special(self) -> np.ndarray:
    """bool [V]: True for pieces that do not represent text, such as [CLS] and [MASK]."""

  @property
  @abc.abstractmethod
  def word_starts(self) -> np.ndarray:
    """bool [V]: True for pieces that start a word."""

  @abc.abstractmethod
  def normalize(self, text: str) -> str:
    """Normalizes a text, before it is cut into pieces."""

  @abc.abstractmethod
  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Converts texts to lists of ids, without [CLS] and [SEP]."""

  @abc.abstractmethod
  def encode_with_offsets(self, text: str) -> TokensWithOffsets:
    """Converts a text to ids with their character offsets.

    Raises:
      UserError: the vocabulary cannot say which characters a token stands for.
    """

  @abc.abstractmethod
  def decode(self, ids: Sequence[int]) -> str:
    """Converts ids of the vocabulary to text."""

  @abc.abstractmethod
  def piece_texts(self) -> list[str]:
    """Returns the text of each piece without marks of spaces or of continued words, V strings."""

  @property
  def ids_inside_word(self) -> np.ndarray:
    """What replaces the first token of a text that continues a word, such as the text after "[MASK]".

    Returns:
      int32 [V]: for each piece, the id of the same piece without its mark of a word's start; its own id if there is
      no such piece or no such mark; -1 if nothing is left of it.
    """
    return np.arange(len(self.pieces), dtype=np.int32)


class IdsOfWords(dict[str, list[int]]):
  """Maps words to their ids; a word is encoded when it is first used."""

  def __init__(self, encode: Callable[[str], list[int]]):
    super().__init__()
    self._encode = encode

  def __missing__(self, word: str) -> list[int]:
    ids = self._encode(word)
    if len(word) <= MAX_CACHED_CHARS:
      if len(self) >= MAX_CACHED_WORDS:
        self.clear()
      self[word] = ids
    return ids


def fits_model(num_pieces: int, vocab_size: int) -> bool:
  """Returns whether a model may have `vocab_size` embeddings: some are padded to a multiple of up to 1,024."""
  return num_pieces <= vocab_size < num_pieces + 1024


def is_written_without_spaces(character: str) -> bool:
  """Returns whether a character belongs to a script without spaces between words, such as Han or Thai."""
  return any(low <= ord(character) <= high for low, high in _SCRIPTS_WITHOUT_SPACES)


def starts_word(piece: str, is_byte: bool = False) -> bool:
  """Returns whether a piece starts a word, see `Tokenizer.word_starts`. A byte piece is written as "<0xC5>"."""
  if is_byte:
    byte = int(piece[3:5], 16)
    if byte >= 0x80:
      # 0xE3 to 0xE9 are the first bytes of U+3000 to U+9FFF, which are mostly scripts without spaces. Any other byte
      # from 0x80 on continues a word.
      return 0xE3 <= byte <= 0xE9
    piece = chr(byte)
  if not piece:
    return False
  character = piece[0]
  if character == WORD_START or is_written_without_spaces(character):
    return True
  # Punctuation (P*) and symbols (S*). An emoji that is newer than this Python's Unicode data has category Cn.
  category = unicodedata.category(character)
  return category[0] in "PS" or category == "Cn"


def run_directories(directory: str) -> list[str]:
  """Returns the parent of a step-N directory of a run, and the parent's parent (output_dir); [] for others."""
  if not re.search(r"(^|/)step-\d+$", directory):
    return []
  parent = directory.rpartition("/")[0]
  return [parent or ".", parent.rpartition("/")[0] or "."]


def kind_of(path: str) -> str:
  """Returns the kind of a vocabulary, `Vocabulary.kind`, from its name and, if that is tokenizer.json, its content."""
  if path.endswith(".json"):
    return {b"Unigram": "sentencepiece", b"WordPiece": "wordpiece"}.get(json_model_type(path), "byte_level_bpe")
  return "wordpiece" if path.endswith(".txt") else "sentencepiece"


def json_model_type(path: str) -> bytes:
  """Returns the type of the model in a tokenizer.json if it is Unigram or WordPiece, and b"" for other vocabularies."""
  return _search(path, rb'"type":\s*"(Unigram|WordPiece)"') if path.endswith(_TOKENIZER) else b""


def word_rules(path: str) -> dict[str, bool]:
  """Returns the rules beside a vocab.txt that are no settings of TokenizerConfig, see `wordpiece.WordRules`."""
  settings_file = files.join(path.rpartition("/")[0] or ".", SETTINGS_FILE)
  strips, keeps_case = rb'("strip_accents":\s*true)', rb'("do_lower_case":\s*false)'
  rules = {"strip_accents": True} if _search(settings_file, strips) and _search(settings_file, keeps_case) else {}
  return rules | ({"split_han": False} if _search(settings_file, rb'("tokenize_chinese_chars":\s*false)') else {})


def _search(path: str, pattern: bytes) -> bytes:
  """Returns what the group of a regular expression matches in a file; b"" if nothing, or if there is no such file."""
  return _search_file(path, pattern, files.stat(path)) if files.exists(path) else b""


@functools.lru_cache(maxsize=64)
def _search_file(path: str, pattern: bytes, metadata: files.Stat) -> bytes:
  del metadata  # a part of the cache key: a file that has changed is read again
  found = re.search(pattern, files.read(path))
  return found[1] if found else b""


def vocabulary_paths(path: str) -> list[str]:
  """Returns the paths of all files of a vocabulary; the first one is `path` itself.

  A file whose name ends in vocab.json has its merges beside it, in merges.txt: vocab.json and merges.txt, or
  NAME-vocab.json and NAME-merges.txt. To a vocab.txt belongs the tokenizer_config.json beside it if that has rules of
  its own, see `word_rules`.
  """
  if path.endswith(_BPE_PIECES):
    return [path, path.removesuffix(_BPE_PIECES) + _BPE_MERGES]
  has_rules = path.endswith(".txt") and word_rules(path)
  return [path, files.join(path.rpartition("/")[0] or ".", SETTINGS_FILE)] if has_rules else [path]


def vocabulary_copies(path: str) -> dict[str, str]:
  """Returns which files a copy of a vocabulary has, and what they are copies of.

  Returns:
    Name of each copy -> path of the file. The first name stands for the vocabulary, and says of which kind it is.
  """
  paths = vocabulary_paths(path)
  if path.endswith(_BPE_PIECES):
    return dict(zip((_BPE_PIECES, _BPE_MERGES), paths, strict=True))
  names = {"sentencepiece": _SENTENCE_PIECE, "wordpiece": _WORDPIECE, "byte_level_bpe": _TOKENIZER}
  name = _TOKENIZER if path.endswith(_TOKENIZER) else names[kind_of(path)]
  return dict(zip((name, SETTINGS_FILE), paths, strict=False))


def read_vocabulary_files(path: str) -> dict[str, bytes]:
  """Reads all files of a vocabulary.

  Returns:
    The name of each file in a copy (see `vocabulary_copies`) and its contents.

  Raises:
    UserError: a file is missing.
  """
  contents = {}
  for name, source in vocabulary_copies(path).items():
    if source != path and not files.exists(source):
      raise UserError(f"{source}: no such file: put the merges of {path} there")
    contents[name] = files.read(source)
  return contents


def contents_sha256(contents: Mapping[str, bytes]) -> str:
  """Returns the SHA-256 that identifies a vocabulary, in hex: of its file, or of the hashes of its files in order.

  Args:
    contents: see `read_vocabulary_files`.
  """
  digests = [hashlib.sha256(content) for content in contents.values()]
  if len(digests) > 1:
    digests = [hashlib.sha256(b"".join(digest.digest() for digest in digests))]
  return digests[0].hexdigest()


def vocabulary_sha256(path: str) -> str:
  """Returns the SHA-256 that identifies the vocabulary at a path, see `contents_sha256`."""
  return contents_sha256(read_vocabulary_files(path))


def sentence_parts(directory: str) -> list[tuple[str, str]]:
  """Returns the class and the folder of each part of a model of sentence-transformers; [] for other directories."""
  path = files.join(directory, SENTENCE_PARTS)
  if not files.exists(path):
    return []
  parts = decode(path, files.read(path))
  try:
    return [(part["type"], files.join(directory, part["path"]).rstrip("/")) for part in parts]
  except (KeyError, TypeError) as error:
    raise UserError(f"{path}: is no list of parts with their type and path: restore the file") from error


def transformer_directory(directory: str) -> str:
  """Returns the directory of weights and vocabulary: in one of sentence-transformers, the folder of its first part."""
  return next((folder for _, folder in sentence_parts(directory)), directory)


def find_vocabulary(directory: str) -> str | None:
  """Finds the vocabulary beside weights or in the output_dir of their run.

  Args:
    directory: the directory of the weights.

  Returns:
    Its path, or None if there is none.
  """
  return next(filter(None, map(vocabulary_in, (directory, *run_directories(directory)))), None)


def vocabulary_in(directory: str) -> str | None:
  """Returns the path of the vocabulary in a directory; None if it has none. See find_vocabulary."""
  return next(filter(files.exists, (files.join(directory, name) for name in NAMES)), None)
