"""Data preparation in processes of this machine: an external merge sort whose finished pieces outlive the process.

    units of text -> a spill file each -> merged, if they are many -> shards

A unit's file is kept as long as the text that it was made from is the same, so a run that was stopped, by whatever,
goes on where it was, and after a change of the input only what depends on it is made again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from albert.data.manifest import ShardInfo
from albert.errors import RunError
from albert.io import files
from albert.io.progress import Progress
from albert.io.workers import Workers
from albert.tokenization.tokenizer import Tokenizer
from data_prep import inputs, preparation, segments, shards
from data_prep.corpus import Counts, Unit, plan_units
from data_prep.preparation import Outcome, UnitTask
from data_prep.runners import merging
from data_prep.runners.job import SPILL_ENDING, Job, Made, Runner, Workspace, check_counts
from data_prep.runners.spills import Spill


def _unit_path(workspace: Workspace, name: str) -> str:
  return workspace.file(f"unit-{name}{SPILL_ENDING}")


def _merged_files(workspace: Workspace) -> list[Spill]:
  """The merged files of an earlier run, without those whose units a later pass has merged."""
  loaded: list[Spill] = []
  for name in files.listdir(workspace.path):
    if name.startswith("merged-") and name.endswith(SPILL_ENDING):
      spill = Spill.load(workspace.file(name))
      if spill is None:
        files.remove(workspace.file(name))
      else:
        loaded.append(spill)
  found: list[Spill] = []
  held: set[str] = set()
  for spill in sorted(loaded, key=merging.level, reverse=True):
    names = {record["unit"] for record in spill.records()}
    if names & held:
      files.remove(spill.path)
    else:
      found.append(spill)
      held |= names
  return found


def _units(job: Job) -> Iterator[Unit]:
  with_donors = job.settings.sentence_prediction == segments.NSP
  yield from plan_units(list(job.inputs), with_donors=with_donors)


def _make_units(
  job: Job, workspace: Workspace, workers: Workers, merged: list[Spill]
) -> tuple[list[str], int, set[str]]:
  """Makes the units that are missing: names of all units in order, number of units made, merged files to remove.

  Those hold a unit whose text is not the same any more, or is not in the input any more.
  """
  holders = {record["unit"]: (spill.path, record) for spill in merged for record in spill.records()}
  names: list[str] = []
  num_made = 0
  outdated: set[str] = set()

  def tasks() -> Iterator[UnitTask]:
    for unit in _units(job):
      name = inputs.unit_name(unit)
      names.append(name)
      path, record = holders.get(name, (_unit_path(workspace, name), None))
      yield UnitTask(unit, path, record)

  with Progress(sum(map(files.size, job.inputs)), "B", "reading text") as progress:
    for task, outcome in workers.map(preparation.make_spill, tasks(), lambda task: task.unit.data_bytes):
      progress.update(task.unit.progress_bytes)
      num_made += outcome is Outcome.MADE
      if outcome is Outcome.OUTDATED:
        outdated.add(task.spill_path)
  planned = set(names)
  outdated |= {path for name, (path, _) in holders.items() if name not in planned}
  for name in files.listdir(workspace.path):
    unit = name.removeprefix("unit-").removesuffix(SPILL_ENDING)
    # Units that are merged, or that the input does not have any more.
    if name.startswith("unit-") and name.endswith(SPILL_ENDING) and (unit not in planned or unit in holders):
      files.remove(workspace.file(name))
  return names, num_made, outdated


def make_spills(job: Job, workspace: Workspace, workers: Workers) -> tuple[list[Spill], int]:
  """Text to spill files in the order of the text, and the number of units. Finished ones are kept."""
  merged = _merged_files(workspace)
  total_made = 0
  while True:
    names, num_made, outdated = _make_units(job, workspace, workers, merged)
    total_made += num_made
    if not outdated:
      break
    for path in outdated:
      files.remove(path)
    merged = [spill for spill in merged if spill.path not in outdated]
  if total_made < len(names):
    print(f"kept {len(names) - total_made} of {len(names)} units of an earlier run")
  holders = {record["unit"]: spill for spill in merged for record in spill.records()}
  found: list[Spill] = []
  for name in names:
    spill = holders.get(name) or Spill.load(_unit_path(workspace, name))
    if spill is None:
      raise RunError(
        f"{_unit_path(workspace, name)} has gone or is damaged since it was written: run the same command again"
      )
    if not found or found[-1] is not spill:
      found.append(spill)
  return found, len(names)


def check_inputs(job: Job, sizes: list[int], all_spills: list[Spill], workers: Workers) -> list[dict[str, Any]]:
  """The input files' entries for the manifest. `sizes`: of the files, when they were cut into units.

  Raises:
    UserError: a file is not what the spills were made from.
  """
  records = itertools.chain.from_iterable(spill.records() for spill in all_spills)
  tasks = inputs.file_tasks(job.inputs, sizes, records)
  found: dict[str, dict[str, Any]] = {}
  with Progress(sum(sizes), "B", "checking text") as progress:
    for task, entry in workers.map(inputs.check_file, tasks):
      found[task.path] = entry
      progress.update(task.num_bytes)
  return [found[path] for path in job.inputs]


def write_shards(
  job: Job, workspace: Workspace, workers: Workers, plan: shards.ShardPlan, words: str, content: str
) -> list[ShardInfo]:
  """Spills to shards; finished ones of the same content that verify are kept."""
  infos: dict[int, ShardInfo] = {}
  for index in range(job.num_shards):
    finished = workspace.finished_shard(index, content)
    if finished:
      infos[index] = finished
  if infos:
    print(f"kept {len(infos)} of {job.num_shards} shards of an earlier run")

  def tasks() -> Iterator[shards.ShardTask]:
    lengths = job.settings.max_seq_length, job.settings.max_predictions_per_seq
    for index in range(job.num_shards):
      if index not in infos:
        path = workspace.file(job.shard_name(index))
        yield plan.task(index, path, *lengths, words, compress=job.compress)

  with Progress(plan.num_examples, " examples", "writing shards") as progress:
    progress.update(sum(info.examples for info in infos.values()))
    for task, written in workers.map(shards.write_shard, tasks()):
      info = dataclasses.replace(written, file=job.shard_name(task.index))
      files.replace(task.path, files.join(job.output_dir, info.file))
      workspace.save_shard(task.index, info, content)
      infos[task.index] = info
      progress.update(info.examples)
  return [infos[index] for index in range(job.num_shards)]


def run(job: Job, workspace: Workspace, tokenizer: Tokenizer, workers: Workers) -> Made:
  """Makes the shards of a job.

  Raises:
    UserError: bad input.
    RunError: the disk or the system failed; what is finished is kept.
  """
  words = shards.word_dtype(tokenizer.vocab_size).str
  sizes = [files.size(path) for path in job.inputs]
  spills, num_units = make_spills(job, workspace, workers)
  sums = merging.add_summaries(spills)
  counts, labels = Counts(**sums["counts"]), sums["labels"]
  check_counts(counts, sum(labels), job.settings)
  shards.check_total(sum(labels), job.num_shards)
  input_files = check_inputs(job, sizes, spills, workers)
  spills = merging.merge_down(spills, workspace.path, words, workers, num_units=num_units, limit=merging.max_open())
  plan = shards.ShardPlan(spills, job.num_shards)
  content = workspace.content(input_files)
  return Made(counts, labels, write_shards(job, workspace, workers, plan, words, content), input_files)


def hash_inputs(job: Job, workspace: Workspace, workers: Workers) -> list[dict[str, Any]]:
  """The input files' entries, as for the manifest, of the files as they are."""
  del workspace
  found = dict(workers.map(inputs.hash_file, job.inputs))
  return [found[path] for path in job.inputs]


RUNNER = Runner(run, hash_inputs)
