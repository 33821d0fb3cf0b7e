"""What a run has written to its output_dir, as far as it has come."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, BinaryIO

import msgspec

from albert.errors import UserError
from albert.io import files
from albert.runs import log_lines, output_files

_PICTURES = ("confusion_matrix_", "scatter_")
_CONTENTS = (output_files.CONFIG, output_files.EVAL_RESULTS, output_files.METRICS)
_PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST_PICTURE = 16 << 20
# Of a table of predictions; a longer line is no line of a table.
_LONGEST_LINE = 64 << 20
_MOST_COLUMNS = 100
# The csv module's own limit is 131,072 characters.
_LARGEST_FIELD = 2**31 - 1


class _TrainSettings(msgspec.Struct):
  num_train_steps: Annotated[int, msgspec.Meta(ge=0)] = 0


class _RunSettings(msgspec.Struct):
  """What the report itself needs of config.json."""

  task: str = ""
  train: _TrainSettings = msgspec.field(default_factory=_TrainSettings)


class MetricSummary(msgspec.Struct, frozen=True):
  """A metric over several seeds; None where it is no number."""

  median: float | None
  mean: float | None
  standard_deviation: float | None
  minimum: float | None
  maximum: float | None


class Summary(msgspec.Struct, frozen=True):
  """What the report shows of runs.json."""

  seeds: list[int]
  best_run: str
  metrics: dict[str, MetricSummary]


@dataclasses.dataclass(frozen=True)
class Examples:
  """The first rows of a file of predictions or mistakes."""

  name: str
  header: Sequence[str]
  rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class RunRecord:
  """A run.

  Attributes:
    name: what tells it from the other runs of the page.
    path: its output_dir.
    num_train_steps: those there are to be, or 0 if that is unknown.
    config: config.json, {} of a directory where weights were only evaluated.
    environment: environment.json, or {}.
    metrics: the lines of metrics.jsonl.
    evaluations: the lines of eval_metrics.jsonl.
    results: eval_results.json, or {}.
    examples: of its files of mistakes and predictions.
    pictures: file name -> PNG.
  """

  name: str
  path: str
  num_train_steps: int
  config: Mapping[str, Any]
  environment: Mapping[str, Any]
  metrics: Sequence[Mapping[str, Any]]
  evaluations: Sequence[Mapping[str, Any]]
  results: Mapping[str, Any]
  examples: Sequence[Examples]
  pictures: Mapping[str, bytes]

  @property
  def steps(self) -> tuple[int, int]:
    """Steps trained, as far as they are logged, and those there were to be (0 if unknown)."""
    lines = itertools.chain(self.metrics, self.evaluations)
    return max((line["step"] for line in lines), default=0), self.num_train_steps


@dataclasses.dataclass(frozen=True)
class Seeds:
  """runs.json: what several seeds have in common."""

  name: str
  summary: Summary


def read_runs(directories: Sequence[str], *, num_examples: int) -> tuple[list[RunRecord], list[Seeds]]:
  """Reads runs; a directory of several seeds (--num_runs) stands for all of them.

  Args:
    directories: output_dirs.
    num_examples: rows to read of each file of predictions.
  Raises:
    UserError: no directories; one that is not there, holds no run, or is given twice; a damaged file.
  """
  if not directories:
    raise UserError("give the directories of one or more runs: python -m albert.report RUN_DIR...")
  paths: list[str] = []
  groups: list[str] = []
  summaries: list[Summary] = []
  seen: set[str] = set()
  for directory in directories:
    path = directory if files.is_remote(directory) else os.path.normpath(directory)
    if not files.is_dir(path):
      raise UserError(f"{directory}: no such directory: give the --output_dir of a run")
    children = [path]
    summary_file = files.join(path, output_files.RUNS)
    if files.exists(summary_file):
      summary = files.read_json(summary_file, Summary, "make it again with the command of these runs", nan_is_null=True)
      groups.append(path)
      summaries.append(summary)
      children = [files.join(path, f"run-{seed}") for seed in summary.seeds]
    for child in children:
      if not any(files.exists(files.join(child, name)) for name in _CONTENTS):
        raise UserError(f"{child}: holds no run (none of {', '.join(_CONTENTS)}): give the --output_dir of a run")
      real = child if files.is_remote(child) else os.path.realpath(child)
      if real in seen:
        raise UserError(f"{child} is given twice: give each run once")
      seen.add(real)
      paths.append(child)
  names = _names([*paths, *groups])
  records = [_read_run(path, name, num_examples) for path, name in zip(paths, names, strict=False)]
  seeds = [Seeds(name, summary) for name, summary in zip(names[len(paths) :], summaries, strict=True)]
  return records, seeds


def _names(paths: Sequence[str]) -> list[str]:
  """The ends of paths: as many parts of each as tell all apart."""
  whole = [path if files.is_remote(path) else os.path.abspath(path) for path in paths]
  parts = [path.replace(os.sep, "/").split("/") for path in whole]
  for count in range(1, max(map(len, parts)) + 1):
    names = ["/".join(part[-count:]) for part in parts]
    if len(set(names)) == len(names):
      return names
  return whole


def _read_run(path: str, name: str, num_examples: int) -> RunRecord:
  def read_json(file: str) -> dict[str, Any]:
    file = files.join(path, file)
    return files.read_json(file, nan_is_null=True) if files.exists(file) else {}

  there = files.listdir(path)
  for file in there:
    if files.is_special(files.join(path, file)):
      raise UserError(f"{files.join(path, file)}: is no file, but a pipe or a device: delete it")
  tables = [
    file for file in there if file.startswith(("mistakes_", "predictions")) and file.endswith((".tsv", ".json"))
  ]
  config = read_json(output_files.CONFIG)
  config_file = files.join(path, output_files.CONFIG)
  settings = (
    files.read_json(config_file, _RunSettings, nan_is_null=True) if files.exists(config_file) else _RunSettings()
  )
  is_quoted = settings.task == "pretraining"  # filled masks are the one kind of table that quotes
  examples = [_read_examples(path, file, num_examples, is_quoted) for file in tables] if num_examples else []
  pictures = [file for file in there if file.startswith(_PICTURES) and file.endswith(".png")]
  return RunRecord(
    name,
    path,
    settings.train.num_train_steps,
    config,
    read_json(output_files.ENVIRONMENT),
    log_lines.read(files.join(path, output_files.METRICS)),
    log_lines.read(files.join(path, output_files.EVALUATIONS)),
    read_json(output_files.EVAL_RESULTS),
    [table for table in examples if table.rows],
    {file: _read_picture(files.join(path, file)) for file in pictures},
  )


def _read_picture(path: str) -> bytes:
  with files.open_file(path) as file:
    data = file.read(_LARGEST_PICTURE + 1)
  if not data.startswith(_PNG) or len(data) > _LARGEST_PICTURE:
    problem = "is no PNG picture" if len(data) <= _LARGEST_PICTURE else f"has more than {_LARGEST_PICTURE >> 20} MiB"
    raise UserError(f"{path}: {problem}: delete it, or evaluate the run again")
  return data


def _read_examples(directory: str, name: str, count: int, is_quoted: bool) -> Examples:
  """The first `count` rows of a tab-separated file with a header, or of an object id -> answer (SQuAD)."""
  path = files.join(directory, name)
  if name.endswith(".json"):
    answers = itertools.islice(files.read_json(path, nan_is_null=True).items(), count)
    return Examples(name, ("id", "prediction"), [(key, str(value)) for key, value in answers])
  with files.open_file(path) as file:
    lines = _lines(file, path)
    if is_quoted or name == "predictions.tsv":
      rows = _quoted_rows(lines, path, count + 1)
    else:
      rows = [line.rstrip("\n").split("\t") for line in itertools.islice(lines, count + 1)]
  rows = [row if len(row) <= _MOST_COLUMNS else [*row[: _MOST_COLUMNS - 1], "…"] for row in rows if row]
  return Examples(name, rows[0] if rows else (), rows[1:])


def _lines(file: BinaryIO, path: str) -> Iterator[str]:
  for number in itertools.count(1):
    line = file.readline(_LONGEST_LINE + 1)
    if not line:
      return
    if len(line) > _LONGEST_LINE:
      raise UserError(f"{path}, line {number}: has more than {_LONGEST_LINE >> 20} MiB: predict again")
    yield line.decode("utf-8", errors="replace").replace("\0", "\ufffd")  # csv of Python 3.10 refuses NUL


def _quoted_rows(lines: Iterator[str], path: str, count: int) -> list[list[str]]:
  limit = csv.field_size_limit(_LARGEST_FIELD)
  reader = csv.reader(lines, delimiter="\t")
  try:
    return list(itertools.islice(reader, count))
  except csv.Error as error:
    raise UserError(f"{path}, line {reader.line_num}: not a row of this table ({error}): predict again") from error
  finally:
    csv.field_size_limit(limit)
