"""The TPUs that programs are compiled for, with their published specifications (docs.cloud.google.com/tpu/docs)."""

from __future__ import annotations

import dataclasses

# Number of cores that train together in a compiled program, unless the program says otherwise.
NUM_CORES = 8


@dataclasses.dataclass(frozen=True)
class Chip:
  """The specification of a TPU, for one core. TensorFlow calls a core a replica.

  A chip of v2 or v3 has two cores. A chip of v4 or v5p has two as well, but programs see both as one ("megacore"). A
  chip of v5e or v6e has one.

  Attributes:
    topologies: number of cores -> libtpu's name of a topology with that many.
    flops: peak floating-point operations per second in products of bfloat16 matrices.
    bandwidth: bytes per second between the core and its memory (HBM).
    hbm: bytes of HBM. The compiler reserves some of them.
    config: libtpu's name of the configuration of the chip's cores; "" for the default.
    units_per_core: what the number in the name of a TPU, such as v4-8, counts for a core.
  """

  topologies: dict[int, str]
  flops: float
  bandwidth: float
  hbm: int
  config: str = ""
  units_per_core: int = 1


# For its two cores together, a v2 chip has 46 TFLOP/s, 700 GB/s and 16 GiB, a v3 chip 123 TFLOP/s, 900 GB/s and 32 GiB.
CHIPS = {
  "v2": Chip({NUM_CORES: "v2:2x2"}, 23e12, 350e9, 8 << 30),
  "v3": Chip({NUM_CORES: "v3:2x2", 512: "v3:16x16"}, 61.5e12, 450e9, 16 << 30),
  "v5e": Chip({NUM_CORES: "v5e:2x4"}, 197e12, 819e9, 16 << 30),
  "v4": Chip({NUM_CORES: "v4:2x2x2"}, 275e12, 1228e9, 32 << 30, config="megacore", units_per_core=2),
  "v5p": Chip({NUM_CORES: "v5p:2x2x2"}, 459e12, 2765e9, 95 << 30, units_per_core=2),
  "v6e": Chip({NUM_CORES: "v6e:2x4"}, 918e12, 1640e9, 32 << 30),
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
