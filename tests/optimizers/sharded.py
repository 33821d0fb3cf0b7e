"""Trains a few weights on logical CPU devices with sharded moments, and saves weights and moments.

tests/optimizers/test_sharding.py runs this program in a process of its own, because a CPU can be divided into devices
only before TensorFlow uses it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from albert.optimizers.adamw import AdamW
from albert.optimizers.lamb import LAMB

OPTIMIZERS: dict[str, Any] = {"lamb": LAMB, "adamw": AdamW}
OPTIONS: dict[str, Any] = {"learning_rate": 0.05, "bias_correction": True}
NUM_STEPS = 6


def train(name: str, num_replicas: int, steps: range, state: dict[str, Any] | None) -> dict[str, Any]:
  """Does updates.

  Args:
    name: a key of OPTIMIZERS.
    num_replicas: number of replicas, each of which gets the same gradients.
    steps: the numbers of the updates.
    state: the state after the previous step; None for the initial weights.

  Returns:
    The weights, moments and the number of updates, by name.
  """
  from tests.optimizers.test_lamb_adamw import initial_weights, make_gradients

  devices = [device.name for device in tf.config.list_logical_devices("CPU")][:num_replicas]
  strategy = tf.distribute.MirroredStrategy(devices)
  with strategy.scope():
    variables = {key: tf.Variable(value, name=key) for key, value in initial_weights().items()}
    optimizer = OPTIMIZERS[name](**OPTIONS)
    optimizer.num_shards = num_replicas
    optimizer.build(list(variables.values()))
  holders = {"iterations": optimizer.iterations, **variables}
  for key, variable in variables.items():
    holders |= {f"{key}/{slot}": moment for slot, moment in optimizer.slots(variable).items()}
  with strategy.scope():  # as a resumed run does
    for key, value in (state or {}).items():
      holders[key].assign(value)

  @tf.function(autograph=False)
  def update(gradients: dict[str, tf.Tensor]) -> None:
    def update_on_replica() -> None:
      pairs = [(gradients[key], variable) for key, variable in variables.items()]
      optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

    strategy.run(update_on_replica)

  for step in steps:
    update({key: tf.constant(value) for key, value in make_gradients(step).items()})
  for variable in variables.values():
    copies = strategy.experimental_local_results(variable)
    assert all(np.array_equal(copies[0], copy) for copy in copies), variable.name
  if num_replicas > 1:  # each replica holds a part: of five rows, three with two replicas and two with four
    parts = strategy.experimental_local_results(optimizer.slots(variables["dense/kernel"])["adam_m"].part)
    assert [part.shape for part in parts] == [[-(-5 // num_replicas), 3]] * num_replicas
  return {key: np.asarray(tf.convert_to_tensor(holder)) for key, holder in holders.items()}


def main(directory: str, num_replicas: str) -> None:
  """Does all steps, and continues every state of the directory, which was saved after half of the steps.

  TensorFlow cannot sum over groups of different numbers of devices in one process.

  Args:
    directory: holds half-*.npz. It gets half-R.npz, full-R.npz and, for each half-X.npz, X-then-R.npz, where R is the
      number of replicas.
    num_replicas: R, 2 or 4.
  """
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(num_replicas))
  half = NUM_STEPS // 2
  for name in OPTIMIZERS:
    folder = Path(directory, name)
    np.savez(folder / f"full-{num_replicas}.npz", **train(name, int(num_replicas), range(NUM_STEPS), None))
    np.savez(folder / f"half-{num_replicas}.npz", **train(name, int(num_replicas), range(half), None))
    for path in folder.glob("half-*.npz"):
      state = train(name, int(num_replicas), range(half, NUM_STEPS), dict(np.load(path)))
      np.savez(folder / f"{path.stem.removeprefix('half-')}-then-{num_replicas}.npz", **state)


if __name__ == "__main__":
  main(*sys.argv[1:])
