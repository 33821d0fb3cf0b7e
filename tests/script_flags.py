"""Runs what a script runs, in the process of the test: the flags of one script at a time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from absl import flags
from absl.testing import flagsaver

from albert import cli


def _forget() -> None:
  for flag in list(flags.FLAGS.flags_by_module_dict().get(sys.argv[0], [])):
    delattr(flags.FLAGS, flag.name)


@contextlib.contextmanager
def script_flags(task_name: str) -> Iterator[None]:
  """Within it the flags of a task's script are defined, and no other script's."""
  _forget()
  cli.define_flags(task_name)
  try:
    yield
  finally:
    _forget()


def run_script(main: Callable[[], None], *argv: str) -> None:
  """Parses the flags, which script_flags has defined, and calls main."""
  with flagsaver.flagsaver():
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["script.py", *argv])
    main()
