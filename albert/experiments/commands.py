"""The commands of a plan: their command lines, and the hashes in the names of their directories."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from typing import Any

from albert.experiments.late_flags import LateFlag
from albert.io import files


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of a plan.

  Attributes:
    name: a description of what the command makes, for messages.
    words: the command line.
    completion_file: the file that the command writes last.
    late_flag: a flag whose value is known when the earlier commands are done; None if there is none.
    makes_shards: whether it makes shards, which many trials share.
    training_record: for a command that trains one run, the file that records the end of training. Before that, somebody
      may have evaluated the unfinished run, and so have written completion_file.
  """

  name: str
  words: tuple[str, ...]
  completion_file: str
  late_flag: LateFlag | None = None
  makes_shards: bool = False
  training_record: str = ""

  def is_complete(self) -> bool:
    """Whether the command was run to its end."""
    return files.exists(self.completion_file) and (not self.training_record or files.exists(self.training_record))


def command_line(module: str, **flags: Any) -> tuple[str, ...]:
  """Returns the words of `python -m module --flag=value ...`. True is written --flag, and False --noflag."""
  words = [sys.executable, "-m", module]
  for name, value in flags.items():
    if isinstance(value, bool):
      words.append(f"--{name}" if value else f"--no{name}")
    else:
      words.append(f"--{name}={value}")
  return tuple(words)


def digest(values: Any) -> str:
  """Returns a short hash of JSON values, for names of directories."""
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
