"""Loads weights into a model before training, evaluation or prediction."""

from __future__ import annotations

import tf_keras as keras

from albert.config.run import RunConfig
from albert.errors import UserError
from albert.runs import run_directory
from albert.runs.metrics_log import log
from albert.tasks.base import Task
from albert.weights import checkpoint_files, warm_start
from albert.weights.checkpoints import CheckpointManager


def load_initial_weights(task: Task, model: keras.Model, config: RunConfig) -> None:
  """Assigns the weights of --init_checkpoint to a model, and logs which weights stay newly initialized.

  Args:
    task: defines which weights may be missing in the checkpoint, and which weights are not loaded from it.
    model: the model that gets the weights.
    config: the settings of the run. Only init_checkpoint and init_from_shallower are used.
  Raises:
    UserError: the checkpoint cannot be read or does not fit the model.
  """
  weights = model.named_weights()
  reinitialized = [name for name in weights if name.startswith(tuple(task.reinitialized_weights))]
  not_in_checkpoint = warm_start.warm_start(
    config.init_checkpoint,
    {name: variable for name, variable in weights.items() if name not in reinitialized},
    newly_initialized=task.new_weights,
    ignored=(*task.ignored_weights, *task.reinitialized_weights),
    unused=task.unused_weights,
    from_shallower=config.init_from_shallower,
    config=task.model_config,
    head_settings=task.head_settings(),
    vocabulary=task.vocabulary(),
  )
  newly_initialized = not_in_checkpoint + reinitialized
  note = f"; newly initialized: {', '.join(newly_initialized)}" if newly_initialized else ""
  log(f"started from {config.init_checkpoint}{note}")


def load_trained_weights(
  task: Task, model: keras.Model, manager: CheckpointManager, config: RunConfig, purpose: str
) -> tuple[int, str]:
  """Assigns the weights of the run's newest or best checkpoint to a model, and logs which checkpoint it is.

  Args:
    task: the task of the run.
    model: the model that gets the weights.
    manager: the checkpoints of the run.
    config: the settings of the command. train.select_checkpoint chooses the newest or the best checkpoint of the run.
      If the run has no checkpoint, the weights of init_checkpoint are used.
    purpose: "evaluating" or "predicting", for the log line.
  Returns: step and path of the checkpoint; the step of init_checkpoint is 0.
  Raises:
    UserError: there is no checkpoint at all, or the run's checkpoints were trained with other settings of the task.
  """
  run_directory.check_checkpoint_settings(config.output_dir, task.checkpoint_settings())
  checkpoint, skip_messages = manager.best_or_latest() if config.train.select_checkpoint == "best" else manager.latest()
  for message in skip_messages:
    log(f"warning: {message}")
  if checkpoint is not None:
    checkpoint_files.restore(checkpoint, model.named_weights())
    best_evaluation = manager.best()
    notes = [f"step {checkpoint.step}"]
    if best_evaluation and best_evaluation.step == checkpoint.step:
      notes.append(f"the best by {best_evaluation.metric}")
    if checkpoint.step == max(manager.steps()):
      notes.append("the newest")
    log(f"{purpose} with {checkpoint.path} ({', '.join(notes)})")
    return checkpoint.step, checkpoint.path
  if not config.init_checkpoint:
    raise UserError(
      f"{manager.directory} holds no checkpoint that verifies: train first (--do_train) or give --init_checkpoint"
    )
  load_initial_weights(task, model, config)
  log(f"{purpose} with {config.init_checkpoint} (step 0: not trained in this run)")
  return 0, config.init_checkpoint
