"""manifest.json, the description of the shards that a run of data preparation wrote.

It is written last, so a directory with a manifest contains a complete set of shards.
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

FILE_NAME = "manifest.json"
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
    if "shards" not in values:
      raise UserError(f"{path} lacks 'shards': {_REMEDY}")
    json_values.convert(f"{path}: settings", manifest.settings, _Settings, _REMEDY)
    num_examples = values.get("num_examples", manifest.num_examples)
    if num_examples != manifest.num_examples:
      raise UserError(
        f"{path}: its shards have {manifest.num_examples} examples, not {json_values.format_value(num_examples)}: "
        f"{_REMEDY}"
      )
    checksum = values.pop(_CHECKSUM_KEY, None)  # manifests of earlier versions have none
    if checksum is not None and checksum != checksum_of(values):
      raise UserError(f"{path}: was changed after data preparation: restore it, or run data preparation again")
    return manifest

  def save(self, directory: str) -> None:
    """Writes manifest.json to a directory, atomically."""
    values = dataclasses.asdict(self)
    shards = values.pop("shards")
    if self.reading is None:
      del values["reading"]
    values["num_examples"] = self.num_examples
    values["shards"] = list(shards)
    values[_CHECKSUM_KEY] = checksum_of(values)
    files.write_atomically(files.join(directory, FILE_NAME), json.dumps(values, indent=2) + "\n")


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
