"""The files of an exported training step, and a reader that needs only NumPy.

A package is a directory:

  manifest.json       a Manifest
  step-B.stablehlo    the step for batches of B sequences, a portable artifact of StableHLO
  records.npz         records of pretraining shards, in the order of the training stream; each feature is [N, ...]

The arguments of a step are the variables, the features of the batch and the number of the replica, which is 0. Its
results are the new values of the variables. Initial weights are not stored: `initial_values` draws them from a seed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# The modules of this folder that run a package. They are copied to it, and import neither TensorFlow nor albert.
RUNNERS = ("__init__", "compare", "devices", "jax_step", "step_package", "timing", "transformers_step")
MANIFEST_FILE, RECORDS_FILE = "manifest.json", "records.npz"
# The types in which integers are stored: the first one that holds all values of a feature.
_STORED_TYPES = ("uint8", "uint16", "int32")
# A truncated normal distribution has no values beyond this many standard deviations, as in TensorFlow.
_TRUNCATION = 2.0


@dataclasses.dataclass(frozen=True)
class VariableSpec:
  """A variable of the step.

  Attributes:
    name: its name in a checkpoint; for variables that no checkpoint holds, the name that TensorFlow gives it.
    shape: its shape.
    dtype: NumPy's name of its type.
    initial: the initial value, if `stddev` is 0.
    stddev: standard deviation of the truncated normal distribution that the initial values are drawn from; 0 if all
      elements are `initial`.
  """

  name: str
  shape: tuple[int, ...]
  dtype: str
  initial: float = 0.0
  stddev: float = 0.0


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
  """A feature of a batch: its name, its shape without the batch size, and NumPy's name of its type."""

  name: str
  shape: tuple[int, ...]
  dtype: str


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The description of an exported step.

  Attributes:
    model_name: a name of albert.config.model.MODELS.
    model: the fields of its ModelConfig.
    length: S, tokens in a sequence.
    predictions: P, masked positions in a sequence, with padding.
    precision: "float32" or "bfloat16", the type of matrix products and activations. Variables are float32.
    batch_sizes: the batch sizes for which there is a program.
    flops_per_sequence: floating-point operations of matrix products for a sequence, forward and backward.
    optimizer: the fields of OptimizerConfig.
    num_train_steps: number of steps that the schedule of the learning rate was made for.
    versions: package -> version that the step was exported with.
    variables: the variables, in the order of the arguments.
    features: the features of a batch, in the order of the arguments.
    metrics: name of a metric -> indices of the two variables that sum its values and its weights over the steps.
  """

  model_name: str
  model: dict[str, Any]
  length: int
  predictions: int
  precision: str
  batch_sizes: tuple[int, ...]
  flops_per_sequence: float
  optimizer: dict[str, Any]
  num_train_steps: int
  versions: dict[str, str]
  variables: tuple[VariableSpec, ...]
  features: tuple[FeatureSpec, ...]
  metrics: dict[str, tuple[int, int]]

  def write(self, directory: Path) -> None:
    """Writes the manifest to a package."""
    (directory / MANIFEST_FILE).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")

  @staticmethod
  def read(directory: Path) -> Manifest:
    """Reads the manifest of a package."""
    values = json.loads((directory / MANIFEST_FILE).read_text(encoding="utf-8"))
    values["variables"] = tuple(VariableSpec(**{**v, "shape": tuple(v["shape"])}) for v in values["variables"])
    values["features"] = tuple(FeatureSpec(**{**f, "shape": tuple(f["shape"])}) for f in values["features"])
    values["metrics"] = {name: (total, weight) for name, (total, weight) in values["metrics"].items()}
    values["batch_sizes"] = tuple(values["batch_sizes"])
    return Manifest(**values)


def program_file(directory: Path, batch_size: int) -> Path:
  """Returns the path of the program for a batch size."""
  return directory / f"step-{batch_size}.stablehlo"


def initial_values(manifest: Manifest, seed: int) -> Iterator[np.ndarray]:
  """Yields the initial values of the variables, in the order of the arguments.

  Each variable has its own random generator, made from the seed and the variable's number. The values follow the
  distributions of the model's initializers. They are not those that TensorFlow draws for the same seed.

  Args:
    manifest: the description of the step.
    seed: seed of the random weights.
  """
  for number, variable in enumerate(manifest.variables):
    if not variable.stddev:
      yield np.full(variable.shape, variable.initial, variable.dtype)
      continue
    rng = np.random.default_rng([seed, number])
    values = rng.standard_normal(variable.shape, np.float32)
    while (is_outside := np.abs(values) > _TRUNCATION).any():
      values[is_outside] = rng.standard_normal(int(is_outside.sum()), np.float32)
    yield (variable.stddev * values).astype(variable.dtype)


def write_records(directory: Path, records: dict[str, np.ndarray]) -> None:
  """Writes records to a package. Each feature is stored in the smallest type that holds its values without rounding.

  Args:
    directory: the package.
    records: feature -> values of all records, [N, ...].
  """
  smaller = {}
  for name, values in records.items():
    types = (dtype for dtype in _STORED_TYPES if np.array_equal(values.astype(dtype), values))
    smaller[name] = values.astype(next(types, values.dtype))
  np.savez_compressed(directory / RECORDS_FILE, allow_pickle=False, **smaller)


class Records:
  """The records of a package.

  Args:
    directory: the package.
    manifest: the description of the step.
  """

  def __init__(self, directory: Path, manifest: Manifest):
    with np.load(directory / RECORDS_FILE) as stored:
      self._features = {spec.name: stored[spec.name].astype(spec.dtype) for spec in manifest.features}
    self.num_records = len(next(iter(self._features.values())))

  def batch(self, number: int, batch_size: int) -> dict[str, np.ndarray]:
    """Returns a batch: feature -> values [B, ...]. After the last record, the first one follows again.

    Args:
      number: the number of the batch, from 0 on.
      batch_size: B.
    """
    rows = np.arange(number * batch_size, (number + 1) * batch_size) % self.num_records
    return {name: values[rows] for name, values in self._features.items()}
