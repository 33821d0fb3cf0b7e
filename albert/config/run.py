"""What a run is: frozen, validated dataclasses that are written to JSON beside the run and read back.

Each field carries its help text and its range, so that the flags, the checks and the JSON come from one place.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from albert.config.base import (
  COMMAND,
  DATA,
  DEVICES,
  EVALUATION,
  LOGGING,
  MODEL,
  OPTIMIZER,
  TRAINING,
  Config,
  option,
)
from albert.config.ranges import INT32_MAX, MAX_BATCH_SIZE, MAX_PROCESSES
from albert.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
  """LAMB or AdamW with linear warm-up and polynomial decay (ALBERT, section 4.1)."""

  help_group: ClassVar[str] = OPTIMIZER

  optimizer: str = option("lamb", "optimizer", choices=("lamb", "adamw", "tfa_lamb"))
  learning_rate: float = option(1.76e-3, "peak learning rate", above=0)
  num_warmup_steps: int = option(3125, "steps of linear warm-up from 0", minimum=0)
  warmup_proportion: float = option(
    0.0,
    "part of num_train_steps to warm up in, instead of num_warmup_steps; 0: no",
    minimum=0,
    below=1,
    instead_of="num_warmup_steps",
  )
  end_learning_rate: float = option(0.0, "learning rate after the last step", minimum=0)
  decay_power: float = option(1.0, "power of the polynomial decay (1 is linear)", above=0)
  weight_decay: float = option(0.01, "weight decay, not on LayerNorm and biases", minimum=0)
  beta_1: float = option(0.9, "decay of the first moment", minimum=0, below=1)
  beta_2: float = option(0.999, "decay of the second moment", minimum=0, below=1)
  epsilon: float = option(1e-6, "added to the root of the second moment", above=0)
  clip_norm: float = option(1.0, "global norm that gradients are clipped to; 0 clips nothing", minimum=0)
  bias_correction: bool = option(False, "correct the moments' bias (the original does not)")
  layerwise_learning_rate_decay: float = option(
    1.0, "factor of the learning rate from each group of layers to the one below it; 1: no decay", above=0
  )
  scale_learning_rate: bool = option(False, "multiply learning_rate by sqrt(train_batch_size / 4096)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
  """How long, and what is kept. A step is one optimizer update; batch sizes are global."""

  help_group: ClassVar[str] = TRAINING

  train_batch_size: int = option(
    4096, "sequences an optimizer update sees, over all replicas", minimum=1, maximum=MAX_BATCH_SIZE
  )
  eval_batch_size: int = option(
    64, "sequences a step of evaluation", minimum=1, maximum=MAX_BATCH_SIZE, affects_training=False, group=EVALUATION
  )
  num_train_steps: int = option(125000, "optimizer updates", minimum=1)
  num_train_epochs: float = option(
    0.0, "passes over the data, instead of num_train_steps; 0: no", minimum=0, instead_of="num_train_steps"
  )
  gradient_accumulation_steps: int = option(1, "parts that a batch is computed in, one after another", minimum=1)
  save_checkpoints_steps: int = option(
    5000, "steps between checkpoints", minimum=1, affects_training=False, group=LOGGING
  )
  keep_checkpoints: int = option(
    5, "newest checkpoints kept, besides the best", minimum=1, affects_training=False, group=LOGGING
  )
  log_every_steps: int = option(
    100, "steps between lines of metrics.jsonl", minimum=1, affects_training=False, group=LOGGING
  )
  steps_per_loop: int = option(
    100, "steps a call of the host runs on the device", minimum=1, affects_training=False, group=DEVICES
  )
  eval_every_steps: int = option(
    0, "steps between evaluations during training; 0: after it", minimum=0, affects_training=False, group=EVALUATION
  )
  early_stopping_patience: int = option(
    0, "stop after so many evaluations (--eval_every_steps) without a better one; 0: never", minimum=0, group=EVALUATION
  )
  select_checkpoint: str = option(
    "newest", "checkpoint to evaluate and predict with", choices=("newest", "best"), group=EVALUATION
  )
  max_eval_steps: int = option(
    0, "batches an evaluation reads; 0: all", minimum=0, affects_training=False, group=EVALUATION
  )
  seed: int = option(12345, "seed of weights, order of data and dropout", minimum=0, below=2**31)
  precision: str = option(
    "auto",
    "arithmetic of the matrices",
    choices=("auto", "float32", "bfloat16"),
    evaluation_may_differ=True,
    group=DEVICES,
  )
  jit_compile: str = option(
    "auto",
    "compile the training step with XLA; auto: where that is quicker, which is on a GPU if all batches have one shape",
    choices=("auto", "true", "false"),
    affects_training=False,
    per_command=True,
    group=DEVICES,
  )
  input_parts: int = option(
    0,
    "parts that shards are dealt to, one or more a host; batches depend on it; 0: one a host",
    minimum=0,
    evaluation_may_differ=True,
    group=DEVICES,
  )
  recompute_grad: bool = option(
    False,
    "compute blocks again in the backward pass: less memory, a third more arithmetic",
    affects_training=False,
    group=DEVICES,
  )
  distribution_strategy: str = option(
    "auto",
    "tf.distribute strategy",
    choices=("auto", "one_device", "mirrored", "multi_worker_mirrored", "tpu"),
    affects_training=False,
    per_command=True,
    group=DEVICES,
  )
  tpu: str = option(
    "",
    "name or address of the Cloud TPU, or 'local' on its own machine",
    affects_training=False,
    per_command=True,
    group=DEVICES,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.train_batch_size % self.gradient_accumulation_steps:
      raise UserError(
        f"train_batch_size must be a multiple of gradient_accumulation_steps "
        f"({self.gradient_accumulation_steps}), got {self.train_batch_size}"
      )
    if self.early_stopping_patience and not self.eval_every_steps:
      raise UserError(
        f"early_stopping_patience={self.early_stopping_patience} needs evaluations: give --eval_every_steps"
      )
    if self.tpu and self.distribution_strategy not in ("auto", "tpu"):
      raise UserError(f"--tpu={self.tpu} needs --distribution_strategy=tpu, got {self.distribution_strategy!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingConfig(Config):
  """What pretraining reads."""

  help_group: ClassVar[str] = DATA

  input_file: str = option("", "TFRecord shards to train on, comma-separated globs", affects_training=False)
  eval_input_file: str = option("", "TFRecord shards to evaluate on, comma-separated globs", affects_training=False)
  max_seq_length: int = option(0, "length the shards were written with; 0: as they say", minimum=0)
  max_predictions_per_seq: int = option(0, "predictions the shards were written with; 0: as they say", minimum=0)
  sentence_prediction: str = option(
    "auto", "sentence loss; auto: as the shards' manifest says, else sop", choices=("auto", "sop", "nsp", "none")
  )
  masking: str = option(
    "auto",
    "static: the shards' masks; dynamic: new ones each time an example is seen (needs --spm_model_file); auto: static, "
    "or dynamic where the shards were written without masks",
    choices=("auto", "static", "dynamic"),
    resets=("masked_lm_prob", "ngram"),
  )
  masked_lm_prob: float = option(
    0.0, "share of tokens that dynamic masks hide; 0: as the shards' manifest says, else 0.15", minimum=0, below=1
  )
  ngram: int = option(
    0, "greatest number of words that dynamic masks hide in one go; 0: as the shards' manifest says, else 3", minimum=0
  )
  spm_model_file: str = option(
    "", "SentencePiece model, to check against the shards, for dynamic masks and to fill masks", affects_training=False
  )
  do_lower_case: bool = option(True, "lower-case text to predict, as when the vocabulary was trained")
  predict_file: str = option("", "text file with [MASK] in its lines, to fill", affects_training=False)
  cache_dir: str = option(
    "", "where hashes of shards without a manifest are kept; none: output_dir", affects_training=False, per_command=True
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningConfig(Config):
  """What all fine-tuning tasks read."""

  help_group: ClassVar[str] = DATA

  spm_model_file: str = option(
    "",
    "SentencePiece model; none: the spiece.model of output_dir or beside --init_checkpoint",
    affects_training=False,
    per_command=True,
  )
  do_lower_case: bool = option(True, "lower-case text, as when the vocabulary was trained")
  convert_quotes: bool = option(False, "turn `` and '' into \", as another library does")
  max_seq_length: int = option(512, "longest sequence; more is cut", minimum=8)
  pad_to_max_length: bool = option(
    False,
    "pad every batch to max_seq_length, for compilers that want one shape",
    evaluation_may_differ=True,
    group=DEVICES,
  )
  cache_dir: str = option(
    "", "where features are kept; none: output_dir/features", affects_training=False, per_command=True
  )
  num_processes: int = option(
    0,
    "processes that make features; 0: one a core",
    minimum=0,
    maximum=MAX_PROCESSES,
    affects_training=False,
    per_command=True,
    group=DEVICES,
  )
  fresh_head: bool = option(
    False, "start the task's head from random weights, whatever --init_checkpoint holds", group=MODEL
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
  """One run: where it writes, what it does, and all that it depends on."""

  help_group: ClassVar[str] = COMMAND

  output_dir: str = option(
    "", "directory of checkpoints, metrics and results", affects_training=False, per_command=True
  )
  recipe: str = option(
    "",
    "defaults for flags: the name of a file in configs/, or a path; none: no recipe; left out: the task's own",
    affects_training=False,
  )
  init_checkpoint: str = option(
    "", "weights to start from: checkpoint prefix, step-N directory or output_dir", group=MODEL
  )
  from_scratch: bool = option(
    False, "train a task without --init_checkpoint, from random weights", instead_of="init_checkpoint", group=MODEL
  )
  start_over: bool = option(
    False,
    "if none of output_dir's checkpoints verifies, keep them under another name and train from the start",
    affects_training=False,
    per_command=True,
    group=LOGGING,
  )
  num_runs: int = option(
    1, "runs, with seeds from --seed on; the best is kept", minimum=1, affects_training=False, per_command=True
  )
  init_from_shallower: bool = option(
    False, "let a deeper network start from --init_checkpoint's fewer layers", group=MODEL
  )
  do_train: bool = option(False, "train", affects_training=False, per_command=True)
  do_eval: bool = option(
    False, "evaluate the checkpoint of --select_checkpoint", affects_training=False, per_command=True
  )
  do_predict: bool = option(
    False, "predict with the checkpoint of --select_checkpoint", affects_training=False, per_command=True
  )
  predictions_file: str = option(
    "",
    "file to write predictions to; none: predictions_test.tsv, predictions.json or the like in output_dir",
    affects_training=False,
    per_command=True,
    group=EVALUATION,
  )
  optimizer: OptimizerConfig = OptimizerConfig()
  train: TrainConfig = TrainConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.output_dir:
      raise UserError("--output_dir is missing: give the directory to write checkpoints and results to")
    last_seed = self.train.seed + self.num_runs - 1
    if last_seed > INT32_MAX:
      raise UserError(f"num_runs={self.num_runs} with seed={self.train.seed}: the last seed exceeds {INT32_MAX}")
    if self.from_scratch and self.init_checkpoint:
      raise UserError(f"--from_scratch and --init_checkpoint={self.init_checkpoint} are both given: give one")
