"""Builds the model of a run, and loads weights into it before training, evaluation or prediction.

A run needs its own dtype policy, seed and deterministic kernels, which Keras and TensorFlow keep for the whole process.
The context managers restore the previous value on exit, so that a notebook can make an Estimator and go on with models
of its own.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tf_keras as keras
from tensorflow.python.framework import config as tf_config  # TensorFlow exports no function that disables determinism
from tf_keras.src import backend  # Keras exports no function that reads or restores its seed generator

from albert.config.run import RunConfig
from albert.errors import UserError
from albert.io.progress import log
from albert.io.text import counted_names
from albert.runs import output_files
from albert.tasks.base import Task
from albert.training.run_plan import RunPlan
from albert.weights import checkpoints, initial_weights
from albert.weights.checkpoints import CheckpointManager


@contextlib.contextmanager
def dtype_policy(precision: str) -> Iterator[None]:
  """Sets the compute dtype of the layers that are made in this context. Their variables are float32 in any case.

  Args:
    precision: "float32", "bfloat16" or "float16".
  """
  previous = keras.mixed_precision.global_policy()
  keras.mixed_precision.set_global_policy(_policy_name(precision))
  try:
    yield
  finally:
    keras.mixed_precision.set_global_policy(previous)


@contextlib.contextmanager
def computing_in(precision: str, model: keras.Model) -> Iterator[None]:
  """Lets the layers of a model that was made under `dtype_policy` compute in another dtype in this context.

  A tf.function keeps the dtype that was set when it was traced. So trace it in the context if it is to compute in
  `precision`, and outside the context otherwise.

  Args:
    precision: "float32", "bfloat16" or "float16".
    model: the model. Its variables stay float32.
  """
  layers = [layer for layer in (model, *model.submodules) if isinstance(layer, keras.layers.Layer)]
  layers = [layer for layer in layers if layer.compute_dtype != "float32"]  # some always compute in float32
  policies = [layer.dtype_policy for layer in layers]
  try:
    for layer in layers:
      layer._set_dtype_policy(_policy_name(precision))
    yield
  finally:
    for layer, policy in zip(layers, policies, strict=True):
      layer._set_dtype_policy(policy)


def _policy_name(precision: str) -> str:
  """Returns Keras' name of the policy that computes in `precision` with float32 variables."""
  return "float32" if precision == "float32" else f"mixed_{precision}"


@contextlib.contextmanager
def initializer_seed(seed: int) -> Iterator[None]:
  """Makes the initial weights of the layers that are made in this context a function of `seed`.

  Keras has a random generator from which it takes the seeds of initializers. This context replaces it by a new one. The
  weights are the same as after keras.utils.set_random_seed(seed), but the generators of Python, NumPy and TensorFlow
  stay as they are.
  """
  previous = getattr(backend._SEED_GENERATOR, "generator", None)
  backend._SEED_GENERATOR.generator = random.Random(seed)
  try:
    yield
  finally:
    backend._SEED_GENERATOR.generator = previous  # to Keras, None is the same as no generator


@contextlib.contextmanager
def deterministic_ops() -> Iterator[None]:
  """Makes the operations that run in this context deterministic: equal inputs give bit-identical results.

  Without it, a resumed run would end with other weights than an uninterrupted one.
  """
  was_enabled = tf_config.is_op_determinism_enabled()
  tf.config.experimental.enable_op_determinism()
  try:
    yield
  finally:
    if not was_enabled:
      tf_config.disable_op_determinism()


