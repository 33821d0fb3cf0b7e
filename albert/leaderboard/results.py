"""Writes the table of results beside the authors', and the directory with the submissions."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from albert.io import files
from albert.leaderboard.benchmarks import GLUE_TASKS
from albert.leaderboard.plan import LeaderboardPlan

TABLE_FILE, SUBMISSION_FOLDER = "table.md", "submission"
# The archive for gluebenchmark.com.
GLUE_ARCHIVE = "glue.zip"
_NO_VALUE = "–"
# A date that does not depend on the clock, so that the same predictions give the same archive.
_DATE = (1980, 1, 1, 0, 0, 0)


def format_table(plan: LeaderboardPlan, rows: Sequence[Mapping[str, Any]], checkpoint: str) -> str:
  """Formats a Markdown table with a line for each metric of each task.

  Args:
    plan: the plan.
    rows: the results, one row per task.
    checkpoint: path of the pretrained weights, for the caption.
  """
  scores_of_task = {row["variant"]: row["scores"] for row in rows}
  header = ["task", "metric", "median", "lowest", "highest", "ensemble", "ALBERT-xxlarge (authors, one model)"]
  lines = [header, ["---"] * len(header)]
  for benchmark in plan.benchmarks:
    scores = scores_of_task[benchmark.name]
    for metric, result in benchmark.metrics.items():
      columns = (f"{metric} {column}" for column in ("median", "minimum", "maximum", "ensemble"))
      cells = [f"{scores[column]:.1f}" if column in scores else _NO_VALUE for column in columns]
      lines.append([benchmark.name, metric, *cells, _NO_VALUE if result is None else f"{result:g}"])
  seeds = f"{plan.num_runs} seeds" if plan.num_runs > 1 else "one seed"
  caption = (
    f"{checkpoint}; development sets; {seeds}; percent. The authors' results: ALBERT-xxlarge after 1.5M steps, "
    "https://github.com/google-research/albert."
  )
  table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
  return f"# GLUE, SQuAD and RACE\n\n{caption}\n\n{table}\n"


def write_submission(plan: LeaderboardPlan) -> list[str]:
  """Copies the files to submit: those of GLUE into one folder and an archive, those of other tasks into folders.

  Args:
    plan: a plan whose trials are done.
  Returns: the paths of the files.
  """
  paths = []
  glue_files: dict[str, bytes] = {}
  for task in plan.tasks.values():
    is_glue = task.benchmark.name in GLUE_TASKS
    folder = files.join(plan.directory, SUBMISSION_FOLDER, "GLUE" if is_glue else task.benchmark.name)
    files.makedirs(folder)
    for name in task.benchmark.submission:
      with files.open_file(files.join(task.final, name), "rb") as file:
        content = file.read()
      paths.append(files.join(folder, name))
      files.write_atomically(paths[-1], content)
      if is_glue:
        glue_files[name] = content
  if glue_files:
    paths.append(files.join(plan.directory, SUBMISSION_FOLDER, GLUE_ARCHIVE))
    files.write_atomically(paths[-1], _zip(glue_files))
  return paths


def _zip(contents: Mapping[str, bytes]) -> bytes:
  """Returns an archive of files that all lie at its top."""
  archive_file = BytesIO()
  with zipfile.ZipFile(archive_file, "w") as archive:
    for name in sorted(contents):
      archive.writestr(zipfile.ZipInfo(os.path.basename(name), _DATE), contents[name], zipfile.ZIP_DEFLATED)
  return archive_file.getvalue()
