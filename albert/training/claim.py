"""Claims an output_dir for a run: writes the run's settings there, or compares them with those of an existing run.

While the run trains, its chief process holds the lock of the output_dir.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from albert.config.run import RunConfig
from albert.errors import RunError, UserError
from albert.io import files
from albert.runs import output_files, run_directory
from albert.runs.directory_lock import DirectoryLock
from albert.tasks.base import Task
from albert.training.distribution.cluster import Cluster
from albert.training.run_plan import RunPlan, TrainingPlan, plan_training
from albert.training.stage_plan import joint_content
from albert.weights import initial_weights
from albert.weights.checkpoints import CheckpointManager


@contextlib.contextmanager
def training_lock(output_dir: str, cluster: Cluster, checkpoints: CheckpointManager) -> Iterator[None]:
  """Within this context, the chief process holds the lock of output_dir, so that no other run trains there.

  Every process must enter it.

  Args:
    output_dir: the directory to lock.
    cluster: the processes of the run.
    checkpoints: the checkpoints of output_dir. In the chief process they check the lock before they write.
  Raises:
    UserError: another run trains in output_dir.
    RunError: the lock cannot be used, or the chief process could not get it.
  """
  lock = DirectoryLock(output_dir, "training")
  chief_error: UserError | RunError | None = None
  if cluster.is_chief:
    try:
      lock.acquire()
      checkpoints.lock = lock
    except (UserError, RunError) as error:
      chief_error = error
  try:
    if cluster.any(chief_error is not None):
      raise chief_error or RunError(f"the chief process cannot train in {output_dir}: see its error message")
    yield
  finally:
    checkpoints.lock = None
    lock.release()


def claim_output_dir(task: Task, plan: RunPlan, checkpoints: CheckpointManager, *, is_chief: bool) -> TrainingPlan:
  """Writes config.json, environment.json and the task's files. If a run has started there, it must be the same run.

  Args:
    task: the task of the run.
    plan: the run's devices, precision and settings.
    checkpoints: the checkpoints of the output_dir.
    is_chief: whether this process writes the files. Other processes only check the settings.
  Returns: the plan of the training.
  Raises:
    UserError: the output_dir belongs to a run with other settings or data, or the weights to start from do not fit.
  """
  training_plan = plan_training(plan, task.training_stages())
  directory, content = plan.config.output_dir, joint_content(training_plan.stages)
  # The checkpoints of a run that has ended may be deleted (see albert.multi_seed).
  is_started = bool(checkpoints.steps()) or files.exists(files.join(directory, output_files.TRAINING_LOSS))
  weights_settings = initial_weights.claim_initial_weights(
    directory,
    plan.config.init_checkpoint,
    task.vocabulary(),
    from_scratch=plan.config.from_scratch,
    is_started=is_started,
    is_chief=is_chief,
  )
  run_directory.claim_directory(
    directory,
    training_settings=_settings_that_affect_training(task, plan.config, training_plan, plan.precision),
    recorded_sections={
      **weights_settings,
      "train": training_plan.train.to_dict() | {"precision": plan.precision},
      "data": task.all_settings(),
      "recipe": plan.config.recipe,
    },
    is_started=is_started,
    is_chief=is_chief,
    content=content if content.files else None,
  )
  if is_chief:
    run_directory.write_environment(directory, plan.strategy)
    _copy_task_files(task, directory, overwrite=not is_started)
  return training_plan


def _settings_that_affect_training(
  task: Task, config: RunConfig, training_plan: TrainingPlan, precision: str
) -> dict[str, Any]:
  """Returns the settings that must stay the same when a run is resumed, by their keys in config.json."""
  return {
    "task": task.name,
    "model": task.model_config.to_dict(),
    "optimizer": training_plan.optimizer.training_settings(),
    "train": training_plan.train.training_settings() | {"precision": precision},
    "stages": [stage.to_dict() for stage in training_plan.stages if stage.is_of_divided_run],
    "data": task.settings(),
    "init_from_shallower": config.init_from_shallower,
  }


def _copy_task_files(task: Task, directory: str, *, overwrite: bool) -> None:
  """Copies files that later commands need, such as the vocabulary, and writes the task's records of its data.

  Args:
    task: the task, which lists the files.
    directory: the output_dir.
    overwrite: whether existing files are replaced. A new run replaces them, because they may come from an earlier
      attempt with another vocabulary.
  """
  for name, source in task.files_to_keep().items():
    target = files.join(directory, name)
    if overwrite or not files.exists(target):
      with files.open_file(source) as file:
        files.write_atomically(target, file.read())
  for name, text in task.data_records().items():
    target = files.join(directory, name)
    if overwrite or not files.exists(target):
      files.write_atomically(target, text)
