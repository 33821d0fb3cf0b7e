"""Says whether a training step fits into the memory of a TPU, from a table of compiled steps. Needs no TensorFlow.

The table is tpu_memory.json beside this module. benchmarks/tpu_aot.py makes it: it compiles the steps for a TPU and
reads from the compiler how many bytes each of them takes. No step of the table was run on a TPU.

Letters: a core is a replica of TensorFlow; a micro-batch is what a core computes at a time, which is its share of the
batch divided by the number of accumulation steps.
"""

from __future__ import annotations

import dataclasses
import os
import re

import msgspec

from albert.config.model import MODELS, ModelConfig
from albert.errors import UserError
from albert.io import files
from albert.weights.names import encoder_shapes, num_parameters

TABLE_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tpu_memory.json")
_GIB = 1 << 30
_BYTES_PER_GRADIENT = 4
# A weight, its two moments and its gradient, in float32.
_BYTES_PER_PARAMETER = 16


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
  """The cores of a TPU.

  Attributes:
    name: as the user gave it, such as "v4-32".
    chip: a key of MemoryTable.chips.
    num_cores: number of cores, which are replicas of TensorFlow.
    limit: bytes of HBM that a program can use on a core.
  """

  name: str
  chip: str
  num_cores: int
  limit: int


def parse_slice(name: str, table: MemoryTable) -> Slice:
  """Parses --chip: the kind of a TPU, such as "v3", or its kind and size, such as "v3-512".

  Without a size it is a TPU of one host: v3-8, v4-8, v5e-8, v5p-8 or v6e-8.

  Raises:
    UserError: the table has no such kind, or there is no such size.
  """
  chip, dash, size = name.partition("-")
  if chip not in table.chips:
    raise UserError(
      f"--chip={name}: not in the table of compiled steps; known: {', '.join(table.chips)}, also with a size, as "
      f"{next(iter(table.chips))}-32"
    )
  memory = table.chips[chip]
  if dash and not re.fullmatch(r"[1-9]\d{0,5}", size):
    raise UserError(f"--chip={name}: the size must be a number from 1 to 999999, as in {chip}-32")
  units = int(size) if dash else 8
  if units % memory.units_per_core:
    raise UserError(
      f"--chip={name}: the size of a {chip} counts {memory.units_per_core} for each core: give an even one"
    )
  return Slice(f"{chip}-{units}", chip, units // memory.units_per_core, memory.limit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSettings:
  """What decides how much memory a training step takes.

  Attributes:
    step: see CompiledStep.
    model: the model.
    length: tokens in a sequence.
    train_batch_size: examples per update, on all cores.
    gradient_accumulation_steps: number of micro-batches per update.
    recompute_grad: whether the step uses gradient checkpointing.
    sequences_per_example: 4 for a question with four options, else 1.
  """

  step: str
  model: ModelConfig
  length: int
  train_batch_size: int
  gradient_accumulation_steps: int = 1
  recompute_grad: bool = False
  sequences_per_example: int = 1

  @property
  def model_name(self) -> str:
    """The model of the table that takes at least as much memory; "" if there is none.

    It differs in nothing but the initializer, the dropout of the task head and the size of the vocabulary, which is not
    smaller in the table.
    """
    for name, known in MODELS.items():
      similar = dataclasses.replace(
        known,
        vocab_size=self.model.vocab_size,
        initializer_range=self.model.initializer_range,
        classifier_dropout_prob=self.model.classifier_dropout_prob,
      )
      if similar == self.model and self.model.vocab_size <= known.vocab_size:
        return name
    return ""

  def micro_batch(self, num_cores: int) -> int:
    """Returns the examples that a core computes at a time.

    Raises:
      UserError: cores and accumulation steps cannot share the batch evenly.
    """
    parts = num_cores * self.gradient_accumulation_steps
    if self.train_batch_size % parts:
      raise UserError(
        f"--train_batch_size={self.train_batch_size} cannot be shared evenly by {num_cores} cores x "
        f"{self.gradient_accumulation_steps} accumulation steps: give a multiple of {parts}"
      )
    return self.train_batch_size // parts


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
  """Compares training steps with the table.

  Args:
    table: the table.
    cores: the TPU.
  """

  def __init__(self, table: MemoryTable, cores: Slice):
    self._table = table
    self._cores = cores
    self._gib = f"{cores.limit / _GIB:.1f} GiB"

  def describe(self, settings: StepSettings) -> str:
    """Returns a line that says how well a step fits, or that this is not known.

    Raises:
      UserError: the step does not fit; the message says which settings do.
    """
    micro_batch = settings.micro_batch(self._cores.num_cores)
    times = f", {settings.gradient_accumulation_steps} times" if settings.gradient_accumulation_steps > 1 else ""
    batch = f"{micro_batch} examples of {settings.length} tokens on each of {self._cores.num_cores} cores{times}"
    rows = self._rows(settings)
    if not rows:
      return f"{self._estimate(settings)}; this batch is {batch}"
    batch = f"{settings.model_name} on {self._cores.name}: {batch}"
    if bound := self._find_bound(settings):
      num_bytes, is_exact, compiled = bound
      size = f"all of {self._gib}" if num_bytes > self._cores.limit else f"{num_bytes / _GIB:.1f} of {self._gib}"
      return f"{batch} fit; they take {'' if is_exact else 'at most '}{size} (compiled {compiled}, not run)"
    # The batches of the table next to the limit.
    rows = [row for row in rows if row.length == settings.length and row.gradient_accumulation_steps == 1]
    parts = [f"{max(trial.batch for trial in row.fits)} fit" for row in rows if row.fits]
    parts += [f"{min(trial.batch for trial in row.too_large)} do not" for row in rows if row.too_large]
    limits = f"{self._gib} ({', '.join(parts)})" if parts else self._gib
    if self._is_too_large(settings):
      raise UserError(f"{batch} do not fit into {limits}: {self._remedy(settings)}")
    return f"{batch}: not known whether they fit into {limits}; {self._remedy(settings)}"

  def _rows(self, settings: StepSettings) -> list[CompiledStep]:
    """Returns the rows of the table for the step, with any length. With accumulation it takes at least as much."""
    key = (settings.step, settings.model_name, self._cores.chip, settings.recompute_grad)
    return [
      row
      for row in self._table.steps
      if (row.step, row.model, row.chip, row.recompute_grad) == key
      and (row.gradient_accumulation_steps == 1 or settings.gradient_accumulation_steps > 1)
    ]

  def _find_bound(self, settings: StepSettings) -> tuple[int, bool, str] | None:
    """Returns the bytes that a step takes on a core, whether exactly or at most, and the date of the compilation.

    Returns None if no bound within the limit is known. The bound is a compiled step with longer sequences or more of
    them. With accumulation it is also a step without accumulation, plus the sums of the gradients.
    """
    accumulates = settings.gradient_accumulation_steps > 1
    sums = _BYTES_PER_GRADIENT * num_parameters(encoder_shapes(settings.model)) if accumulates else 0
    micro_batch = settings.micro_batch(self._cores.num_cores)
    bounds = []
    for row in self._rows(settings):
      extra = sums if row.gradient_accumulation_steps == 1 else 0
      for trial in row.fits:
        size = trial.batch // row.gradient_accumulation_steps
        # A step that was compiled fits, even if its parts, some of which share memory, add up to more than the limit.
        fits = not extra or trial.bytes + extra <= self._cores.limit
        if row.length >= settings.length and size >= micro_batch and fits:
          is_exact = size == micro_batch and row.length == settings.length and not extra
          bounds.append((trial.bytes + extra, is_exact, row.compiled))
    return min(bounds, default=None)

  def _is_too_large(self, settings: StepSettings) -> bool:
    """Whether the compiler rejected a step with sequences that are not longer, and not more of them."""
    micro_batch = settings.micro_batch(self._cores.num_cores)
    return any(
      row.length <= settings.length and trial.batch // row.gradient_accumulation_steps <= micro_batch
      for row in self._rows(settings)
      for trial in row.too_large
    )

  def _remedy(self, settings: StepSettings) -> str:
    """Returns the settings with the fewest accumulation steps that are known to fit the same batch."""
    found = []
    for recompute_grad in sorted({settings.recompute_grad, True}):
      for number in range(1, settings.train_batch_size // self._cores.num_cores + 1):
        if settings.train_batch_size % (self._cores.num_cores * number):
          continue
        other = dataclasses.replace(settings, gradient_accumulation_steps=number, recompute_grad=recompute_grad)
        if self._find_bound(other):
          flags = [f"--gradient_accumulation_steps={number}"] if number != settings.gradient_accumulation_steps else []
          flags += ["--recompute_grad"] if recompute_grad != settings.recompute_grad else []
          found.append(f"{' '.join(flags)} ({other.micro_batch(self._cores.num_cores)} at a time)")
          break
    if found:
      return f"give {' or '.join(found)}, with which the same batch fits"
    one_each = dataclasses.replace(settings, train_batch_size=self._cores.num_cores, gradient_accumulation_steps=1)
    if self._is_too_large(one_each):
      return "not even one does: give a smaller model or another TPU"
    return "no number of accumulation steps is known with which this batch fits"

  def _estimate(self, settings: StepSettings) -> str:
    """Returns a line about a step that is not in the table. Raises UserError if the weights alone do not fit."""
    parameters = num_parameters(encoder_shapes(settings.model))
    weights = parameters * _BYTES_PER_PARAMETER
    known = (
      f"--chip={self._cores.name}: {settings.step}{' with --recompute_grad' if settings.recompute_grad else ''} of "
      f"this model is not in the table of compiled steps. It has {parameters:,} parameters; with moments and gradients "
      f"they take {weights / _GIB:.1f} of {self._gib}"
    )
    if weights > self._cores.limit:
      raise UserError(f"{known}, so no batch fits: give a smaller model")
    per_sequence = activation_bytes(settings.model, settings.length, recompute_grad=settings.recompute_grad)
    largest = (self._cores.limit - weights) // (per_sequence * settings.sequences_per_example)
    return f"{known}. Estimate, within a factor of 2: {largest} examples per core fit"
