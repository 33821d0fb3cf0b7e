"""The config of a run: what it does, how it trains, and how it optimizes. It is saved as config.json in output_dir.

Every field is also a flag; its help text, its default and its range are declared here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from albert.config import base
from albert.config.base import Config, changeable_option, evaluation_option, option
from albert.config.command_flags import INT32_MAX, MAX_BATCH_SIZE, MAX_PROCESSES
from albert.errors import UserError
from albert.io import json_values
from albert.io.progress import log
from albert.io.text import format_value

# An option that depends on the machine or on the command, so that later commands on the run do not reuse its value.
_command_option = functools.partial(option, per_command=True)
_device_option = functools.partial(_command_option, group=base.DEVICES)
_logging_option = functools.partial(changeable_option, group=base.LOGGING)
_execution_option = functools.partial(changeable_option, group=base.DEVICES)
REFERENCE_BATCH_SIZE = 4096  # the batch size of the paper's learning rate 0.00176 (ALBERT, section 4.1)
_SHORT_RUN_WARMUP_SHARE = 0.1  # of a short run, unless the user has chosen a length of the warm-up
USUAL_STEPS, USUAL_EPOCHS = 200, 3  # fine-tuning usually needs at least this many
_MANY_TIMES = 10  # a fine-tuning of more than this many times the usual steps gets a warning


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
  """LAMB or AdamW with a linear warm-up and a polynomial decay of the learning rate (ALBERT, section 4.1)."""

  help_group: ClassVar[str] = base.OPTIMIZER

  optimizer: str = option(
    "lamb",
    "optimizer; tfa_lamb: LAMB of tensorflow-addons, which needs the environment of constraints/tf215-tfa.txt",
    choices=("lamb", "adamw", "tfa_lamb"),
  )
  learning_rate: float = option(1.76e-3, "peak learning rate, reached at the end of the warm-up", above=0)
  num_warmup_steps: int = option(
    3125,
    "number of steps in which the learning rate rises linearly from 0 to its peak. A default that would take more than "
    "half of the run becomes a tenth of the run",
    minimum=0,
  )
  warmup_proportion: float = option(
    0.0,
    "length of the warm-up as a fraction of num_train_steps, instead of --num_warmup_steps; 0: not used",
    minimum=0,
    below=1,
    instead_of="num_warmup_steps",
  )
  end_learning_rate: float = option(0.0, "learning rate at the last step", minimum=0)
  decay_power: float = option(1.0, "power of the polynomial decay; 1: linear decay", above=0)
  weight_decay: float = option(0.01, "weight decay; LayerNorm parameters and biases are not decayed", minimum=0)
  beta_1: float = option(0.9, "decay rate of the first moment", minimum=0, below=1)
  beta_2: float = option(0.999, "decay rate of the second moment", minimum=0, below=1)
  epsilon: float = option(
    1e-6, "constant added to the square root of the second moment, against division by zero", above=0
  )
  clip_norm: float = option(
    1.0, "gradients whose global norm is larger are scaled down to this norm; 0: no clipping", minimum=0
  )
  bias_correction: bool = option(
    False, "correct the bias of the moments towards zero in the first steps, which the original code does not"
  )
  layerwise_learning_rate_decay: float = option(
    1.0,
    "each group of layers has the learning rate of the group above it, multiplied by this factor; 1: no decay",
    above=0,
  )
  scale_learning_rate: bool = option(False, "multiply learning_rate by sqrt(train_batch_size / 4096)")

  def peak_learning_rate(self, train_batch_size: int) -> float:
    """Returns the learning rate at the end of the warm-up, scaled for the batch with scale_learning_rate."""
    scale = math.sqrt(train_batch_size / REFERENCE_BATCH_SIZE) if self.scale_learning_rate else 1.0
    return self.learning_rate * scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
  """How long a run trains, what it saves, and on which devices it runs.

  A step is one update of the weights. Batch sizes are global: they count the sequences on all replicas.
  """

  help_group: ClassVar[str] = base.TRAINING

  train_batch_size: int = option(
    4096, "number of sequences per update of the weights, over all replicas", minimum=1, maximum=MAX_BATCH_SIZE
  )
  eval_batch_size: int = evaluation_option(
    64,
    "number of sequences per batch in evaluation and prediction, over all replicas",
    minimum=1,
    maximum=MAX_BATCH_SIZE,
  )
  num_train_steps: int = option(125000, "number of updates of the weights", minimum=1)
  num_train_epochs: float = option(
    0.0,
    "number of passes over the training data, rounded up to whole steps, instead of --num_train_steps; 0: not used",
    minimum=0,
    instead_of="num_train_steps",
  )
  max_train_seconds: float = option(
    0.0,
    "stop after this many seconds of training steps, or after --num_train_steps if that is earlier; the speed in the "
    "warm-up decides over how many steps the learning rate decays; 0: no limit",
    minimum=0,
  )
  gradient_accumulation_steps: int = option(
    1,
    "number of micro-batches per update; their gradients are added up one after another, which needs less memory",
    minimum=1,
  )
  save_checkpoints_steps: int = _logging_option(
    0,
    "number of steps between checkpoints; 0: a kill loses at most a tenth of the run (two to 30 minutes)",
    minimum=0,
  )
  keep_checkpoints: int = _logging_option(5, "number of newest checkpoints to keep; the best is kept, too", minimum=1)
  log_every_steps: int = _logging_option(
    0, "number of steps between lines of metrics.jsonl; 0: a run has 25 to 50 lines", minimum=0
  )
  steps_per_loop: int = _execution_option(
    100, "largest number of training steps that the host starts with one call to the device", minimum=1
  )
  eval_every_steps: int = evaluation_option(
    0, "number of steps between evaluations during training; 0: evaluate only after training", minimum=0
  )
  early_stopping_patience: int = option(
    0,
    "stop training after this many evaluations in a row without a better result (needs --eval_every_steps); 0: never",
    minimum=0,
    group=base.EVALUATION,
  )
  select_checkpoint: str = option(
    "newest", "checkpoint that is evaluated and used for predictions", choices=("newest", "best"), group=base.EVALUATION
  )
  max_eval_steps: int = evaluation_option(
    0, "largest number of batches in an evaluation, of a random sample that is always the same; 0: all", minimum=0
  )
  seed: int = option(
    12345,
    "random seed of the initial weights, the order of the data, and dropout; --random_seed is another name for it",
    minimum=0,
    below=2**31,
  )
  precision: str = option(
    "auto",
    "compute dtype of matrix products; auto: bfloat16 if the hardware multiplies it, else float32, and on CPUs float32 "
    "in evaluations and predictions; float16 scales the loss dynamically and is for GPUs without bfloat16",
    choices=("auto", "float32", "bfloat16", "float16"),
    evaluation_may_differ=True,
    group=base.DEVICES,
  )
  jit_compile: str = _device_option(
    "auto",
    "compile the training step with XLA; auto: on GPUs, if all batches have the same shape; true: batches of varying "
    "length are padded to one of four lengths",
    choices=("auto", "true", "false"),
  )
  deterministic: str = _device_option(
    "auto",
    "deterministic kernels: a resumed run ends with the same bits as an uninterrupted one; without them it has the "
    "same steps and batches, but may round differently. auto: true without a GPU, false on GPUs",
    choices=("auto", "true", "false"),
  )
  input_parts: int = option(
    0,
    "number of parts that the training files are divided into; each host reads one or more parts. The content of the "
    "batches depends on this number. 0: one part per host",
    minimum=0,
    evaluation_may_differ=True,
    group=base.DEVICES,
  )
  recompute_grad: bool = _execution_option(
    False,
    "gradient checkpointing: store only the input of each block and recompute the rest in the backward pass. It needs "
    "less memory and about a third more computation",
  )
  shard_optimizer_state: bool = _device_option(
    False,
    "divide the moments of the optimizer and the sums of the gradients among the replicas, so that each holds only a "
    "part of them. Checkpoints stay the same",
  )
  distribution_strategy: str = _device_option(
    "auto",
    "tf.distribute strategy; auto: tpu with --tpu, multi_worker_mirrored if TF_CONFIG lists workers, mirrored with "
    "several GPUs (CUDA_VISIBLE_DEVICES selects some), else one_device",
    choices=("auto", "one_device", "mirrored", "multi_worker_mirrored", "tpu"),
  )
  tpu: str = _device_option(
    "", "name or address of a Cloud TPU, or 'local' if the command runs on the TPU's own machine"
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    parts = self.gradient_accumulation_steps
    if self.train_batch_size % parts:
      flag = f"--gradient_accumulation_steps={parts}"
      raise UserError(
        f"--train_batch_size={self.train_batch_size}: give a multiple of {flag} times the number of devices"
      )
    if self.early_stopping_patience and not self.eval_every_steps:
      raise UserError(
        f"early_stopping_patience={self.early_stopping_patience} needs evaluations: give --eval_every_steps"
      )
    if self.tpu and self.distribution_strategy not in ("auto", "tpu"):
      raise UserError(f"--tpu={self.tpu} needs --distribution_strategy=tpu, got {self.distribution_strategy!r}")

  def num_steps(self, num_examples: float) -> int:
    """Resolves the number of updates: num_train_steps, or the steps of num_train_epochs epochs, rounded up.

    Args:
      num_examples: number of examples of an epoch; with several stages, its mean over all steps.
    Raises:
      UserError: the number of epochs gives more than 2^31 - 1 steps.
    """
    if not self.num_train_epochs:
      return self.num_train_steps
    steps = max(1, math.ceil(self.num_train_epochs * num_examples / self.train_batch_size))
    if steps > INT32_MAX:
      raise UserError(f"num_train_epochs={self.num_train_epochs:g} are {steps:g} steps: the most are {INT32_MAX}")
    return steps

  def usual_length(self, num_examples: int, usual_steps: int, usual_epochs: int) -> tuple[int, int]:
    """Returns the lowest numbers of steps and of epochs with which training usually succeeds."""
    steps = max(usual_steps, math.ceil(usual_epochs * num_examples / self.train_batch_size))
    return steps, math.ceil(steps * self.train_batch_size / max(num_examples, 1))

  def check_tpu(self, *, needs_python: bool) -> None:
    """Raises UserError if Python code makes the batches, but the TPU is remote: its host runs no Python code."""
    if needs_python and self.tpu not in ("", "local"):
      raise UserError(
        f"--tpu={self.tpu}: dynamic masks and batches for fine-tuning are made by Python code, which the host of a "
        "remote TPU cannot run: start it on the TPU's machine with --tpu=local, or pretrain with --masking=static"
      )

  def length_warnings(self, num_examples: int, *, is_started: bool = True) -> list[str]:
    """Returns a warning if fine-tuning for a number of steps, not of epochs, is far longer than the examples need."""
    steps, epochs = self.usual_length(num_examples, USUAL_STEPS, USUAL_EPOCHS)
    if self.num_train_epochs or self.num_train_steps <= _MANY_TIMES * steps:
      return []
    given = f"{self.num_train_steps * self.train_batch_size / num_examples:,.0f} epochs"
    advice = f"to train less, give --num_train_epochs={epochs}{' and another --output_dir' if is_started else ''}"
    return [f"warning: {given}, since {self.num_train_steps:,} steps are for more examples: {advice}"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningConfig(Config):
  """The settings of the data that all fine-tuning tasks share."""

  help_group: ClassVar[str] = base.DATA

  spm_model_file: str = _command_option(
    "",
    "the vocabulary: a SentencePiece model, a WordPiece vocab.txt, a byte-level BPE vocab.json, or a tokenizer.json; "
    "by default the one beside --init_checkpoint or in output_dir; --vocab_file is another name for it",
  )
  do_lower_case: bool | None = option(
    None,
    "lower-case the text; by default as tokenizer_config.json or config.json beside the vocabulary or the weights "
    "says, and true if there is none (byte-level BPE ignores it)",
  )
  keep_accents: bool | None = option(
    None,
    "keep accents and do not decompose characters; by default as these files say, and false if there is none "
    "(byte-level BPE ignores it)",
  )
  convert_quotes: bool | None = option(
    None,
    "replace `` and '' by \" before tokenization, as transformers' AlbertTokenizer does; by default as these files "
    "say, and false if there is none",
  )
  max_seq_length: int = option(
    512, "largest number of tokens in a sequence, at most the model's positions; longer ones are truncated", minimum=8
  )
  pad_to_max_length: bool = option(
    False,
    "pad all batches to max_seq_length, so that they have the same shape, as compilers need it; by default a batch is "
    "padded to its longest sequence",
    evaluation_may_differ=True,
    group=base.DEVICES,
  )
  cache_dir: str = _command_option("", "directory that keeps the tokenized data; by default output_dir/features")
  num_processes: int = _device_option(
    0, "number of processes that tokenize the data; 0: one per core", minimum=0, maximum=MAX_PROCESSES
  )
  fresh_head: bool = option(
    False, "initialize the task's head with random weights, even if --init_checkpoint has one", group=base.MODEL
  )
  freeze_encoder: bool = option(
    False, "train only the pooler and the head: the embeddings and the layers keep their weights", group=base.TRAINING
  )

  def default_lengths(self) -> dict[str, int]:
    """Returns field -> the value that 0 stands for, for the task's lengths that depend on max_seq_length."""
    return {}

  def __post_init__(self) -> None:
    super().__post_init__()
    for name, value in self.default_lengths().items():
      if not getattr(self, name):
        object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
  """One run: its directory, what the command does, and the configs of the optimizer and the training."""

  help_group: ClassVar[str] = base.COMMAND

  output_dir: str = _command_option("", "directory for checkpoints, metrics and results")
  recipe: str = option(
    "",
    "default values for the other flags: the name of a file in configs/, or a path; none: no recipe. By default the "
    "task chooses one",
    affects_training=False,
  )
  init_checkpoint: str = option(
    "",
    "pretrained weights: the directory of Google's or Hugging Face's files, a checkpoint prefix, the output_dir of a "
    "run or of several (then of the best one), a step-N directory, or a file of safetensors or torch.save",
    group=base.MODEL,
  )
  resume_from: str = option(
    "",
    "checkpoint of another run, RUN/checkpoints/step-N, whose weights, moments and step a new run starts from, for "
    "example with another seed and a lower learning rate",
    group=base.MODEL,
  )
  from_scratch: bool = option(
    False,
    "start fine-tuning from random weights, without --init_checkpoint",
    instead_of="init_checkpoint",
    group=base.MODEL,
  )
  start_over: bool = _command_option(
    False,
    "if all checkpoints in output_dir are damaged, rename them and train again from the start",
    group=base.LOGGING,
  )
  num_runs: int = _command_option(
    1,
    "number of runs, which use the seeds --seed, --seed + 1, and so on; only the best run keeps its checkpoints",
    minimum=1,
  )
  init_from_shallower: bool = option(
    False,
    "allow --init_checkpoint to have fewer layers or groups of layers than the model (ALBERT, appendix A.1)",
    group=base.MODEL,
  )
  do_train: bool = _command_option(False, "train the model")
  do_eval: bool = _command_option(False, "evaluate the checkpoint that --select_checkpoint selects")
  do_predict: bool = _command_option(False, "predict with the checkpoint that --select_checkpoint selects")
  predictions_file: str = _command_option(
    "",
    "file for the predictions; by default predictions_NAME in output_dir, where NAME is that of the file to predict",
    group=base.EVALUATION,
  )
  dry_run: bool = _command_option(
    False,
    "check the flags and files, and print the plan and the values that are no defaults; nothing is trained or written",
  )
  chip: str = _command_option(
    "",
    "with --dry_run: a TPU or GPUs, such as v3-8, v5litepod-32, v100-8 or a100-1; prints whether the training step "
    "fits into the memory and, for pretraining, hours, cost and learning rate (also for cpu)",
  )
  hours: float | None = _command_option(
    None, "with --chip: prints how many steps of pretraining fit into this time, in hours", above=0
  )
  price_per_hour: float | None = _command_option(
    None, "with --chip: price of all its chips per hour; prints what pretraining costs", minimum=0
  )
  optimizer: OptimizerConfig = OptimizerConfig()
  train: TrainConfig = TrainConfig()
  warmup_is_default: bool = False  # nobody chose the length of the warm-up, so a short run may shorten it
  precision_is_default: bool = False  # this command does not choose the precision; the run may have recorded one

  @property
  def has_action(self) -> bool:
    """Whether the command trains, evaluates or predicts."""
    return self.do_train or self.do_eval or self.do_predict

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.chip and not self.dry_run:
      raise UserError(f"--chip={self.chip} only goes with --dry_run; training takes the TPU that --tpu names")
    for name in ("hours", "price_per_hour"):
      if getattr(self, name) is not None and not self.chip:
        raise UserError(f"--{name}={getattr(self, name):g} only goes with --dry_run and --chip, such as --chip=v3-8")
    if not self.output_dir and (self.has_action or not self.chip):
      raise UserError("--output_dir is missing: give the directory to write checkpoints and results to")
    if self.train.max_train_seconds and self.optimizer.warmup_proportion:
      raise UserError(
        f"--warmup_proportion={self.optimizer.warmup_proportion:g} with --max_train_seconds: the number of steps is "
        "not known before the end of the warm-up: give --num_warmup_steps"
      )
    if self.train.precision == "float16" and self.optimizer.optimizer == "tfa_lamb":
      raise UserError("--precision=float16 skips steps, which --optimizer=tfa_lamb cannot: give --optimizer=lamb")
    if self.resume_from and self.init_checkpoint:
      raise UserError(f"--init_checkpoint={self.init_checkpoint} and --resume_from are both given: give one")
    if self.from_scratch and self.init_checkpoint:
      raise UserError(f"--from_scratch and --init_checkpoint={self.init_checkpoint} are both given: give one")


