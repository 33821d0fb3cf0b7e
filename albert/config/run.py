"""The config of a run: what it does, how it trains, and how it optimizes. It is saved as config.json in output_dir.

Every field is also a flag; its help text, its default and its range are declared here and nowhere else.
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
  TRAINING,
  Config,
  option,
)
from albert.config.optimizer import OptimizerConfig
from albert.config.ranges import INT32_MAX, MAX_BATCH_SIZE, MAX_PROCESSES
from albert.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
  """How long a run trains, what it saves, and on which devices it runs.

  A step is one update of the weights. Batch sizes are global: they count the sequences on all replicas.
  """

  help_group: ClassVar[str] = TRAINING

  train_batch_size: int = option(
    4096, "number of sequences per update of the weights, over all replicas", minimum=1, maximum=MAX_BATCH_SIZE
  )
  eval_batch_size: int = option(
    64,
    "number of sequences per batch in evaluation and prediction, over all replicas",
    minimum=1,
    maximum=MAX_BATCH_SIZE,
    affects_training=False,
    group=EVALUATION,
  )
  num_train_steps: int = option(125000, "number of updates of the weights", minimum=1)
  num_train_epochs: float = option(
    0.0,
    "number of passes over the training data, instead of --num_train_steps; 0: not used",
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
    "number of micro-batches per update; they are computed one after another and their gradients are added up, which "
    "needs less memory",
    minimum=1,
  )
  save_checkpoints_steps: int = option(
    5000, "number of steps between checkpoints", minimum=1, affects_training=False, group=LOGGING
  )
  keep_checkpoints: int = option(
    5, "number of newest checkpoints to keep; the best is kept, too", minimum=1, affects_training=False, group=LOGGING
  )
  log_every_steps: int = option(
    100, "number of steps between lines of metrics.jsonl", minimum=1, affects_training=False, group=LOGGING
  )
  steps_per_loop: int = option(
    100,
    "largest number of training steps that the host starts with one call to the device",
    minimum=1,
    affects_training=False,
    group=DEVICES,
  )
  eval_every_steps: int = option(
    0,
    "number of steps between evaluations during training; 0: evaluate only after training",
    minimum=0,
    affects_training=False,
    group=EVALUATION,
  )
  early_stopping_patience: int = option(
    0,
    "stop training after this many evaluations in a row without a better result (needs --eval_every_steps); 0: never",
    minimum=0,
    group=EVALUATION,
  )
  select_checkpoint: str = option(
    "newest",
    "checkpoint that is evaluated and used for predictions",
    choices=("newest", "best"),
    group=EVALUATION,
  )
  max_eval_steps: int = option(
    0,
    "largest number of batches in an evaluation, of a random sample that is always the same; 0: all",
    minimum=0,
    affects_training=False,
    group=EVALUATION,
  )
  seed: int = option(
    12345,
    "random seed of the initial weights, the order of the data, and dropout; --random_seed is another name for it",
    minimum=0,
    below=2**31,
  )
  precision: str = option(
    "auto",
    "compute dtype of matrix multiplications; auto: bfloat16 if the hardware can multiply it, else float32; on CPUs "
    "evaluations and predictions are float32 unless the command gives another; float16, with dynamic loss scaling, is "
    "for GPUs without bfloat16",
    choices=("auto", "float32", "bfloat16", "float16"),
    evaluation_may_differ=True,
    group=DEVICES,
  )
  jit_compile: str = option(
    "auto",
    "compile the training step with XLA; auto: on GPUs, if all batches have the same shape; true: batches of varying "
    "length are padded to one of four lengths",
    choices=("auto", "true", "false"),
    affects_training=False,
    per_command=True,
    group=DEVICES,
  )
  deterministic: str = option(
    "auto",
    "deterministic kernels: a resumed run ends with the same bits as an uninterrupted one; without them it has the "
    "same steps and batches, but may round differently. auto: true without a GPU, false on GPUs",
    choices=("auto", "true", "false"),
    affects_training=False,
    per_command=True,
    group=DEVICES,
  )
  input_parts: int = option(
    0,
    "number of parts that the training files are divided into; each host reads one or more parts. The content of the "
    "batches depends on this number. 0: one part per host",
    minimum=0,
    evaluation_may_differ=True,
    group=DEVICES,
  )
  recompute_grad: bool = option(
    False,
    "gradient checkpointing: store only the input of each block and recompute the rest in the backward pass. It needs "
    "less memory and about a third more computation",
    affects_training=False,
    group=DEVICES,
  )
  shard_optimizer_state: bool = option(
    False,
    "divide the moments of the optimizer and the sums of the gradients among the replicas, so that each holds only a "
    "part of them. Checkpoints stay the same",
    affects_training=False,
    per_command=True,
    group=DEVICES,
  )
  distribution_strategy: str = option(
    "auto",
    "tf.distribute strategy; auto: tpu with --tpu, multi_worker_mirrored if TF_CONFIG lists workers, mirrored with "
    "several GPUs, else one_device",
    choices=("auto", "one_device", "mirrored", "multi_worker_mirrored", "tpu"),
    affects_training=False,
    per_command=True,
    group=DEVICES,
  )
  tpu: str = option(
    "",
    "name or address of a Cloud TPU, or 'local' if the command runs on the TPU's own machine",
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
  """The data of pretraining, and the losses that are trained on it."""

  help_group: ClassVar[str] = DATA

  input_file: str = option(
    "", "TFRecord files to train on: paths or glob patterns, separated by commas", affects_training=False
  )
  eval_input_file: str = option(
    "", "TFRecord files to evaluate on: paths or glob patterns, separated by commas", affects_training=False
  )
  max_seq_length: int = option(
    0, "sequence length with which the TFRecord files were written; 0: read it from them", minimum=0
  )
  max_predictions_per_seq: int = option(
    0,
    "number of masked positions per sequence with which the TFRecord files of --input_file were written; 0: read it "
    "from them",
    minimum=0,
  )
  sentence_prediction: str = option(
    "auto",
    "sentence loss: sentence order prediction (sop), next sentence prediction (nsp), or none; auto: as in the manifest "
    "of the TFRecord files, or sop if they have none",
    choices=("auto", "sop", "nsp", "none"),
  )
  masking: str = option(
    "auto",
    "static: use the masks in the TFRecord files; dynamic: mask other tokens each time an example is read (needs "
    "--spm_model_file); auto: static, or dynamic if the files were written without masks",
    choices=("auto", "static", "dynamic"),
    resets=("masked_lm_prob", "ngram"),
  )
  masked_lm_prob: float = option(
    0.0,
    "fraction of the tokens that dynamic masking masks; 0: as in the manifest of the TFRecord files, or 0.15 if they "
    "have none",
    minimum=0,
    below=1,
  )
  ngram: int = option(
    0,
    "largest number of consecutive words that dynamic masking masks together; 0: as in the manifest of the TFRecord "
    "files, or 3 if they have none",
    minimum=0,
  )
  spm_model_file: str = option(
    "",
    "the vocabulary: a SentencePiece model, a WordPiece vocab.txt, or a byte-level BPE tokenizer.json or vocab.json. "
    "It is compared with the one of the TFRecord files, and it is needed for dynamic masking and for --do_predict; "
    "--vocab_file is another name for it",
    affects_training=False,
  )
  do_lower_case: bool | None = option(
    None,
    "lower-case the text of --predict_file; by default as the manifest of the TFRecord files, the file beside the "
    "vocabulary, or the run of --init_checkpoint says, and true if none of them does (byte-level BPE ignores it)",
  )
  keep_accents: bool | None = option(
    None,
    "keep the accents of the text of --predict_file and do not decompose its characters; by default as those files "
    "say, and false if none of them does (byte-level BPE ignores it)",
  )
  predict_file: str = option(
    "", "text file for --do_predict; each [MASK] in its lines is filled in", affects_training=False
  )
  # It contains paths, which may differ when a run is resumed, so it does not count as affecting training. The other
  # settings of stages are compared with the key "stages" of config.json.
  stages: str = option(
    "",
    'stages of training as JSON, such as [{"until": 0.5, "num_hidden_layers": 3}, {"until": 1}]; a recipe has them as '
    "its section stages. Each stage lasts until this share of the steps; see docs/staged_pretraining.md",
    affects_training=False,
    group=TRAINING,
  )
  cache_dir: str = option(
    "",
    "directory that keeps the hashes of TFRecord files without a manifest; by default output_dir",
    affects_training=False,
    per_command=True,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningConfig(Config):
  """The settings of the data that all fine-tuning tasks share."""

  help_group: ClassVar[str] = DATA

  spm_model_file: str = option(
    "",
    "the vocabulary: a SentencePiece model, a WordPiece vocab.txt, or a byte-level BPE tokenizer.json or vocab.json; "
    "by default the one beside --init_checkpoint or in output_dir; --vocab_file is another name for it",
    affects_training=False,
    per_command=True,
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
    group=DEVICES,
  )
  cache_dir: str = option(
    "",
    "directory that keeps the tokenized data; by default output_dir/features",
    affects_training=False,
    per_command=True,
  )
  num_processes: int = option(
    0,
    "number of processes that tokenize the data; 0: one per core",
    minimum=0,
    maximum=MAX_PROCESSES,
    affects_training=False,
    per_command=True,
    group=DEVICES,
  )
  fresh_head: bool = option(
    False, "initialize the task's head with random weights, even if --init_checkpoint has one", group=MODEL
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
  """One run: its directory, what the command does, and the configs of the optimizer and the training."""

  help_group: ClassVar[str] = COMMAND

  output_dir: str = option(
    "", "directory for checkpoints, metrics and results", affects_training=False, per_command=True
  )
  recipe: str = option(
    "",
    "default values for the other flags: the name of a file in configs/, or a path; none: no recipe. By default the "
    "task chooses one",
    affects_training=False,
  )
  init_checkpoint: str = option(
    "",
    "pretrained weights: the directory of Google's or Hugging Face's files, a checkpoint prefix, the output_dir of a "
    "run or of several (then of the best one), a step-N directory, or a .safetensors file",
    group=MODEL,
  )
  from_scratch: bool = option(
    False,
    "start fine-tuning from random weights, without --init_checkpoint",
    instead_of="init_checkpoint",
    group=MODEL,
  )
  start_over: bool = option(
    False,
    "if all checkpoints in output_dir are damaged, rename them and train again from the start",
    affects_training=False,
    per_command=True,
    group=LOGGING,
  )
  num_runs: int = option(
    1,
    "number of runs, which use the seeds --seed, --seed + 1, and so on; only the best run keeps its checkpoints",
    minimum=1,
    affects_training=False,
    per_command=True,
  )
  init_from_shallower: bool = option(
    False,
    "allow --init_checkpoint to have fewer layers or groups of layers than the model (ALBERT, appendix A.1)",
    group=MODEL,
  )
  do_train: bool = option(False, "train the model", affects_training=False, per_command=True)
  do_eval: bool = option(
    False, "evaluate the checkpoint that --select_checkpoint selects", affects_training=False, per_command=True
  )
  do_predict: bool = option(
    False, "predict with the checkpoint that --select_checkpoint selects", affects_training=False, per_command=True
  )
  predictions_file: str = option(
    "",
    "file for the predictions; by default predictions_NAME in output_dir, where NAME is that of the file to predict",
    affects_training=False,
    per_command=True,
    group=EVALUATION,
  )
  dry_run: bool = option(
    False,
    "check the flags and files and print the plan and all values that differ from the defaults; nothing is trained, "
    "and no file is written",
    affects_training=False,
    per_command=True,
  )
  chip: str = option(
    "",
    "with --dry_run: a TPU, such as v3, v5e or v3-512; prints whether the training step fits into its memory, and with "
    "which --gradient_accumulation_steps the same batch fits",
    affects_training=False,
    per_command=True,
  )
  optimizer: OptimizerConfig = OptimizerConfig()  # noqa: RUF009 - frozen
  train: TrainConfig = TrainConfig()
  warmup_is_default: bool = False  # nobody chose the length of the warm-up, so a short run may shorten it
  precision_is_default: bool = False  # this command does not choose the precision; the run may have recorded one

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.chip and not self.dry_run:
      raise UserError(f"--chip={self.chip} only goes with --dry_run; training takes the TPU that --tpu names")
    is_only_about_a_chip = self.chip and not (self.do_train or self.do_eval or self.do_predict)
    if not self.output_dir and not is_only_about_a_chip:
      raise UserError("--output_dir is missing: give the directory to write checkpoints and results to")
    last_seed = self.train.seed + self.num_runs - 1
    if last_seed > INT32_MAX:
      raise UserError(f"num_runs={self.num_runs} with seed={self.train.seed}: the last seed exceeds {INT32_MAX}")
    if self.train.max_train_seconds and self.optimizer.warmup_proportion:
      raise UserError(
        f"--warmup_proportion={self.optimizer.warmup_proportion:g} with --max_train_seconds: the number of steps is "
        "not known before the end of the warm-up: give --num_warmup_steps"
      )
    if self.train.precision == "float16" and self.optimizer.optimizer == "tfa_lamb":
      raise UserError("--precision=float16 skips steps, which --optimizer=tfa_lamb cannot: give --optimizer=lamb")
    if self.from_scratch and self.init_checkpoint:
      raise UserError(f"--from_scratch and --init_checkpoint={self.init_checkpoint} are both given: give one")
