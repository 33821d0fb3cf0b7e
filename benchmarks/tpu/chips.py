"""The TPUs that programs are compiled for, with their published specifications (cloud.google.com/tpu/docs)."""

from __future__ import annotations

import dataclasses

# Number of cores that train together in a compiled program. One host has as many, with v3 and with v5e.
NUM_CORES = 8


@dataclasses.dataclass(frozen=True)
class Chip:
  """The specification of a TPU, for one core. TensorFlow calls a core a replica.

  Attributes:
    topology: libtpu's name of a topology with NUM_CORES cores.
    flops: peak floating-point operations per second in products of bfloat16 matrices.
    bandwidth: bytes per second between the core and its memory (HBM).
    hbm: bytes of HBM. The compiler reserves some of them.
  """

  topology: str
  flops: float
  bandwidth: float
  hbm: int


# A v3 chip has 123 TFLOP/s, 900 GB/s and 32 GiB for its two cores together; a v5e chip has one core.
CHIPS = {
  "v3": Chip("v3:2x2", 61.5e12, 450e9, 16 << 30),
  "v5e": Chip("v5e:2x4", 197e12, 819e9, 16 << 30),
}


def roofline_seconds(chip: Chip, flops: float, num_bytes: float) -> float:
  """Returns a lower bound for the seconds of a program on a core.

  The bound would be reached if operations and transfers overlapped completely.

  Args:
    chip: the specification of the core.
    flops: floating-point operations of the program.
    num_bytes: bytes that the program moves from and to HBM.
  """
  return max(flops / chip.flops, num_bytes / chip.bandwidth)
