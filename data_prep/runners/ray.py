"""Data preparation on a Ray cluster: the steps of the local runner, in processes of several machines.

The machines share the files of a job: the input, the vocabulary and the output directory are on a shared file system,
or at gs://. Each task reads some of these files and writes another one, and returns a few numbers. A task whose process
or node dies is run again by Ray. If the command itself is killed, the next one continues with the finished files.
"""

from __future__ import annotations

import dataclasses
import functools
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from albert.errors import UserError
from albert.io import files
from albert.io.parallel.workers import WorkerPool
from albert.io.progress import Progress
from albert.tokenization.tokenizer import Tokenizer
from data_prep.examples.settings import PreparationSettings
from data_prep.runners import gzip_text, local, unit_spills
from data_prep.runners.base import InputEntries, PreparedShards, Runner
from data_prep.runners.gzip_text import GzipTask
from data_prep.runners.job import Job
from data_prep.runners.ray_pool import RayOptions, RayPool, parse_flags
from data_prep.runners.workspace import Workspace
from data_prep.text.text_files import is_gzip


def _start_worker(output_dir: str, settings: PreparationSettings, spm_model_file: str) -> None:
  """Prepares a worker process.

  Raises:
    UserError: its machine does not have the files of the job.
  """
  for flag, path in (("output_dir", output_dir), ("spm_model_file", spm_model_file)):
    if not files.exists(path):
      raise UserError(
        f"--{flag}={path} does not exist on {socket.gethostname()}, a node of the Ray cluster: all nodes need the same "
        "files, on a shared file system or at gs://"
      )
  unit_spills.start_worker(settings, spm_model_file)


def open_workers(job: Job, *, options: RayOptions) -> RayPool:
  """Returns the processes of a Ray cluster that carry out a job."""
  arguments = (job.output_dir, job.settings, job.spm_model_file)
  return RayPool(options, job.num_processes, _start_worker, arguments)


def _decompress(
  job: Job, workspace: Workspace, workers: WorkerPool
) -> tuple[dict[str, GzipTask], dict[str, dict[str, Any]]]:
  """Decompresses the GZIP files among the inputs to files of the workspace.

  Returns:
    For each text file, its task and the manifest's entry of the GZIP file.
  """
  tasks = [
    GzipTask(path, ordinal, workspace.file_path(f"gzip-{ordinal:08d}.txt"))
    for ordinal, path in enumerate(job.inputs)
    if is_gzip(path)
  ]
  entries: dict[str, dict[str, Any]] = {}
  with Progress(sum(files.size(task.path) for task in tasks), "B", "decompressing") as progress:
    for task, entry in workers.map(gzip_text.decompress, tasks):
      entries[task.text_path] = entry
      progress.update(entry["bytes"])
  return {task.text_path: task for task in tasks}, entries


def make_shards(
  job: Job, workspace: Workspace, tokenizer: Tokenizer, workers: WorkerPool, input_entries: InputEntries
) -> PreparedShards:
  """Writes the shards of a job. See `data_prep.runners.local.make_shards`."""
  if not any(map(is_gzip, job.inputs)):
    return local.make_shards(job, workspace, tokenizer, workers, input_entries)
  tasks, gzip_entries = _decompress(job, workspace, workers)
  text_paths = {task.path: text_path for text_path, task in tasks.items()}
  text_job = dataclasses.replace(job, inputs=tuple(text_paths.get(path, path) for path in job.inputs))

  def entries_of_inputs(text_entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    pairs = zip(text_job.inputs, text_entries, strict=True)
    return input_entries([gzip_entries.get(path, entry) for path, entry in pairs])

  try:
    return local.make_shards(text_job, workspace, tokenizer, workers, entries_of_inputs)
  except UserError as error:
    message = str(error)
    for text_path, task in tasks.items():
      message = message.replace(text_path, task.path)
    raise type(error)(message) from error


def make_runner(words: Sequence[str] = ()) -> Runner:
  """Makes the runner that carries out jobs on a Ray cluster.

  Args:
    words: the flags after --, see `data_prep.runners.ray_pool.RayOptions`.

  Raises:
    UserError: the flags are wrong.
  """
  options = parse_flags(words)
  return Runner(functools.partial(open_workers, options=options), make_shards, local.hash_inputs, local.run_tasks)
