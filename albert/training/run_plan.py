"""Decisions that are made once per run, from its settings, its devices and its training data.

Some settings do not have their final value yet: `auto`, 0 for "one per host", or a number of epochs instead of steps. A
RunPlan and a TrainingPlan hold the final values. They are frozen; all other code only reads them.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig, resolve_warmup, stage_name, steps_of_stages
from albert.data.dataset import Dataset
from albert.data.manifest import DataContent
from albert.errors import UserError
from albert.io.progress import log
from albert.settings.costs import step_flops
from albert.tasks.base import TrainingStage
from albert.training import distribution


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan:
  """The devices and the precision of a run, decided before its model is built.

  Attributes:
    config: the settings, with the resolved number of input parts as train.input_parts.
    strategy: the tf.distribute strategy over the devices.
    precision: compute dtype of the layers in training, "float32", "bfloat16" or "float16".
    evaluation_precision: compute dtype of the layers in evaluations and predictions.
    deterministic: whether operations are deterministic, so that a resumed run has the same bits.
    devices: a line for the log that names the devices, their memory and the precision.
  """

  config: RunConfig
  strategy: tf.distribute.Strategy
  precision: str
  evaluation_precision: str
  deterministic: bool = True
  devices: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePlan:
  """One stage of a run. A run that is not divided into stages has a single StagePlan.

  Attributes:
    number: 1 for the first stage.
    num_stages: number of stages of the run.
    first_step: number of updates before the stage.
    last_step: number of updates at its end.
    train: the training settings, with the batch size of the stage and the steps of the whole run.
    model_config: the model as the stage trains it: its depth and its dropout.
    data: the data. Its training batches begin after the examples that earlier stages have used.
    settings: settings of the data for config.json; {} if the run is not divided into stages.
  """

  number: int
  num_stages: int
  first_step: int
  last_step: int
  train: TrainConfig
  model_config: ModelConfig
  data: Dataset
  settings: Mapping[str, Any]

  @property
  def is_of_divided_run(self) -> bool:
    """Whether the run is divided into stages. A stage of such a run has at least one setting."""
    return bool(self.settings)

  @property
  def num_epochs(self) -> float:
    """Number of passes over the data of this stage."""
    return (self.last_step - self.first_step) * self.train.train_batch_size / self.data.num_examples

  @property
  def step_cost(self) -> float:
    """Number of floating-point operations of a step. The run must be divided into stages."""
    length = self.settings["max_seq_length"]
    return step_flops(self.model_config, batch_size=self.train.train_batch_size, seq_length=length, predictions=None)

  def to_dict(self) -> dict[str, Any]:
    """Returns the values that config.json records. A resumed run must have the same values."""
    model = self.model_config
    return {
      "first_step": self.first_step,
      "last_step": self.last_step,
      "num_hidden_layers": model.num_hidden_layers,
      "hidden_dropout_prob": model.hidden_dropout_prob,
      "attention_probs_dropout_prob": model.attention_probs_dropout_prob,
      "train_batch_size": self.train.train_batch_size,
      "num_files": len(self.data.content.files),
      **self.settings,
    }

  def describe(self, num_layers: int) -> str:
    """Returns a line for the log: the steps of the stage, and the settings in which stages may differ.

    Args:
      num_layers: number of layers of the whole model.
    """
    model, settings = self.model_config, self.settings
    is_shallow = model.num_hidden_layers < num_layers
    phrases = [
      f"{stage_name(self.number - 1, self.num_stages)}: steps {self.first_step + 1} to {self.last_step}",
      f"{model.num_hidden_layers} of {num_layers} layers{' (evaluations use all, so they look bad)' * is_shallow}",
      f"batches of {self.train.train_batch_size}",
      f"sequences of {settings['max_seq_length']} tokens",
    ]
    if model.hidden_dropout_prob or model.attention_probs_dropout_prob:
      phrases.append(f"dropout {model.hidden_dropout_prob:g} (attention {model.attention_probs_dropout_prob:g})")
    if settings.get("masked_lm_prob"):
      phrases.append(f"{settings['masked_lm_prob']:g} of the tokens masked")
    return f"{', '.join(phrases)}, {self.data.describe()} ({self.num_epochs:.2f} epochs)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPlan:
  """How a model is trained, decided when the training data is known.

  Attributes:
    strategy: the tf.distribute strategy over the devices.
    train: the training settings, with the resolved numbers of steps and input parts.
    optimizer: the optimizer's settings, with the resolved length of the warm-up.
    jit_compile: whether the loop compiles the training step with XLA (see resolve_jit_compile). On a TPU the strategy
      compiles it in any case.
    stages: the stages in order, which together have all steps; () for a trainer whose batches the caller makes.
  """

  strategy: tf.distribute.Strategy
  train: TrainConfig
  optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
  jit_compile: bool = False
  stages: tuple[StagePlan, ...] = ()

  def stages_after(self, step: int) -> tuple[StagePlan, ...]:
    """Returns the stages that are unfinished after `step` updates; the last stage if the run is finished."""
    return tuple(stage for stage in self.stages if stage.last_step > step) or self.stages[-1:]

  def cost(self, step: int) -> float:
    """Returns the cost of the first `step` steps: their number, or with several stages their operations."""
    if len(self.stages) == 1:
      return step
    return sum(stage.step_cost * max(0, min(stage.last_step, step) - stage.first_step) for stage in self.stages)


def plan_run(config: RunConfig) -> RunPlan:
  """Connects to the devices and decides what depends on them.

  Args:
    config: the settings as the user gave them.
  Raises:
    UserError: there is no such device, or the hosts cannot share the input parts evenly.
    RunError: the other processes cannot be reached.
  """
  strategy = distribution.make_strategy(config.train)
  input_parts = resolve_input_parts(config.train.input_parts, distribution.num_hosts(strategy))
  precision = resolve_precision(config.train.precision, strategy)
  facts = distribution.GpuFacts() if isinstance(strategy, tf.distribute.TPUStrategy) else distribution.find_gpu_facts()
  if not tf.config.list_logical_devices("GPU") and (warning := distribution.unused_gpu_warning(facts)):
    log(warning)
  return RunPlan(
    config=dataclasses.replace(config, train=dataclasses.replace(config.train, input_parts=input_parts)),
    strategy=strategy,
    precision=precision,
    evaluation_precision=resolve_evaluation_precision(config, precision, strategy),
    deterministic=resolve_deterministic(config.train.deterministic),
    devices=distribution.describe_devices(strategy, precision, facts),
  )


def plan_training(plan: RunPlan, stages: Sequence[TrainingStage]) -> TrainingPlan:
  """Decides what depends on the training data: the number of steps, the stages, and whether XLA compiles the step.

  Args:
    plan: the plan of the run.
    stages: the stages of training, with their data.
  Raises:
    UserError: the number of epochs gives too many steps, or a stage has no step or batches that the replicas cannot
      share.
  """
  config, strategy = plan.config, plan.strategy
  if config.train.shard_optimizer_state:
    check_sharding(strategy, config.optimizer)
  num_examples: float = stages[-1].data.num_examples
  if stages[-1].is_of_divided_run:  # the examples of an epoch, averaged over the stages
    num_examples = config.train.train_batch_size / _epochs_per_step(stages, config.train)
  if config.train.max_train_seconds and len(stages) > 1:
    raise UserError(
      f"--max_train_seconds={config.train.max_train_seconds:g}: the stages of a run are shares of a known number of "
      "steps: leave out the time or the stages"
    )
  train = dataclasses.replace(config.train, num_train_steps=config.train.num_steps(num_examples))
  stage_plans = _plan_stages(stages, train, strategy)
  last_stage = stage_plans[-1]
  jit_compile = resolve_jit_compile(
    train.jit_compile, strategy, lambda: distribution.element_spec(strategy, last_stage.train, last_stage.data)
  )
  if jit_compile:
    stage_plans = _with_few_lengths(stage_plans, strategy)
  optimizer = resolve_warmup(config.optimizer, train.num_train_steps, is_default=config.warmup_is_default)
  return TrainingPlan(strategy=strategy, train=train, optimizer=optimizer, jit_compile=jit_compile, stages=stage_plans)


def _epochs_per_step(stages: Sequence[TrainingStage], train: TrainConfig) -> float:
  """Returns the mean share of an epoch that a step takes. The epochs of a stage are passes over its own data."""
  mean_share, stage_start = 0.0, 0.0  # stage_start: share of all steps before the stage
  for stage in stages:
    batch_size = stage.train_batch_size or train.train_batch_size
    mean_share += (stage.until - stage_start) * batch_size / stage.data.num_examples
    stage_start = stage.until
  return mean_share


def _plan_stages(
  stages: Sequence[TrainingStage], train: TrainConfig, strategy: tf.distribute.Strategy
) -> tuple[StagePlan, ...]:
  """Plans the stages. Of stages with the same data, a later one continues where the earlier one ended."""
  plans: list[StagePlan] = []
  steps = steps_of_stages([stage.until for stage in stages], train.num_train_steps)
  num_used_examples: dict[Any, int] = {}  # key of a dataset -> number of its examples that earlier stages use
  for index, stage in enumerate(stages):
    try:
      stage_train = dataclasses.replace(train, train_batch_size=stage.train_batch_size or train.train_batch_size)
      distribution.check_batches(stage_train, strategy, trains=True, evaluates=False)
      if len(stages) > 1 and train.input_parts > 1:
        distribution.element_spec(strategy, stage_train, stage.data)  # checks that the input parts can share the files
    except UserError as error:
      raise UserError(f"{stage_name(index, len(stages))}: {error}" if len(stages) > 1 else str(error)) from error
    first_step, last_step = steps[index]
    content = stage.data.content
    data_key = content.sha256 if content.files else id(stage.data)
    num_used = num_used_examples.get(data_key, 0)
    num_used_examples[data_key] = num_used + (last_step - first_step) * stage_train.train_batch_size
    plans.append(
      StagePlan(
        number=index + 1,
        num_stages=len(stages),
        first_step=first_step,
        last_step=last_step,
        train=stage_train,
        model_config=stage.model_config,
        data=stage.data.starting_at(num_used),
        settings=stage.settings,
      )
    )
  return tuple(plans)


def joint_content(stages: Sequence[StagePlan]) -> DataContent:
  """Returns the content of the data of all stages, in order. Data that several stages share is listed once."""
  contents = {stage.data.content.sha256: stage.data.content for stage in stages}
  if len(contents) == 1:
    return stages[0].data.content
  return DataContent(tuple(file for content in contents.values() for file in content.files))


def check_sharding(strategy: tf.distribute.Strategy, optimizer: OptimizerConfig) -> None:
  """Checks that the moments can be divided among the replicas (--shard_optimizer_state).

  Args:
    strategy: the strategy of the run.
    optimizer: the optimizer's settings.
  Raises:
    UserError: there is one replica, or several processes hold the replicas, or the optimizer is tfa_lamb.
  """
  if strategy.num_replicas_in_sync == 1 or isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    raise UserError(
      "--shard_optimizer_state divides the moments among several devices of one process: leave it out, or train in one "
      "process on several devices or on a TPU"
    )
  if optimizer.optimizer == "tfa_lamb":
    raise UserError(
      "--shard_optimizer_state does not work with --optimizer=tfa_lamb: give --optimizer=lamb --bias_correction"
    )


def resolve_input_parts(input_parts: int, hosts: int) -> int:
  """Resolves the number of parts that the shards are divided into.

  Args:
    input_parts: value of --input_parts; 0 stands for one per host.
    hosts: number of machines that read training data.
  Raises:
    UserError: `input_parts` is not a multiple of `hosts`.
  """
  if input_parts % hosts:
    raise UserError(f"--input_parts={input_parts} cannot be shared evenly by {hosts} hosts: give a multiple of {hosts}")
  return input_parts or hosts


def is_evaluation_due(config: TrainConfig, step: int, *, is_over: bool) -> bool:
  """Whether an evaluation is due after `step` updates: every eval_every_steps, and if the run is over."""
  return bool(config.eval_every_steps) and (is_over or step % config.eval_every_steps == 0)


def resolve_precision(precision: str, strategy: tf.distribute.Strategy) -> str:
  """Resolves the compute dtype, "float32", "bfloat16" or "float16".

  `auto` is bfloat16 on hardware with bfloat16 multiplication: TPUs, GPUs since Ampere (compute capability 8.0), and
  CPUs with AMX or AVX512-BF16. Otherwise it is float32.

  Args:
    precision: value of --precision; `auto` never means float16.
    strategy: the strategy over the devices.
  Raises:
    UserError: "float16" on a TPU.
  """
  is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
  if is_tpu and precision == "float16":
    raise UserError("--precision=float16: a TPU multiplies in bfloat16: give --precision=bfloat16")
  if precision != "auto":
    return precision
  if is_tpu:
    return "bfloat16"
  gpus = tf.config.list_physical_devices("GPU")
  if gpus:
    capability = tf.config.experimental.get_device_details(gpus[0]).get("compute_capability", (0, 0))
    return "bfloat16" if capability >= (8, 0) else "float32"
  return "bfloat16" if _cpu_flags() & {"amx_bf16", "avx512_bf16"} else "float32"


def resolve_evaluation_precision(config: RunConfig, precision: str, strategy: tf.distribute.Strategy) -> str:
  """Resolves the compute dtype of evaluations and predictions.

  On a processor it is float32, unless the command chooses another one. So every processor gives the same results.

  Args:
    config: the settings of the command.
    precision: the compute dtype of training.
    strategy: the strategy over the devices.
  """
  is_chosen = config.train.precision != "auto" and not config.precision_is_default
  has_accelerator = isinstance(strategy, tf.distribute.TPUStrategy) or tf.config.list_physical_devices("GPU")
  return precision if has_accelerator or is_chosen else "float32"


def resolve_deterministic(deterministic: str) -> bool:
  """Decides whether operations are deterministic.

  `auto` means true without a GPU. On GPUs TensorFlow has slower deterministic kernels for some operations, and none for
  others, which then raise an error. How much they cost there was not measured.

  Args:
    deterministic: value of --deterministic: "true", "false" or "auto".
  """
  if deterministic != "auto":
    return deterministic == "true"
  return not tf.config.list_logical_devices("GPU")


def resolve_jit_compile(
  jit_compile: str, strategy: tf.distribute.Strategy, make_element_spec: Callable[[], distribution.ElementSpec]
) -> bool:
  """Decides whether the loop compiles the training step with XLA. On a TPU, the strategy compiles it instead.

  `auto` means true on GPUs if all batches have the same shape. XLA compiles the step once for each shape. On a CPU the
  step is slower with XLA, which does not use oneDNN for matrix products (see benchmarks/results). With one replica the
  whole step is compiled; with several, each compiles its forward and backward pass, without the sums over replicas and
  the optimizer.

  Args:
    jit_compile: value of --jit_compile: "true", "false" or "auto".
    strategy: the strategy over the devices.
    make_element_spec: returns the shapes of the batches. It is called only if the decision depends on them.
  """
  if isinstance(strategy, tf.distribute.TPUStrategy):
    return False
  if jit_compile != "auto":
    return jit_compile == "true"
  has_gpu = bool(tf.config.list_logical_devices("GPU"))
  return has_gpu and not distribution.features_of_varying_shape(make_element_spec())


def _with_few_lengths(stages: tuple[StagePlan, ...], strategy: tf.distribute.Strategy) -> tuple[StagePlan, ...]:
  """Pads batches whose lengths vary to one of a few lengths, so that XLA compiles the step only a few times."""
  specs = (distribution.element_spec(strategy, stage.train, stage.data) for stage in stages)
  if not any(map(distribution.features_of_varying_shape, specs)):
    return stages
  log("--jit_compile=true: XLA compiles the step for each of at most 4 lengths; --pad_to_max_length gives one length")
  return tuple(dataclasses.replace(stage, data=stage.data.with_few_lengths()) for stage in stages)


def _cpu_flags() -> set[str]:
  """Returns the names of the CPU's instruction sets, as Linux reports them; empty on other systems."""
  if not os.path.exists("/proc/cpuinfo"):
    return set()
  with open("/proc/cpuinfo", encoding="utf-8") as file:
    match = re.search(r"^flags\s*:(.*)$", file.read(), re.MULTILINE)
  return set(match[1].split()) if match else set()
