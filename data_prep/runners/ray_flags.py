"""The flags of --runner=ray, which are given after -- on the command line."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import NoReturn

from albert.errors import UserError


@dataclasses.dataclass(frozen=True)
class RayOptions:
  """How tasks run on a Ray cluster.

  Attributes:
    address: host and port of the cluster's head node, or "auto" for the cluster that this machine belongs to. None for
      the cluster that RAY_ADDRESS names, and if there is none, for a cluster of this machine alone that ends with the
      command.
    num_cpus: CPUs that a task reserves.
    memory_mb: memory that a task reserves, in MB. Ray starts no more tasks on a node than fit into its memory.
    max_retries: how often Ray runs a task again whose process or node has died.
  """

  address: str | None = None
  num_cpus: float = 1.0
  memory_mb: int = 512
  max_retries: int = 4


_HELP = {
  "address": "host and port of the Ray cluster's head node, or auto",
  "num_cpus": "CPUs that a task reserves",
  "memory_mb": "MB of memory that a task reserves",
  "max_retries": "how often a task is run again whose process has died",
}


class _FlagParser(argparse.ArgumentParser):
  """A parser whose errors are UserErrors."""

  def error(self, message: str) -> NoReturn:
    names = ", ".join(f"--{name}" for name in _HELP)
    raise UserError(f"flags of Ray after --: {message} (there are {names})")


def _parse_positive(text: str) -> float:
  with contextlib.suppress(ValueError):
    if 0 < float(text) < float("inf"):
      return float(text)
  raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def _parse_count(text: str) -> int:
  if not text.isdecimal():
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
  return int(text)


def parse(words: Sequence[str]) -> RayOptions:
  """Parses the flags.

  Args:
    words: the words after --, such as "--address=10.0.0.1:6379".

  Raises:
    UserError: there is no such flag, or its value is wrong.
  """
  parser = _FlagParser(add_help=False, allow_abbrev=False)
  parsers: dict[str, Callable[[str], str | float]] = {
    "address": str,
    "num_cpus": _parse_positive,
    "memory_mb": _parse_count,
    "max_retries": _parse_count,
  }
  for name, parse_value in parsers.items():
    parser.add_argument(f"--{name}", type=parse_value, default=getattr(RayOptions, name), help=_HELP[name])
  return RayOptions(**vars(parser.parse_args(list(words))))
