"""Runs the run_* scripts in the test's own process.

absl's flags are global, so the flags of only one script are defined at a time.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import sentencepiece
from absl import flags
from absl.testing import flagsaver

from albert import cli
from albert.cli import define_flags
from tests.synthetic import TINY_MODEL_FLAGS


def _undefine_flags() -> None:
  for flag in list(flags.FLAGS.flags_by_module_dict().get(sys.argv[0], [])):
    delattr(flags.FLAGS, flag.name)


@contextlib.contextmanager
def defined_flags(define: Callable[[], object]) -> Iterator[None]:
  """A context in which the flags are defined that a function defines, and those of no other command."""
  _undefine_flags()
  define()
  try:
    yield
  finally:
    _undefine_flags()


def script_flags(task_name: str) -> contextlib.AbstractContextManager[None]:
  """A context in which the flags of one task's script are defined, and those of no other script."""
  return defined_flags(lambda: define_flags(task_name))


@contextlib.contextmanager
def parsed_flags(*argv: str) -> Iterator[None]:
  """A context in which the flags have the values of a command line. It must be inside a context of `script_flags`."""
  with flagsaver.flagsaver():
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["script.py", *argv])
    yield


def run_script(task_name: str, *argv: str) -> None:
  """Runs the script of a task with the flags `argv`, in a context of `script_flags`."""
  with parsed_flags(*argv):
    cli.main(task_name)


def from_scratch_flags(spm_model: str) -> list[str]:
  """Returns flags that train a tiny model from random weights with this vocabulary."""
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  return [
    "--do_train",
    "--from_scratch",
    f"--spm_model_file={spm_model}",
    *TINY_MODEL_FLAGS,
    f"--vocab_size={vocab_size}",
  ]