def resolve_warmup(optimizer: OptimizerConfig, num_train_steps: int, *, is_default: bool) -> OptimizerConfig:
  """Shortens a warm-up to a tenth of a run, if it takes more than half of the run and the user did not choose it.

  The recipes of the paper's runs have a fixed number of warm-up steps, which may be more than a first try has in total.

  Args:
    optimizer: the optimizer's settings.
    num_train_steps: number of updates of the run.
    is_default: whether num_warmup_steps comes from a recipe or is the default of the field.
  Returns: the settings. If the warm-up is shortened, num_warmup_steps is changed, and a line is logged.
  """
  default = optimizer.num_warmup_steps
  if not is_default or optimizer.warmup_proportion or 2 * default <= num_train_steps:
    return optimizer
  num_warmup_steps = round(_SHORT_RUN_WARMUP_SHARE * num_train_steps)
  log(
    f"num_warmup_steps is {num_warmup_steps}, a tenth of the {num_train_steps} steps: the default, {default}, is more "
    "than half of them",
    is_detail=True,
  )
  return dataclasses.replace(optimizer, num_warmup_steps=num_warmup_steps)


_TF_CONFIG_REMEDY = 'give it as {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'


class _Task(msgspec.Struct):
  """The part of TF_CONFIG about this process: its job, and its index among the processes of this job."""

  type: str
  index: json_values.Count | Annotated[str, msgspec.Meta(pattern="^[0-9]{1,9}$")]