class ModelWeights:
  """Builds the model of a run and loads weights into it, unless the model has them already.

  Args:
    task: builds the model, and defines which weights may be missing in init_checkpoint.
    plan: the devices, the precision and the settings of the run.

  Attributes:
    model: the model.
    step: the step at which the last training ended, or that of the checkpoint that was loaded later; 0 before both.
  """

  def __init__(self, task: Task, plan: RunPlan):
    self._task = task
    self._plan = plan
    self.model = self._build()
    # What the weights were loaded from: the files of a checkpoint, or the path of init_checkpoint; "" if all are newly
    # initialized, and None if it is not known.
    self._source: Any = ""
    self.step = 0

  def _build(self) -> keras.Model:
    config = self._plan.config
    with self._plan.strategy.scope(), dtype_policy(self._plan.precision), initializer_seed(config.train.seed):
      model = self._task.build_model()
    model.encoder.recompute_grad = config.train.recompute_grad
    return model

  def load_initial(self) -> list[str]:
    """Assigns the weights that a run starts from: newly initialized ones, then those of init_checkpoint, if given.

    Returns: the names of those that are newly initialized.
    """
    init_checkpoint = self._plan.config.init_checkpoint
    # The model has other weights, such as those of a training that was interrupted before its first checkpoint.
    if self._source not in ("", init_checkpoint):
      self._source = None
      new_weights = self._task.saved_variables(self._build())
      for name, variable in self._task.saved_variables(self.model).items():
        variable.assign(tf.convert_to_tensor(new_weights[name]))
    newly_initialized = list(self.model.named_weights())
    if init_checkpoint:
      newly_initialized = load_initial_weights(self._task, self.model, self._plan.config)
    self._source = init_checkpoint
    return newly_initialized

  def start_training(self, newest: checkpoints.Checkpoint | None, state: Mapping[str, tf.Variable]) -> None:
    """Assigns the state that training starts from.

    Args:
      newest: the checkpoint to resume from; None to start from the initial weights.
      state: the variables of a checkpoint by name, see Trainer.state.
    Raises:
      UserError: the weights do not fit the model.
    """
    if newest is not None:
      self._source = None
      checkpoints.restore(newest, state)
      log(f"resumed from {newest.path}")
    else:
      self._task.start_training(self.model, self.load_initial())
    self._source = None

  def check_not_lost(self, manager: CheckpointManager, *, has_checkpoint: bool) -> None:
    """Checks that the run still has a checkpoint if it had one before.

    Raises:
      UserError: it has none any more. The weights of init_checkpoint are not used instead.
    """
    if self.step and not has_checkpoint:
      raise UserError(f"{manager.directory}: holds no intact checkpoint any more: restore it, or train again")

  def load_trained(self, manager: CheckpointManager, purpose: str) -> int:
    """Assigns the weights of the run's newest or best checkpoint, unless the model has them, and logs which one it is.

    Args:
      manager: the checkpoints of the run. The setting select_checkpoint chooses the newest or the best of them. Without
        a checkpoint, the weights of init_checkpoint are used.
      purpose: what the weights are used for, such as "evaluating", for the log line.
    Returns: the step of the checkpoint; that of init_checkpoint is 0.
    Raises:
      UserError: there is neither a checkpoint nor init_checkpoint; the run has lost its checkpoints (see
        check_not_lost); they were trained with other settings of the task; or init_checkpoint lacks weights.
    """
    config = self._plan.config
    output_files.check_checkpoint_settings(config.output_dir, self._task.checkpoint_settings())
    checkpoint = manager.select(config.train.select_checkpoint)
    self.check_not_lost(manager, has_checkpoint=checkpoint is not None)
    if checkpoint is not None:
      source = manager.file_stats(checkpoint.step)
      is_new = not source or source != self._source
      if is_new:
        self._source = None
        checkpoints.restore(checkpoint, self._task.saved_variables(self.model))
        self._source = source
      self.step = checkpoint.step
      best_evaluation = manager.best()
      notes = [f"step {checkpoint.step}"]
      if best_evaluation and best_evaluation.step == checkpoint.step:
        notes.append(f"the best by {best_evaluation.metric}")
      if checkpoint.step == max(manager.steps()):
        notes.append("the newest")
      notes.append(self._plan.evaluation_precision)
      log(f"{purpose} with {checkpoint.path} ({', '.join(notes)})", is_detail=not is_new)
      return checkpoint.step
    if not config.init_checkpoint:
      reason = "no undamaged checkpoint (of several runs only the best keeps some)"
      raise UserError(f"{manager.directory} has {reason}: restore one, train or give --init_checkpoint")
    if self._source != config.init_checkpoint and (missing := self.load_initial()):
      self._source = None
      raise UserError(
        f"--init_checkpoint={config.init_checkpoint}: lacks {counted_names(missing, 'weight')}; give --do_train, too"
      )
    dtype = self._plan.evaluation_precision
    log(f"{purpose} with {config.init_checkpoint} (step 0: not trained in this run, {dtype})")
    return 0


def load_initial_weights(task: Task, model: keras.Model, config: RunConfig) -> list[str]:
  """Assigns the weights of --init_checkpoint to a model, and logs which weights stay newly initialized.

  Args:
    task: defines which weights may be missing in the checkpoint, and which weights are not loaded from it.
    model: the model that gets the weights.
    config: the settings of the run. Only init_checkpoint and init_from_shallower are used.
  Returns: the names of the weights that stay newly initialized.
  Raises:
    UserError: the checkpoint cannot be read or does not fit the model.
  """
  weights = model.named_weights()
  reinitialized = [name for name in weights if name.startswith(tuple(task.reinitialized_weights))]
  not_in_checkpoint = initial_weights.warm_start(
    config.init_checkpoint,
    {name: variable for name, variable in weights.items() if name not in reinitialized},
    newly_initialized=task.new_weights,
    ignored=(*task.ignored_weights, *task.reinitialized_weights),
    unused=task.unused_weights,
    from_shallower=config.init_from_shallower,
    config=task.model_config,
    head_settings=task.head_settings(),
    vocabulary=task.vocabulary(),
    labels=() if reinitialized else task.output_labels,
  )
  newly_initialized = not_in_checkpoint + reinitialized
  note = f"; newly initialized: {', '.join(newly_initialized)}" if newly_initialized else ""
  log(f"started from {config.init_checkpoint}{note}", is_detail=True)
  return newly_initialized
