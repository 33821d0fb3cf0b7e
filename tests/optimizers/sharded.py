"""Trains a few weights on logical CPU devices with sharded moments and gradients, and saves weights and moments.

tests/optimizers/test_sharding.py runs this program in a process of its own, because a CPU can be divided into devices
only before TensorFlow uses it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from albert.optimizers.adamw import AdamW
from albert.optimizers.gradients import Sharding, densify
from albert.optimizers.lamb import LAMB

OPTIMIZERS: dict[str, Any] = {"lamb": LAMB, "adamw": AdamW}
OPTIONS: dict[str, Any] = {"learning_rate": 0.05, "bias_correction": True}
NUM_STEPS = 6
# Number of replicas -> the share of the gradients that each has. Products with powers of 2 are exact.
SHARES = {2: [0.75, 0.25], 4: [0.5, 0.25, 0.125, 0.125]}


@functools.cache
def _strategy(num_replicas: int) -> tf.distribute.MirroredStrategy:
  """Makes one strategy for all calls: TensorFlow numbers the sums of each strategy anew, and confuses those of two."""
  return tf.distribute.MirroredStrategy(
    [device.name for device in tf.config.list_logical_devices("CPU")][:num_replicas]
  )


def train(
  name: str,
  num_replicas: int,
  steps: range,
  state: dict[str, Any] | None = None,
  bad_elements: Mapping[int, tuple[int, str, tuple[int, ...]]] | None = None,
) -> dict[str, Any]:
  """Does updates.

  Args:
    name: a key of OPTIMIZERS.
    num_replicas: number of replicas, a key of SHARES.
    steps: the numbers of the updates.
    state: the state after the previous step; None for the initial weights.
    bad_elements: step -> replica, weight and position, where the gradient is infinite. If there are any, the optimizer
      skips weights whose gradient is not finite.

  Returns:
    The weights, moments and the number of updates, by name.
  """
  from tests.optimizers.test_lamb_adamw import initial_weights, make_gradients

  strategy = _strategy(num_replicas)
  with strategy.scope():
    variables = {key: tf.Variable(value, name=key) for key, value in initial_weights().items()}
    optimizer = OPTIMIZERS[name](**OPTIONS)
    optimizer.sharding = Sharding.of_strategy(strategy)
    optimizer.skips_not_finite = bool(bad_elements)
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
      replica = tf.distribute.get_replica_context().replica_id_in_sync_group
      dense = {key: densify(gradients[key][replica]) for key in variables}
      parts = optimizer.sharding.sum_gradients(dense, variables)
      pairs = [(parts[key].value, variable) for key, variable in variables.items()]
      optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

    strategy.run(update_on_replica)

  for step in steps:
    shares = np.array(SHARES[num_replicas], np.float32)
    gradients = {key: np.multiply.outer(shares, gradient) for key, gradient in make_gradients(step).items()}
    if bad_elements and step in bad_elements:
      replica, key, position = bad_elements[step]
      gradients[key][replica][position] = np.inf
    update({key: tf.constant(gradient) for key, gradient in gradients.items()})
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
    directory: holds half-*.npz. It gets half-R.npz, full-R.npz, bad-R.npz and, for each half-X.npz, X-then-R.npz, where
      R is the number of replicas.
    num_replicas: R, 2 or 4.
  """
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(num_replicas))
  half = NUM_STEPS // 2
  for name in OPTIMIZERS:
    folder = Path(directory, name)
    np.savez(folder / f"full-{num_replicas}.npz", **train(name, int(num_replicas), range(NUM_STEPS)))
    np.savez(folder / f"half-{num_replicas}.npz", **train(name, int(num_replicas), range(half)))
    # In step 1, only the last replica has an infinite gradient, in a row of the part of the first one.
    bad_elements = {1: (int(num_replicas) - 1, "dense/kernel", (1, 2))}
    bad = train(name, int(num_replicas), range(NUM_STEPS), bad_elements=bad_elements)
    np.savez(folder / f"bad-{num_replicas}.npz", **bad)
    for path in folder.glob("half-*.npz"):
      state = train(name, int(num_replicas), range(half, NUM_STEPS), dict(np.load(path)))
      np.savez(folder / f"{path.stem.removeprefix('half-')}-then-{num_replicas}.npz", **state)


if __name__ == "__main__":
  main(*sys.argv[1:])
