"""Lowers training steps to StableHLO with TensorFlow's op registry for the TPU, without a TPU, or for processors.

It runs as a process: each line of stdin is a request in JSON, and each line of stdout is an answer in JSON (see
`serve`).

The lowered function is albert.training.loop.Trainer.replica_step, with the task, model and optimizer of a training run.
Only the variables are replaced, since there is no TPU that could hold them: each variable becomes an argument of the
program, and its new value becomes a result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras
from tensorflow.python.eager import tape
from tensorflow.python.ops import resource_variable_ops

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, TrainConfig
from albert.data.dataset import Dataset, InputContext
from albert.optimizers.factory import make_optimizer
from albert.optimizers.gradients import Sharding
from albert.optimizers.schedules import make_schedule
from albert.tasks.base import Batch, Task
from albert.training.distribution import check_static_shapes
from albert.training.loop import Trainer
from albert.training.run_plan import TrainingPlan
from benchmarks.tpu import protocol
from benchmarks.tpu.programs import STEPS, Program

_WORD_EMBEDDINGS = "word_embeddings"


class ArgumentVariable(resource_variable_ops.UninitializedVariable):
  """A variable whose value is a tensor: at first an argument of the program, later the last value assigned to it.

  It uses no memory for its value. Before `bind` is called, its value is zeros, so that layers can be built.

  Attributes:
    one_hot: whether rows are looked up by a product with a one-hot matrix instead of a gather.
    initial_value_or_function: what the variable was created with: an initial value, or a function that returns it.
  """

  one_hot = False
  initial_value_or_function: Any = None
  _bound: tf.Tensor | None = None

  def bind(self, value: tf.Tensor | None) -> None:
    """Sets the value; None unbinds it."""
    self._bound = value

  @property
  def handle(self) -> tf.Tensor:
    """The tensor that a gradient tape watches."""
    return self._handle if self._bound is None else self._bound

  def value(self) -> tf.Tensor:
    """The current value."""
    if self._bound is None:
      return tf.zeros(self.shape, self.dtype)
    tape.variable_accessed(self)
    return self._bound

  def read_value(self) -> tf.Tensor:
    """The current value."""
    return self.value()

  def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
    del no_copy
    return self.value()

  def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """The rows with the given indices. tf.gather calls this."""
    del name
    if self.one_hot:
      dtype = keras.mixed_precision.global_policy().compute_dtype
      one_hot_rows = tf.one_hot(tf.reshape(indices, [-1]), self.shape[0], dtype=dtype)
      rows = tf.matmul(one_hot_rows, tf.cast(self.value(), dtype))
      return tf.cast(tf.reshape(rows, [*indices.shape, self.shape[1]]), self.dtype)
    return tf.gather(self.value(), indices)

  def assign(self, value: Any, *unused: Any, **options: Any) -> ArgumentVariable:
    """Sets the value."""
    del unused, options
    self._bound = tf.cast(tf.convert_to_tensor(value), self.dtype)
    return self

  def assign_add(self, delta: Any, *unused: Any, **options: Any) -> ArgumentVariable:
    """Adds to the value."""
    return self.assign(self.value() + tf.cast(delta, self.dtype), *unused, **options)

  def assign_sub(self, delta: Any, *unused: Any, **options: Any) -> ArgumentVariable:
    """Subtracts from the value."""
    return self.assign(self.value() - tf.cast(delta, self.dtype), *unused, **options)


class Core(tf.distribute.ReplicaContext):
  """The replica context of one of `num_replicas` cores. It sums over all cores, as TPUStrategy does."""

  def __init__(self, replica_id: tf.Tensor, num_replicas: int):
    super().__init__(tf.distribute.get_strategy(), replica_id)
    self._group = [list(range(num_replicas))]

  def all_reduce(self, reduce_op: str, value: Any, options: Any = None) -> Any:
    """Sums tensors over the cores."""
    del options
    assert reduce_op == "SUM"
    if len(self._group[0]) == 1:
      return value

    def sum_over_cores(tensor: tf.Tensor) -> tf.Tensor:
      return tf.raw_ops.CrossReplicaSum(input=tensor, group_assignment=self._group)

    return tf.nest.map_structure(sum_over_cores, value)


def make_with_argument_variables(make: Callable[[], Any], *, one_hot: bool) -> tuple[Any, list[ArgumentVariable]]:
  """Calls a function so that every variable it creates is an ArgumentVariable.

  Args:
    make: the function.
    one_hot: whether rows of the word embeddings are looked up by a product with a one-hot matrix.

  Returns:
    The result of `make`, and the variables in the order of their creation.
  """
  variables: list[ArgumentVariable] = []

  def creator(next_creator: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
    del next_creator
    initial, shape, dtype = settings["initial_value"], settings.get("shape"), settings.get("dtype")
    if not callable(initial):
      initial = tf.convert_to_tensor(initial, dtype)
      shape, dtype = initial.shape, initial.dtype
    variable = ArgumentVariable(
      trainable=settings.get("trainable") is not False,
      name=settings.get("name"),
      shape=tf.TensorShape(shape),
      dtype=tf.as_dtype(dtype),
    )
    variable.initial_value_or_function = settings["initial_value"]
    variable.one_hot = one_hot and _WORD_EMBEDDINGS in variable.name and variable.trainable
    variables.append(variable)
    return variable

  results: list[Any] = []

  @tf.function(autograph=False)
  def trace() -> None:  # in a graph, so that layers are built from symbolic tensors and nothing is computed
    with tf.variable_creator_scope(creator):
      results.append(make())

  trace.get_concrete_function()
  return results[0], variables


class Step:
  """The training step of a program, which can be lowered for any batch size.

  Args:
    program: the program.
    directory: an empty directory for the files of the task.
    model: the model config; None for the one that the program names.
    task_and_data: the task and its training data; None for generated data.
    precision: "bfloat16" or "float32".
    optimizer: the optimizer's settings; None for the defaults of the program's optimizer.
    num_train_steps: the number of steps that the schedule of the learning rate is made for.
  """

  def __init__(
    self,
    program: Program,
    directory: Path,
    model: ModelConfig | None = None,
    *,
    task_and_data: tuple[Task, Dataset] | None = None,
    precision: str = "bfloat16",
    optimizer: OptimizerConfig | None = None,
    num_train_steps: int = TrainConfig.num_train_steps,
  ):
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()  # as albert.estimator does
    keras.mixed_precision.set_global_policy("mixed_bfloat16" if precision == "bfloat16" else precision)
    self.program = program
    self.optimizer = optimizer or OptimizerConfig(optimizer=program.optimizer)
    self.num_train_steps = num_train_steps
    make_task_and_data = STEPS[program.step]
    self.task, self.data = task_and_data or make_task_and_data(model or program.model_config, program.length, directory)
    self.trainer, self.variables = make_with_argument_variables(self._make_trainer, one_hot=program.one_hot)

  def _make_trainer(self) -> Trainer:
    optimizer_config = self.optimizer
    train = TrainConfig(
      num_train_steps=self.num_train_steps,
      gradient_accumulation_steps=self.program.gradient_accumulation_steps,
      recompute_grad=self.program.recompute_grad,
    )
    keras_model = self.task.build_model()
    keras_model.encoder.recompute_grad = train.recompute_grad
    optimizer = make_optimizer(
      optimizer_config, make_schedule(optimizer_config, train.num_train_steps, train.train_batch_size)
    )
    if self.program.shard_optimizer_state:
      optimizer.sharding = Sharding(self.program.num_cores, reduce_scatter=True)
    plan = TrainingPlan(strategy=tf.distribute.get_strategy(), train=train, optimizer=optimizer_config)
    return Trainer(self.task, keras_model, optimizer, plan)

  def __call__(self, values: Sequence[tf.Tensor], batch: Batch, replica_id: tf.Tensor, num_replicas: int) -> list[Any]:
    """Runs one update. Returns the new values of all variables as tensors."""
    for variable, value in zip(self.variables, values, strict=True):
      variable.bind(value)
    with Core(replica_id, num_replicas):
      self.trainer.replica_step(batch)
    results = [variable.value() for variable in self.variables]
    for variable in self.variables:
      variable.bind(None)
    return results

  def checkpoint_names(self) -> dict[int, str]:
    """Returns number of a variable -> its name in a checkpoint, for the variables that a checkpoint holds."""
    numbers = {variable.ref(): number for number, variable in enumerate(self.variables)}
    # Under mixed precision Keras wraps the variables of a layer.
    unwrapped = {name: getattr(variable, "_variable", variable) for name, variable in self.trainer.state().items()}
    return {numbers[variable.ref()]: name for name, variable in unwrapped.items()}

  def stablehlo(self, batch_size: int, num_replicas: int, platform: str = "TPU") -> str:
    """Lowers the step to StableHLO.

    Args:
      batch_size: number of sequences (for multiple choice: of examples) on each core.
      num_replicas: number of cores.
      platform: TensorFlow's name of the device, "TPU" or "CPU". The program for "CPU" has no custom calls, so XLA can
        compile it for any device. Its random numbers are those that a step compiled by XLA draws on a processor.

    Returns:
      The program of a core as text. Its arguments are the variables, the features of the batch and the core's number
      (int32 []); its results are the variables.
    """
    features = batch_specs(self.data, batch_size)
    num_variables = len(self.variables)

    def step(*arguments: tf.Tensor) -> list[tf.Tensor]:
      batch = dict(zip(features, arguments[num_variables:-1], strict=True))
      return self(arguments[:num_variables], batch, arguments[-1], num_replicas)

    specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.variables]
    specs += [*features.values(), tf.TensorSpec([], tf.int32)]
    lowered = tf.function(step, jit_compile=True).experimental_get_compiler_ir(*specs)
    return str(lowered(stage="stablehlo", platform_name=platform))


def batch_specs(data: Dataset, batch_size: int) -> dict[str, tf.TensorSpec]:
  """The features of a core's batch, as the input pipeline returns them. UserError if a size is not static."""
  batches = data.training_batches(batch_size=batch_size, first_step=0, seed=0, context=InputContext(0, 1, 1))
  check_static_shapes(batches.element_spec)
  return dict(batches.element_spec)


def serve() -> None:
  """Answers requests {"program": {...}, "batch_size", "path"}: writes StableHLO to `path`."""
  steps: dict[Program, Step] = {}

  def answer(request: dict[str, Any]) -> dict[str, Any]:
    program = Program(**request["program"])
    if program not in steps:
      steps.clear()
      steps[program] = Step(program, Path(tempfile.mkdtemp(dir=directory)))
    step = steps[program]
    text = step.stablehlo(request["batch_size"], program.num_cores)
    Path(request["path"]).write_text(text, encoding="utf-8")
    parameters = sum(variable.shape.num_elements() for variable in step.trainer.weights.values())
    return {"num_variables": len(step.variables), "parameters": parameters}

  with tempfile.TemporaryDirectory() as directory:
    protocol.serve(answer)


if __name__ == "__main__":
  serve()
