"""DataContent: which datasets count as the same, and how a difference is described."""

from __future__ import annotations

import pytest

from albert.data.content import DataContent, FileContent
from albert.io import json_values


def make_content(letters: str, prefix: str = "") -> DataContent:
  """Makes a dataset of one file for each letter.

  The letter is the name of the file, 64 of it are the hash, and its code is the number of examples: 97 for `a`.
  """
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
  assert make_content(letters).difference(make_content("abcd")) == message


def test_the_same_files_with_other_counts_differ() -> None:
  recounted = DataContent((FileContent("a.tfrecord", "a" * 64, 1),))
  assert "file 1 is a.tfrecord (1 example," in recounted.difference(make_content("a"))
