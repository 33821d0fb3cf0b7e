"""The TPUs that programs are compiled for, and their public figures (cloud.google.com/tpu/docs)."""

from __future__ import annotations

import dataclasses

# Cores that train together in a compiled program: one host of v3, one of v5e.
NUM_CORES = 8


@dataclasses.dataclass(frozen=True)
class Chip:
  """One core (what TensorFlow calls a replica), as the roofline needs it.

  Attributes:
    topology: NUM_CORES of them, by libtpu's name.
    flops: of bfloat16 matrices, a second.
    bandwidth: bytes a second from and to HBM.
    hbm: bytes; the compiler keeps some of it for itself.
  """

  topology: str
  flops: float
  bandwidth: float
  hbm: int


# A v3 chip has 123 TFLOP/s, 900 GB/s and 32 GiB for its two cores; a v5e chip has one.
CHIPS = {
  "v3": Chip("v3:2x2", 61.5e12, 450e9, 16 << 30),
  "v5e": Chip("v5e:2x4", 197e12, 819e9, 16 << 30),
}


def roofline_seconds(chip: Chip, flops: float, num_bytes: float) -> float:
  """The least time in which a core can do so many operations and move so many bytes, if it does both at once."""
  return max(flops / chip.flops, num_bytes / chip.bandwidth)
