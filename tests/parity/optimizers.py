"""Comparisons of the optimizers with NumPy in float64 and with tensorflow-addons.

`python -m tests.parity.optimizers` prints the comparison with tensorflow-addons as JSON, for benchmarks/parity.py in
another environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from albert.config.run import OptimizerConfig
from albert.errors import UserError
from albert.optimizers.adamw import AdamW
from albert.optimizers.factory import make_optimizer
from albert.optimizers.lamb import LAMB
from albert.optimizers.schedules import WarmupPolynomialDecay
from tests.optimizers.test_factory import train as train_a_little
from tests.optimizers.test_lamb_adamw import train, train_reference
from tests.parity.rows import Row, Unavailable, largest_difference

STEPS = 7
TOLERANCE = 5e-6  # the weights are about 1 to 3


def numpy_rows() -> Iterator[Row]:
  """Compares both optimizers, with and without bias correction.

  The weights include biases, LayerNorms, zeros and a variable without gradients.
  """
  for optimizer_class, title in ((LAMB, "LAMB"), (AdamW, "AdamW")):
    for is_corrected in (False, True):
      weights = train(optimizer_class(0.02, weight_decay_rate=0.1, bias_correction=is_corrected), STEPS)
      expected = train_reference(
        lambda _: 0.02, STEPS, rescale=optimizer_class is LAMB, decay=0.1, bias_correction=is_corrected
      )
      quantity = f"{title}, {STEPS} steps{', bias corrected' if is_corrected else ''}: weights"
      difference = max(largest_difference(weights[name], value) for name, value in expected.items())
      yield Row(quantity, "NumPy float64", difference, TOLERANCE)


def addons_rows() -> Iterator[Row]:
  """Compares LAMB with bias correction, which tensorflow-addons always applies.

  Raises:
    Unavailable: tensorflow-addons cannot be imported here.
  """
  schedule = WarmupPolynomialDecay(0.1, 2, 20)
  try:
    theirs = train_a_little(make_optimizer(OptimizerConfig(optimizer="tfa_lamb"), schedule))
  except UserError as error:
    raise Unavailable("tensorflow-addons does not run on this TensorFlow") from error
  import tensorflow_addons

  ours = train_a_little(make_optimizer(OptimizerConfig(optimizer="lamb", bias_correction=True), schedule))
  difference = max(largest_difference(values, expected) for values, expected in zip(ours, theirs, strict=True))
  compared_with = f"tensorflow-addons {tensorflow_addons.__version__}"
  yield Row("LAMB, 6 steps of a schedule, bias corrected: weights", compared_with, difference, TOLERANCE)


if __name__ == "__main__":
  try:
    print(json.dumps(list(addons_rows())))
  except Unavailable as reason:
    sys.exit(f"{reason}")
