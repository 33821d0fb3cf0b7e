"""The weights that a model gets before it is trained, evaluated or asked for predictions."""

from __future__ import annotations

import tf_keras as keras

from albert.config.run import RunConfig
from albert.errors import UserError
from albert.runs import run_directory
from albert.runs.metrics_log import log
from albert.tasks.base import Task
from albert.weights import checkpoints, warm_start
from albert.weights.checkpoints import CheckpointManager


def load_initial_weights(task: Task, model: keras.Model, config: RunConfig) -> None:
  """Assigns the weights of --init_checkpoint, and prints which weights are newly initialized instead."""
  weights = model.named_weights()
  replaced = [name for name in weights if name.startswith(tuple(task.reinitialized_weights))]
  kept = warm_start.warm_start(
    config.init_checkpoint,
    {name: variable for name, variable in weights.items() if name not in replaced},
    fresh=task.new_weights,
    ignored=(*task.ignored_weights, *task.reinitialized_weights),
    unused=task.unused_weights,
    from_shallower=config.init_from_shallower,
    config=task.model_config,
    head_settings=task.head_settings(),
    vocabulary=task.vocabulary(),
  )
  new = kept + replaced
  log(f"started from {config.init_checkpoint}" + (f"; fresh: {', '.join(new)}" if new else ""))


def load_trained_weights(
  task: Task, model: keras.Model, manager: CheckpointManager, config: RunConfig, purpose: str
) -> tuple[int, str]:
  """Assigns the weights to evaluate or predict with, and prints where they come from.

  Args:
    task: of the run.
    model: gets the weights.
    manager: of the run's checkpoints; the choice among them is config.train.select_checkpoint.
    config: of the command; its init_checkpoint is used if the run has no checkpoint.
    purpose: what the weights are for, to print.
  Returns: step and path of the checkpoint; step 0 for init_checkpoint.
  Raises:
    UserError: there is neither, or the run's checkpoints were trained with other settings of the task.
  """
  run_directory.check_checkpoint_settings(config.output_dir, task.checkpoint_settings())
  chosen, skipped = manager.best_or_latest() if config.train.select_checkpoint == "best" else manager.latest()
  for line in skipped:
    log(f"warning: {line}")
  if chosen is not None:
    checkpoints.restore(chosen, model.named_weights())
    best = manager.best()
    kinds = [f"the best by {best.metric}"] if best and best.step == chosen.step else []
    kinds += ["the newest"] if chosen.step == max(manager.steps()) else []
    log(f"{purpose} with {chosen.path} ({', '.join([f'step {chosen.step}', *kinds])})")
    return chosen.step, chosen.path
  if not config.init_checkpoint:
    raise UserError(
      f"{manager.directory} holds no checkpoint that verifies: train first (--do_train) or give --init_checkpoint"
    )
  load_initial_weights(task, model, config)
  log(f"{purpose} with --init_checkpoint={config.init_checkpoint} (step 0: not trained here)")
  return 0, config.init_checkpoint
