"""What a run has written to its output_dir, as far as it has come."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from albert import files, output_files
from albert.errors import UserError
from albert.training import log_lines

_PICTURES = ("confusion_matrix_", "scatter_")
_CONTENTS = (output_files.CONFIG, output_files.EVAL_RESULTS, output_files.METRICS)


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
    lines = [*self.metrics, *self.evaluations]
    return max((line["step"] for line in lines), default=0), int(self.config.get("train", {}).get("num_train_steps", 0))


@dataclasses.dataclass(frozen=True)
class Seeds:
  """runs.json: what several seeds have in common."""

  name: str
  summary: Mapping[str, Any]


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
  for directory in directories:
    path = directory if files.is_remote(directory) else os.path.normpath(directory)
    if not files.is_dir(path):
      raise UserError(f"{directory}: no such directory: give the --output_dir of a run")
    if files.exists(files.join(path, output_files.RUNS)):
      groups.append(path)
      children = [files.join(path, f"run-{seed}") for seed in _read_summary(path)["seeds"]]
    else:
      children = [path]
    for child in children:
      if not any(files.exists(files.join(child, name)) for name in _CONTENTS):
        raise UserError(f"{child}: holds no run (none of {', '.join(_CONTENTS)}): give the --output_dir of a run")
      if child in paths:
        raise UserError(f"{child} is given twice: give each run once")
      paths.append(child)
  names = _names([*paths, *groups])
  records = [_read_run(path, name, num_examples) for path, name in zip(paths, names, strict=False)]
  seeds = [Seeds(name, _read_summary(path)) for path, name in zip(groups, names[len(paths) :], strict=True)]
  return records, seeds


def _read_summary(directory: str) -> dict[str, Any]:
  path = files.join(directory, output_files.RUNS)
  summary = files.read_json(path)
  for key in ("seeds", "best_run", "metrics"):
    if key not in summary:
      raise UserError(f"{path}: lacks {key!r}: make it again with the command of these runs")
  return summary


def _names(paths: Sequence[str]) -> list[str]:
  """The ends of paths: as many parts of each as tell all apart."""
  parts = [path.replace(os.sep, "/").split("/") for path in paths]
  for count in range(1, max(map(len, parts)) + 1):
    names = ["/".join(part[-count:]) for part in parts]
    if len(set(names)) == len(names):
      return names
  return list(paths)


def _read_run(path: str, name: str, num_examples: int) -> RunRecord:
  def read_json(file: str) -> dict[str, Any]:
    file = files.join(path, file)
    return files.read_json(file) if files.exists(file) else {}

  there = files.listdir(path)
  tables = [
    file for file in there if file.startswith(("mistakes_", "predictions")) and file.endswith((".tsv", ".json"))
  ]
  config = read_json(output_files.CONFIG)
  is_quoted = config.get("task") == "pretraining"  # filled masks are the one kind of table that quotes
  examples = [_read_examples(path, file, num_examples, is_quoted) for file in tables] if num_examples else []
  pictures = {}
  for file in there:
    if file.startswith(_PICTURES) and file.endswith(".png"):
      with files.open_file(files.join(path, file)) as f:
        pictures[file] = f.read()
  return RunRecord(
    name,
    path,
    config,
    read_json(output_files.ENVIRONMENT),
    log_lines.read(files.join(path, output_files.METRICS)),
    log_lines.read(files.join(path, output_files.EVALUATIONS)),
    read_json(output_files.EVAL_RESULTS),
    [table for table in examples if table.rows],
    pictures,
  )


def _read_examples(directory: str, name: str, count: int, is_quoted: bool) -> Examples:
  """The first `count` rows of a tab-separated file with a header, or of an object id -> answer (SQuAD)."""
  path = files.join(directory, name)
  if name.endswith(".json"):
    answers = itertools.islice(files.read_json(path).items(), count)
    return Examples(name, ("id", "prediction"), [(key, str(value)) for key, value in answers])
  with files.open_file(path) as f:
    lines = [line.decode("utf-8", errors="replace") for line in itertools.islice(f, count + 1)]
  if is_quoted or name == "predictions.tsv":
    rows = list(csv.reader(io.StringIO("".join(lines)), delimiter="\t"))
  else:
    rows = [line.rstrip("\n").split("\t") for line in lines]
  return Examples(name, rows[0] if rows else (), rows[1:])
