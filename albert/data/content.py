"""Identifies a dataset by its content: the hashes of its files in order. Paths do not matter."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from albert.io.wording import counted

# Messages show this number of characters of a SHA-256.
_SHOWN_SHA256_CHARS = 12


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
    return {
      "num_files": len(self.files),
      "num_examples": sum(file.num_examples for file in self.files),
      "sha256": self.sha256,
    }

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
      return f"{len(missing_files)} of its {len(expected.files)} files missing: {_describe_first(missing_files)}"
    if added_files and not missing_files:
      return f"{len(added_files)} more than its {counted(len(expected.files), 'file')}: {_describe_first(added_files)}"
    change = self._first_change(expected)
    if not missing_files and not added_files:
      return f"the same files in another order: {change}"
    if len(self.files) != len(expected.files):
      return f"{counted(len(self.files), 'file')} instead of {len(expected.files)}: {change}"
    return f"{len(missing_files)} of its {len(expected.files)} files changed: {change}"

  def _first_change(self, expected: DataContent) -> str:
    """Describes the first file that is not the expected one."""
    pairs = list(zip(self.files, expected.files, strict=False))
    changed_indices = [i for i, (file, expected_file) in enumerate(pairs) if file.sha256 != expected_file.sha256]
    # No hash differs if only a number of examples or the number of copies of a file has changed.
    index = changed_indices[0] if changed_indices else len(pairs) - 1
    file, expected_file = pairs[index]
    return f"file {index + 1} is {file}, it was {expected_file}"


def _describe_first(files: Sequence[FileContent]) -> str:
  return str(files[0]) + (", ..." if len(files) > 1 else "")