class _TfConfig(msgspec.Struct):
  """The environment variable TF_CONFIG, as TensorFlow defines it."""

  cluster: dict[str, list[Annotated[str, msgspec.Meta(pattern="^.+:[0-9]{1,5}$")]]]
  task: _Task


def process_addresses() -> list[str]:
  """Returns the "host:port" address of each process in TF_CONFIG, the chief first; empty if TF_CONFIG is not set.

  Raises:
    UserError: TF_CONFIG does not have the form that TensorFlow defines, two processes have one address, or this process
      is not in its cluster.
  """
  return _read_tf_config()[0]


def process_index() -> int:
  """Returns the index of this process in `process_addresses()`; 0 if TF_CONFIG is not set.

  Raises:
    UserError: see process_addresses.
  """
  return _read_tf_config()[1]


def _read_tf_config() -> tuple[list[str], int]:
  """Returns the addresses of the processes, and the index of this one."""
  text = os.environ.get("TF_CONFIG", "")
  if not text:
    return [], 0
  tf_config = json_values.parse("TF_CONFIG", text, _TfConfig, _TF_CONFIG_REMEDY)
  # Processes of other jobs, such as an evaluator, take no part in training.
  jobs = {name: tf_config.cluster.get(name, []) for name in ("chief", "worker")}
  job, index = tf_config.task.type, int(tf_config.task.index)
  if job not in jobs or not 0 <= index < len(jobs[job]):
    raise UserError(f"TF_CONFIG={format_value(text)}: this process, {job} {index}, is not in its cluster")
  addresses = [*jobs["chief"], *jobs["worker"]]
  for number, address in enumerate(addresses):
    if address in addresses[:number]:
      raise UserError(f"TF_CONFIG: two processes have the address {address}: give each one an address of its own")
  return addresses, index + (len(jobs["chief"]) if job == "worker" else 0)


