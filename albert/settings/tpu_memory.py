"""Says whether a training step fits into the memory of a TPU or GPU. Needs no TensorFlow.

For TPUs there is a table of compiled steps, tpu_memory.json beside this module. benchmarks/tpu_aot.py makes it: it
compiles the steps for a TPU and reads from the compiler how many bytes each of them takes. No step of the table was run
on a TPU. For GPUs, and for steps that are not in the table, the bytes are estimated.

Letters: a core is a replica of TensorFlow; a micro-batch is what a core computes at a time, which is its share of the
batch divided by the number of accumulation steps.
"""

from __future__ import annotations

import dataclasses
import os
import re

import msgspec

from albert.config.command_flags import format_flag
from albert.config.model import MODELS, ModelConfig
from albert.config.run import TrainConfig
from albert.errors import UserError
from albert.io import files
from albert.settings import costs
from albert.tasks.registry import TrainingStep

TABLE_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tpu_memory.json")
_GIB = 1 << 30
_BYTES_PER_GRADIENT = 4
# A weight, its two moments and its gradient, in float32.
_BYTES_PER_PARAMETER = 16
# On an H100 and an H200, activations took 1.4 to 2.0 times the estimate for TPUs.
_GPU_ACTIVATIONS = 2
_FREE_GPU_GIB = 1  # left free for CUDA and the allocator
# Kind of a TPU in gcloud's --accelerator-type -> its key in MemoryTable.chips, where the two differ.
_ACCELERATOR_TYPES = {"v5litepod": "v5e"}


class ChipMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The memory of a kind of TPU.

  Attributes:
    limit: bytes of HBM that a program can use on a core.
    units_per_core: what the number in a name such as v4-8 counts for a core: the two TensorCores of v4 and v5p, which
      are one core for a program, else 1.
  """

  limit: int
  units_per_core: int


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """A compilation: examples per core in `batch`, and the bytes that the step takes, or would need, on a core."""

  batch: int
  bytes: int


class CompiledStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The compilations of a training step for one kind of TPU.

  Attributes:
    step: "pretraining", "classification", "squad_v1" and so on.
    model: a name of albert.config.model.MODELS.
    length: tokens in a sequence.
    chip: a key of MemoryTable.chips.
    recompute_grad: whether the step uses gradient checkpointing.
    gradient_accumulation_steps: number of micro-batches. `batch` of a trial counts the examples of all of them.
    compiled: the date.
    fits: the batches that fit.
    too_large: the batches that the compiler rejected.
  """

  step: str
  model: str
  length: int
  chip: str
  recompute_grad: bool
  gradient_accumulation_steps: int
  compiled: str
  fits: list[Trial]
  too_large: list[Trial]


class MemoryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The content of tpu_memory.json."""

  chips: dict[str, ChipMemory]
  steps: list[CompiledStep]


def read_table(path: str = TABLE_FILE) -> MemoryTable:
  """Reads the table. Raises UserError if the file is damaged."""
  return files.read_json(path, MemoryTable)


@dataclasses.dataclass(frozen=True)
class Slice:
  """The cores of a TPU, the GPUs, or this machine's processors.

  Attributes:
    name: such as "v4-32" or "8 x v100".
    chip: a key of MemoryTable.chips or costs.GPU_GIB, or costs.CPU.
    num_cores: number of cores or GPUs, which are replicas of TensorFlow.
    limit: bytes that a program can use on a core or GPU; 0 if that is not known.
  """

  name: str
  chip: str
  num_cores: int
  limit: int

  @property
  def unit(self) -> str:
    """What a replica of TensorFlow is."""
    return "GPU" if self.chip in costs.GPU_GIB else "machine" if self.chip == costs.CPU else "core"


def parse_slice(name: str, table: MemoryTable) -> Slice:
  """Parses --chip: a kind, such as "v3", or a kind and a size, such as "v3-512", "v5litepod-8" or "v100-4".

  Without a size, a kind of TPU means one host (v2-8, v3-8, v4-8, v5e-8, v5p-8 or v6e-8), and a kind of GPU one GPU.

  Raises:
    UserError: there is no such kind or size.
  """
  kind, size = re.findall(r"(?s)^(.*?)(?:-([1-9][0-9]{0,5}))?$", name)[0]
  chip = _ACCELERATOR_TYPES.get(kind, kind)
  others = {gpu: ChipMemory((gib - _FREE_GPU_GIB) * _GIB, 1) for gpu, gib in costs.GPU_GIB.items()}
  memory = (table.chips | others | {costs.CPU: ChipMemory(0, 1)}).get(chip)
  if memory is None:
    known = ", ".join([*table.chips, *_ACCELERATOR_TYPES, *others, costs.CPU])
    raise UserError(f"--chip={name}: unknown; known: {known}, also with a number, as v3-32 or v100-8")
  units = int(size) if size else 8 if chip in table.chips else 1
  # Hosts have 8 cores or, of v5e and v6e, 1, 4 or 8 chips.
  if chip in table.chips and units % 8 and (units not in (1, 4) or chip not in ("v5e", "v6e")):
    raise UserError(f"--chip={name}: no TPU has this size: give a multiple of 8 (v5litepod and v6e: also 1 or 4)")
  shown = f"{units} x {kind}" if chip in costs.GPU_GIB else f"{kind}-{units}"
  return Slice(shown, chip, units // memory.units_per_core, memory.limit)


def _model_name(model: ModelConfig) -> str:
  """The model of the table that takes at least as much memory as a model; "" if there is none.

  It differs in nothing but the initializer, the dropout of the task head and the size of the vocabulary, which is not
  smaller in the table.
  """
  for name, known in MODELS.items():
    similar = dataclasses.replace(
      known,
      vocab_size=model.vocab_size,
      initializer_range=model.initializer_range,
      classifier_dropout_prob=model.classifier_dropout_prob,
    )
    if similar == model and model.vocab_size <= known.vocab_size:
      return name
  return ""


def activation_bytes(model: ModelConfig, length: int, *, recompute_grad: bool) -> int:
  """Estimates the bytes that the activations of a sequence take on a TPU core in a training step.

  For each token and layer, a core stores about 20 bytes for each hidden unit and 2.5 bytes for each attention
  probability (3 with dropout), and a sixth of this with gradient checkpointing. This is within a factor of 2 of the
  table.

  Args:
    model: the model.
    length: tokens in the sequence.
    recompute_grad: whether the step uses gradient checkpointing.
  """
  half_bytes_per_probability = 6 if model.attention_probs_dropout_prob else 5
  attention_bytes = half_bytes_per_probability * model.num_attention_heads * length // 2
  bytes_per_token = 20 * model.hidden_size + attention_bytes  # of one layer
  return length * bytes_per_token * model.num_hidden_layers // (6 if recompute_grad else 1)


class MemoryCheck:
  """Compares the training steps of a model with the table.

  Args:
    table: the table.
    cores: the TPU or GPUs.
    step: the kind of the step and the length of its sequences.
    model: the model.
  """

  def __init__(self, table: MemoryTable, cores: Slice, step: TrainingStep, model: ModelConfig):
    self._table, self._cores, self._step, self._model = table, cores, step, model
    self._model_name, self._num_parameters = _model_name(model), costs.num_model_parameters(model)
    self._gib = f"{cores.limit / _GIB:.1f} GiB"

  def describe(self, train: TrainConfig) -> str:
    """Returns lines that say how well a step fits, or that this is not known.

    Args:
      train: the batch size, the number of accumulation steps, and whether the step uses gradient checkpointing.
    Raises:
      UserError: the step does not fit, and the message says which settings do; or cores and accumulation steps cannot
        share the batch evenly.
    """
    length, positions = self._step.length, self._model.max_position_embeddings
    if length > positions:
      raise UserError(f"--max_seq_length={length}: lower it, or raise --max_position_embeddings, which is {positions}")
    parts = self._cores.num_cores * train.gradient_accumulation_steps
    if train.train_batch_size % parts:
      card = f"{self._cores.chip}-{self._cores.num_cores}gb"
      hint = f"; a card of {self._cores.num_cores} GB is --chip={card}" if card in costs.GPU_GIB else ""
      raise UserError(
        f"--train_batch_size={train.train_batch_size} cannot be shared evenly by {self._cores.num_cores} "
        f"{self._cores.unit}s x {train.gradient_accumulation_steps} accumulation steps: give a multiple of {parts}"
        f"{hint}"
      )
    rows, is_too_large = self._rows(train), self._is_too_large(train)
    if not rows or (is_too_large and train.shard_optimizer_state):
      return self._estimate(train)
    times = f" ({train.gradient_accumulation_steps} times per step)" if train.gradient_accumulation_steps > 1 else ""
    batch = (
      f"{self._model_name} on {self._cores.name}: {self._micro_batch(train)} examples of {self._step.length} tokens on "
      f"each of {self._cores.num_cores} cores{times}"
    )
    # The batches of the table next to the limit.
    rows = [row for row in rows if row.length == self._step.length and row.gradient_accumulation_steps == 1]
    known = [f"{max(trial.batch for trial in row.fits)} fit" for row in rows if row.fits]
    known += [f"{min(trial.batch for trial in row.too_large)} do not" for row in rows if row.too_large]
    if bound := self._find_bound(train):
      num_bytes, word, compiled = bound
      size = f"all of {self._gib}" if num_bytes > self._cores.limit else f"{num_bytes / _GIB:.1f} of {self._gib}"
      line = f"{batch} fit; they take {word}{size} (compiled {compiled}, not run)"
      return f"{line}\nof this length, {', '.join(known)}" if known else line
    limits = f"{self._gib} ({', '.join(known)})" if known else self._gib
    if is_too_large:
      raise UserError(f"{batch} do not fit into {limits}: {self._remedy(train)}")
    return f"{batch}: not known whether they fit into {limits}; {self._remedy(train)}"

  def _micro_batch(self, train: TrainConfig) -> int:
    """Returns the examples that a core computes at a time."""
    return train.train_batch_size // (self._cores.num_cores * train.gradient_accumulation_steps)

  def _rows(self, train: TrainConfig) -> list[CompiledStep]:
    """Returns the rows of the table for the step, with any length. With accumulation it takes at least as much."""
    key = (self._step.name, self._model_name, self._cores.chip, train.recompute_grad)
    return [
      row
      for row in self._table.steps
      if (row.step, row.model, row.chip, row.recompute_grad) == key
      and (row.gradient_accumulation_steps == 1 or train.gradient_accumulation_steps > 1)
    ]

  def _find_bound(self, train: TrainConfig) -> tuple[int, str, str] | None:
    """Returns the bytes that a step takes on a core, "", "at most " or "about ", and the date of the compilation.

    Returns None if no bound within the limit is known. The bound is a compiled step with longer sequences or more of
    them. With accumulation it is also a step without accumulation, plus the sums of the gradients; if that exceeds the
    limit, the activations of fewer sequences are taken to need less in proportion.
    """
    sums = _BYTES_PER_GRADIENT * self._num_parameters if train.gradient_accumulation_steps > 1 else 0
    micro_batch = self._micro_batch(train)
    bounds = []
    for row in self._rows(train):
      extra = sums if row.gradient_accumulation_steps == 1 else 0
      for trial in row.fits:
        size = trial.batch // row.gradient_accumulation_steps
        if row.length < self._step.length or size < micro_batch:
          continue
        is_exact = size == micro_batch and row.length == self._step.length and not extra
        num_bytes, word = trial.bytes + extra, "" if is_exact else "at most "
        if extra and num_bytes > self._cores.limit:
          fixed = _BYTES_PER_PARAMETER * self._num_parameters
          num_bytes, word = fixed + extra + (trial.bytes - fixed) * micro_batch // size, "about "
        # A step that was compiled fits, even if its parts, some of which share memory, add up to more than the limit.
        if not extra or num_bytes <= self._cores.limit:
          bounds.append((num_bytes, word, row.compiled))
    return min(bounds, default=None)

  def _is_too_large(self, train: TrainConfig) -> bool:
    """Whether the compiler rejected a step with sequences that are not longer, and not more of them."""
    return any(
      row.length <= self._step.length and trial.batch // row.gradient_accumulation_steps <= self._micro_batch(train)
      for row in self._rows(train)
      for trial in row.too_large
    )

  def _remedy(self, train: TrainConfig) -> str:
    """Returns the settings with the fewest accumulation steps that are known to fit the same batch."""
    found = []
    cores = self._cores.num_cores
    for recompute_grad in (False, True):
      for number in range(1, train.train_batch_size // cores + 1):
        if train.train_batch_size % (cores * number):
          continue
        other = dataclasses.replace(train, gradient_accumulation_steps=number, recompute_grad=recompute_grad)
        if self._find_bound(other):
          flags = [f"--gradient_accumulation_steps={number}"] if number != train.gradient_accumulation_steps else []
          flags += [format_flag("recompute_grad", recompute_grad)] if recompute_grad != train.recompute_grad else []
          found.append(f"{' '.join(flags)} ({self._micro_batch(other)} at a time)")
          break
    if found:
      return f"give {' or '.join(found)}, with which the same batch should fit"
    if self._is_too_large(dataclasses.replace(train, train_batch_size=cores, gradient_accumulation_steps=1)):
      return f"not even one does: give {self._sharding(train)}a smaller model, or another TPU"
    return "no number of accumulation steps is known with which this batch should fit"

  def _sharding(self, train: TrainConfig) -> str:
    """Returns the flag that divides the moments, if it can be given."""
    return "--shard_optimizer_state or " if self._cores.num_cores > 1 and not train.shard_optimizer_state else ""

  def _estimate(self, train: TrainConfig) -> str:
    """Returns lines about a step that is not in the table. Raises UserError if the weights alone do not fit."""
    cores = self._cores
    moments = 0.5 / cores.num_cores if train.shard_optimizer_state else 0.5  # half of the bytes, unless divided
    weights = self._num_parameters * _BYTES_PER_PARAMETER * (0.5 + moments)
    known = f"weights, gradients and moments take {weights / _GIB:.1f} of {self._gib}"
    if weights > cores.limit:
      raise UserError(f"{cores.name}: {known}, so no batch fits: give {self._sharding(train)}a smaller model")
    precision, _ = costs.resolve_speed(cores.name, cores.chip, train.precision)
    scale = (_GPU_ACTIVATIONS if cores.chip in costs.GPU_GIB else 1) * (2 if precision == "float32" else 1)
    per_sequence = scale * activation_bytes(self._model, self._step.length, recompute_grad=train.recompute_grad)
    largest = int((cores.limit - weights) / (per_sequence * self._step.sequences_per_example))
    share = train.train_batch_size // cores.num_cores
    sizes = [size for size in range(1, largest + 1) if share % size == 0]
    line = f"this batch has {self._micro_batch(train)} at a time for each {cores.unit}"
    if self._micro_batch(train) > largest:
      remedy = (
        f"--gradient_accumulation_steps={share // sizes[-1]} ({sizes[-1]} at a time)" if sizes else "a smaller model"
      )
      line = f"warning: {line}, too many: give {remedy}"
    return (
      f"memory of {cores.name}, estimated within a factor of 2: {known}, and {largest} examples of {self._step.length} "
      f"tokens fit\n{line}"
    )
