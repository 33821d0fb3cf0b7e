"""Reads the files that runs have written to their output_dir. A run may still be in progress."""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from albert.errors import UserError
from albert.io import files
from albert.runs import logs, output_files

# The names of the pictures and of the tables begin with these words.
_PICTURE_PREFIXES = ("confusion_matrix_", "scatter_", "calibration_")
_CLASS_SCORES_PREFIX, MISTAKES_PREFIX = "classes_", "mistakes_"
_TABLE_PREFIXES = (_CLASS_SCORES_PREFIX, MISTAKES_PREFIX, "predictions", "unsure")
# Maximum number of classes whose scores are read, if any examples are read.
_MAX_CLASSES = 1000
# A directory that has none of these files is not the output_dir of a run.
_RUN_FILES = (output_files.CONFIG, output_files.EVAL_RESULTS, output_files.METRICS)


class ExampleTable(NamedTuple):
  """The first rows of a file of predictions, mistakes or scores of classes.

  Attributes:
    name: name of the file.
    header: names of the columns.
    rows: cells of each row.
  """

  name: str
  header: Sequence[str]
  rows: Sequence[Sequence[str]]


class RunRecord(NamedTuple):
  """The files of one run.

  Attributes:
    name: the last parts of the path, as many as make the name unique on the page.
    path: the output_dir.
    config: config.json; {} if it does not exist, because weights were only evaluated.
    environment: environment.json; {} if it does not exist.
    metrics: the lines of metrics.jsonl.
    evaluations: the lines of eval_metrics.jsonl.
    data: data_summary.json; {} if it does not exist.
    results: eval_results.json; {} if it does not exist.
    examples: the scores of each class, and the first rows of the files of mistakes and predictions.
    pictures: name of each PNG file -> its content.
  """

  name: str
  path: str
  config: Mapping[str, Any]
  environment: Mapping[str, Any]
  metrics: Sequence[Mapping[str, Any]]
  evaluations: Sequence[Mapping[str, Any]]
  data: Mapping[str, Any]
  results: Mapping[str, Any]
  examples: Sequence[ExampleTable]
  pictures: Mapping[str, bytes]


def read_runs(directories: Sequence[str], *, num_examples: int) -> tuple[list[RunRecord], dict[str, Mapping[str, Any]]]:
  """Reads the files of runs. If a directory holds runs of several seeds (--num_runs), all of them are read.

  Args:
    directories: the output_dir of each run.
    num_examples: number of rows to read of each predictions file.
  Returns: the runs, and name -> runs.json of each directory with several seeds.
  Raises:
    UserError: there are no directories; one does not exist, holds no run or is given twice; or a file is damaged.
  """
  if not directories:
    raise UserError("give the directories of one or more runs, without a flag")
  run_paths: list[str] = []
  summaries: dict[str, Mapping[str, Any]] = {}  # path of a directory with several seeds -> its runs.json
  for directory in directories:
    path = directory if files.is_remote(directory) else os.path.normpath(directory)
    if not files.is_dir(path):
      raise UserError(f"{directory}: no such directory: give the --output_dir of a run")
    summary_file = files.join(path, output_files.RUNS)
    if files.exists(summary_file):
      summaries[path] = output_files.read_runs(summary_file)
      run_paths += [files.join(path, f"run-{seed}") for seed in summaries[path]["seeds"]]
    else:
      run_paths.append(path)
  real_paths: set[str] = set()
  for path in run_paths:
    if not any(files.exists(files.join(path, name)) for name in _RUN_FILES):
      raise UserError(f"{path}: holds no run (none of {', '.join(_RUN_FILES)}): give the --output_dir of a run")
    real_path = files.real_path(path)
    if real_path in real_paths:
      raise UserError(f"{path} is given twice: give each run once")
    real_paths.add(real_path)
  names = _shortest_unique_names([*run_paths, *summaries])
  runs = [_read_run(path, name, num_examples) for path, name in zip(run_paths, names, strict=False)]
  return runs, dict(zip(names[len(runs) :], summaries.values(), strict=True))


def _shortest_unique_names(paths: Sequence[str]) -> list[str]:
  """The last parts of each path, as many as make all names different, for example x/run and y/run."""
  absolute_paths = [files.absolute(path) for path in paths]
  split_paths = [path.replace(os.sep, "/").split("/") for path in absolute_paths]
  for num_parts in range(1, max(map(len, split_paths)) + 1):
    names = ["/".join(parts[-num_parts:]) for parts in split_paths]
    if len(set(names)) == len(names):
      return names
  return absolute_paths


def _read_run(path: str, name: str, num_examples: int) -> RunRecord:
  """Reads the files of one run."""
  file_names = files.listdir(path)
  config_file = files.join(path, output_files.CONFIG)
  config = output_files.read_config(config_file) if files.exists(config_file) else {}
  table_names = [
    file for file in file_names if file.startswith(_TABLE_PREFIXES) and file.endswith((".tsv", ".csv", ".json"))
  ]
  sizes = {file: _MAX_CLASSES if file.startswith(_CLASS_SCORES_PREFIX) else num_examples for file in table_names}
  tables = [_read_examples(path, name, size) for name, size in sizes.items()] if num_examples else []
  pictures = {}
  for file_name in file_names:
    if file_name.startswith(_PICTURE_PREFIXES) and file_name.endswith(".png"):
      pictures[file_name] = files.read(files.join(path, file_name))
  return RunRecord(
    name=name,
    path=path,
    config=config,
    environment=_read_json_if_exists(files.join(path, output_files.ENVIRONMENT)),
    metrics=logs.read_metrics(path),
    evaluations=logs.read(files.join(path, output_files.EVALUATIONS)),
    data=_read_json_if_exists(files.join(path, output_files.DATA_SUMMARY)),
    results=_read_json_if_exists(files.join(path, output_files.EVAL_RESULTS)),
    examples=[table for table in tables if table.rows],
    pictures=pictures,
  )


def _read_json_if_exists(path: str) -> dict[str, Any]:
  return files.read_json(path, nan_is_null=True) if files.exists(path) else {}


def _read_examples(directory: str, name: str, num_examples: int) -> ExampleTable:
  """Reads the first rows of a TSV or CSV file with a header, or the first entries of a JSON object of answers."""
  path = files.join(directory, name)
  if name.endswith(".json"):
    answers = itertools.islice(files.read_json(path, nan_is_null=True).items(), num_examples)
    return ExampleTable(name, ("id", "prediction"), [(key, str(value)) for key, value in answers])
  with files.open_file(path) as file:
    lines = (line.decode("utf-8", errors="replace").replace("\0", "\ufffd") for line in file)
    is_csv = name.endswith(".csv")
    cells = csv.reader(lines) if is_csv else (line.rstrip("\n").split("\t") for line in lines)
    rows = list(itertools.islice(cells, num_examples + 1))
  return ExampleTable(name, rows[0] if rows else (), rows[1:])
