"""DataContent: which datasets count as the same, and how a difference is described."""

from __future__ import annotations

import pytest

from albert.data.content import DataContent, FileContent
from albert.io import json_values


def content(*letters: str, prefix: str = "") -> DataContent:
  """A dataset of one file for each letter. The letter gives the file's name, hash and number of examples."""
  return DataContent(tuple(FileContent(f"{prefix}{letter}.tfrecord", letter * 64, ord(letter)) for letter in letters))


def test_order_and_counts_affect_the_hash_and_names_do_not() -> None:
  assert content("a", "b").sha256 == content("a", "b", prefix="moved-").sha256
  assert content("a", "b").sha256 != content("b", "a").sha256
  assert content("a").sha256 != DataContent((FileContent("a.tfrecord", "a" * 64, 1),)).sha256
  assert content("a", "b").summary() == {"num_files": 2, "num_examples": 97 + 98, "sha256": content("a", "b").sha256}
  assert json_values.parse("F", content("a", "b").to_json(), DataContent) == content("a", "b")


@pytest.mark.parametrize(
  ("letters", "message"),
  [
    ("abd", "1 of its 4 files missing: c.tfrecord (99 examples, SHA-256 cccccccccccc...)"),
    ("d", "3 of its 4 files missing: a.tfrecord (97 examples, SHA-256 aaaaaaaaaaaa...), ..."),
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
  assert content(*letters).difference(content(*"abcd")) == message


def test_the_same_files_with_other_counts_differ() -> None:
  recounted = DataContent((FileContent("a.tfrecord", "a" * 64, 1),))
  assert "file 1 is a.tfrecord (1 examples" in recounted.difference(content("a"))
