"""manifest.json is written, read and checked; which datasets count as the same, and how a difference is described."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert.data.manifest import DataContent, FileContent, Manifest, ShardInfo, file_sha256, shard_is_intact
from albert.errors import UserError
from albert.io import json_values

MANIFEST = Manifest(
  kind="pretraining",
  settings={"max_seq_length": 128, "input_files": [{"file": "a.txt", "bytes": 3}]},
  vocab_sha256="00ff",
  vocab_size=30_000,
  num_documents=7,
  num_tokens=900,
  num_dropped_documents=1,
  num_cut_documents=2,
  label_counts={"0": 10, "1": 11},
  shards=(ShardInfo("x-0", 9, 100, "aa"), ShardInfo("x-1", 12, 130, "bb")),
)


def test_a_saved_manifest_can_be_loaded(tmp_path: Path) -> None:
  assert Manifest.load(str(tmp_path)) is None
  MANIFEST.save(str(tmp_path))
  assert Manifest.load(str(tmp_path)) == MANIFEST
  assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
  manifest_json = json.loads((tmp_path / "manifest.json").read_text())
  assert manifest_json["num_examples"] == MANIFEST.num_examples == 21
  assert manifest_json["shards"][1] == {"file": "x-1", "examples": 12, "bytes": 130, "sha256": "bb"}


def test_the_fraction_of_unknown_tokens_is_optional(tmp_path: Path) -> None:
  with_unknown_tokens = dataclasses.replace(MANIFEST, num_unknown_tokens=27)
  with_unknown_tokens.save(str(tmp_path))
  assert Manifest.load(str(tmp_path)) == with_unknown_tokens
  assert with_unknown_tokens.unknown_share == 27 / 900
  manifest_json = json.loads((tmp_path / "manifest.json").read_text())
  del manifest_json["num_unknown_tokens"], manifest_json["checksum"]  # as older versions wrote it
  (tmp_path / "manifest.json").write_text(json.dumps(manifest_json))
  old_manifest = Manifest.load(str(tmp_path))
  assert old_manifest == MANIFEST
  assert old_manifest.unknown_share is None


def move_an_example(manifest_json: dict[str, Any]) -> None:
  """Changes the counts of both shards, but not the number of all examples."""
  manifest_json["shards"][0]["examples"] = 10
  manifest_json["shards"][1]["examples"] = 11


@pytest.mark.parametrize(
  "change",
  [
    lambda manifest_json: manifest_json["settings"].update(sentence_prediction="nsp"),
    lambda manifest_json: manifest_json.update(vocab_size=manifest_json["vocab_size"] + 1),
    move_an_example,
    lambda manifest_json: manifest_json["shards"].reverse(),
    lambda manifest_json: manifest_json.update(shards=[], num_examples=0),
  ],
)
def test_a_manifest_that_was_edited_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
  MANIFEST.save(str(tmp_path))
  path = tmp_path / "manifest.json"
  manifest_json = json.loads(path.read_text())
  path.write_text(json.dumps(manifest_json))
  assert Manifest.load(str(tmp_path)) == MANIFEST  # formatting does not matter
  change(manifest_json)
  path.write_text(json.dumps(manifest_json))
  with pytest.raises(UserError, match=r"manifest\.json: was changed after data preparation: restore it"):
    Manifest.load(str(tmp_path))


def test_a_shard_of_another_size_or_hash_is_not_intact(tmp_path: Path) -> None:
  content = b"some bytes" * 200_000  # 2 MB, which is more than one of the blocks that are hashed
  (tmp_path / "shard").write_bytes(content)
  digest = hashlib.sha256(content).hexdigest()
  assert file_sha256(str(tmp_path / "shard")) == digest
  shard = ShardInfo("shard", 1, len(content), digest)
  assert shard_is_intact(str(tmp_path), shard)
  assert not shard_is_intact(str(tmp_path), dataclasses.replace(shard, bytes=shard.bytes + 1))
  assert not shard_is_intact(str(tmp_path), dataclasses.replace(shard, sha256="0" * 64))
  assert not shard_is_intact(str(tmp_path), dataclasses.replace(shard, file="absent"))


def make_content(letters: str, prefix: str = "") -> DataContent:
  files = [FileContent(f"{prefix}{letter}.tfrecord", letter * 64, ord(letter)) for letter in list(letters)]
  return DataContent(tuple(files))


def test_order_and_counts_affect_the_hash_and_names_do_not() -> None:
  assert make_content("ab").sha256 == make_content("ab", prefix="moved-").sha256
  assert make_content("ab").sha256 != make_content("ba").sha256
  assert make_content("a").sha256 != DataContent((FileContent("a.tfrecord", "a" * 64, 1),)).sha256
  assert make_content("ab").summary() == {"num_files": 2, "num_examples": 97 + 98, "sha256": make_content("ab").sha256}
  assert json_values.parse("F", make_content("ab").to_json(), DataContent) == make_content("ab")


@pytest.mark.parametrize(
  ("letters", "message"),
  [
    ("abd", "1 of its 4 files missing: c.tfrecord (99 examples, SHA-256 cccccccccccc...)"),
    ("d", "3 of its 4 files missing: a.tfrecord (97 examples, SHA-256 aaaaaaaaaaaa...) and 2 others"),
    ("abcdx", "1 more than its 4 files: x.tfrecord (120 examples, SHA-256 xxxxxxxxxxxx...)"),
    (
      "abxd",
      "1 of its 4 files changed: file 3 is x.tfrecord (120 examples, SHA-256 xxxxxxxxxxxx...), it was c.tfrecord "
      "(99 examples, SHA-256 cccccccccccc...)",
    ),
    (
      "acbd",
      "the same files in another order: file 2 is c.tfrecord (99 examples, SHA-256 cccccccccccc...), it was b.tfrecord "
      "(98 examples, SHA-256 bbbbbbbbbbbb...)",
    ),
    (
      "ax",
      "2 files instead of 4: file 2 is x.tfrecord (120 examples, SHA-256 xxxxxxxxxxxx...), it was b.tfrecord "
      "(98 examples, SHA-256 bbbbbbbbbbbb...)",
    ),
  ],
)
def test_a_difference_names_the_first_file_that_differs_and_the_expected_one(letters: str, message: str) -> None:
  assert make_content(letters).difference(make_content("abcd")) == message


def test_the_same_files_with_other_counts_differ() -> None:
  recounted = DataContent((FileContent("a.tfrecord", "a" * 64, 1),))
  assert "file 1 is a.tfrecord (1 example," in recounted.difference(make_content("a"))
