"""Data preparation as an external merge sort whose intermediate files can be reused.

The processes of this machine carry it out, or those of a cluster that share its files (data_prep.runners.ray).

    units of text -> one spill file for each unit -> merged files, if there are many -> shards

A spill file stays valid as long as the text of its unit is the same. So a job that was stopped continues where it
stopped, and after a change of the input only the units that the change affects are processed again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from albert.data.shard_files.manifest import ShardInfo
from albert.errors import RunError
from albert.io import files
from albert.io.parallel.workers import WorkerPool, Workers
from albert.io.progress import Progress
from albert.tokenization.tokenizer import Tokenizer
from data_prep import input_hashes
from data_prep.documents import Counts
from data_prep.examples import packing, segments
from data_prep.runners import unit_spills
from data_prep.runners.base import Argument, InputEntries, PreparedShards, Result, Runner, check_counts
from data_prep.runners.job import Job
from data_prep.runners.unit_spills import UnitOutcome, UnitTask
from data_prep.runners.workspace import SPILL_ENDING, Workspace
from data_prep.sorting import merge_passes, shards
from data_prep.sorting.spills import Spill
from data_prep.units import TextUnit, plan_units

# Threads that read the footers and records of spill files, which takes long for many files on a remote file system.
_NUM_READERS = 16


def _spill_path(workspace: Workspace, unit_name: str) -> str:
  return workspace.file_path(f"unit-{unit_name}{SPILL_ENDING}")


def _load_merged_files(workspace: Workspace) -> list[Spill]:
  """Loads the merged files of an earlier command, and removes those that cannot be used.

  These are damaged files and, if two files hold the same unit of text, the one of the earlier merge pass.
  """
  loaded: list[Spill] = []
  for name in files.listdir(workspace.path):
    if name.startswith("merged-") and name.endswith(SPILL_ENDING):
      spill = Spill.load(workspace.file_path(name))
      if spill is None:
        files.remove(workspace.file_path(name))
      else:
        loaded.append(spill)
  kept: list[Spill] = []
  kept_units: set[str] = set()
  for spill in sorted(loaded, key=merge_passes.merge_level, reverse=True):
    names = {record["unit"] for record in spill.records()}
    if names & kept_units:
      files.remove(spill.path)
    else:
      kept.append(spill)
      kept_units |= names
  return kept


def _units(job: Job) -> Iterator[TextUnit]:
  with_donors = job.settings.sentence_prediction == segments.NSP
  yield from plan_units(list(job.inputs), with_donors=with_donors)


def _make_units(
  job: Job, workspace: Workspace, workers: WorkerPool, merged_files: list[Spill]
) -> tuple[list[str], int, set[str]]:
  """Writes the spill files that are missing, and removes those that no unit needs.

  Returns:
    The names of all units in order, the number of units whose spill file was written, and the paths of the outdated
    merged files. A merged file is outdated if the text of one of its units has changed or is no longer in the input.
  """
  # Unit name -> path of the merged file that holds the unit, and the unit's record in it.
  merged_units = {record["unit"]: (spill.path, record) for spill in merged_files for record in spill.records()}
  names: list[str] = []
  num_made = 0
  outdated: set[str] = set()  # paths of merged files

  def make_tasks() -> Iterator[UnitTask]:
    for unit in _units(job):
      name = input_hashes.unit_name(unit)
      names.append(name)
      path, record = merged_units.get(name, (_spill_path(workspace, name), None))
      yield UnitTask(unit, path, record)

  with Progress(sum(map(files.size, job.inputs)), "B", "reading text") as progress:
    for task, outcome in workers.map(unit_spills.make_spill, make_tasks(), lambda task: task.unit.data_bytes):
      progress.update(task.unit.progress_bytes)
      num_made += outcome is UnitOutcome.MADE
      if outcome is UnitOutcome.OUTDATED:
        outdated.add(task.spill_path)
  all_names = set(names)
  outdated |= {path for name, (path, _) in merged_units.items() if name not in all_names}
  _remove_other_spills(workspace, all_names - merged_units.keys())
  return names, num_made, outdated


def _remove_other_spills(workspace: Workspace, unit_names: set[str]) -> None:
  """Removes the spill files of all units but those named. Merged files are kept."""
  for file_name in files.listdir(workspace.path):
    is_spill = file_name.startswith("unit-") and file_name.endswith(SPILL_ENDING)
    if is_spill and file_name.removeprefix("unit-").removesuffix(SPILL_ENDING) not in unit_names:
      files.remove(workspace.file_path(file_name))


def make_spills(job: Job, workspace: Workspace, workers: WorkerPool) -> tuple[list[Spill], int]:
  """Writes the instances of all units to spill files. Valid files of an earlier command are kept.

  Returns:
    The spill files, in the order of the text, and the number of units.
  """
  merged_files = _load_merged_files(workspace)
  total_made = 0
  while True:
    names, num_made, outdated = _make_units(job, workspace, workers, merged_files)
    total_made += num_made
    if not outdated:
      break
    # An outdated merged file also holds instances of other units, which are lost with it. So this pass is repeated.
    for path in outdated:
      files.remove(path)
    merged_files = [spill for spill in merged_files if spill.path not in outdated]
  if total_made < len(names):
    print(f"kept {len(names) - total_made} of {len(names)} units of an earlier run")
  merged_file_of = {record["unit"]: spill for spill in merged_files for record in spill.records()}
  paths = [_spill_path(workspace, name) for name in names if name not in merged_file_of]
  with ThreadPoolExecutor(_NUM_READERS) as readers:
    loaded = dict(zip(paths, readers.map(Spill.load, paths), strict=True))
  spills: list[Spill] = []
  for name in names:
    path = _spill_path(workspace, name)
    spill = merged_file_of.get(name) or loaded[path]
    if spill is None:
      raise RunError(f"{path} was removed or damaged after it was written: run the same command again")
    if not spills or spills[-1] is not spill:  # the units of a merged file are neighbours
      spills.append(spill)
  return spills, len(names)


def check_inputs(job: Job, sizes: list[int], spills: list[Spill], workers: WorkerPool) -> list[dict[str, Any]]:
  """Checks that the input files still hold the text that the spill files were made from.

  Args:
    job: the job.
    sizes: bytes of each input file when it was cut into units.
    spills: the spill files of all units.
    workers: processes that read the files.

  Returns:
    The manifest's entry for each input file.

  Raises:
    UserError: a file has changed.
  """
  with ThreadPoolExecutor(_NUM_READERS) as readers:
    records = itertools.chain.from_iterable(readers.map(Spill.records, spills))
    tasks = input_hashes.make_file_tasks(job.inputs, sizes, records)
  entries: dict[str, dict[str, Any]] = {}
  with Progress(sum(sizes), "B", "checking text") as progress:
    for task, entry in workers.map(input_hashes.check_file, tasks):
      entries[task.path] = entry
      progress.update(task.num_bytes)
  return [entries[path] for path in job.inputs]


def write_shards(
  job: Job, workspace: Workspace, workers: WorkerPool, plan: shards.ShardPlan, word_type: str, shard_digest: str
) -> list[ShardInfo]:
  """Writes the shards. Intact shards of an earlier command with the same digest are kept.

  Args:
    job: the job.
    workspace: the job's workspace.
    workers: processes that write the shards.
    plan: where each shard begins in the spill files.
    word_type: NumPy type of the packed words.
    shard_digest: a hash of everything that the shards depend on.

  Returns:
    The manifest's entry for each shard, in order.
  """
  infos: dict[int, ShardInfo] = {}
  for index in range(job.num_shards):
    finished_info = workspace.find_finished_shard(index, shard_digest)
    if finished_info:
      infos[index] = finished_info
  if infos:
    print(f"kept {len(infos)} of {job.num_shards} shards of an earlier run")

  def make_tasks() -> Iterator[shards.ShardTask]:
    lengths = job.settings.max_seq_length, job.settings.max_predictions_per_seq
    for index in range(job.num_shards):
      if index not in infos:
        path = workspace.file_path(job.shard_name(index))
        yield plan.make_task(index, path, *lengths, word_type, compress=job.compress)

  with Progress(plan.num_examples, " examples", "writing shards") as progress:
    progress.update(sum(info.examples for info in infos.values()))
    for task, written_info in workers.map(shards.write_shard, make_tasks()):
      info = dataclasses.replace(written_info, file=job.shard_name(task.index))
      files.replace(task.path, files.join(job.output_dir, info.file))
      workspace.record_shard(task.index, info, shard_digest)
      infos[task.index] = info
      progress.update(info.examples)
  return [infos[index] for index in range(job.num_shards)]


def make_shards(
  job: Job, workspace: Workspace, tokenizer: Tokenizer, workers: WorkerPool, input_entries: InputEntries
) -> PreparedShards:
  """Writes the shards of a job.

  Args:
    job: the job.
    workspace: the job's workspace, open.
    tokenizer: the job's tokenizer.
    workers: processes, in each of which `unit_spills.start_worker` was called.
    input_entries: returns the entries of the input files for those of job.inputs.

  Raises:
    UserError: bad input.
    RunError: the disk or the system failed. Finished files are kept.
  """
  word_type = packing.word_dtype(tokenizer.vocab_size).str
  sizes = [files.size(path) for path in job.inputs]
  spills, num_units = make_spills(job, workspace, workers)
  sums = merge_passes.add_summaries(spills)
  counts, labels = Counts(**sums["counts"]), sums["labels"]
  check_counts(counts, sum(labels), job.settings)
  shards.check_total(sum(labels), job.num_shards)
  input_files = input_entries(check_inputs(job, sizes, spills, workers))
  max_runs = merge_passes.max_open_runs()
  spills = merge_passes.merge_until(spills, workspace.path, word_type, workers, num_units=num_units, max_runs=max_runs)
  plan = shards.ShardPlan(spills, job.num_shards)
  infos = write_shards(job, workspace, workers, plan, word_type, workspace.shard_digest(input_files))
  return PreparedShards(counts, labels, infos, input_files)


def hash_inputs(job: Job, workspace: Workspace, workers: WorkerPool) -> list[dict[str, Any]]:
  """Returns the name, size and SHA-256 of each input file as it is now, in order."""
  del workspace
  entries = dict(workers.map(input_hashes.hash_file, job.inputs))
  return [entries[path] for path in job.inputs]


def run_tasks(
  workspace: Workspace,
  workers: WorkerPool,
  function: Callable[[Argument], Result],
  arguments: Sequence[Argument],
  schema: type[Result],
) -> Iterable[tuple[Argument, Result]]:
  """Calls a function for each argument in the processes."""
  del workspace, schema
  return workers.map(function, arguments)


def open_workers(job: Job) -> Workers:
  """Returns the processes of this machine that carry out a job."""
  return Workers(job.num_processes, unit_spills.start_worker, (job.settings, job.spm_model_file))


RUNNER = Runner(open_workers, make_shards, hash_inputs, run_tasks)
