"""Checks the directory of an experiment's results.

The file scale.json there has the name of their scale. A command with another --scale is refused, because it would
replace them.
"""

from __future__ import annotations

import msgspec

from albert.errors import UserError
from albert.io import files

FILE_NAME = "scale.json"


class _ScaleFile(msgspec.Struct):
  """The content of scale.json.

  Attributes:
    scale: name of the scale.
  """

  scale: str


def check_is_local(output_dir: str) -> None:
  """Raises UserError if the value of --output_dir is on a remote file system."""
  if files.is_remote(output_dir):
    raise UserError(f"--output_dir={output_dir}: give a local directory, because the log is appended to")


def check_scale(directory: str, scale: str) -> None:
  """Checks that an experiment's directory has no results of another scale.

  Args:
    directory: the directory of the experiment's results.
    scale: name of the scale of this command.
  Raises:
    UserError: the results there are of another scale.
  """
  path = files.join(directory, FILE_NAME)
  if not files.exists(path):
    return
  recorded = files.read_json(path, _ScaleFile, "delete this file").scale
  if recorded != scale:
    raise UserError(
      f"--scale={scale}: {directory} has results of the scale {recorded} ({path}): give --scale={recorded}, or another "
      "--output_dir"
    )


def record_scale(directory: str, scale: str) -> None:
  """Writes the scale of the results in an experiment's directory."""
  files.makedirs(directory)
  files.write_json(files.join(directory, FILE_NAME), {"scale": scale})
