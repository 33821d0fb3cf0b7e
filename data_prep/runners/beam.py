"""Data preparation on Apache Beam: a pool whose calls are the elements of a pipeline, for `data_prep.prepare`.

Beam only distributes the calls. The instances go through files of the job's directory, which all workers must see: a
shared file system, or gs://. So the shards are those of one machine, byte for byte, and a job that was stopped
continues with the finished files.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import re
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import apache_beam as beam
import msgspec
from apache_beam.options.pipeline_options import PipelineOptions

from albert.errors import RunError, UserError
from albert.io import files
from albert.io.workers import describe_error
from albert.tokenization.vocabulary import read_vocabulary_files
from data_prep.job import Job, OpenPool

# Beam runners raise exceptions of their own for a worker's error. The pattern finds the worker's error in their text.
_WORKER_ERRORS = {error.__name__: error for error in (UserError, RunError)}
_WORKER_ERROR = re.compile(rf"\b({'|'.join(_WORKER_ERRORS)}): (.+?)(?: \[while running .*)?$", re.MULTILINE)
# Beam adds this text to an exception that was raised by a step's own code.
_RAISED_BY_STEP = "[while running"

WorkItem = TypeVar("WorkItem")
Result = TypeVar("Result")

# These runners know all of their flags, so an unknown flag is an error. Other runners pass unknown flags to a server.
_STRICT_RUNNERS = {"", "directrunner", "dataflowrunner"}


class _FlagParser(argparse.ArgumentParser):
  """A parser whose errors are UserErrors."""

  def error(self, message: str) -> NoReturn:
    raise UserError(f"Beam's flags after --: {message}")


def _check_flags(flags: Sequence[str]) -> None:
  """Raises a UserError if one of Beam's flags does not exist or has a wrong type. Beam itself ignores unknown flags."""
  parser = _FlagParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
  for options in PipelineOptions.__subclasses__():
    if "_add_argparse_args" in vars(options):
      options._add_argparse_args(parser)
  known, unknown = parser.parse_known_args(list(flags))
  flag_names = [name for action in parser._actions for name in action.option_strings]
  is_strict = str(known.runner or "").rpartition(".")[2].lower() in _STRICT_RUNNERS
  for word in unknown:
    similar = difflib.get_close_matches(word.partition("=")[0], flag_names, 1, 0.8) if word.startswith("--") else []
    if is_strict or similar:
      hint = f": did you mean {similar[0]}?" if similar else ""
      raise UserError(f"Beam's flags after --: there is no flag {word!r}{hint}")


def make_pipeline(flags: Sequence[str]) -> beam.Pipeline:
  """Makes a pipeline for the runner that Beam's own flags select, by default DirectRunner.

  Raises:
    UserError: the runner does not exist, or its flags are wrong or incomplete.
  """
  _check_flags(flags)
  try:
    return beam.Pipeline(options=PipelineOptions(list(flags)))
  except (ValueError, ImportError, AttributeError) as error:  # Beam finds no such runner, or a package is missing
    raise UserError(f"Beam's flags after --: {error}") from error


@dataclasses.dataclass(eq=False)
class _Call(beam.DoFn):
  """Calls a function for each pair of a number and an item, and yields the number and the result.

  The contents of the vocabulary's files, by name, are sent to the workers with the pipeline. The initializer, which is
  called first in each process, gets the settings and the path of the first of these files.
  """

  function: Callable[[Any], Any]
  initializer: Callable[..., None]
  settings: Any
  vocabulary: Mapping[str, bytes]

  def setup(self) -> None:
    with tempfile.TemporaryDirectory() as directory:
      paths = [Path(directory) / name for name in self.vocabulary]
      for path in paths:
        path.write_bytes(self.vocabulary[path.name])
      self.initializer(self.settings, str(paths[0]))

  def process(self, element: tuple[int, Any]) -> Iterator[tuple[int, Any]]:
    number, item = element
    yield number, self.function(item)


class BeamPool:
  """Calls functions on the workers of an Apache Beam runner, which Beam's own flags select.

  The initializer, a function of a module, is called first in each process, with the job's settings and vocabulary.
  """

  def __init__(
    self, job: Job, initializer: Callable[..., None], arguments: tuple[Any, ...], *, flags: Sequence[str] = ()
  ):
    settings, vocabulary_file = arguments
    self._step = functools.partial(
      _Call, initializer=initializer, settings=settings, vocabulary=read_vocabulary_files(vocabulary_file)
    )
    self._flags = flags
    # The last step of a pipeline writes its results to this file. Commands that run at the same time have files of
    # their own, and the file of a killed command is removed like other staging files.
    self._result_file = files.staging_path(files.join(job.output_dir, "beam-results"))

  def map(self, function: Callable[[WorkItem], Result], items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, Result]]:
    """Calls a function for each item, see `WorkerPool`. Beam may call it again for an item.

    The function's annotation says what it returns. The results come when all calls have finished.

    Raises:
      UserError: a worker found bad input.
      RunError: a worker's disk or system failed, or the runner lost or repeated calls.
    """
    all_items = list(items)
    if not all_items:
      return
    pipeline = make_pipeline(self._flags)
    result_file = self._result_file  # the step below is sent to workers, without this object
    _ = (
      pipeline
      | "Items" >> beam.Create(list(enumerate(all_items)))
      | "Spread" >> beam.Reshuffle()
      | "Call" >> beam.ParDo(self._step(function))
      | "List" >> beam.combiners.ToList()
      | "Write results" >> beam.Map(lambda pairs: files.write_atomically(result_file, msgspec.msgpack.encode(pairs)))
    )
    result_type = typing.get_type_hints(function)["return"]
    results = sorted(_run_pipeline(pipeline, result_file, result_type), key=lambda result: result[0])
    if [number for number, _ in results] != list(range(len(all_items))):
      raise RunError(f"the runner lost or repeated work: {len(results)} results of {len(all_items)} calls: run again")
    for item, (_, result) in zip(all_items, results, strict=True):
      yield item, result


def _run_pipeline(pipeline: beam.Pipeline, result_file: str, result_type: Any) -> list[tuple[int, Any]]:
  """Runs a pipeline, and returns the contents of the file that its last step writes. The file is removed."""
  try:
    state = pipeline.run().wait_until_finish()
  except Exception as error:  # every Beam runner wraps a worker's error in an exception of its own
    worker_error = _WORKER_ERROR.search(f"{type(error).__name__}: {error}")
    if worker_error is not None:
      raise _WORKER_ERRORS[worker_error[1]](worker_error[2]) from error
    if _RAISED_BY_STEP in str(error):  # a fault of this program: its traceback is useful
      raise
    raise RunError(f"Beam's runner failed ({describe_error(error)}): check its flags after -- and its log") from error
  if not files.exists(result_file):
    raise RunError(f"the runner ended ({state}) without a result: look at its log, and run the same command again")
  content = files.read(result_file)
  files.remove(result_file)
  # Not a pickle, which could run code of whoever can write to the directory.
  numbered_results: list[tuple[int, Any]] = msgspec.msgpack.decode(content, type=list[tuple[int, result_type]])
  return numbered_results


def make_runner(flags: Sequence[str] = ()) -> OpenPool:
  """Returns the function that opens a pool on Apache Beam, see `OpenPool`. Wrong flags are a UserError."""
  make_pipeline(flags)  # checks the flags before any text is read
  return lambda job, initializer, arguments: nullcontext(BeamPool(job, initializer, arguments, flags=flags))
