"""manifest.json: what a data preparation run made, written last, so that its presence means "complete"."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from albert import files
from albert.errors import UserError

FILE_NAME = "manifest.json"
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class ShardInfo:
  """One TFRecord file: its name within the directory, number of examples, size in bytes, SHA-256 in hex."""

  file: str
  examples: int
  bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """A finished set of shards.

  Attributes:
    kind: what the records are for, such as "pretraining".
    settings: everything the records are a function of, as JSON values.
    vocab_sha256: of the SentencePiece model file.
    vocab_size: number of pieces.
    num_documents: documents read, among them the dropped ones.
    num_tokens: tokens of all documents, each counted once however often it is duplicated.
    num_dropped_documents: documents with too little text for an example.
    num_cut_documents: documents too long for one piece of work, continued as a new document.
    num_unknown_tokens: how many of num_tokens are <unk>; None in a manifest of a version that did not count them.
    label_counts: sentence-prediction label ("0", "1") -> number of examples.
    shards: in order of their index.
  """

  kind: str
  settings: dict[str, Any]
  vocab_sha256: str
  vocab_size: int
  num_documents: int
  num_tokens: int
  num_dropped_documents: int = 0
  num_cut_documents: int = 0
  num_unknown_tokens: int | None = None
  label_counts: dict[str, int] = dataclasses.field(default_factory=dict)
  shards: tuple[ShardInfo, ...] = ()

  @property
  def num_examples(self) -> int:
    return sum(shard.examples for shard in self.shards)

  @property
  def unknown_share(self) -> float | None:
    """Share of the tokens that are <unk>; None if they were not counted."""
    return None if self.num_unknown_tokens is None else self.num_unknown_tokens / max(self.num_tokens, 1)

  @classmethod
  def load(cls, directory: str) -> Manifest | None:
    """The manifest in `directory`, or None when there is none.

    Raises:
      UserError: when the file is there but is no manifest.
    """
    path = files.join(directory, FILE_NAME)
    if not files.exists(path):
      return None
    with files.open_file(path) as file:
      text = file.read()
    try:
      values = json.loads(text)
      num_examples = values.pop("num_examples", None)
      values["shards"] = tuple(ShardInfo(**shard) for shard in values["shards"])
      manifest = cls(**values)
      if num_examples not in (None, manifest.num_examples):
        raise ValueError(f"its shards have {manifest.num_examples} examples, not {num_examples}")
      return manifest
    except (ValueError, TypeError, KeyError, AttributeError) as error:
      raise UserError(
        f"{path}: not a manifest of data preparation ({error}): run data preparation again into another directory"
      ) from error

  def save(self, directory: str) -> None:
    """Writes manifest.json into `directory`, whole or not at all."""
    values = dataclasses.asdict(self)
    shards = values.pop("shards")
    values["num_examples"] = self.num_examples
    values["shards"] = list(shards)
    files.write_atomically(files.join(directory, FILE_NAME), json.dumps(values, indent=2) + "\n")


def file_sha256(path: str) -> str:
  """SHA-256 of the file, in hex."""
  digest = hashlib.sha256()
  with files.open_file(path) as file:
    while block := file.read(_BLOCK):
      digest.update(block)
  return digest.hexdigest()


def shard_is_intact(directory: str, shard: ShardInfo) -> bool:
  """True when the shard's file is there with the recorded size and SHA-256."""
  path = files.join(directory, shard.file)
  return files.exists(path) and files.size(path) == shard.bytes and file_sha256(path) == shard.sha256
