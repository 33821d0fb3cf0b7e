"""What a dataset consists of: manifest.json of the shards that data preparation wrote, and hashes of files.

The manifest is written last, so a directory with one contains a complete set of shards. A dataset is identified by the
hashes of its files in order; their paths do not matter.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from albert.errors import UserError
from albert.io import files, json_values
from albert.io.text import counted, name_and_others

FILE_NAME = "manifest.json"
# Name of the folder, beside the shards to train on, that holds the shards of held-out documents.
HELDOUT_FOLDER = "heldout"
# Messages show this number of characters of a SHA-256.
_SHOWN_SHA256_CHARS = 12
# Key of the hash of all other values.
_CHECKSUM_KEY = "checksum"
_READ_BLOCK_BYTES = 1 << 20
_REMEDY = "not a manifest of data preparation, or damaged: run data preparation again into another directory"


@dataclasses.dataclass(frozen=True)
class ShardInfo:
  """One TFRecord file.

  Attributes:
    file: file name, in the directory of the manifest.
    examples: number of examples.
    bytes: size in bytes.
    sha256: SHA-256 of the file, in hex.
  """

  file: json_values.FileName
  examples: json_values.Count
  bytes: json_values.Count
  sha256: str


class InputFile(msgspec.Struct):
  """A text file that shards were made from.

  Attributes:
    file: path of the file.
    bytes: size in bytes; None if it was not recorded.
    sha256: SHA-256 of the file, in hex; "" if it was not recorded.
    ranges_sha256: for text that was read directly, instead of `sha256`: SHA-256 of the list of the hashes of the ranges
      that the file was cut into (data_prep.units); "" in manifests of earlier versions.
  """

  file: str
  bytes: json_values.Count | None = None
  sha256: str = ""
  ranges_sha256: str = ""


class _Settings(msgspec.Struct):
  """The settings of data preparation that other modules read. Manifests of earlier versions lack some of them."""

  sentence_prediction: Literal["sop", "nsp", "none"] = "sop"
  masking: Literal["static", "none"] = "static"
  masked_lm_prob: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.15
  ngram: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 3
  do_lower_case: bool | None = None
  keep_accents: bool | None = None
  compress: bool = False
  heldout: bool = False
  input_files: list[InputFile] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """Describes a complete set of shards.

  Attributes:
    kind: what the records are for, such as "pretraining".
    settings: the settings that determine the records, as JSON values.
    vocab_sha256: SHA-256 of the vocabulary's file, in hex.
    vocab_size: number of pieces of the vocabulary.
    vocab_kind: kind of the vocabulary, see albert.tokenization. Earlier versions had only SentencePiece models.
    num_documents: number of documents read, including the dropped ones.
    num_tokens: number of tokens of all documents. A document counts once, whatever --dupe_factor is.
    num_dropped_documents: number of documents with too little text for an example.
    num_cut_documents: number of documents that were cut into several ones, because they were too long for one unit of
      work.
    num_unknown_tokens: how many of num_tokens are <unk>; None in manifests of earlier versions.
    reading: what was read and what was left out when input files of other formats, such as Wikipedia dumps, were
      converted to text; None if all input files were text.
    label_counts: label of the sentence prediction ("0" or "1") -> number of examples.
    heldout: the folder, beside the manifest, with the shards and the manifest of held-out documents; None if there
      is none.
    shards: the files, in the order of their numbers.
  """

  kind: str
  settings: dict[str, Any]
  vocab_sha256: str
  vocab_size: json_values.Count
  num_documents: json_values.Count
  num_tokens: json_values.Count
  vocab_kind: str = "sentencepiece"
  num_dropped_documents: json_values.Count = 0
  num_cut_documents: json_values.Count = 0
  num_unknown_tokens: json_values.Count | None = None
  reading: dict[str, Any] | None = None
  label_counts: dict[str, json_values.Count] = dataclasses.field(default_factory=dict)
  heldout: json_values.FileName | None = None
  shards: tuple[ShardInfo, ...] = ()

  @property
  def num_examples(self) -> int:
    """Number of examples in all shards."""
    return sum(shard.examples for shard in self.shards)

  @property
  def unknown_share(self) -> float | None:
    """Fraction of the tokens that are <unk>, 0 to 1; None if they were not counted."""
    return None if self.num_unknown_tokens is None else self.num_unknown_tokens / max(self.num_tokens, 1)

  @classmethod
  def load(cls, directory: str) -> Manifest | None:
    """Reads the manifest in a directory.

    Returns:
      The manifest; None if the directory has none.

    Raises:
      UserError: the file is not a manifest, or it was changed after data preparation.
    """
    path = files.join(directory, FILE_NAME)
    if not files.exists(path):
      return None
    values = files.read_json(path, remedy=_REMEDY)
    manifest = json_values.convert(path, values, cls, _REMEDY)
    json_values.convert(f"{path}: settings", manifest.settings, _Settings, _REMEDY)
    checksum = values.pop(_CHECKSUM_KEY, None)  # manifests of earlier versions have none
    if checksum is not None and checksum != checksum_of(values):
      raise UserError(f"{path}: was changed after data preparation: restore it, or run data preparation again")
    return manifest

  def save(self, directory: str) -> None:
    """Writes manifest.json to a directory, atomically."""
    values = dataclasses.asdict(self)
    for name in ("reading", "heldout"):
      if not values[name]:
        del values[name]
    values |= {"num_examples": self.num_examples, "shards": values.pop("shards")}
    values[_CHECKSUM_KEY] = checksum_of(values)
    files.write_atomically(files.join(directory, FILE_NAME), json.dumps(values, indent=2) + "\n")


@dataclasses.dataclass(frozen=True)
class FileContent:
  """The content of one file of a dataset.

  Attributes:
    name: file name, for messages only. The file may have another name when the run is resumed.
    sha256: SHA-256 of the file, in hex.
    num_examples: number of examples in the file; 0 if it is not known.
  """

  name: str
  sha256: str
  num_examples: int = 0

  def __str__(self) -> str:
    num_examples = f"{counted(self.num_examples, 'example')}, " if self.num_examples else ""
    return f"{self.name} ({num_examples}SHA-256 {self.sha256[:_SHOWN_SHA256_CHARS]}...)"


@dataclasses.dataclass(frozen=True)
class DataContent:
  """The content of a dataset: its files, in the order in which they are read.

  Attributes:
    files: the files; none if the content of the dataset is unknown.
  """

  files: tuple[FileContent, ...] = ()

  @functools.cached_property
  def sha256(self) -> str:
    """SHA-256 of the hashes and example counts of all files, in order. File names do not affect it."""
    rows = [[file.sha256, file.num_examples] for file in self.files]
    return hashlib.sha256(json.dumps(rows).encode("utf-8")).hexdigest()

  def summary(self) -> dict[str, Any]:
    """Returns the entry of config.json that describes the content."""
    num_examples = sum(file.num_examples for file in self.files)
    return {"num_files": len(self.files), "num_examples": num_examples, "sha256": self.sha256}

  def to_json(self) -> str:
    """Returns the text of a JSON object with one line for each file."""
    rows = ",\n".join(json.dumps(dataclasses.asdict(file)) for file in self.files)
    return f'{{"files": [\n{rows}\n]}}\n'

  def difference(self, expected: DataContent) -> str:
    """Describes how this content differs from the expected one, as a phrase for an error message.

    Args:
      expected: the content of the dataset before, which has another sha256.
    """
    actual_hashes = {file.sha256 for file in self.files}
    expected_hashes = {file.sha256 for file in expected.files}
    missing_files = [file for file in expected.files if file.sha256 not in actual_hashes]
    added_files = [file for file in self.files if file.sha256 not in expected_hashes]
    if missing_files and not added_files:
      missing = name_and_others(str(missing_files[0]), len(missing_files) - 1)
      return f"{len(missing_files)} of its {len(expected.files)} files missing: {missing}"
    if added_files and not missing_files:
      added = name_and_others(str(added_files[0]), len(added_files) - 1)
      return f"{len(added_files)} more than its {counted(len(expected.files), 'file')}: {added}"
    # The first file that is not the expected one. No hash differs if only a number of examples or the number of copies
    # of a file has changed.
    pairs = list(zip(self.files, expected.files, strict=False))
    changed = [index for index, (file, expected_file) in enumerate(pairs) if file.sha256 != expected_file.sha256]
    index = changed[0] if changed else len(pairs) - 1
    change = f"file {index + 1} is {pairs[index][0]}, it was {pairs[index][1]}"
    if not missing_files and not added_files:
      return f"the same files in another order: {change}"
    if len(self.files) != len(expected.files):
      return f"{counted(len(self.files), 'file')} instead of {len(expected.files)}: {change}"
    return f"{len(missing_files)} of its {len(expected.files)} files changed: {change}"


def checksum_of(values: Mapping[str, Any]) -> str:
  """Returns the SHA-256 of JSON values, in hex. The formatting of their file does not affect it."""
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode("utf-8")).hexdigest()


def file_sha256(path: str) -> str:
  """Returns the SHA-256 of a file, in hex."""
  digest = hashlib.sha256()
  with files.open_file(path) as file:
    while block := file.read(_READ_BLOCK_BYTES):
      digest.update(block)
  return digest.hexdigest()


@functools.lru_cache(maxsize=1024)
def cached_sha256(path: str, metadata: files.Stat) -> str:
  """Returns the SHA-256 of a file, in hex, and caches it.

  Args:
    path: the file.
    metadata: its size and modification time, `files.stat(path)`. A file that has changed is read again.
  """
  del metadata  # a part of the cache key
  return file_sha256(path)


def shard_is_intact(directory: str, shard: ShardInfo) -> bool:
  """Whether the file of a shard exists and has the recorded size and SHA-256."""
  path = files.join(directory, shard.file)
  return files.exists(path) and files.size(path) == shard.bytes and file_sha256(path) == shard.sha256
