"""What a run was trained on, told by content: the hashes of its files in their order, wherever the files are."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

# Characters of a SHA-256 that messages show.
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class FileContent:
  """One file.

  Attributes:
    name: for messages; it may differ when a run is resumed.
    sha256: of the file, in hex.
    num_examples: examples in it; 0 where they are not counted for each file.
  """

  name: str
  sha256: str
  num_examples: int = 0

  def __str__(self) -> str:
    counted = f"{self.num_examples} examples, " if self.num_examples else ""
    return f"{self.name} ({counted}SHA-256 {self.sha256[:_SHOWN]}...)"


@dataclasses.dataclass(frozen=True)
class DataContent:
  """The files of a data set, in the order in which they are read."""

  files: tuple[FileContent, ...] = ()

  @functools.cached_property
  def sha256(self) -> str:
    """One hash of the hashes and counts of all files, in order; names do not matter."""
    rows = [[file.sha256, file.num_examples] for file in self.files]
    return hashlib.sha256(json.dumps(rows).encode("utf-8")).hexdigest()

  def summary(self) -> dict[str, Any]:
    """The entry of config.json."""
    return {
      "num_files": len(self.files),
      "num_examples": sum(file.num_examples for file in self.files),
      "sha256": self.sha256,
    }

  def to_json(self) -> str:
    """All files, a line each; a schema of json_values reads it back."""
    rows = ",\n".join(json.dumps(dataclasses.asdict(file)) for file in self.files)
    return f'{{"files": [\n{rows}\n]}}\n'

  def difference(self, expected: DataContent) -> str:
    """How this content differs from the `expected` one, which has another sha256: a phrase for an error."""
    found_hashes = {file.sha256 for file in self.files}
    expected_hashes = {file.sha256 for file in expected.files}
    missing = [file for file in expected.files if file.sha256 not in found_hashes]
    added = [file for file in self.files if file.sha256 not in expected_hashes]
    if missing and not added:
      return f"{len(missing)} of its {len(expected.files)} files missing: {_first(missing)}"
    if added and not missing:
      return f"{len(added)} more than its {len(expected.files)} files: {_first(added)}"
    place = next(
      (i for i, pair in enumerate(zip(self.files, expected.files, strict=False)) if pair[0].sha256 != pair[1].sha256),
      min(len(self.files), len(expected.files)) - 1,
    )
    differs = f"file {place + 1} is {self.files[place]}, it was {expected.files[place]}"
    if not missing and not added:
      return f"the same files in another order: {differs}"
    if len(self.files) != len(expected.files):
      return f"{len(self.files)} files instead of {len(expected.files)}: {differs}"
    return f"{len(missing)} of its {len(expected.files)} files changed: {differs}"


def _first(files: Sequence[FileContent]) -> str:
  return str(files[0]) + (", ..." if len(files) > 1 else "")
