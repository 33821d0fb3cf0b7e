"""One job of data preparation: its input files, its output directory and its settings; and who carries it out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from albert.config.base import Config, option
from albert.config.ranges import MAX_PROCESSES
from albert.io.workers import WorkerPool
from data_prep.examples.settings import PreparationSettings
from data_prep.readers import formats
from data_prep.readers.settings import ReadingSettings

# The kind of data set, which is in manifest.json and in the names of the shards.
KIND = "pretraining"
# The names of shards number them with five digits.
_MAX_SHARDS = 99_999


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(Config):
  """A job of data preparation. Local processes, a Ray cluster or Apache Beam carry it out.

  Attributes:
    inputs: paths of the text files, sorted. The position of a file in this tuple is its ordinal.
    output_dir: the directory for the shards and manifest.json.
    spm_model_file: the vocabulary.
    settings: the settings that the examples depend on.
    reading: how documents and sentences are found in the input files.
    num_shards: number of TFRecord files.
    num_processes: number of local processes.
    compress: whether the shards are GZIP files.
  """

  inputs: tuple[str, ...]
  output_dir: str
  spm_model_file: str
  settings: PreparationSettings
  reading: ReadingSettings = dataclasses.field(default_factory=ReadingSettings)
  num_shards: int = option(16, "number of TFRecord files to write", minimum=1, maximum=_MAX_SHARDS)
  num_processes: int = option(
    1, "number of local processes; the output does not depend on it", minimum=1, maximum=MAX_PROCESSES
  )
  compress: bool = option(False, "write the shards as GZIP files")

  @property
  def is_read_directly(self) -> bool:
    """Whether no input file is converted: all have a sentence on each line and blank lines between documents."""
    return all(formats.is_read_directly(path, self.reading) for path in self.inputs)

  def shard_name(self, index: int) -> str:
    """Returns the file name of shard number `index`, from 0."""
    ending = "tfrecord.gz" if self.compress else "tfrecord"
    return f"{KIND}-{index:05d}-of-{self.num_shards:05d}.{ending}"


# Starts the processes that carry out a job, or connects to them: processes of this machine, Ray or Apache Beam. The
# arguments are the job, a function that each process calls first, and the arguments of this function: the job's
# settings and vocabulary.
OpenPool: TypeAlias = Callable[[Job, Callable[..., None], tuple[Any, ...]], AbstractContextManager[WorkerPool]]