def training_addresses(train: TrainConfig) -> list[str]:
  """Returns the addresses of the processes that train with these settings; empty if it is this process only.

  Raises:
    UserError: see process_addresses; or multi_worker_mirrored is given, and TF_CONFIG is not set.
  """
  is_given = train.distribution_strategy == "multi_worker_mirrored"
  if not is_given and (train.distribution_strategy != "auto" or train.tpu):
    return []
  addresses = process_addresses()
  if is_given and not addresses:
    raise UserError("--distribution_strategy=multi_worker_mirrored needs the workers in TF_CONFIG; it is not set")
  return addresses


def stage_name(index: int, num_stages: int) -> str:
  """Returns the name of a stage in messages, such as "stage 1 of 2" for index 0."""
  return f"stage {index + 1} of {num_stages}"


def steps_of_stages(shares: Sequence[float], num_train_steps: int) -> list[tuple[int, int]]:
  """Returns the number of steps before each stage, and the number at its end.

  Args:
    shares: `until` of each stage.
    num_train_steps: the steps of the whole run.
  Raises:
    UserError: a stage has no step.
  """
  steps: list[tuple[int, int]] = []
  for index, share in enumerate(shares):
    first_step, last_step = steps[-1][1] if steps else 0, round(share * num_train_steps)
    if last_step <= first_step:
      raise UserError(
        f"stages, {stage_name(index, len(shares))}: until {share:g} of {num_train_steps} steps is step {last_step}, "
        "where the stage before it ends: give the stage a larger share, or more --num_train_steps"
      )
    steps.append((first_step, last_step))
  return steps
