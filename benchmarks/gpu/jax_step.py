"""Runs an exported training step with JAX, without TensorFlow and without this project's library.

  python -m benchmarks.gpu.jax_step PACKAGE --batch_size=32

It prints a line of JSON (timing.Measurement). The device is JAX's default device; JAX_PLATFORMS=cpu selects the
processor.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from benchmarks.gpu import step_package, timing
from benchmarks.gpu.step_package import Manifest, Records

MASKED_LM_LOSS = "masked_lm_loss"
# The number of updates and the number of the first bad step are int64.
jax.config.update("jax_enable_x64", True)


class JaxStep:
  """An exported training step, with its variables on the default device of JAX.

  Args:
    directory: the package.
    batch_size: one of the manifest's batch sizes.
    seed: seed of the initial weights.
  """

  def __init__(self, directory: Path, batch_size: int, seed: int = 0):
    self.manifest = Manifest.read(directory)
    self.batch_size = batch_size
    self.records = Records(directory, self.manifest)
    self.variables = [jax.device_put(values) for values in step_package.initial_values(self.manifest, seed)]
    self.num_steps = 0
    self._program = step_package.program_file(directory, batch_size).read_bytes()

  @functools.cached_property
  def _step(self) -> jax.stages.Compiled:
    """The compiled step. The first update compiles it."""
    return _compile(self._program, self.manifest, self.batch_size)

  def run(self, num_steps: int) -> None:
    """Does updates, each with the next batch. Returns before the device has finished them."""
    for _ in range(num_steps):
      batch = self.records.batch(self.num_steps, self.batch_size)
      self.variables = self._step(self.variables, [batch[f.name] for f in self.manifest.features], np.int32(0))
      self.num_steps += 1

  def metrics_and_reset(self) -> dict[str, float]:
    """Returns the mean of each metric over the steps since the last call, and waits for the device."""
    means = {}
    for name, indices in self.manifest.metrics.items():
      total, weight = (float(self.variables[index]) for index in indices)
      means[name] = total / weight if weight else 0.0
      for index in indices:
        self.variables[index] = jax.device_put(np.zeros_like(self.variables[index]))
    return means

  def save(self, path: Path) -> None:
    """Writes all variables to an .npz file, by their names."""
    names = (variable.name for variable in self.manifest.variables)
    np.savez(
      path, allow_pickle=False, **{name: np.asarray(value) for name, value in zip(names, self.variables, strict=True)}
    )


def _compile(program: bytes, manifest: Manifest, batch_size: int) -> jax.stages.Compiled:
  """Compiles a program for the default device.

  JAX exports a placeholder with the types of the program, and the placeholder's module is replaced. So everything else
  in the exported function is what the installed version of JAX expects.

  Args:
    program: a portable artifact of StableHLO.
    manifest: the description of the step.
    batch_size: B.

  Returns:
    A function (variables, features of the batch, number of the replica) -> new variables, which use the memory of the
    old ones.
  """
  variables = [jax.ShapeDtypeStruct(spec.shape, np.dtype(spec.dtype)) for spec in manifest.variables]
  features = [jax.ShapeDtypeStruct((batch_size, *f.shape), np.dtype(f.dtype)) for f in manifest.features]
  types = (variables, features, jax.ShapeDtypeStruct((), np.int32))

  def placeholder(variables: list[Any], features: list[Any], replica: Any) -> list[Any]:
    del features, replica
    return variables

  exported = export.export(jax.jit(placeholder, keep_unused=True))(*types)
  step = dataclasses.replace(exported, mlir_module_serialized=program)
  return jax.jit(step.call, donate_argnums=0).lower(*types).compile()


def main() -> None:
  """Does steps on the default device, and prints a timing.Measurement."""
  parser = timing.make_parser(__doc__)
  parser.add_argument("--variables_file", type=Path, help="write the variables to this .npz file at the end")
  options = parser.parse_args()
  step = JaxStep(options.package, options.batch_size, options.seed)
  device = jax.devices()[0]

  def do_steps(num_steps: int) -> float:
    step.run(num_steps)
    return step.metrics_and_reset()[MASKED_LM_LOSS]  # reads the variables, and so waits for the device

  def peak_memory() -> int:
    return int((device.memory_stats() or {}).get("peak_bytes_in_use", 0))

  timing.measure(do_steps, options, device.device_kind, peak_memory, {"jax": jax.__version__})
  if options.variables_file:
    step.save(options.variables_file)


if __name__ == "__main__":
  main()
